"""Sessions of several turns: each request holds the conversation before it, with the engine's own answers.

``input_tokens`` is the length of one user message; the prompt of turn t also holds the t messages and answers before
it, as a chat application would send them. A turn whose predecessor failed is sent without that answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.load.schedule import PROMPT_STREAM, stream
from orchestrator.load.tokens import Prompter
from orchestrator.load.workloads import Exchanged, Prompt
from orchestrator.load.workloads.lengths import SessionLengths
from orchestrator.load.workloads.random import SharedPrefix
from orchestrator.spec.load import Workload


class Conversations:
    """``turns`` requests per session."""

    sessions = True
    needs_reply = True

    def __init__(self, workload: Workload, prompter: Prompter, seed: int) -> None:
        self.turns = workload.turns
        self._prompter = prompter
        self._seed = seed
        self._lengths = SessionLengths(workload, workload.turns, seed)
        self._prefix = SharedPrefix(workload, prompter, seed)

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Exchanged]) -> Prompt:
        length = self._lengths.input_tokens(session, turn)
        user = self._prompter.make(stream(self._seed, PROMPT_STREAM, 0, session, turn), length)
        before = sum(part.user_tokens + part.reply_tokens for part in earlier)
        return Prompt(self._prefix.of(phase), tuple(earlier), user, length, self._prefix.tokens + before + length)

    def output_tokens(self, session: int, turn: int) -> int:
        return self._lengths.output_tokens(session, turn)

    def input_tokens(self, session: int, turn: int) -> int:
        lengths = self._lengths
        before = sum(lengths.input_tokens(session, t) + lengths.output_tokens(session, t) for t in range(turn))
        return self._prefix.tokens + before + lengths.input_tokens(session, turn)

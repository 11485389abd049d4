"""Sessions of several turns: each request contains the conversation so far, with the engine's own answers.

``input_tokens`` is the length of one user message. The prompt of turn t also contains the t messages and answers before
it, as a chat application would send them. A turn whose predecessor failed is sent without that answer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.load.workloads.content import Prompter
from orchestrator.load.workloads.random import Drawn, Random
from orchestrator.spec.load import MOST_TURNS, Duration, session_bounds


class ConversationsWorkload(Drawn):
    """``kind: conversations``: ``turns`` requests per session, each ``think_time`` after the answer before it."""

    kind: Literal["conversations"]
    turns: int = Field(default=1, ge=1, le=MOST_TURNS)
    think_time: Duration = 0.0

    def token_bounds(self) -> tuple[int, int | None]:
        """The last turn of a conversation contains all turns before it."""
        return session_bounds(self.input_tokens, self.output_tokens, self.shared_prefix_tokens, self.turns)

    def longer_prompts(self, tokens: int) -> float | None:
        return self._longer_prompts(tokens, self.turns)

    def requests(self, prompter: Prompter, seed: int) -> Conversations:
        return Conversations(self, prompter, seed)


class Conversations(Random):
    """``turns`` requests per session."""

    sessions = True
    needs_reply = True

    def __init__(self, workload: ConversationsWorkload, prompter: Prompter, seed: int) -> None:
        super().__init__(workload, prompter, seed, workload.turns)
        self.think_time_s = workload.think_time

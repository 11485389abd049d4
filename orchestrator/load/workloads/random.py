"""Requests that have nothing in common but an optional shared prefix."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.load.schedule import PROMPT_STREAM, stream
from orchestrator.load.tokens import Content, Prompter
from orchestrator.load.workloads import Exchanged, Prompt
from orchestrator.load.workloads.lengths import SessionLengths
from orchestrator.spec.load import Workload

_PREFIX = {"warmup": 0, "measure": 1}  # the warm-up has a prefix of its own: it must not fill the cache we measure


class SharedPrefix:
    """The same first tokens in every prompt of one phase."""

    def __init__(self, workload: Workload, prompter: Prompter, seed: int) -> None:
        self.tokens = workload.shared_prefix_tokens
        self._made: dict[str, Content] = {}
        if self.tokens:
            for phase, number in _PREFIX.items():
                rng = stream(seed, PROMPT_STREAM, 1, number)
                self._made[phase] = prompter.make(rng, self.tokens)

    def of(self, phase: str) -> Content | None:
        return self._made.get(phase)


class Random:
    """``input_tokens`` random tokens after ``shared_prefix_tokens`` that all requests share."""

    turns = 1
    sessions = False
    needs_reply = False

    def __init__(self, workload: Workload, prompter: Prompter, seed: int) -> None:
        self._prompter = prompter
        self._seed = seed
        self._lengths = SessionLengths(workload, 1, seed)
        self._prefix = SharedPrefix(workload, prompter, seed)

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Exchanged]) -> Prompt:
        length = self._lengths.input_tokens(session, 0)
        user = self._prompter.make(stream(self._seed, PROMPT_STREAM, 0, session), length)
        return Prompt(self._prefix.of(phase), (), user, length, self.input_tokens(session, turn))

    def output_tokens(self, session: int, turn: int) -> int:
        return self._lengths.output_tokens(session, 0)

    def input_tokens(self, session: int, turn: int) -> int:
        return self._prefix.tokens + self._lengths.input_tokens(session, 0)

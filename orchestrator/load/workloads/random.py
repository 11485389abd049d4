"""Random requests, which share nothing but an optional prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field

from orchestrator.load.workloads.content import PROMPT_STREAM, Kind, Message, Prompt, Prompter, SessionLengths, stream
from orchestrator.spec.load import MOST_TOKENS, Lengths, Workload, session_bounds

SAMPLE = range(1000)  # sessions that are drawn to estimate prompt lengths
PREFIX_NUMBER = {"warmup": 0, "measure": 1}  # the warm-up must not fill the cache that is measured
PREFIXES_KEPT = 1024  # in memory; others are drawn again


class Drawn(Workload):
    """The keys of workloads whose messages are drawn at random."""

    input_tokens: Lengths
    output_tokens: Lengths
    shared_prefix_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)  # tokens that prompts begin with
    shared_prefix_count: int = Field(default=1, ge=1, le=MOST_TOKENS)  # number of such prefixes; a session draws one

    def token_bounds(self) -> tuple[int, int | None]:
        return session_bounds(self.input_tokens, self.output_tokens, self.shared_prefix_tokens, turns=1)

    def longer_prompts(self, tokens: int) -> float | None:
        return self._longer_prompts(tokens, turns=1)

    def _longer_prompts(self, tokens: int, turns: int) -> float:
        """The share of prompts longer than ``tokens``: by the bounds of the lengths, else estimated from a sample."""
        (least, most), answered = self.input_tokens.bounds, self.output_tokens.bounds[1]
        if self.shared_prefix_tokens + least > tokens:
            return 1.0
        if most is not None and (turns == 1 or answered is not None):
            longest = self.shared_prefix_tokens + turns * most + (turns - 1) * (answered or 0)
            if longest <= tokens:
                return 0.0
        drawn = SessionLengths(self.input_tokens, self.output_tokens, turns, seed=0)
        lengths = [prompt_tokens(drawn, self.shared_prefix_tokens, at, turn) for at in SAMPLE for turn in range(turns)]
        return float(np.clip(np.mean(np.array(lengths) > tokens), 1 / len(lengths), 1 - 1 / len(lengths)))


class RandomWorkload(Drawn):
    """``kind: random``, the default."""

    kind: Literal["random"] = "random"

    def requests(self, prompter: Prompter, seed: int) -> Random:
        return Random(self, prompter, seed)


class Random(Kind):
    """A shared prefix of ``shared_prefix_tokens``, then ``input_tokens`` random tokens."""

    def __init__(self, workload: Drawn, prompter: Prompter, seed: int, turns: int = 1) -> None:
        self._prompter = prompter
        self._seed = seed
        self._turns = turns
        self.mean_turns = float(turns)
        self._lengths = SessionLengths(workload.input_tokens, workload.output_tokens, turns, seed)
        self._prefix_tokens, self._prefix_count = workload.shared_prefix_tokens, workload.shared_prefix_count
        self.warmup_differs = self._prefix_tokens > 0
        self._prefix = lru_cache(PREFIXES_KEPT)(lambda which: self._message("system", self._prefix_tokens, 1, which))

    def _message(self, role: Literal["system", "user"], tokens: int, *path: int) -> Message:
        """``path``: the path of the random stream that the message is drawn from."""
        return Message(role, (self._prompter.make(stream(self._seed, PROMPT_STREAM, *path), tokens),), tokens)

    def turns(self, session: int) -> int:
        return self._turns

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        which = (session, turn) if self.sessions else (session,)
        user = self._message("user", self._lengths.input_tokens(session, turn), 0, *which)
        messages = (*self._shared(session, phase), *earlier, user)
        return Prompt(messages, sum(message.tokens for message in messages))

    def _shared(self, session: int, phase: str) -> Iterator[Message]:
        which = 0
        if self._prefix_count > 1:  # drawn at random, because replicas already take sessions in turn
            which = int(stream(self._seed, PROMPT_STREAM, 3, session).integers(self._prefix_count))
        if self._prefix_tokens:
            yield self._prefix(which * len(PREFIX_NUMBER) + PREFIX_NUMBER[phase])

    def output_tokens(self, session: int, turn: int) -> int:
        return self._lengths.output_tokens(session, turn)

    def input_tokens(self, session: int, turn: int) -> int:
        return prompt_tokens(self._lengths, self._prefix_tokens, session, turn)


def prompt_tokens(lengths: SessionLengths, prefix_tokens: int, session: int, turn: int) -> int:
    """Length of a prompt that contains everything said before in its session."""
    before = sum(lengths.input_tokens(session, t) + lengths.output_tokens(session, t) for t in range(turn))
    return prefix_tokens + before + lengths.input_tokens(session, turn)

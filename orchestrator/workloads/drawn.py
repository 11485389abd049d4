"""The kinds of workloads whose messages are drawn at random: single requests and conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from orchestrator.spec.load import (
    MOST_TOKENS,
    MOST_TURNS,
    MOST_TURNS_OF_ALL,
    Duration,
    Lengths,
    Workload,
)
from orchestrator.workloads.kind import (
    LENGTH_STREAM,
    PROMPT_STREAM,
    Message,
    Prompt,
    Prompter,
    WorkloadKind,
    stream,
)

BLOCK = 1024  # sessions whose lengths are drawn together
SAMPLE = 1000  # sessions, less than a block, that are drawn to estimate prompt lengths
PREFIX_NUMBER = {"warmup": 0, "measure": 1}  # the warm-up must not fill the cache that is measured
PREFIXES_KEPT = 1024  # in memory; others are drawn again


def draw(lengths: Lengths, size: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.int64]:
    """Token counts, at least 1, of the given shape."""
    if lengths.fixed is not None:
        return np.full(size, lengths.fixed, np.int64)
    if lengths.uniform is not None:
        return rng.integers(lengths.uniform.min, lengths.uniform.max, size, endpoint=True)
    shape = lengths.lognormal
    assert shape is not None
    # `mean` is the mean of the distribution itself: E[X] = exp(mu + sigma^2 / 2)
    values = rng.lognormal(np.log(shape.mean) - shape.sigma**2 / 2, shape.sigma, size)
    return np.clip(np.round(values), shape.min, shape.max or MOST_TOKENS).astype(np.int64)


class SessionLengths:
    """Input and output token counts of every (session, turn) of a point."""

    def __init__(self, asked: Lengths, answered: Lengths, turns: int, seed: int) -> None:
        def block(number: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
            rng = stream(seed, LENGTH_STREAM, number)
            size = (BLOCK, turns)
            inputs = draw(asked, size, rng)
            outputs = draw(answered, size, rng)
            return inputs, outputs, np.cumsum(inputs + outputs, axis=1) - outputs

        self._block = lru_cache(maxsize=16)(block)

    def input_tokens(self, session: int, turn: int) -> int:
        return int(self._block(session // BLOCK)[0][session % BLOCK, turn])

    def output_tokens(self, session: int, turn: int) -> int:
        return int(self._block(session // BLOCK)[1][session % BLOCK, turn])

    def conversation_tokens(self, session: int, turn: int) -> int:
        """Length of a prompt that contains everything said before in its session."""
        return int(self._block(session // BLOCK)[2][session % BLOCK, turn])

    def sample(self) -> NDArray[np.int64]:
        """``conversation_tokens`` of all turns of the first SAMPLE sessions, sorted."""
        return np.sort(self._block(0)[2][:SAMPLE], axis=None)


@lru_cache(MOST_TURNS_OF_ALL)
def _sample(asked: Lengths, answered: Lengths, turns: int) -> NDArray[np.uint32]:
    """``SessionLengths.sample``, drawn once for all deployments. Beyond what uint32 holds no limit
    can be.
    """
    return np.minimum(SessionLengths(asked, answered, turns, seed=0).sample(), 2**32 - 1).astype(
        np.uint32
    )


class Drawn(Workload):
    """The keys of workloads whose messages are drawn at random."""

    input_tokens: Lengths
    output_tokens: Lengths
    # tokens that prompts begin with
    shared_prefix_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    # number of such prefixes; a session draws one
    shared_prefix_count: int = Field(default=1, ge=1, le=MOST_TOKENS)
    converses: ClassVar[bool] = False  # each request continues the conversation of its session

    def session(self) -> tuple[int, float]:
        """Requests of a session, and seconds between an answer and the next request."""
        return 1, 0.0

    def token_bounds(self) -> tuple[int, int | None]:
        """The last turn of a conversation contains all turns before it."""
        least_in, most_in = self.input_tokens.bounds
        least_out, most_out = self.output_tokens.bounds
        prefix = self.shared_prefix_tokens
        turns, _ = self.session()
        least = prefix + turns * (least_in + least_out)
        if most_in is None or most_out is None:
            return least, None
        return least, prefix + turns * (most_in + most_out)

    def longer_prompts(self, tokens: int) -> float:
        """The share of prompts longer than ``tokens``: by the bounds of the lengths, else estimated
        from a sample.
        """
        least, most = self.input_tokens.bounds
        _, answered = self.output_tokens.bounds
        turns, _ = self.session()
        if self.shared_prefix_tokens + least > tokens:
            return 1.0
        if most is not None and (turns == 1 or answered is not None):
            longest = self.shared_prefix_tokens + turns * most + (turns - 1) * (answered or 0)
            if longest <= tokens:
                return 0.0
        drawn = _sample(self.input_tokens, self.output_tokens, turns)
        count = len(drawn)
        fitting_tokens = np.uint32(tokens - self.shared_prefix_tokens)
        fitting = np.searchsorted(drawn, fitting_tokens, side="right")
        return float(np.clip((count - fitting) / count, 1 / count, 1 - 1 / count))

    def requests(self, prompter: Prompter, seed: int) -> Random:
        return Random(self, prompter, seed)


class RandomWorkload(Drawn):
    """``kind: random``, the default: requests that share nothing but an optional prefix."""

    kind: Literal["random"] = "random"


class ConversationsWorkload(Drawn):
    """``kind: conversations``: ``turns`` requests per session, each ``think_time`` after the answer
    before it.

    ``input_tokens`` is the length of one user message. The prompt of turn t also contains the t
    messages and the engine's own answers before it, as a chat application would send them. A turn
    whose predecessor failed is sent without that answer.
    """

    kind: Literal["conversations"]
    turns: int = Field(default=1, ge=1, le=MOST_TURNS)
    think_time: Duration = 0.0
    converses = True

    def session(self) -> tuple[int, float]:
        return self.turns, self.think_time


class Random(WorkloadKind):
    """A shared prefix of ``shared_prefix_tokens``, then ``input_tokens`` random tokens."""

    def __init__(self, workload: Drawn, prompter: Prompter, seed: int) -> None:
        self._prompter = prompter
        self._seed = seed
        self._turns, self.think_time_s = workload.session()
        self.mean_turns = float(self._turns)
        self.sessions = workload.converses
        self.needs_reply = workload.converses
        self._lengths = SessionLengths(
            workload.input_tokens, workload.output_tokens, self._turns, seed
        )
        self._prefix_tokens = workload.shared_prefix_tokens
        self._prefix_count = workload.shared_prefix_count
        self.warmup_differs = self._prefix_tokens > 0
        self._prefix = lru_cache(PREFIXES_KEPT)(self._draw_prefix)

    def _draw_prefix(self, number: int) -> Message:
        return self._message("system", self._prefix_tokens, 1, number)

    def _message(self, role: Literal["system", "user"], tokens: int, *path: int) -> Message:
        """``path``: the path of the random stream that the message is drawn from."""
        return Message(
            role, (self._prompter.make(stream(self._seed, PROMPT_STREAM, *path), tokens),), tokens
        )

    def turns(self, session: int) -> int:
        return self._turns

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        path = (session, turn) if self.sessions else (session,)
        user = self._message("user", self._lengths.input_tokens(session, turn), 0, *path)
        messages = (*self._shared(session, phase), *earlier, user)
        return Prompt(messages, sum(message.tokens for message in messages))

    def _shared(self, session: int, phase: str) -> Iterator[Message]:
        number = 0
        # drawn at random, because replicas already take sessions in turn
        if self._prefix_count > 1:
            rng = stream(self._seed, PROMPT_STREAM, 3, session)
            number = int(rng.integers(self._prefix_count))
        if self._prefix_tokens:
            yield self._prefix(number * len(PREFIX_NUMBER) + PREFIX_NUMBER[phase])

    def output_tokens(self, session: int, turn: int) -> int:
        return self._lengths.output_tokens(session, turn)

    def input_tokens(self, session: int, turn: int) -> int:
        return self._prefix_tokens + self._lengths.conversation_tokens(session, turn)

"""The kinds of workloads whose messages are drawn at random: single requests and conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
# Phases have different prefixes, because the warm-up must not fill the cache that is measured.
PREFIX_NUMBER = {"warmup": 0, "measure": 1}
PREFIXES_KEPT = 1024  # in memory; others are drawn again
BLOCKS_KEPT = 16  # of lengths, in memory

TokenCounts = NDArray[np.int64]


def draw(lengths: Lengths, size: tuple[int, ...], rng: np.random.Generator) -> TokenCounts:
    """Token counts, at least 1, in an array of this size."""
    if lengths.fixed is not None:
        return np.full(size, lengths.fixed, np.int64)
    if lengths.uniform is not None:
        return rng.integers(lengths.uniform.min, lengths.uniform.max, size, endpoint=True)
    shape = lengths.lognormal
    assert shape is not None
    # `mean` is the mean of the distribution itself: E[X] = exp(mu + sigma^2 / 2)
    mu = np.log(shape.mean) - shape.sigma**2 / 2
    values = np.round(rng.lognormal(mu, shape.sigma, size))
    return np.clip(values, shape.min, shape.max or MOST_TOKENS).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _LengthBlock:
    """Token counts of BLOCK sessions; each array has a row for a session, a column for a turn."""

    inputs: TokenCounts
    outputs: TokenCounts
    conversations: TokenCounts  # prompts that contain everything before them in their session


class SessionLengths:
    """Input and output token counts of every (session, turn) of a point."""

    def __init__(
        self, input_lengths: Lengths, output_lengths: Lengths, turns: int, seed: int
    ) -> None:
        self._input_lengths = input_lengths
        self._output_lengths = output_lengths
        self._turns = turns
        self._seed = seed
        self._block = lru_cache(maxsize=BLOCKS_KEPT)(self._draw_block)

    def _draw_block(self, number: int) -> _LengthBlock:
        rng = stream(self._seed, LENGTH_STREAM, number)
        size = (BLOCK, self._turns)
        inputs = draw(self._input_lengths, size, rng)
        outputs = draw(self._output_lengths, size, rng)
        conversations = np.cumsum(inputs + outputs, axis=1) - outputs
        return _LengthBlock(inputs, outputs, conversations)

    def input_tokens(self, session: int, turn: int) -> int:
        return int(self._block(session // BLOCK).inputs[session % BLOCK, turn])

    def output_tokens(self, session: int, turn: int) -> int:
        return int(self._block(session // BLOCK).outputs[session % BLOCK, turn])

    def conversation_tokens(self, session: int, turn: int) -> int:
        """Length of a prompt that contains everything before it in its session."""
        return int(self._block(session // BLOCK).conversations[session % BLOCK, turn])

    def sample(self) -> TokenCounts:
        """``conversation_tokens`` of all turns of the first SAMPLE sessions, sorted."""
        return np.sort(self._block(0).conversations[:SAMPLE], axis=None)


@lru_cache(MOST_TURNS_OF_ALL)
def _sample(input_lengths: Lengths, output_lengths: Lengths, turns: int) -> NDArray[np.uint32]:
    """``SessionLengths.sample``, drawn once for all deployments. Lengths that uint32 cannot hold
    are cut: no limit is as high.
    """
    sample = SessionLengths(input_lengths, output_lengths, turns, seed=0).sample()
    return np.minimum(sample, 2**32 - 1).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that follow one another: their number, and the time between an answer and the next
    request.
    """

    turns: int
    think_time_s: float


class Drawn(Workload):
    """The keys of workloads whose messages are drawn at random."""

    input_tokens: Lengths
    output_tokens: Lengths
    # tokens that prompts begin with
    shared_prefix_tokens: int = Field(default=0, ge=0, le=MOST_TOKENS)
    # number of such prefixes; a session draws one
    shared_prefix_count: int = Field(default=1, ge=1, le=MOST_TOKENS)
    converses: ClassVar[bool] = False  # each request continues the conversation of its session

    def session(self) -> Session:
        """What a session of this kind is: here a single request."""
        return Session(turns=1, think_time_s=0.0)

    def token_bounds(self) -> tuple[int, int | None]:
        """The last turn of a conversation contains all turns before it."""
        least_in, most_in = self.input_tokens.bounds
        least_out, most_out = self.output_tokens.bounds
        prefix = self.shared_prefix_tokens
        turns = self.session().turns
        least = prefix + turns * (least_in + least_out)
        if most_in is None or most_out is None:
            return least, None
        return least, prefix + turns * (most_in + most_out)

    def longer_prompts(self, tokens: int) -> float:
        """The share of prompts longer than ``tokens``: by the bounds of the lengths, else estimated
        from a sample.
        """
        least, _ = self.input_tokens.bounds
        if self.shared_prefix_tokens + least > tokens:
            return 1.0
        longest = self._longest_prompt()
        if longest is not None and longest <= tokens:
            return 0.0
        sample = _sample(self.input_tokens, self.output_tokens, self.session().turns)
        count = len(sample)
        fitting_tokens = np.uint32(tokens - self.shared_prefix_tokens)
        fitting = np.searchsorted(sample, fitting_tokens, side="right")
        return float(np.clip((count - fitting) / count, 1 / count, 1 - 1 / count))

    def _longest_prompt(self) -> int | None:
        """Tokens of the longest prompt that can be drawn; None: there is no limit."""
        _, most_input = self.input_tokens.bounds
        _, most_output = self.output_tokens.bounds
        turns = self.session().turns
        if most_input is None:
            return None
        if turns == 1:
            return self.shared_prefix_tokens + most_input
        if most_output is None:
            return None
        return self.shared_prefix_tokens + turns * most_input + (turns - 1) * most_output

    def requests(self, prompter: Prompter, seed: int) -> DrawnRequests:
        return DrawnRequests(self, prompter, seed)


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

    def session(self) -> Session:
        return Session(self.turns, self.think_time)


class DrawnRequests(WorkloadKind):
    """A shared prefix of ``shared_prefix_tokens``, then ``input_tokens`` random tokens."""

    def __init__(self, workload: Drawn, prompter: Prompter, seed: int) -> None:
        self._prompter = prompter
        self._seed = seed
        session = workload.session()
        self._turns = session.turns
        self.think_time_s = session.think_time_s
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
        rng = stream(self._seed, PROMPT_STREAM, *path)
        return Message(role, (self._prompter.make(rng, tokens),), tokens)

    def turns(self, session: int) -> int:
        return self._turns

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        path = (session, turn) if self.sessions else (session,)
        user = self._message("user", self._lengths.input_tokens(session, turn), 0, *path)
        messages = (*self._shared(session, phase), *earlier, user)
        return Prompt(messages, sum(message.tokens for message in messages))

    def _shared(self, session: int, phase: str) -> Iterator[Message]:
        """The shared prefix of a session, where prompts have one."""
        if not self._prefix_tokens:
            return
        number = 0
        # drawn at random, because replicas already take sessions in turn
        if self._prefix_count > 1:
            rng = stream(self._seed, PROMPT_STREAM, 3, session)
            number = int(rng.integers(self._prefix_count))
        yield self._prefix(number * len(PREFIX_NUMBER) + PREFIX_NUMBER[phase])

    def output_tokens(self, session: int, turn: int) -> int:
        return self._lengths.output_tokens(session, turn)

    def input_tokens(self, session: int, turn: int) -> int:
        return self._prefix_tokens + self._lengths.conversation_tokens(session, turn)

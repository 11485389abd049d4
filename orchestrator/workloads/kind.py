"""What requests contain: messages, prompts, and what a kind of workload is.

A kind is two classes: the model of its keys (a ``Workload``), and the ``WorkloadKind`` that makes
its requests. A request is a pure function of (workload, seed, session, turn), so that any client can
write any request. The registry is ``WORKLOADS`` in spec/load.py; docs/extending.md says how to add a
kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from orchestrator.base.arrays import Floats
from orchestrator.spec.constraint import Constraint
from orchestrator.spec.load import Arrivals, Level

TokenIds = NDArray[np.int32]
Part = str | TokenIds


class IdRange(NamedTuple):
    """Token ids from ``first`` on, below ``end``."""

    first: int
    end: int


Content = tuple[Part, ...]  # all text, or all token ids
Speaker = Literal["system", "user", "assistant", "tool"]  # who a message is from

# the random streams of a point's seed, by purpose
(
    ARRIVAL_STREAM,
    LENGTH_STREAM,
    PROMPT_STREAM,
    SESSION_STREAM,
    ADAPTER_STREAM,
    IMAGE_STREAM,
    OPTION_STREAM,
) = range(7)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. ``tokens``: the length of its text; 0 where it was not
    counted. ``images``: pictures before its text, as JSON (workloads/images.py). ``recorded``: the
    whole message as JSON, which is sent in its place: a call of tools, or what a tool returned
    (workloads/recorded_tools.py). None: it is sent as its role and its content.
    """

    role: Speaker
    content: Content
    tokens: int
    images: tuple[bytes, ...] = ()
    recorded: bytes | None = None

    @property
    def text(self) -> str:
        return "".join(cast("tuple[str, ...]", self.content))


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's input: shared prefix, earlier turns, new message. ``tokens``: its intended
    length, 0 if unknown. ``fields``: further fields of the request's body, such as its sampling.
    ``adapter``: the LoRA adapter that is to answer; None: the model itself.
    ``constraint``: what its answer must be. ``ends_naturally``: its answer is not forced to have a
    length.
    """

    messages: tuple[Message, ...]
    tokens: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    adapter: str | None = None
    constraint: Constraint | None = None
    ends_naturally: bool = False

    @property
    def images(self) -> int:
        """Pictures of all messages."""
        return sum(len(message.images) for message in self.messages)

    def flat(self) -> Part:
        """All messages as one text or one array of token ids."""
        parts = [part for message in self.messages for part in message.content]
        if len(parts) == 1:
            return parts[0]
        if isinstance(parts[0], str):
            return "".join(cast("list[str]", parts))
        return np.concatenate(cast("list[TokenIds]", parts))


def stream(seed: int, *path: int) -> np.random.Generator:
    """The random generator of one purpose, independent of all others of the same seed."""
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, *path])


class Prompter(Protocol):
    """Makes parts of a wanted length in tokens, drawn from a random generator."""

    def make(self, rng: np.random.Generator, tokens: int) -> Part: ...

    def count(self, text: str) -> int | None:
        """Tokens of a text; None where there is no tokenizer."""
        ...

    def words(self) -> Prompter:
        """A prompter whose parts are always text, made of words."""
        ...

    def slices(self, text: str) -> Prompter:
        """A prompter whose parts are slices of a text."""
        ...


class AdapterChoice(Protocol):
    """Chooses the LoRA adapter of each session (workloads/adapters.py)."""

    def of_session(self, session: int) -> str | None: ...


class PromptOptions(Protocol):
    """What the requests of a workload ask for beside their prompts."""

    def added(self, prompt: Prompt, session: int, turn: int) -> Prompt:
        """The prompt with what is asked for beside it."""
        ...


class WorkloadKind(ABC):
    """One kind of workload, bound to a point's seed; ``Workload.requests`` returns it.

    By default a session is a single request and its answer is not needed. Sessions are numbered in
    the order in which they begin, from 0, and their turns from 0.
    """

    # mean number of requests per session; sessions arrive at the level's rate divided by it
    mean_turns = 1.0
    think_time_s = 0.0  # between the end of a turn and the next turn
    has_sessions = False  # whether sessions may have several turns, so that rows name both
    needs_reply = False  # whether later turns contain the engine's answers
    warmup_differs = False  # whether the same request has another prompt in the warm-up
    adapters: AdapterChoice | None = None  # None: the workload asks for no adapters
    options: PromptOptions | None = None  # None: the workload asks for prompts alone

    def at_level(self, level: Level, arrivals: Arrivals) -> WorkloadKind:
        """This kind for one level of load. The level may decide which sessions there are, when they
        begin, or how many of their turns lie before the point. By default it decides nothing.

        Raises InputError where the level is impossible with this workload.
        """
        return self

    def prepare(self) -> None:
        """Makes, before any load is sent, those parts of prompts that take long to make: pictures,
        the tokens of a text. By default nothing takes long.
        """
        return

    def starts_s(self, horizon_s: float | None, count: int | None) -> Floats | None:
        """The recorded times at which sessions begin, in seconds since the start of the point; None
        for workloads without times.

        ``horizon_s``: only sessions that begin before it. ``count``: at most so many sessions. At
        least one of the two is given.
        """
        return None

    def part(self, session: int) -> str | None:
        """The part of a mix that a session belongs to; None for workloads that are no mix."""
        return None

    def turns(self, session: int) -> int:
        """How many turns a session has, those before ``first_turn`` included."""
        return 1

    def first_turn(self, session: int) -> int:
        """The first turn that is sent; earlier ones lie before the point, as ``history``."""
        return 0

    def history(self, session: int) -> tuple[Message, ...]:
        """What was said in a session before its ``first_turn``."""
        return ()

    def pause_s(self, session: int, turn: int) -> float:
        """Seconds from the end of a turn to the next turn of its session or, after the last turn of
        a closed loop's session, to the next session.
        """
        return self.think_time_s

    def earliest_s(self, session: int, turn: int) -> float | None:
        """The earliest time at which a turn is sent, in seconds since the start of its session, even
        if the pause before it is over. None: the pause alone decides.
        """
        return None

    def adapter(self, session: int) -> str | None:
        """The LoRA adapter that all requests of a session ask for; None: the model itself."""
        return None if self.adapters is None else self.adapters.of_session(session)

    def request(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        """The prompt of one turn, with the options of its workload."""
        prompt = self.prompt(session, turn, phase, earlier)
        return prompt if self.options is None else self.options.added(prompt, session, turn)

    @abstractmethod
    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        """The prompt of one turn. ``earlier``: the user's messages and the engine's answers of the
        turns before it.
        """

    @abstractmethod
    def output_tokens(self, session: int, turn: int) -> int: ...

    def input_tokens(self, session: int, turn: int) -> int:
        """The intended length of a prompt, if every earlier answer has its intended length; 0 where
        it is unknown.
        """
        return 0

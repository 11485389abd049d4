"""Mixes: classes of sessions with weights, together in one point."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from orchestrator.base.arrays import Floats, Ints
from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.spec.assumptions import EngineFact
from orchestrator.spec.document import wrong
from orchestrator.spec.load import (
    AnyWorkload,
    Arrivals,
    ContentKind,
    LengthBounds,
    Level,
    Weight,
    Workload,
)
from orchestrator.spec.settings import Name, Strict, as_tuple
from orchestrator.workloads.adapters import PopularAdapters, adapters_of
from orchestrator.workloads.kind import (
    SESSION_STREAM,
    Message,
    Prompt,
    Prompter,
    WorkloadKind,
    stream,
)
from orchestrator.workloads.random_values import choose
from orchestrator.workloads.request_options import options_of

MOST_PARTS = 100
# Each part has its own, whose files are found and whose answers are checked.
OPTIONS_OF_PARTS = ("adapters", "constrain", "tools", "tool_choice")
SESSIONS_AT_ONCE = 4096  # whose parts are drawn together

# The random stream below SESSION_STREAM that parts are drawn from. No part has the seed of its mix,
# so what lengths.py draws from such streams is independent of it.
_PART_CHOICE = 0


class MixPart(Strict):
    """One class of sessions of a mix, and how often it comes. ``content``: the workload of that
    name, which a plan holds; an experiment file lists it among its workloads.
    """

    WANTED: ClassVar[str] = "a mapping, like {weight: 1, workload: chat}"

    weight: Weight = Field(
        default=1.0, description="How often a session is one of this part, relative to the others."
    )
    workload: Name = Field(description="The name of a workload of this file, which is the part.")
    content: SkipJsonSchema[AnyWorkload | None] = Field(
        default=None, description="Set by plan: the workload of that name."
    )

    @field_validator("content", mode="before")
    @classmethod
    def _not_of_a_file(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context and info.context.get("users_file"):
            raise wrong((), "unknown key 'content'", "name a workload of this file as 'workload'")
        return value


class MixWorkload(Workload):
    """``kind: mix``: each session draws by weight which of the parts it is one of. All parts have
    one API, which is that of the mix. A trace gives its sessions in their order: when they begin is
    drawn for the mix, so it has no recorded rate.
    """

    reason_against_mixing = "it is a mix itself"

    kind: Literal["mix"] = Field(description="`mix`: sessions of several workloads, by weight.")
    parts: Annotated[
        tuple[MixPart, ...], BeforeValidator(as_tuple), Field(min_length=2, max_length=MOST_PARTS)
    ] = Field(description="The classes of sessions, each with its weight and its workload.")

    @model_validator(mode="after")
    def _options_are_of_parts(self) -> Self:
        for key in OPTIONS_OF_PARTS:
            if getattr(self, key) is not None:
                raise wrong(key, f"{key!r} belongs to the parts of a mix", "give it to these")
        return self

    def part_names(self) -> tuple[str, ...]:
        return tuple(part.workload for part in self.parts)

    def with_contents(self, workloads: Mapping[str, Workload]) -> Self:
        contents = [workloads[part.workload] for part in self.parts]
        parts = [
            part.model_copy(update={"content": content})
            for part, content in zip(self.parts, contents, strict=True)
        ]
        return self.model_copy(update={"parts": tuple(parts), "api": contents[0].api})

    @property
    def contents(self) -> tuple[Workload, ...]:
        """The workloads of its parts, sent through the API of the mix."""
        contents: list[Workload] = []
        for part in self.parts:
            assert part.content is not None, "plans and commands fill in the parts"
            contents.append(part.content.model_copy(update={"api": self.api}))
        return tuple(contents)

    def with_parts(self) -> tuple[Workload, ...]:
        return (self, *self.contents)

    @property
    def shares(self) -> dict[str, float]:
        """The share of sessions that are of each part, by its name."""
        total = math.fsum(part.weight for part in self.parts)
        return {part.workload: part.weight / total for part in self.parts}

    @property
    def request_shares(self) -> dict[str, float]:
        """The share of requests that are of each part, by its name: sessions of several turns weigh
        as much as they have requests.
        """
        requests: dict[str, float] = {}
        for part, content in zip(self.parts, self.contents, strict=True):
            requests[part.workload] = part.weight * content.mean_turns()
        total = math.fsum(requests.values())
        return {name: weight / total for name, weight in requests.items()}

    def resolved(self, path: Callable[[str], str]) -> Self:
        problems: list[Problem] = []
        resolved: dict[str, Workload] = {}
        for part, content in zip(self.parts, self.contents, strict=True):
            try:
                resolved[part.workload] = content.with_files(path)
            except ProblemsError as error:
                problems += error.problems
        if problems:
            raise ProblemsError(problems)
        return self.with_contents(resolved)

    def token_bounds(self) -> LengthBounds:
        bounds_of_parts = [content.token_bounds() for content in self.contents]
        least = min(bounds.least for bounds in bounds_of_parts)
        most: list[int] = []
        for bounds in bounds_of_parts:
            if bounds.most is None:
                return LengthBounds(least, None)
            most.append(bounds.most)
        return LengthBounds(least, max(most))

    def longer_prompts(self, tokens: int) -> float | None:
        shares = self.request_shares
        total = 0.0
        by_part: list[float] = []
        for content in self.contents:
            longer = content.longer_prompts(tokens)
            if longer is None:
                return None
            by_part.append(longer)
            total += shares[content.name] * longer
        # sums of shares are not exact, and 0 and 1 are certainties
        if max(by_part) == 0:
            return 0.0
        return 1.0 if min(by_part) == 1 else min(total, np.nextafter(1.0, 0.0))

    def sends_images(self) -> bool:
        return any(content.sends_images() for content in self.contents)

    def engine_facts(self) -> list[EngineFact]:
        facts: list[EngineFact] = []
        for content in self.contents:
            facts += content.engine_facts()
        return facts

    def adapter_names(self) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for content in self.contents:
            names |= dict.fromkeys(content.adapter_names())
        return tuple(names)

    def most_turns(self) -> int:
        return max(content.most_turns() for content in self.contents)

    def mean_turns(self) -> float:
        shares = self.shares
        return math.fsum(shares[content.name] * content.mean_turns() for content in self.contents)

    def others(self, requests: int) -> Self:
        return self.with_contents(
            {content.name: content.others(requests) for content in self.contents}
        )

    def left_out(self) -> int:
        return sum(content.left_out() for content in self.contents)

    def notes(self, timed: bool = False) -> list[str]:
        shares = [f"{name} {share:.3g}" for name, share in self.shares.items()]
        notes = [f"shares of sessions: {', '.join(shares)}; its parts are not measured alone"]
        of_requests = self.request_shares
        for content in self.contents:
            part_notes = list(content.notes())
            share = of_requests[content.name]
            prompts = content.distinct_requests()
            if prompts is not None:
                part_notes.append(
                    f"its {prompts:,} prompts come again after {_of_the_mix(prompts, share)}; a prefix "
                    "cache answers them faster"
                )
            recorded = content.most_requests()
            if recorded is not None:
                part_notes.append(
                    "its sessions begin when the mix draws them, in recorded order; after "
                    f"{_of_the_mix(recorded, share)} they begin again with other tokens"
                )
            notes += [f"{content.name}: {note}" for note in part_notes]
        return notes

    def content_source(self) -> ContentKind | None:
        """The source of all parts; ``mixed`` where they have several, None where one is unknown."""
        sources = {content.content_source() for content in self.contents}
        if None in sources:
            return None
        return sources.pop() if len(sources) == 1 else "mixed"

    def identity(self) -> dict[str, Any]:
        """The names of parts belong to it: requests, limits and figures bear them."""
        parts = [
            {"name": part.workload, "weight": part.weight, "workload": content.identity()}
            for part, content in zip(self.parts, self.contents, strict=True)
        ]
        own = self.model_dump(mode="json", exclude={"name", "parts"})
        return {**own, "parts": parts}

    def requests(self, prompter: Prompter, seed: int) -> MixRequests:
        kinds: dict[str, WorkloadKind] = {}
        adapters: dict[str, PopularAdapters | None] = {}
        for content in self.contents:
            seed_of_part = _seed_of_part(seed, content.name)
            kind = content.requests(prompter, seed_of_part)
            kind.options = options_of(content, seed_of_part)
            kinds[content.name] = kind
            adapters[content.name] = adapters_of(content, seed_of_part)
        return MixRequests(self.shares, kinds, adapters, seed)


def _of_the_mix(requests: int, share: float) -> str:
    """``about 1,200 requests of the mix``: so many have as many ``requests`` of a part, which has
    this share of them.
    """
    return f"about {math.ceil(requests / share):,} requests of the mix"


def _seed_of_part(seed: int, name: str) -> int:
    """A seed of its own for each part: two parts of the same lengths would else send the same
    prompts.
    """
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "big")


class PartSession(NamedTuple):
    """A session of a mix: the name of its part, and which of the part's sessions it is."""

    part: str
    session: int


class MixRequests(WorkloadKind):
    """Sessions of several kinds. The n-th session of a part is the n-th that its kind writes,
    whatever lies between them.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        kinds: Mapping[str, WorkloadKind],
        adapters: Mapping[str, PopularAdapters | None],
        seed: int,
    ) -> None:
        self._shares = shares
        self._adapters = adapters
        self._seed = seed
        self.kinds = kinds
        self._names = tuple(kinds)
        self.mean_turns = math.fsum(shares[name] * kind.mean_turns for name, kind in kinds.items())
        self.has_sessions = any(kind.has_sessions for kind in kinds.values())
        self.needs_reply = any(kind.needs_reply for kind in kinds.values())
        self.warmup_differs = any(kind.warmup_differs for kind in kinds.values())
        # of all sessions so far: the index of the part, and which of its sessions it is
        self._part_of = np.zeros(0, np.int8)
        self._session_in_part = np.zeros(0, np.int32)
        self._sessions_of_part = np.zeros(len(kinds), np.int64)

    @cached_property
    def _weights(self) -> Floats:
        return np.array([self._shares[name] for name in self._names])

    def at_level(self, level: Level, arrivals: Arrivals) -> MixRequests:
        """Of the sessions with which a closed loop begins, each part has those that it draws."""
        running = Counter(self.part(session) for session in range(level.slots))
        kinds: dict[str, WorkloadKind] = {}
        for name, kind in self.kinds.items():
            if not level.slots:
                kinds[name] = kind.at_level(level, arrivals)
            elif running[name]:
                of_part = Level(control=level.control, value=float(running[name]))
                kinds[name] = kind.at_level(of_part, arrivals)
            else:
                kinds[name] = kind
            kinds[name].options = kind.options
        return MixRequests(self._shares, kinds, self._adapters, self._seed)

    def prepare(self) -> None:
        """Prepares all parts: the first session of a rare one may come late."""
        for kind in self.kinds.values():
            kind.prepare()

    def place(self, session: int) -> PartSession:
        """The part of a session, and which of the part's sessions it is."""
        while len(self._part_of) <= session:
            self._draw()
        name = self._names[self._part_of[session]]
        return PartSession(name, int(self._session_in_part[session]))

    def _draw(self) -> None:
        """Draws the parts of as many sessions again as there are. They are counted from the first
        on, so that each client has the same.
        """
        drawn = len(self._part_of) // SESSIONS_AT_ONCE
        part_of = [self._part_of]
        session_in_part = [self._session_in_part]
        for number in range(drawn, max(2 * drawn, 1)):
            rng = stream(self._seed, SESSION_STREAM, _PART_CHOICE, number)
            parts = choose(self._weights, (SESSIONS_AT_ONCE,), rng)
            part_of.append(parts.astype(np.int8))
            session_in_part.append(self._counted(parts).astype(np.int32))
        self._part_of = np.concatenate(part_of)
        self._session_in_part = np.concatenate(session_in_part)

    def _counted(self, parts: Ints) -> Ints:
        """Which of the sessions of its part each of the next sessions is."""
        in_part: Ints = np.empty(len(parts), np.int64)
        for index in range(len(self._names)):
            is_of_part = parts == index
            count = int(is_of_part.sum())
            first = self._sessions_of_part[index]
            in_part[is_of_part] = np.arange(first, first + count)
            self._sessions_of_part[index] += count
        return in_part

    def part(self, session: int) -> str:
        return self.place(session).part

    def adapter(self, session: int) -> str | None:
        place = self.place(session)
        adapters = self._adapters[place.part]
        return None if adapters is None else adapters.of_session(place.session)

    def turns(self, session: int) -> int:
        place = self.place(session)
        return self.kinds[place.part].turns(place.session)

    def first_turn(self, session: int) -> int:
        place = self.place(session)
        return self.kinds[place.part].first_turn(place.session)

    def history(self, session: int) -> tuple[Message, ...]:
        place = self.place(session)
        return self.kinds[place.part].history(place.session)

    def pause_s(self, session: int, turn: int) -> float:
        place = self.place(session)
        return self.kinds[place.part].pause_s(place.session, turn)

    def earliest_s(self, session: int, turn: int) -> float | None:
        place = self.place(session)
        return self.kinds[place.part].earliest_s(place.session, turn)

    def prompt(self, session: int, turn: int, phase: str, earlier: Sequence[Message]) -> Prompt:
        place = self.place(session)
        return self.kinds[place.part].request(place.session, turn, phase, earlier)

    def output_tokens(self, session: int, turn: int) -> int:
        place = self.place(session)
        return self.kinds[place.part].output_tokens(place.session, turn)

    def input_tokens(self, session: int, turn: int) -> int:
        place = self.place(session)
        return self.kinds[place.part].input_tokens(place.session, turn)

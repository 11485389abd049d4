"""Expands ``deployments`` of an experiment file: every combination of its blocks as one validated
EngineSettings.

Each block of ``vary`` is a list of choices, and blocks multiply. ``grid`` has every combination of
its values, ``zip`` pairs first with first and second with second, ``cases`` lists choices as they
are. A role inherits the settings of all and may replace them. A dotted name such as
``roles.prefill.replicas`` reaches a role's setting everywhere, also in ``vary`` and ``exclude``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from orchestrator.spec.document import Place, Problems, add_errors, nearest, wrong
from orchestrator.spec.expressions import Expression, parse_expression
from orchestrator.spec.settings import (
    ADDED,
    LOCATION,
    PARTS,
    ROUTER,
    EngineSettings,
    Environments,
    Strict,
    merged,
    nested,
    part_problems,
)
from orchestrator.spec.stages import WrittenSettings

MOST_COMBINATIONS = 100_000
CONTROLS = ("vary", "derive", "exclude")
NOT_DERIVED = ("hardware", "engine", "engine_version")  # looked up before anything is derived
FIELDS = (*EngineSettings.model_fields, "hardware")
# Settings of a whole deployment: no role has its own.
_OF_ALL = {
    *(
        "engine",
        "engine_version",
        *LOCATION,
        "container_args",
        "startup_timeout_s",
        "roles",
        ROUTER,
    ),
    *("model", "revision", "tokenizer", "served_model_name", "trust_remote_code", "hf_overrides"),
    *("url", "endpoint_gpus", "api_key_env", "profile"),
}
PER_ROLE = tuple(name for name in EngineSettings.model_fields if name not in _OF_ALL)
OF_ROUTER = ("engine", "engine_version", *LOCATION, "container_args", *ADDED)
PART_FIELDS = (
    *(f"{part}.{name}" for part in PARTS for name in PER_ROLE),
    *(f"{ROUTER}.{name}" for name in OF_ROUTER),
)
NAMED = (*FIELDS, *PART_FIELDS)  # what expressions may name
KNOWN = (*NAMED, *PARTS)

Axes = Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Choice:
    """Some settings that go together, and where each of them is written."""

    values: Mapping[str, Any]
    places: Mapping[str, Place]


class Block(Strict):
    """One block of ``vary``: a list of choices in one of three notations."""

    grid: Axes | None = None
    zip: Axes | None = None
    cases: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Block:
        if sum(kind is not None for kind in (self.grid, self.zip, self.cases)) != 1:
            raise wrong((), "a block of 'vary' must be one of grid, zip or cases")
        if self.zip is not None and len(set(map(len, self.zip.values()))) > 1:
            text = ", ".join(f"{name} has {len(values)}" for name, values in self.zip.items())
            raise wrong("zip", f"the lists of 'zip' must be of equal length: {text}")
        return self

    @property
    def size(self) -> int:
        """Number of choices, counted before any is made: a small file can name more than memory
        holds.
        """
        if self.cases is not None:
            return len(self.cases)
        lengths = [len(values) for values in (self.grid or self.zip or {}).values()]
        return math.prod(lengths) if self.grid else lengths[0]

    def choices(self, place: Place) -> list[Choice]:
        """All choices in the order of the file. ``place`` is where the block is written."""
        if self.cases is not None:
            written = (((*place, "cases", index), case) for index, case in enumerate(self.cases))
            return [Choice(case, {name: (*at, name) for name in case}) for at, case in written]
        kind, axes = ("grid", self.grid) if self.grid else ("zip", self.zip or {})
        ranges = [range(len(values)) for values in axes.values()]
        picked = itertools.product(*ranges) if self.grid else zip(*ranges, strict=True)
        return [
            Choice(
                {name: axes[name][index] for name, index in zip(axes, indices, strict=True)},
                {
                    name: (*place, kind, name, index)
                    for name, index in zip(axes, indices, strict=True)
                },
            )
            for indices in picked
        ]


@dataclass(frozen=True, slots=True)
class Combination:
    """One deployment as the file describes it. Paths are not resolved and engines not looked up
    yet.
    """

    settings: WrittenSettings
    hardware: str | None
    derived: Mapping[str, Any]
    excluded_by: str | None  # the rule of ``exclude`` that leaves it out
    block: Place  # where its mapping of ``deployments`` is written
    choices: tuple[Choice, ...] = field(repr=False)

    def place(self, name: str) -> Place:
        """Where a setting is written."""
        return next(_places(name, self.choices, self.block))


def combination_of(settings: EngineSettings, block: Place) -> Combination:
    """The only combination of a deployment whose settings are validated already."""
    return Combination(
        settings=WrittenSettings(settings),
        hardware=None,
        derived={},
        excluded_by=None,
        block=block,
        choices=(),
    )


@dataclass(frozen=True, slots=True)
class Given:
    """What deployments take from the rest of the file."""

    model: Mapping[str, Any]  # settings for every deployment that names no model of its own
    hardware: Collection[str]  # names of hardware classes
    environments: Environments
    # every (setting, place, name) that was found
    engines: list[tuple[str, Place, str]] = field(default_factory=list)


def expand(given: Given, problems: Problems) -> list[Combination]:
    """All combinations in the order of the file. Adds every problem found on the way to
    ``problems``.
    """
    found = problems.document.value.get("deployments")
    blocks: list[tuple[Place, Any]] = [(("deployments",), found)]
    if isinstance(found, list) and found:
        blocks = [(("deployments", index), block) for index, block in enumerate(found)]
    combinations: list[Combination] = []
    for place, raw in blocks:
        if not isinstance(raw, dict) or not raw:
            problems.add(
                place, "'deployments' must be a mapping with at least 'engine', or a list of them"
            )
            continue
        most = MOST_COMBINATIONS - len(combinations)
        combinations += _Deployments(place, problems, given, most).expand(raw)
    return combinations


@dataclass(frozen=True, slots=True)
class _Deployments:
    """One mapping of ``deployments``: settings, and the blocks that multiply them.

    ``most``: how many combinations there may be of it.
    """

    place: Place
    problems: Problems
    given: Given
    most: int

    def expand(self, raw: dict[str, Any]) -> list[Combination]:
        own = {name: value for name, value in raw.items() if name not in CONTROLS}
        base = self._checked(
            Choice(own, {name: (*self.place, name) for name in own}), (*KNOWN, *CONTROLS)
        )
        read = self._blocks(raw.get("vary"))
        count = math.prod(block.size for _, block in read)
        if count > self.most:
            message = f"makes {count:,} combinations; at most {MOST_COMBINATIONS:,} are allowed"
            self.problems.add((*self.place, "vary"), message)
            return []
        blocks = [
            [self._checked(choice, KNOWN) for choice in block.choices(place)]
            for place, block in read
        ]
        self._check_overlap(blocks)
        varied = {name for block in blocks for choice in block for name in choice.values}
        derive = self._derive(raw.get("derive"), {*base.values, *varied})
        exclude = self._exclude(raw.get("exclude"), {*NAMED, *derive})
        made: list[Combination] = []
        for choices in itertools.product(*blocks):
            combination = self._combine(base, choices, derive, exclude)
            if combination is not None:
                made.append(combination)
        return made

    def _read(self, kind: Any, value: Any, *place: str | int) -> Any:
        """The value at a place below this mapping, validated as ``kind``; None, and a report, when
        it is none.
        """
        try:
            return TypeAdapter(kind).validate_python(value, strict=True)
        except ValidationError as error:
            add_errors(error, kind, self.problems, lambda loc: (*self.place, *place, *loc))
            return None

    def _blocks(self, vary: Any) -> list[tuple[Place, Block]]:
        """Every valid block and where it is written."""
        raw = self._read(list[Any] | None, vary, "vary") or []
        read = [
            (("vary", index), self._read(Block, block, "vary", index))
            for index, block in enumerate(raw)
        ]
        return [((*self.place, *place), block) for place, block in read if block is not None]

    def _checked(self, choice: Choice, known: Sequence[str]) -> Choice:
        """``choice`` in dotted names. Reports, and leaves out, unknown settings and unknown
        hardware.
        """
        written = [
            one
            for name, value in choice.values.items()
            for one in _flat(name, value, choice.places[name])
        ]
        values = {name: value for name, value, _ in written}
        choice = Choice(values, {name: place for name, _, place in written})
        for name in [name for name in values if name not in KNOWN]:
            self.problems.unknown(choice.places[name], "key", name, known)
            del values[name]
        if type(values.get("engine_version")) in (int, float):  # as it is written: 0.30 is not 0.3
            values["engine_version"] = self.problems.document.numbers[
                choice.places["engine_version"]
            ]
        for name in ("engine", "router.engine"):
            if isinstance(value := values.get(name), str):
                self.given.engines.append((name, choice.places[name], value))
        place, wanted = choice.places.get("hardware", ()), values.get("hardware")
        if wanted is not None and (
            not isinstance(wanted, str) or wanted not in self.given.hardware
        ):
            remedy = "define it under 'hardware'"
            self.problems.unknown(place, "hardware", wanted, self.given.hardware, remedy)
            del values["hardware"]
        return Choice(values, choice.places)

    def _check_overlap(self, blocks: Sequence[Sequence[Choice]]) -> None:
        """Reports settings of two blocks: one of the two values would never be used."""
        first: dict[str, int] = {}
        for index, block in enumerate(blocks):
            for choice in block:
                for name in choice.values:
                    if (
                        name.rpartition(".")[2] not in ADDED
                        and first.setdefault(name, index) != index
                    ):
                        self.problems.add(
                            choice.places[name], f"{name!r} is varied in an earlier block already"
                        )

    def _derive(self, raw: Any, given: set[str]) -> dict[str, Expression]:
        out, known = dict[str, Expression](), {*NAMED}
        for name, text in (self._read(dict[str, Any] | None, raw, "derive") or {}).items():
            if name in given or name in NOT_DERIVED or not name.isidentifier():
                why = "is given already" if name in given else "cannot be derived"
                self.problems.add((*self.place, "derive", name), f"{name!r} {why}")
            elif (parsed := self._parse(text, known, "derive", name)) is not None:
                out[name] = parsed
                known.add(name)
        return out

    def _exclude(self, raw: Any, known: set[str]) -> list[tuple[Place, Expression]]:
        texts = self._read(list[Any] | None, raw, "exclude") or []
        parsed = [
            (index, self._parse(text, known, "exclude", index)) for index, text in enumerate(texts)
        ]
        return [
            ((*self.place, "exclude", index), rule) for index, rule in parsed if rule is not None
        ]

    def _parse(self, text: Any, known: set[str], *place: str | int) -> Expression | None:
        if (checked := self._read(str, text, *place)) is None:
            return None
        try:
            return parse_expression(checked, known)
        except ValueError as error:
            self.problems.add((*self.place, *place), str(error))
            return None

    def _combine(
        self,
        base: Choice,
        choices: tuple[Choice, ...],
        derive: Mapping[str, Expression],
        exclude: Sequence[tuple[Place, Expression]],
    ) -> Combination | None:
        """The combination of these choices; None when something is wrong with it, which is
        reported.
        """
        if self.problems.enough:
            return None
        values = self._with_model(
            reduce(merged, (choice.values for choice in (base, *choices)), {})
        )
        located = self._location(values, choices)
        values |= located or {}
        hardware = values.pop("hardware", None)
        settings = self._settings(values, choices)  # expressions read validated values and defaults
        if settings is None:
            return None
        names = dict.fromkeys(PART_FIELDS) | settings.__dict__ | {"hardware": hardware}
        for role, part in settings.parts.items() if settings.roles or settings.router else ():
            names |= {
                f"{'' if role == ROUTER else 'roles.'}{role}.{name}": value for name, value in part
            }
        derived: dict[str, Any] = {}
        for name, expression in derive.items():
            value = self._evaluate(expression, names, (*self.place, "derive", name))
            names[name] = derived[name] = value
        linked = {
            name: value for name, value in derived.items() if name in EngineSettings.model_fields
        }
        for name in set(LOCATION) & set(linked) if located else ():
            self.problems.add(
                (*self.place, "derive", name),
                f"{name!r} is derived and also given by 'environments'",
            )
        settings = self._settings(values | linked, choices) if linked else settings
        excluded_by = next(
            (rule.text for place, rule in exclude if self._evaluate(rule, names, place)), None
        )
        if settings is None or located is None:
            return None
        return Combination(
            WrittenSettings(settings), hardware, derived, excluded_by, self.place, choices
        )

    def _location(
        self, values: Mapping[str, Any], choices: tuple[Choice, ...]
    ) -> Mapping[str, str] | None:
        """The settings that ``environments`` give this deployment; empty when its engine is not
        listed there.

        None, and a report, for an unknown version and for a location that ``values`` contain too.
        """
        engine, version = values.get("engine"), values.get("engine_version")
        versions = self.given.environments.get(engine) if isinstance(engine, str) else None
        if not versions or not isinstance(version, str):
            return {}
        if version not in versions:
            place = next(_places("engine_version", choices, self.place))
            self.problems.add(
                place, f"'environments' has no {version!r} of {engine}", nearest(version, versions)
            )
            return None
        twice = [name for name in LOCATION if values.get(name) is not None]
        for name in twice:
            message = (
                f"{name!r} is given here, and 'environments' says where {version!r} of {engine} is"
            )
            self.problems.add(
                next(_places(name, choices, self.place)), message, "leave one of them out"
            )
        return None if twice else versions[version].model_dump(exclude_none=True)

    def _with_model(self, values: dict[str, Any]) -> dict[str, Any]:
        if "model" in values:
            return values
        if not self.given.model and values.get("served_model_name") is not None:
            # of an endpoint no more need be known
            return {"model": values["served_model_name"], **values}
        if not self.given.model:
            hint = "write model: {id: <hub name or folder>} at the top of the file"
            self.problems.add(self.place, "no model is given", hint)
            return {"model": "?", **values}  # so that the rest can be checked
        return {**self.given.model, **values}

    def _settings(
        self, values: dict[str, Any], choices: tuple[Choice, ...]
    ) -> EngineSettings | None:
        wrong_parts = list(part_problems(values))
        for name, message, hint in wrong_parts:
            self.problems.add(self._locate((name,), choices), message, hint)
        try:
            found = EngineSettings.model_validate(nested(values), strict=True)
            return None if wrong_parts else found
        except ValidationError as error:
            add_errors(error, EngineSettings, self.problems, partial(self._locate, choices=choices))
            return None

    def _locate(self, loc: Place, choices: tuple[Choice, ...]) -> Place:
        """Where the file has the value that pydantic found wrong at ``loc`` of EngineSettings."""
        name, rest = str(loc[0]) if loc else "", loc[1:]
        if name in ("roles", ROUTER) and rest:  # a part's own setting, or one that it inherits
            depth = 3 if name == "roles" else 2
            dotted, rest = ".".join(map(str, loc[:depth])), loc[depth:]
            own = any(dotted in choice.places for choice in choices)
            name = (
                dotted
                if own or (*self.place, *loc[:depth]) in self.problems.document.lines
                else str(loc[depth - 1])
            )
        roots = (
            *_places(name, choices, self.place),
            (*self.place, *name.split(".")),
            (*self.place, "derive", name),
        )
        places = [(*place, *rest) for place in roots]
        return next((place for place in places if place in self.problems.document.lines), places[0])

    def _evaluate(self, expression: Expression, names: Mapping[str, Any], place: Place) -> Any:
        try:
            return expression.evaluate(names)
        except ValueError as error:
            self.problems.add(place, str(error))
            return None


def _places(name: str, choices: Sequence[Choice], block: Place) -> Iterator[Place]:
    """Places where a setting may be written; the last choice wins, so it comes first."""
    yield from (choice.places[name] for choice in reversed(choices) if name in choice.places)
    yield (*block, name)


def _flat(name: str, value: Any, place: Place) -> Iterator[tuple[str, Any, Place]]:
    """(name, value, place) of a setting; of ``roles`` and ``router`` each setting inside, by its
    dotted name.
    """
    inside = (name == "roles" or name in PARTS or name == ROUTER) and isinstance(value, dict)
    if not inside:
        yield name, value, place
        return
    if name in PARTS:
        yield f"{name}.replicas", 1, place  # so that a role without settings exists too
    for key, inner in value.items():
        yield from _flat(f"{name}.{key}", inner, (*place, key))

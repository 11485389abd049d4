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
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

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
    problems_of_parts,
)
from orchestrator.spec.stages import WrittenSettings

MOST_COMBINATIONS = 100_000
CONTROLS = ("vary", "derive", "exclude")
NOT_DERIVED = ("hardware", "engine", "engine_version")  # looked up before anything is derived
FIELDS = (*EngineSettings.model_fields, "hardware")
# Settings of a whole deployment: no role has its own.
_OF_DEPLOYMENTS = {
    *("engine", "engine_version", *LOCATION, "container_args", "startup_timeout_s"),
    *("roles", ROUTER),
    *("model", "revision", "tokenizer", "served_model_name", "trust_remote_code", "hf_overrides"),
    *("url", "endpoint_gpus", "api_key_env", "profile"),
}
PER_ROLE = tuple(name for name in EngineSettings.model_fields if name not in _OF_DEPLOYMENTS)
OF_ROUTER = ("engine", "engine_version", *LOCATION, "container_args", *ADDED)
PART_FIELDS = (
    *(f"{part}.{name}" for part in PARTS for name in PER_ROLE),
    *(f"{ROUTER}.{name}" for name in OF_ROUTER),
)
NAMED = (*FIELDS, *PART_FIELDS)  # what expressions may name
KNOWN = (*NAMED, *PARTS)

Values = Annotated[list[Any], Field(min_length=1)]
Axes = Annotated[dict[str, Values], Field(min_length=1)]  # setting -> its values


@dataclass(frozen=True, slots=True)
class Choice:
    """Some settings that go together, and where each of them is written."""

    values: Mapping[str, Any]
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Derived:
    """The names that ``derive`` defines. ``expressions``: by name, in the order of the file.
    ``broken``: names whose expressions have a problem, or read such a name. What reads a broken name
    is no problem of its own, and is not evaluated.
    """

    expressions: dict[str, Expression] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    @property
    def readable_names(self) -> set[str]:
        """What further expressions may name."""
        return {*NAMED, *self.expressions, *self.broken}


class Block(Strict):
    """One block of ``vary``: a list of choices in one of three notations."""

    grid: Axes | None = Field(
        default=None,
        description="Every combination of the values, for example "
        "`{tensor_parallel_size: [1, 2], max_num_seqs: [128, 512]}`.",
    )
    zip: Axes | None = Field(
        default=None,
        description="The first values together, then the second ones, and so on; all lists have "
        "the same length.",
    )
    cases: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = Field(
        default=None, description="Mappings of settings, taken as they are."
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Block:
        notations = (self.grid, self.zip, self.cases)
        if sum(notation is not None for notation in notations) != 1:
            raise wrong((), "a block of 'vary' must be one of grid, zip or cases")
        if self.zip is not None:
            lengths = {name: len(values) for name, values in self.zip.items()}
            if len(set(lengths.values())) > 1:
                text = ", ".join(f"{name} has {length}" for name, length in lengths.items())
                raise wrong("zip", f"the lists of 'zip' must be of equal length: {text}")
        return self

    @property
    def size(self) -> int:
        """Number of choices. It is computed before any choice is made, because a small file can ask
        for more choices than memory holds.
        """
        if self.cases is not None:
            return len(self.cases)
        if self.grid is not None:
            return math.prod(len(values) for values in self.grid.values())
        assert self.zip is not None
        return len(next(iter(self.zip.values())))

    def choices(self, place: Place) -> list[Choice]:
        """All choices in the order of the file. ``place`` is where the block is written."""
        if self.cases is not None:
            return [
                _written_choice(case, (*place, "cases", index))
                for index, case in enumerate(self.cases)
            ]
        if self.grid is not None:
            ranges = [range(len(values)) for values in self.grid.values()]
            picks = itertools.product(*ranges)
            return [_picked(self.grid, indices, (*place, "grid")) for indices in picks]
        assert self.zip is not None
        return [
            _picked(self.zip, [index] * len(self.zip), (*place, "zip"))
            for index in range(self.size)
        ]


def _written_choice(settings: Mapping[str, Any], place: Place) -> Choice:
    """Settings that are written as one mapping at ``place``."""
    return Choice(settings, {name: (*place, name) for name in settings})


def _picked(axes: Axes, indices: Sequence[int], place: Place) -> Choice:
    """One value of each axis, by its index. ``place`` is where the axes are written."""
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for name, index in zip(axes, indices, strict=True):
        values[name] = axes[name][index]
        places[name] = (*place, name, index)
    return Choice(values, places)


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


class NamedEngine(NamedTuple):
    """A name of an engine or router, as a file has it. ``setting``: ``engine`` or
    ``router.engine``.
    """

    setting: str
    place: Place
    name: str


@dataclass(frozen=True, slots=True)
class DeploymentContext:
    """What deployments take from the rest of the file, and the engines that they name."""

    model: Mapping[str, Any]  # the settings of the model, for deployments that name none
    hardware: Collection[str]  # names of hardware classes
    environments: Environments
    engines: list[NamedEngine] = field(default_factory=list)


def expand(context: DeploymentContext, problems: Problems) -> list[Combination]:
    """All combinations in the order of the file. Adds every problem found on the way to
    ``problems``.
    """
    written = problems.document.value.get("deployments")
    blocks: list[tuple[Place, Any]] = [(("deployments",), written)]
    if isinstance(written, list) and written:
        blocks = [(("deployments", index), block) for index, block in enumerate(written)]
    combinations: list[Combination] = []
    for place, raw in blocks:
        if not isinstance(raw, dict) or not raw:
            problems.add(
                place, "'deployments' must be a mapping with at least 'engine', or a list of them"
            )
            continue
        most = MOST_COMBINATIONS - len(combinations)
        combinations += _Deployments(place, problems, context, most).expand(raw)
    return combinations


@dataclass(frozen=True, slots=True)
class _Deployments:
    """One mapping of ``deployments``: settings, and the blocks that multiply them.

    ``most``: how many combinations it may make.
    """

    place: Place
    problems: Problems
    context: DeploymentContext
    most: int

    def expand(self, raw: dict[str, Any]) -> list[Combination]:
        own = {name: value for name, value in raw.items() if name not in CONTROLS}
        base = self._checked(_written_choice(own, self.place), (*KNOWN, *CONTROLS))
        blocks = self._blocks(raw.get("vary"))
        count = math.prod(block.size for _, block in blocks)
        if count > self.most:
            message = f"makes {count:,} combinations; at most {MOST_COMBINATIONS:,} are allowed"
            self.problems.add((*self.place, "vary"), message)
            return []
        choices_of_blocks: list[list[Choice]] = []
        varied: set[str] = set()
        for place, block in blocks:
            choices = [self._checked(choice, KNOWN) for choice in block.choices(place)]
            choices_of_blocks.append(choices)
            varied.update(*(choice.values for choice in choices))
        self._check_overlap(choices_of_blocks)
        derive = self._derive(raw.get("derive"), {*base.values, *varied})
        exclude = self._exclude(raw.get("exclude"), derive)
        combinations: list[Combination] = []
        for picked in itertools.product(*choices_of_blocks):
            combination = self._combine(base, picked, derive.expressions, exclude)
            if combination is not None:
                combinations.append(combination)
        return combinations

    def _read(self, kind: Any, value: Any, *place: str | int) -> Any:
        """The value at a place below this mapping, validated as ``kind``. Reports other values, and
        returns None for them.
        """
        try:
            return TypeAdapter(kind).validate_python(value, strict=True)
        except ValidationError as error:
            add_errors(error, kind, self.problems, lambda loc: (*self.place, *place, *loc))
            return None

    def _blocks(self, vary: Any) -> list[tuple[Place, Block]]:
        """Every valid block and where it is written."""
        blocks: list[tuple[Place, Block]] = []
        for index, raw in enumerate(self._read(list[Any] | None, vary, "vary") or []):
            block = self._read(Block, raw, "vary", index)
            if block is not None:
                blocks.append(((*self.place, "vary", index), block))
        return blocks

    def _checked(self, choice: Choice, known: Sequence[str]) -> Choice:
        """``choice`` in dotted names. Reports, and leaves out, unknown settings and unknown
        hardware.
        """
        values: dict[str, Any] = {}
        places: dict[str, Place] = {}
        for name, value in choice.values.items():
            for setting in _flat(name, value, choice.places[name]):
                values[setting.name] = setting.value
                places[setting.name] = setting.place
        unknown_names = [name for name in values if name not in KNOWN]
        for name in unknown_names:
            self.problems.unknown(places[name], "key", name, known)
            del values[name]
        if type(values.get("engine_version")) in (int, float):  # as it is written: 0.30 is not 0.3
            written = self.problems.document.numbers
            values["engine_version"] = written[places["engine_version"]]
        for name in ("engine", "router.engine"):
            value = values.get(name)
            if isinstance(value, str):
                self.context.engines.append(NamedEngine(name, places[name], value))
        self._check_hardware(values, places)
        return Choice(values, places)

    def _check_hardware(self, values: dict[str, Any], places: Mapping[str, Place]) -> None:
        """Reports, and leaves out, hardware that the file does not define."""
        hardware = values.get("hardware")
        classes = self.context.hardware
        if hardware is None or (isinstance(hardware, str) and hardware in classes):
            return
        remedy = "define it under 'hardware'"
        self.problems.unknown(places["hardware"], "hardware", hardware, classes, remedy)
        del values["hardware"]

    def _check_overlap(self, blocks: Sequence[Sequence[Choice]]) -> None:
        """Reports settings of two blocks: one of the two values would never be used."""
        first_block: dict[str, int] = {}
        for index, block in enumerate(blocks):
            for choice in block:
                for name in choice.values:
                    if name.rpartition(".")[2] in ADDED:
                        continue
                    if first_block.setdefault(name, index) != index:
                        message = f"{name!r} is varied in an earlier block already"
                        self.problems.add(choice.places[name], message)

    def _derive(self, raw: Any, given: set[str]) -> Derived:
        """The expressions of ``derive``. Each may read the names before it."""
        derived = Derived()
        for name, text in (self._read(dict[str, Any] | None, raw, "derive") or {}).items():
            if name in given or name in NOT_DERIVED or not name.isidentifier():
                why = "is given already" if name in given else "cannot be derived"
                self.problems.add((*self.place, "derive", name), f"{name!r} {why}")
                continue
            expression = self._parse(text, derived.readable_names, "derive", name)
            if expression is None or expression.names & derived.broken:
                derived.broken.add(name)
            else:
                derived.expressions[name] = expression
        return derived

    def _exclude(self, raw: Any, derived: Derived) -> list[tuple[Place, Expression]]:
        """The rules of ``exclude``, each with its place."""
        rules: list[tuple[Place, Expression]] = []
        for index, text in enumerate(self._read(list[Any] | None, raw, "exclude") or []):
            rule = self._parse(text, derived.readable_names, "exclude", index)
            if rule is not None and not rule.names & derived.broken:
                rules.append(((*self.place, "exclude", index), rule))
        return rules

    def _parse(self, text: Any, known: set[str], *place: str | int) -> Expression | None:
        checked = self._read(str, text, *place)
        if checked is None:
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
        values: dict[str, Any] = {}
        for choice in (base, *choices):
            values = merged(values, choice.values)
        values = self._with_model(values)
        location = self._location(values, choices)
        values |= location or {}
        hardware = values.pop("hardware", None)
        settings = self._settings(values, choices)  # expressions read validated values and defaults
        if settings is None:
            return None
        names = _names_for_expressions(settings, hardware)
        derived: dict[str, Any] = {}
        for name, expression in derive.items():
            value = self._evaluate(expression, names, (*self.place, "derive", name))
            names[name] = derived[name] = value
        derived_settings = {
            name: value for name, value in derived.items() if name in EngineSettings.model_fields
        }
        if location:
            self._check_derived_location(derived_settings)
        if derived_settings:
            origins = {name: _origin(derive[name], names) for name in derived_settings}
            settings = self._settings(values | derived_settings, choices, origins)
        excluded_by = self._excluding_rule(exclude, names)
        if settings is None or location is None:
            return None
        return Combination(
            WrittenSettings(settings), hardware, derived, excluded_by, self.place, choices
        )

    def _check_derived_location(self, derived_settings: Mapping[str, Any]) -> None:
        """Reports derived settings that ``environments`` give too."""
        for name in LOCATION:
            if name in derived_settings:
                message = f"{name!r} is derived and also given by 'environments'"
                self.problems.add((*self.place, "derive", name), message)

    def _excluding_rule(
        self, exclude: Sequence[tuple[Place, Expression]], names: Mapping[str, Any]
    ) -> str | None:
        """The text of the first rule that leaves a combination out."""
        for place, rule in exclude:
            if self._evaluate(rule, names, place):
                return rule.text
        return None

    def _location(
        self, values: Mapping[str, Any], choices: tuple[Choice, ...]
    ) -> Mapping[str, str] | None:
        """The settings that ``environments`` give this deployment; empty when its engine is not
        listed there.

        None, and a report, for an unknown version and for a location that ``values`` contain too.
        """
        engine, version = values.get("engine"), values.get("engine_version")
        versions = self.context.environments.get(engine) if isinstance(engine, str) else None
        if not versions or not isinstance(version, str):
            return {}
        if version not in versions:
            place = next(_places("engine_version", choices, self.place))
            self.problems.add(
                place, f"'environments' has no {version!r} of {engine}", nearest(version, versions)
            )
            return None
        given_twice = [name for name in LOCATION if values.get(name) is not None]
        for name in given_twice:
            message = (
                f"{name!r} is given here, and 'environments' says where {version!r} of {engine} is"
            )
            place = next(_places(name, choices, self.place))
            self.problems.add(place, message, "leave one of them out")
        return None if given_twice else versions[version].model_dump(exclude_none=True)

    def _with_model(self, values: dict[str, Any]) -> dict[str, Any]:
        if "model" in values:
            return values
        if not self.context.model and values.get("served_model_name") is not None:
            # the name is enough for an endpoint
            return {"model": values["served_model_name"], **values}
        if not self.context.model:
            hint = "write model: {id: <hub name or folder>} at the top of the file"
            self.problems.add(self.place, "no model is given", hint)
            return {"model": "?", **values}  # so that the rest can be checked
        return {**self.context.model, **values}

    def _settings(
        self,
        values: dict[str, Any],
        choices: tuple[Choice, ...],
        origins: Mapping[str, str] = MappingProxyType({}),
    ) -> EngineSettings | None:
        """The settings, validated; None where something is wrong, which is reported.

        ``origins``: by name, where a derived value comes from.
        """
        wrong_parts = list(problems_of_parts(values))
        for problem in wrong_parts:
            place = self._locate((problem.setting,), choices)
            self.problems.add(place, problem.message, problem.hint)
        try:
            settings = EngineSettings.model_validate(nested(values), strict=True)
            return None if wrong_parts else settings
        except ValidationError as error:
            locate = partial(self._locate, choices=choices)
            add_errors(error, EngineSettings, self.problems, locate, origins)
            return None

    def _locate(self, loc: Place, choices: tuple[Choice, ...]) -> Place:
        """Where the file has the value that pydantic found wrong at ``loc`` of EngineSettings."""
        lines = self.problems.document.lines
        name = str(loc[0]) if loc else ""
        inside = loc[1:]
        if name in ("roles", ROUTER) and inside:
            name, inside = self._setting_of_part(loc, choices)
        roots = (
            *_places(name, choices, self.place),
            (*self.place, *name.split(".")),
            (*self.place, "derive", name),
        )
        places = [(*root, *inside) for root in roots]
        return next((place for place in places if place in lines), places[0])

    def _setting_of_part(self, loc: Place, choices: tuple[Choice, ...]) -> tuple[str, Place]:
        """The dotted name of a role's or router's own setting, or the name of the one it inherits,
        and what is left of ``loc`` inside that setting.
        """
        depth = 3 if loc[0] == "roles" else 2
        dotted = ".".join(map(str, loc[:depth]))
        is_varied = any(dotted in choice.places for choice in choices)
        is_own = is_varied or (*self.place, *loc[:depth]) in self.problems.document.lines
        return dotted if is_own else str(loc[depth - 1]), loc[depth:]

    def _evaluate(self, expression: Expression, names: Mapping[str, Any], place: Place) -> Any:
        try:
            return expression.evaluate(names)
        except ValueError as error:
            self.problems.add(place, str(error))
            return None


def _origin(expression: Expression, names: Mapping[str, Any]) -> str:
    """Where a derived value comes from, for the reader of a problem with it.

    ``derived as 8 // tensor_parallel_size, where tensor_parallel_size is 16``
    """
    read = [f"{name} is {names[name]}" for name in sorted(expression.names)]
    where = f", where {' and '.join(read)}" if read else ""
    return f"derived as {expression.text}{where}"


def _names_for_expressions(settings: EngineSettings, hardware: str | None) -> dict[str, Any]:
    """The value of every name that an expression may read; None for settings of absent parts."""
    names = dict.fromkeys(PART_FIELDS) | settings.__dict__ | {"hardware": hardware}
    if not settings.roles and not settings.router:
        return names
    for role, part in settings.parts.items():
        prefix = ROUTER if role == ROUTER else f"roles.{role}"
        for name, value in part:
            names[f"{prefix}.{name}"] = value
    return names


def _places(name: str, choices: Sequence[Choice], block: Place) -> Iterator[Place]:
    """Places where a setting may be written; the last choice wins, so it comes first."""
    for choice in reversed(choices):
        if name in choice.places:
            yield choice.places[name]
    yield (*block, name)


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting by its dotted name, and where it is written."""

    name: str
    value: Any
    place: Place


def _flat(name: str, value: Any, place: Place) -> Iterator[_Setting]:
    """The setting itself; of ``roles`` and ``router`` each setting inside, by its dotted name."""
    has_inside = name == "roles" or name in PARTS or name == ROUTER
    if not has_inside or not isinstance(value, dict):
        yield _Setting(name, value, place)
        return
    if name in PARTS:
        yield _Setting(f"{name}.replicas", 1, place)  # so that a role without settings exists too
    for key, inner in value.items():
        yield from _flat(f"{name}.{key}", inner, (*place, key))

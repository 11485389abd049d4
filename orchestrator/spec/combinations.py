"""``deployments`` of an experiment file, expanded: every combination of its blocks as one validated EngineSettings.

Blocks of ``vary`` multiply; each is a list of choices. ``grid``: every combination of its values; ``zip``: first with
first, second with second; ``cases``: as they stand.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import Problem
from orchestrator.spec.document import Document, Place
from orchestrator.spec.expressions import Expression, parse_expression
from orchestrator.spec.problems import nearest, problems_of, unknown_key
from orchestrator.spec.settings import LOCATION, EngineSettings, Environments, location

MOST_COMBINATIONS = 100_000
MOST_PROBLEMS = 200
KINDS = ("grid", "zip", "cases")
Report = Callable[..., None]  # (place, message, hint=None)
CONTROLS = ("vary", "derive", "exclude")
ADDED = ("env", "extra_args")  # a choice adds to these; it replaces every other setting
NOT_DERIVED = ("hardware", "engine", "engine_version")  # looked up by name before anything is derived
FIELDS = (*EngineSettings.model_fields, "hardware")
# Values that must not stand in a file that is shared, stored with the results and shown in reports.
_SECRET_NAME = re.compile(r"(^|[_-])(token|secret|passw(or)?d|(api|access|secret|private)[_-]?key)$", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"\w+://[^/]*@")


@dataclass(frozen=True, slots=True)
class Choice:
    """Some settings that go together, and where each of them is written."""

    values: Mapping[str, Any]
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Combination:
    """One point of the grid as the file says it; paths are not resolved and engines not looked up yet."""

    settings: EngineSettings
    hardware: str | None
    derived: Mapping[str, Any]
    excluded_by: str | None  # the rule that leaves it out
    block: Place  # the mapping it comes from
    choices: tuple[Choice, ...] = field(repr=False)

    def place(self, name: str) -> Place:
        """Where a setting is written."""
        return next(_places(name, self.choices, self.block))


def expand(
    document: Document, model: Mapping[str, Any], hardware: Sequence[str], environments: Environments
) -> tuple[list[Combination], list[Problem]]:
    """All combinations in the order of the file, and every problem found on the way.

    ``model``: settings every deployment gets that names no model of its own; ``hardware``: the classes there are;
    ``environments``: where versions of engines live.
    """
    found = document.value.get("deployments")
    problems: dict[Problem, None] = {}
    blocks: list[tuple[Place, Any]] = [(("deployments",), found)]
    if isinstance(found, list) and found:
        blocks = [(("deployments", index), block) for index, block in enumerate(found)]
    combinations: list[Combination] = []
    for place, raw in blocks:
        block = _Block(document, place, problems, model, hardware, environments)
        if not isinstance(raw, dict) or not raw:
            block.report(place, "'deployments' must be a mapping with at least 'engine', or a list of them")
            continue
        combinations += block.expand(raw, MOST_COMBINATIONS - len(combinations))
    return combinations, list(problems)


@dataclass(frozen=True, slots=True)
class _Block:
    """One mapping of settings and blocks that multiply."""

    document: Document
    place: Place
    problems: dict[Problem, None]
    model: Mapping[str, Any]
    hardware: Sequence[str]
    environments: Environments

    def report(self, place: Place, message: str, hint: str | None = None) -> None:
        self.problems.setdefault(self.document.problem(place, message, hint))

    def expand(self, raw: dict[str, Any], most: int) -> list[Combination]:
        given = {name: value for name, value in raw.items() if name not in CONTROLS}
        base = self._checked(Choice(given, {name: (*self.place, name) for name in given}), (*FIELDS, *CONTROLS))
        blocks = read_blocks(raw.get("vary"), (*self.place, "vary"), self.report)
        blocks = [[self._checked(choice, FIELDS) for choice in block] for block in blocks]
        self._check_overlap(blocks)
        varied = {name for block in blocks for choice in block for name in choice.values}
        derive = self._derive(raw.get("derive"), {*base.values, *varied})
        exclude = self._exclude(raw.get("exclude"), {*FIELDS, *derive})
        if (count := math.prod(map(len, blocks))) > most:
            self.report((*self.place, "vary"), f"makes {count:,} combinations; {MOST_COMBINATIONS:,} are the most")
            return []
        made = (self._combine(base, choices, derive, exclude) for choices in itertools.product(*blocks))
        return [one for one in made if one is not None]

    def _checked(self, choice: Choice, known: Sequence[str]) -> Choice:
        """Reports names that are not settings and hardware that does not exist, and leaves them out."""
        values = dict(choice.values)
        for name in [name for name in values if name not in FIELDS]:
            self.report(choice.places[name], *unknown_key(name, known))
            del values[name]
        if type(values.get("engine_version")) in (int, float):  # as written: 0.30 is not 0.3
            values["engine_version"] = self.document.numbers[choice.places["engine_version"]]
        place, wanted = choice.places.get("hardware", ()), values.get("hardware")
        if wanted is not None and wanted not in self.hardware:
            self.report(place, f"unknown hardware {wanted!r}", nearest(str(wanted), self.hardware))
            del values["hardware"]
        for name in ADDED:
            self._check_secrets(values.get(name), choice.places.get(name, ()))
        if _PASSWORD_IN_URL.match(str(values.get("url"))):
            hint = "name the environment variable that holds the key: api_key_env"
            self.report(choice.places["url"], "'url' holds a user name or password", hint)
        return Choice(values, choice.places)

    def _check_secrets(self, values: Any, place: Place) -> None:
        for name in values if isinstance(values, dict) else ():
            if _SECRET_NAME.search(name):
                hint = "export it in the environment of the nodes instead; this file is stored with the results"
                self.report((*place, name), f"{name!r} looks like a secret", hint)

    def _check_overlap(self, blocks: Sequence[Sequence[Choice]]) -> None:
        """If two blocks set the same thing, one of the two values would never be used."""
        first: dict[str, int] = {}
        for index, block in enumerate(blocks):
            for choice in block:
                for name in choice.values:
                    if name not in ADDED and first.setdefault(name, index) != index:
                        self.report(choice.places[name], f"{name!r} is varied in an earlier block already")

    def _derive(self, raw: Any, given: set[str]) -> dict[str, Expression]:
        out: dict[str, Expression] = {}
        place = (*self.place, "derive")
        if raw is not None and not isinstance(raw, dict):
            self.report(place, "'derive' must be a mapping of names to expressions")
            raw = None
        for name, text in (raw or {}).items():
            if name in given or name in NOT_DERIVED or not name.isidentifier():
                why = "is given already" if name in given else "cannot be derived"
                self.report((*place, name), f"{name!r} {why}")
            elif (parsed := self._parse(text, (*place, name), {*FIELDS, *out})) is not None:
                out[name] = parsed
        return out

    def _exclude(self, raw: Any, known: set[str]) -> list[tuple[Place, Expression]]:
        place = (*self.place, "exclude")
        if raw is not None and not isinstance(raw, list):
            self.report(place, "'exclude' must be a list of expressions")
            raw = None
        parsed = [((*place, index), self._parse(text, (*place, index), known)) for index, text in enumerate(raw or [])]
        return [(where, rule) for where, rule in parsed if rule is not None]

    def _parse(self, text: Any, place: Place, known: set[str]) -> Expression | None:
        if not isinstance(text, str):
            self.report(place, "an expression must be text", "put it in quotes")
            return None
        try:
            return parse_expression(text, known)
        except ValueError as error:
            self.report(place, str(error))
            return None

    def _combine(
        self,
        base: Choice,
        choices: tuple[Choice, ...],
        derive: Mapping[str, Expression],
        exclude: Sequence[tuple[Place, Expression]],
    ) -> Combination | None:
        """None when something in it is wrong; what is wrong is reported."""
        if len(self.problems) >= MOST_PROBLEMS:
            return None
        values = self._with_model(_merge((base, *choices)))
        located = location(values, self.environments, self._reporter(choices))
        values |= located or {}
        hardware = values.pop("hardware", None)
        settings = self._settings(values, choices)  # expressions read checked values, and defaults
        if settings is None:
            return None
        names = settings.__dict__ | {"hardware": hardware}
        derived: dict[str, Any] = {}
        for name, expression in derive.items():
            value = self._evaluate(expression, names, (*self.place, "derive", name))
            names[name] = derived[name] = value
        linked = {name: value for name, value in derived.items() if name in EngineSettings.model_fields}
        for name in set(LOCATION) & set(linked) if located else ():
            self.report((*self.place, "derive", name), f"{name!r} is derived, and 'environments' give it too")
        settings = self._settings(values | linked, choices) if linked else settings
        excluded_by = next((rule.text for place, rule in exclude if self._evaluate(rule, names, place)), None)
        if settings is None or located is None:
            return None
        return Combination(settings, hardware, derived, excluded_by, self.place, choices)

    def _reporter(self, choices: tuple[Choice, ...]) -> Callable[[str, str, str | None], None]:
        """Reports at the place where this combination's setting of a name is written."""
        return lambda name, message, hint: self.report(next(_places(name, choices, self.place)), message, hint)

    def _with_model(self, values: dict[str, Any]) -> dict[str, Any]:
        if "model" in values:
            return values
        if not self.model and values.get("served_model_name") is not None:
            return {"model": values["served_model_name"], **values}  # an endpoint: what it calls its model is enough
        if not self.model:
            hint = "write model: {id: <hub name or folder>} at the top of the file"
            self.report(self.place, "no model is given", hint)
            return {"model": "", **values}  # the rest is still checked
        return {**self.model, **values}

    def _settings(self, values: dict[str, Any], choices: tuple[Choice, ...]) -> EngineSettings | None:
        try:
            return EngineSettings.model_validate(values, strict=True)
        except ValidationError as error:
            for problem in problems_of(error, EngineSettings, self.document, lambda loc: self._locate(loc, choices)):
                self.problems.setdefault(problem)
            return None

    def _locate(self, loc: Place, choices: tuple[Choice, ...]) -> Place:
        """Where the value is written that pydantic found wrong at ``loc`` of a settings object."""
        name = str(loc[0]) if loc else ""
        places = [(*place, *loc[1:]) for place in (*_places(name, choices, self.place), (*self.place, "derive", name))]
        return next((place for place in places if place in self.document.lines), places[0])

    def _evaluate(self, expression: Expression, names: Mapping[str, Any], place: Place) -> Any:
        try:
            return expression.evaluate(names)
        except ValueError as error:
            self.report(place, str(error))
            return None


def _places(name: str, choices: Sequence[Choice], block: Place) -> Iterator[Place]:
    """Places where a setting may be written, the one that counts first."""
    yield from (choice.places[name] for choice in reversed(choices) if name in choice.places)
    yield (*block, name)


def _merge(choices: Sequence[Choice]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for choice in choices:
        for name, value in choice.values.items():
            before = out.get(name)
            both = name in ADDED and isinstance(before, dict) and isinstance(value, dict)
            out[name] = before | value if both and isinstance(before, dict) else value
    return out


def read_blocks(vary: Any, place: Place, report: Report) -> list[list[Choice]]:
    """The choices of every block, in the order of the file. Blocks that are wrong are reported and left out."""
    if vary is None:
        return []
    if not isinstance(vary, list):
        report(place, "'vary' must be a list of blocks", "write each block as '- grid: …', '- zip: …' or '- cases: …'")
        return []
    blocks = [_read_block(block, (*place, index), report) for index, block in enumerate(vary)]
    return [block for block in blocks if block]


def _read_block(block: Any, place: Place, report: Report) -> list[Choice]:
    if not isinstance(block, dict) or len(block) != 1 or next(iter(block)) not in KINDS:
        report(place, "a block of 'vary' must be one of grid, zip or cases")
        return []
    kind, content = next(iter(block.items()))
    place = (*place, kind)
    if kind == "cases":
        return _cases(content, place, report)
    return _lists(kind, content, place, report)


def _cases(content: Any, place: Place, report: Report) -> list[Choice]:
    if not isinstance(content, list) or not content:
        report(place, "'cases' must be a list of mappings, each with the settings that differ")
        return []
    choices = []
    for index, case in enumerate(content):
        if not isinstance(case, dict):
            report((*place, index), "a case must be a mapping (name: value)")
            continue
        choices.append(Choice(case, {name: (*place, index, name) for name in case}))
    return choices


def _lists(kind: str, content: Any, place: Place, report: Report) -> list[Choice]:
    """Choices of ``grid`` and ``zip``: they differ in which entries of the lists go together."""
    if not isinstance(content, dict) or not content:
        report(place, f"{kind!r} must be a mapping of settings to lists of values")
        return []
    wrong = [name for name, values in content.items() if not isinstance(values, list) or not values]
    for name in wrong:
        report((*place, name), f"{name!r} must be a list of at least one value", f"write {name}: [first, second]")
    if wrong:
        return []
    ranges = [range(len(values)) for values in content.values()]
    if kind == "grid":
        return [_choice(content, indices, place) for indices in itertools.product(*ranges)]
    if len(set(ranges)) > 1:
        text = ", ".join(f"{name} has {len(values)}" for name, values in content.items())
        report(place, f"the lists of 'zip' must be of equal length: {text}")
        return []
    return [_choice(content, indices, place) for indices in zip(*ranges, strict=True)]


def _choice(axes: dict[str, list[Any]], indices: Sequence[int], place: Place) -> Choice:
    picked = dict(zip(axes, indices, strict=True))
    return Choice(
        {name: axes[name][index] for name, index in picked.items()},
        {name: (*place, name, index) for name, index in picked.items()},
    )

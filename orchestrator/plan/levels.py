"""Load levels that follow from a deployment: per GPU, or an expression over its settings."""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from orchestrator.spec.combinations import FIELDS
from orchestrator.spec.document import Problems
from orchestrator.spec.experiment import GPUS, Load
from orchestrator.spec.expressions import Expression, parse_expression
from orchestrator.spec.load import MOST_IN_FLIGHT, Control, Level

MOST_SAID = 3  # messages about one level; it may be wrong for many deployments


def levels_of(
    load: Load,
    values: Iterable[tuple[int, Mapping[str, Any], Mapping[str, Any]]],
    problems: Problems,
) -> list[tuple[Level, ...]]:
    """Levels of each deployment, in the order of the file, without duplicates. Reports invalid ones
    with their line.

    ``values``: of each deployment its devices, its settings, and what is derived from them, for
    expressions to read.
    """
    given = load.levels.given if load.levels is not None else []
    wrong: list[dict[str, None]] = [{} for _ in given]
    # both once for all deployments that may share it
    parsed, level_at = (
        cache(_parsed),
        cache(lambda control, value: Level(control=control, value=value)),
    )
    found: list[tuple[Level, ...]] = []
    for devices, settings, derived in values:
        names, levels, may_name = (
            {GPUS: devices, **settings, **derived},
            dict[Level, None](),
            tuple(derived),
        )
        for (key, _, control, level), said in zip(given, wrong, strict=True):
            read = names | {GPUS: devices} if key.endswith("_per_gpu") else names
            try:
                one = parsed(level, may_name) if isinstance(level, str) else level
                if isinstance(one, str):
                    raise ValueError(one)
                levels[level_at(control, _value(load, control, one, read))] = None
            except ValueError as error:
                if len(said) < MOST_SAID:
                    said[str(error)] = None
        found.append(tuple(levels))
    for (key, index, *_), said in zip(given, wrong, strict=True):
        for text in said:
            problems.add(("load", "levels", key, index), text)
    return found


def _parsed(text: str, derived: tuple[str, ...]) -> Expression | str:
    """An expression, or why it is none: both are worth keeping."""
    try:
        return parse_expression(text, {*FIELDS, GPUS, *derived})
    except ValueError as error:
        return str(error)


def _value(
    load: Load, control: Control, given: float | Expression, names: Mapping[str, Any]
) -> float:
    """The level as a number. Raises ValueError when it is not a valid level of this load."""
    if not isinstance(given, Expression):
        return given
    text, value = given.text, given.evaluate(names)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        why = "; say how many GPUs the endpoint has (endpoint_gpus: 8)" if names[GPUS] == 0 else ""
        raise ValueError(f"{text!r} is {value!r}, and a level is a number above 0{why}")
    if control == "concurrency" and (value != int(value) or value > MOST_IN_FLIGHT):
        most = f"concurrency is a whole number of at most {MOST_IN_FLIGHT}"
        raise ValueError(f"{text!r} is {value:g}, and {most} (`//` gives whole numbers)")
    if problem := load.too_much(control, value):
        raise ValueError(problem)
    return float(value)

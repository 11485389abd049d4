"""Load levels that follow from a deployment: per GPU, or an expression over its settings."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from orchestrator.spec.combinations import FIELDS
from orchestrator.spec.document import Problems
from orchestrator.spec.experiment import GPUS, Load
from orchestrator.spec.expressions import Expression, parse_expression
from orchestrator.spec.load import MOST_IN_FLIGHT, Control, Level

MOST_SAID = 3  # messages about one level; it may be wrong for many deployments


def levels_of(
    load: Load, values: Sequence[tuple[int, Mapping[str, Any]]], problems: Problems
) -> list[tuple[Level, ...]]:
    """Levels of each deployment, in the order of the file, without duplicates. Reports invalid ones with their line.

    ``values``: for each deployment its devices, and the settings and derived names that expressions may read.
    """
    found: list[dict[Level, None]] = [{} for _ in values]
    known = [frozenset({*FIELDS, GPUS, *names}) for _, names in values]
    parse = cache(parse_expression)  # once for all deployments with the same names
    for key, index, control, given in load.levels.given if load.levels is not None else ():
        wrong: dict[str, None] = {}
        for levels, (devices, names), may_name in zip(found, values, known, strict=True):
            read = {GPUS: devices, **names} | ({GPUS: devices} if key.endswith("_per_gpu") else {})
            try:
                one = parse(given, may_name) if isinstance(given, str) else given
                levels[Level(control=control, value=_value(load, control, one, read))] = None
            except ValueError as error:
                wrong[str(error)] = None
        for text in list(wrong)[:MOST_SAID]:
            problems.add(("load", "levels", key, index), text)
    return [tuple(levels) for levels in found]


def _value(load: Load, control: Control, given: float | Expression, names: Mapping[str, Any]) -> float:
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

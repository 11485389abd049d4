"""Load levels that follow from a deployment: per GPU, or an expression over its settings."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from orchestrator.plan.candidates import Candidate
from orchestrator.spec.combinations import FIELDS
from orchestrator.spec.experiment import GPUS, Experiment, Load
from orchestrator.spec.expressions import Expression, parse_expression
from orchestrator.spec.load import MOST_IN_FLIGHT, Control, Level

MOST_MESSAGES = 3  # about one level; it may be wrong for many deployments


def levels_of(
    experiment: Experiment, candidates: Sequence[Candidate]
) -> dict[str, tuple[Level, ...]]:
    """Levels that follow from each deployment, by its id: in the order of the file, without
    duplicates. Reports expressions that give none, with their line.

    Empty if all deployments have the same levels.
    """
    load: Load | None = experiment.parts.get("load")
    if load is None or load.levels is None or not load.levels.follow:
        return {}
    written_levels = load.levels.given
    # of each level, without duplicates
    messages: list[dict[str, None]] = [{} for _ in written_levels]
    parsed = cache(_parsed)  # for all deployments at once
    level_at = cache(_level_at)
    levels: dict[str, tuple[Level, ...]] = {}
    for candidate in candidates:
        if candidate.excluded_by is not None:
            continue
        names = _names_of(candidate)
        derived = tuple(candidate.derived)
        own_levels: dict[Level, None] = {}
        for level, level_messages in zip(written_levels, messages, strict=True):
            if level.key.endswith(
                "_per_gpu"
            ):  # the number of GPUs, whatever is derived with that name
                names_here = names | {GPUS: candidate.settings.devices}
            else:
                names_here = names
            try:
                if isinstance(level.value, str):
                    expression = parsed(level.value, derived)
                    value = _value(load, level.control, expression, names_here)
                else:
                    value = level.value
                own_levels[level_at(level.control, value)] = None
            except ValueError as error:
                if len(level_messages) < MOST_MESSAGES:
                    level_messages[str(error)] = None
        levels[candidate.id] = tuple(own_levels)
    for level, level_messages in zip(written_levels, messages, strict=True):
        place = ("load", "levels", level.key, level.index)
        for message in level_messages:
            experiment.problems.add(place, message)
    return levels


def _names_of(candidate: Candidate) -> dict[str, Any]:
    """What expressions may read: settings, hardware, devices, and what the file derives."""
    settings = candidate.settings
    own = {GPUS: settings.devices, **settings.__dict__, "hardware": candidate.hardware_in_file}
    return own | dict(candidate.derived)


def _level_at(control: Control, value: float) -> Level:
    return Level(control=control, value=value)


def _parsed(text: str, derived: tuple[str, ...]) -> Expression | ValueError:
    """An expression, or the reason why the text is none; both are cached."""
    try:
        return parse_expression(text, {*FIELDS, GPUS, *derived})
    except ValueError as error:
        return error


def _value(
    load: Load, control: Control, parsed: Expression | ValueError, names: Mapping[str, Any]
) -> float:
    """The level as a number. Raises ValueError when it is not a valid level of this load."""
    if isinstance(parsed, ValueError):
        raise ValueError(str(parsed))
    text, value = parsed.text, parsed.evaluate(names)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        reason = ""
        if names[GPUS] == 0:
            reason = "; say how many GPUs the endpoint has (endpoint_gpus: 8)"
        raise ValueError(f"{text!r} is {value!r}, and a level is a number above 0{reason}")
    if control == "concurrency" and (value != int(value) or value > MOST_IN_FLIGHT):
        raise ValueError(
            f"{text!r} is {value:g}, and concurrency is a whole number of at most "
            f"{MOST_IN_FLIGHT} (`//` gives whole numbers)"
        )
    problem = load.too_much(control, value)
    if problem:
        raise ValueError(problem)
    return float(value)

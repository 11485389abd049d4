"""Load levels that follow from a deployment: per GPU, or an expression over its settings."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from orchestrator.plan.candidates import Candidate
from orchestrator.spec.combinations import FIELDS
from orchestrator.spec.document import Problems
from orchestrator.spec.experiment import GPUS, Experiment, Load, WrittenLevel
from orchestrator.spec.expressions import Expression, parse_expression
from orchestrator.spec.load import MOST_IN_FLIGHT, Control, Level

PER_GPU = "_per_gpu"  # end of the keys whose levels are multiplied by the number of GPUs
MOST_MESSAGES = 3  # about one level, which may be wrong for many deployments


def levels_of(
    experiment: Experiment, candidates: Sequence[Candidate]
) -> dict[str, tuple[Level, ...]]:
    """Levels that follow from each deployment, by its id: in the order of the file, without
    duplicates. Reports expressions that give no valid level, with their line.

    Empty if all deployments have the same levels.
    """
    load: Load | None = experiment.parts.get("load")
    if load is None or load.levels is None or not load.levels.follow:
        return {}
    if load.levels.follow_a_trace:  # plan/recorded_levels.py has those of each workload
        return {}
    of_file = _LevelsOfFile(load, load.levels.written)
    levels = {
        candidate.id: of_file.levels_of(candidate)
        for candidate in candidates
        if candidate.excluded_by is None
    }
    of_file.report(experiment.problems)
    return levels


class _LevelsOfFile:
    """The levels as they are written, and what is wrong with each of them."""

    def __init__(self, load: Load, written: Sequence[WrittenLevel]) -> None:
        self._load = load
        self._written = written
        # what is wrong with each level, without duplicates
        self._messages: list[dict[str, None]] = [{} for _ in written]
        # cached, because up to 100,000 deployments share expressions and levels
        self._parsed = cache(_parsed)
        self._level_at = cache(_level_at)

    def levels_of(self, candidate: Candidate) -> tuple[Level, ...]:
        """The levels of one deployment, without duplicates. What gives no valid level is left out,
        and the reason is kept for ``report``.
        """
        names = _names_of(candidate)
        levels: dict[Level, None] = {}
        for written, messages in zip(self._written, self._messages, strict=True):
            try:
                value = self._value(written, candidate, names)
                levels[self._level_at(written.control, value)] = None
            except ValueError as error:
                if len(messages) < MOST_MESSAGES:
                    messages[str(error)] = None
        return tuple(levels)

    def _value(
        self, written: WrittenLevel, candidate: Candidate, names: Mapping[str, Any]
    ) -> float:
        """The level as a number. Raises ValueError when it is not a valid level of this load."""
        if not isinstance(written.value, str):
            return written.value
        if written.key.endswith(PER_GPU):
            # the number of GPUs, whatever the file derives with that name
            names = {**names, GPUS: candidate.settings.devices}
        expression = self._parsed(written.value, tuple(candidate.derived))
        return evaluated(self._load, written.control, expression, names)

    def report(self, problems: Problems) -> None:
        """Adds what is wrong with the levels to the problems of the file."""
        for written, messages in zip(self._written, self._messages, strict=True):
            for message in messages:
                problems.add(("load", "levels", written.key, written.index), message)


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


def evaluated(
    load: Load, control: Control, expression: Expression | ValueError, names: Mapping[str, Any]
) -> float:
    """The value of an expression. Raises ValueError if it is not a valid level of this load."""
    if isinstance(expression, ValueError):
        raise ValueError(str(expression))
    text = expression.text
    value = expression.evaluate(names)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        reason = ""
        if names.get(GPUS) == 0:
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

"""Load levels of recorded arrivals: a trace has a rate of its own, and the level must state it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.load.arrivals import mean_rate, recorded, unit_problem
from orchestrator.plan.levels import evaluated
from orchestrator.spec.document import Problems
from orchestrator.spec.experiment import RECORDED_RATE, Load
from orchestrator.spec.expressions import parse_expression
from orchestrator.spec.load import INFINITE, Arrivals, Level, Scale, Workload
from orchestrator.workloads.fidelity import RATE_TOLERANCE


def recorded_levels(
    load: Load, arrivals: Arrivals, workloads: Sequence[Workload], problems: Problems
) -> dict[str, tuple[Level, ...]]:
    """Workload name -> its levels. Reports what does not go with recorded times: a unit that is not
    seconds, another rate, a search over rates, more requests than there are times.

    If the file gives no levels, the level is the mean rate of the times that are sent.
    ``arrivals`` must have a trace that can be read.
    """
    unit = unit_problem(arrivals)
    if unit is not None:
        problems.add(("load", "arrivals"), unit)
        return {}
    if load.search != "levels":
        message = f"search {load.search!r} cannot change the rate of recorded arrivals"
        problems.add(("load", "search"), message, "leave it out, or take other arrivals")
        return {}
    ends_s = None
    if load.requests is None:
        ends_s = (load.warmup_s or 0.0) + (load.duration_s or load.default_s)
    levels: dict[str, tuple[Level, ...]] = {}
    times_s = recorded(arrivals)
    for workload in workloads:
        turns = workload.mean_turns()
        sessions = None if load.requests is None else math.ceil(load.requests / turns)
        if sessions is not None and sessions > len(times_s):
            most = math.floor(len(times_s) * turns)
            message = f"the trace has times for {most:,} requests of {workload.name!r}"
            problems.add(("load", "requests"), message, "ask for no more, or take other arrivals")
        rate = mean_rate(times_s, ends_s, sessions) * turns
        if load.levels is None:
            levels[workload.name] = (Level(control="request_rate", value=rate),)
        else:
            _check_levels(load, workload, rate, problems)
    return levels


def _check_levels(load: Load, workload: Workload, rate: float, problems: Problems) -> None:
    """Reports levels that use no recorded times, and rates that are not the recorded one. An
    infinite rate is allowed, because it ignores the recorded times.
    """
    assert load.levels is not None
    for level in load.levels.written:
        if level.value == float(INFINITE):
            continue
        if level.control == "concurrency":
            message = "recorded arrivals are not used where requests are kept in flight"
            problems.add(("load", "levels", level.key), message, f"leave {level.key!r} out")
            continue
        if isinstance(level.value, str) or abs(level.value / rate - 1) > RATE_TOLERANCE:
            message = (
                f"recorded arrivals have one rate, their own: {workload.name!r} gets "
                f"{rate:.4g} requests/s on average"
            )
            hint = f"leave 'levels' out, or give request_rate: [{rate:.4g}]"
            problems.add(("load", "levels", level.key, level.index), message, hint)


def levels_of_workloads(
    load: Load, arrivals: Arrivals, workloads: Sequence[Workload], problems: Problems
) -> dict[str, tuple[Level, ...]]:
    """Workload name -> its levels, which are numbers or expressions over the recorded rate of the
    workload. Reports rates that the recorded times cannot have.

    If the file gives no levels and no search, the level is the recorded rate.
    """
    is_timed = arrivals.process == "trace"
    if is_timed and load.search != "levels" and arrivals.scale is Scale.RECORDED:
        message = f"search {load.search!r} cannot change the rate of recorded arrivals"
        hint = "give arrivals: {process: trace, scale: stretch}, or thin"
        problems.add(("load", "search"), message, hint)
        return {}
    levels: dict[str, tuple[Level, ...]] = {}
    for workload in workloads:
        rate = workload.recorded_rate()
        if rate is None:
            message = f"{workload.name!r} has no recorded rate, and a level names it"
            problems.add(("load", "levels"), message, "take numbers for such workloads")
            continue
        if load.levels is not None:
            written = _levels_at(load, rate, problems)
            levels[workload.name] = written
            if is_timed:
                _check_scaled(load, arrivals, workload, rate, problems)
        elif load.search == "levels":
            levels[workload.name] = (Level(control="request_rate", value=rate),)
    return levels


def _levels_at(load: Load, rate: float, problems: Problems) -> tuple[Level, ...]:
    """The levels of the file for a workload of this recorded rate, without duplicates."""
    assert load.levels is not None
    levels: dict[Level, None] = {}
    for written in load.levels.written:
        value = written.value
        if isinstance(value, str):
            try:
                expression = parse_expression(value, {RECORDED_RATE})
                value = evaluated(load, written.control, expression, {RECORDED_RATE: rate})
            except ValueError as error:
                hint = "an expression with 'recorded' knows no settings"
                problems.add(("load", "levels", written.key, written.index), str(error), hint)
                continue
        levels[Level(control=written.control, value=value)] = None
    return tuple(levels)


def _check_scaled(
    load: Load, arrivals: Arrivals, workload: Workload, rate: float, problems: Problems
) -> None:
    """Reports levels that the recorded times do not have at their scale."""
    if arrivals.scale is Scale.STRETCH:
        return
    for level in _levels_at(load, rate, Problems(problems.document)):
        if level.control != "request_rate" or level.value == math.inf:
            continue
        if arrivals.scale is Scale.THIN and level.value > rate * (1 + RATE_TOLERANCE):
            message = (
                f"thinning leaves out sessions: {workload.name!r} has {rate:.4g} requests/s, and "
                f"{level.value:.4g} are more"
            )
            problems.add(("load", "levels"), message, "take scale: stretch")
        sessions = round((workload.most_requests() or 0) / workload.mean_turns())
        if arrivals.scale is Scale.THIN and not round(level.value / rate * sessions):
            message = (
                f"thinning leaves out sessions: of the {sessions:,} of {workload.name!r}, whose rate "
                f"is {rate:.4g} requests/s, {level.value:.4g} would leave none"
            )
            problems.add(("load", "levels"), message, "take higher levels, or a longer window")
        is_other = abs(level.value / rate - 1) > RATE_TOLERANCE
        if arrivals.scale is Scale.RECORDED and is_other:
            message = (
                f"recorded arrivals have one rate, {rate:.4g} requests/s for {workload.name!r}"
            )
            hint = "give arrivals: {process: trace, scale: stretch}, or thin"
            problems.add(("load", "levels"), message, hint)

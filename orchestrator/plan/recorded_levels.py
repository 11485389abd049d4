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


def levels_of_arrivals(
    load: Load, arrivals: Arrivals, workloads: Sequence[Workload], problems: Problems
) -> dict[str, tuple[Level, ...]]:
    """Workload name -> its levels, where the times are those of a file that ``arrivals`` names.

    The level is the mean rate of the times that are sent, unless the file gives levels. Reports
    what does not go with recorded times: a unit that is not seconds, another rate, a search over
    rates, more requests than there are times. The trace of ``arrivals`` must be readable.
    """
    unit = unit_problem(arrivals)
    if unit is not None:
        problems.add(("load", "arrivals"), unit)
        return {}
    if load.search != "levels":
        message = f"search {load.search!r} cannot change the rate of recorded arrivals"
        problems.add(("load", "search"), message, "leave it out, or take other arrivals")
        return {}
    # without a number of requests, the times until this one are sent
    end_s = None
    if load.requests is None:
        end_s = (load.warmup_s or 0.0) + (load.duration_s or load.default_s)
    levels: dict[str, tuple[Level, ...]] = {}
    times_s = recorded(arrivals)
    for workload in workloads:
        turns = workload.mean_turns()
        sessions = None  # each session begins at one of the times
        if load.requests is not None:
            sessions = math.ceil(load.requests / turns)
        if sessions is not None and sessions > len(times_s):
            most = math.floor(len(times_s) * turns)
            message = f"the trace has times for {most:,} requests of {workload.name!r}"
            problems.add(("load", "requests"), message, "ask for no more, or take other arrivals")
        rate = mean_rate(times_s, end_s, sessions) * turns
        if load.levels is None:
            levels[workload.name] = (Level(control="request_rate", value=rate),)
        else:
            _check_written(load, workload, rate, problems)
    return levels


def _check_written(load: Load, workload: Workload, rate: float, problems: Problems) -> None:
    """Reports levels of the file that use no recorded times, and rates other than the recorded
    ``rate``, in requests/s. An infinite rate is allowed, because it ignores the recorded times.
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


def levels_of_recordings(
    load: Load, arrivals: Arrivals, workloads: Sequence[Workload], problems: Problems
) -> dict[str, tuple[Level, ...]]:
    """Workload name -> its levels, where each workload is a recording with a rate of its own.

    The levels of the file may be numbers, or expressions over the recorded rate. Without levels and
    without a search, the level is the recorded rate. Reports workloads without a recorded rate, and
    where recorded times are sent, rates that these cannot have.
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
            levels[workload.name] = _levels_at(load, rate, problems)
            if is_timed:
                rates = _finite_rates(levels[workload.name])
                _check_rates(rates, arrivals.scale, workload, rate, problems)
        elif load.search == "levels":
            levels[workload.name] = (Level(control="request_rate", value=rate),)
    return levels


def _levels_at(load: Load, rate: float, problems: Problems) -> tuple[Level, ...]:
    """The levels of the file for a workload that was recorded at ``rate`` requests/s, without
    duplicates. Reports expressions that have no value.
    """
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


def _finite_rates(levels: Sequence[Level]) -> list[float]:
    """The request rates among these levels, without an infinite one: that ignores recorded times."""
    rates: list[float] = []
    for level in levels:
        if level.control == "request_rate" and math.isfinite(level.value):
            rates.append(level.value)
    return rates


def _check_rates(
    rates: Sequence[float],
    scale: Scale,
    workload: Workload,
    recorded_rate: float,
    problems: Problems,
) -> None:
    """Reports the ``rates`` at which recorded times cannot be sent. All rates are requests/s.

    STRETCH reaches every rate, RECORDED none but the recorded one, and THIN the lower ones at which
    at least one session is left.
    """
    for rate in rates:
        if scale is Scale.THIN:
            _check_thinned(rate, workload, recorded_rate, problems)
        elif scale is Scale.RECORDED and abs(rate / recorded_rate - 1) > RATE_TOLERANCE:
            message = (
                f"recorded arrivals have one rate, {recorded_rate:.4g} requests/s for "
                f"{workload.name!r}"
            )
            hint = "give arrivals: {process: trace, scale: stretch}, or thin"
            problems.add(("load", "levels"), message, hint)


def _check_thinned(
    rate: float, workload: Workload, recorded_rate: float, problems: Problems
) -> None:
    """Reports a rate that leaving out sessions of a recording cannot give."""
    if rate > recorded_rate * (1 + RATE_TOLERANCE):
        message = (
            f"thinning leaves out sessions: {workload.name!r} has {recorded_rate:.4g} requests/s, "
            f"and {rate:.4g} are more"
        )
        problems.add(("load", "levels"), message, "take scale: stretch")
    sessions = round((workload.most_requests() or 0) / workload.mean_turns())
    if round(rate / recorded_rate * sessions) == 0:
        message = (
            f"thinning leaves out sessions: of the {sessions:,} of {workload.name!r}, whose rate "
            f"is {recorded_rate:.4g} requests/s, {rate:.4g} would leave none"
        )
        problems.add(("load", "levels"), message, "take higher levels, or a longer window")

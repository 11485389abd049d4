"""Load levels of recorded arrivals: a trace has a rate of its own, and the level must state it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.load.arrivals import mean_rate, recorded, unit_problem
from orchestrator.spec.document import Problems
from orchestrator.spec.experiment import Load
from orchestrator.spec.load import INFINITE, Arrivals, Level, Workload

RATE_TOLERANCE = 0.02  # share by which a level in the file may be off, so that it may be rounded


def recorded_levels(
    load: Load, arrivals: Arrivals, workloads: Sequence[Workload], problems: Problems
) -> dict[str, tuple[Level, ...]]:
    """Workload name -> its levels. Reports what does not go with recorded times: a unit that is not
    seconds, another rate, a search over rates.

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
    for workload in workloads:
        turns = workload.mean_turns()
        sessions = None if load.requests is None else math.ceil(load.requests / turns)
        rate = mean_rate(recorded(arrivals), ends_s, sessions) * turns
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

"""How near a load at recorded times comes to what was recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.spec.load import Arrivals, Level, Scale, Workload

RATE_TOLERANCE = 0.02  # share by which a level in the file may be off, so that it may be rounded
RATE_DIFFERS = 0.01  # a rate that is so far from the recorded one is noted


@dataclass(frozen=True, slots=True)
class TraceFidelity:
    """A level at recorded times. ``recorded_rate``: requests/s, on average. ``rate_factor``: the
    level over it. ``thinned_share``: of its sessions, those that are left out.
    ``distinct_times_share``: distinct times per request.
    """

    recorded_rate: float
    rate_factor: float
    thinned_share: float
    distinct_times_share: float | None

    def evidence(self) -> dict[str, float]:
        """The figures that are known."""
        evidence = {
            "recorded_rate": self.recorded_rate,
            "rate_factor": self.rate_factor,
            "thinned_share": self.thinned_share,
        }
        if self.distinct_times_share is not None:
            evidence["distinct_times_share"] = self.distinct_times_share
        return evidence


def fidelity_of(workload: Workload, level: Level, arrivals: Arrivals) -> TraceFidelity | None:
    """The fidelity of a level; None where it is not sent at the workload's recorded times. Raises
    ProblemsError where the trace can no longer be read.
    """
    is_at_recorded_times = arrivals.process == "trace" and arrivals.trace is None
    if not is_at_recorded_times or level.control != "request_rate" or np.isinf(level.value):
        return None
    recorded = workload.recorded_rate()
    if recorded is None:
        return None
    factor = 1.0 if arrivals.scale is Scale.RECORDED else level.value / recorded
    is_thinned = arrivals.scale is Scale.THIN
    return TraceFidelity(
        recorded_rate=recorded,
        rate_factor=factor,
        thinned_share=max(0.0, 1 - factor) if is_thinned else 0.0,
        distinct_times_share=workload.distinct_times_share(),
    )

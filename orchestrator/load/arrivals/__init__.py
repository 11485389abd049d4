"""When requests are due (open loop): one pure function per process.

A process gets the arrivals as written, the mean rate of the level and a generator, and returns float64 offsets in
seconds from the point's start, ascending. It ends at ``horizon_s`` or after ``count`` arrivals, whichever is first.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from orchestrator.registry import Registry, unknown_name
from orchestrator.spec.load import Arrivals

Offsets = NDArray[np.float64]


class Process(Protocol):
    """One arrival process. At least one of ``horizon_s`` and ``count`` is given."""

    def __call__(
        self, arrivals: Arrivals, rate: float, horizon_s: float | None, count: int | None, rng: np.random.Generator
    ) -> Offsets: ...


ARRIVALS: Registry[Process] = Registry(
    "arrivals",
    {
        "constant": "orchestrator.load.arrivals.renewal:constant",
        "poisson": "orchestrator.load.arrivals.renewal:poisson",
        "gamma": "orchestrator.load.arrivals.renewal:gamma",
        "ramp": "orchestrator.load.arrivals.varying:ramp",
        "steps": "orchestrator.load.arrivals.varying:steps",
        "trace": "orchestrator.load.arrivals.trace:trace",
    },
)

_NEEDS = {"ramp": "to", "steps": "steps", "trace": "trace"}


def problems(arrivals: Arrivals) -> list[str]:
    """Why these arrivals cannot be drawn, one sentence each; empty when they can."""
    if arrivals.process not in ARRIVALS:
        return [unknown_name("arrival process", arrivals.process, ARRIVALS.names())]
    needed = _NEEDS.get(arrivals.process)
    if needed and getattr(arrivals, needed) is None:
        return [f"arrivals {arrivals.process!r} need the field {needed!r}"]
    if arrivals.process == "trace":
        from orchestrator.load.arrivals.trace import trace_problems

        return trace_problems(arrivals)
    return []

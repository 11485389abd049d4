"""Stops are the limits to which the page can be set; latencies are stored as numbers of stops.

A byte per latency of a request is enough, because the page only ever asks whether the latency is
above one of at most 254 limits. The limits of the experiment's file are among the stops, so under
them the page judges exactly as the file asks.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from orchestrator.base.arrays import Bools, Floats

Bins = npt.NDArray[np.uint8]

MOST_STOPS = 254
LEAST_STEP = 1.01  # between neighbours: nobody moves a limit by less than one percent
BEYOND = 254  # the bin of a value that is above every stop, or unknown
FAILED = 255  # the bin of a request without an answer


def stops_for(values: Floats, limits_s: Iterable[float]) -> Floats:
    """The stops for one latency, ascending, in seconds.

    They are round numbers over the range of ``values``, and the limits of the file. They are empty
    if there are neither.
    """
    wanted = set(limits_s)
    known = values[np.isfinite(values) & (values > 0)]
    if known.size:
        low = float(known.min())
        high = max(float(known.max()) * 1.001, low * LEAST_STEP)
        steps = 1 + int(np.log(high / low) / np.log(LEAST_STEP))
        spaced = np.geomspace(low, high, min(1 + steps, MOST_STOPS - len(wanted)))
        wanted |= {float(f"{value:.3g}") for value in spaced}
    return np.array(sorted(wanted), np.float64)


def bins_of(values: Floats, is_ok: Bools, stops: Floats) -> Bins:
    """For each request, the number of the first stop that its value does not exceed."""
    bins = np.searchsorted(stops, values, side="left")
    bins = np.where(bins < stops.size, bins, BEYOND)
    return np.where(is_ok, bins, FAILED).astype(np.uint8)

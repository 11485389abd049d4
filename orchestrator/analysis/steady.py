"""Where a run becomes steady, for runs whose warm-up was not given.

MSER on the number of requests in flight (White 1997, "An effective truncation heuristic for bias
reduction in simulation output"; the best of 42 rules in Hoad, Robinson and Davies 2010): cut off
the beginning so that the mean of the rest has the least squared standard error. At least one
end-to-end time is cut off in any case: a closed loop has its full number in flight from the first
instant, and without noise it looks steady before the first answers come.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.results.lazy_rows import Rows, slices

PARTS = 64  # into which the run is cut; each has its mean number of requests in flight
# The first cut is taken whose squared error is at most this many times the least one: in a flat run
# the least one may lie anywhere.
NEARLY = 1.25
FIRST_REQUESTS = 8  # at least so many requests give the end-to-end time of an empty engine
# Share of the run, at its beginning, in which more requests may be in flight than later, because
# the engine is cold. After that, more in flight is chance.
COLD_SHARE = 0.1
# share of the run; if it becomes steady later than that, no part of it is taken for steady
LATEST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class RequestSpans:
    """When some requests were due and when they were done, since the run began.

    Both are in the same unit of time. ``done``: infinity where a request has not ended. A request
    is in flight from when it was due until it was done.
    """

    due: Floats
    done: Floats


def steady_from_ns(requests: Rows, duration_ns: int) -> int | None:
    """When the steady part of a run begins, in ns; None: there is none.

    ``duration_ns``: for how long requests were due.
    """
    begin = steady_from(lambda: map(_times_ns, slices(requests)), float(duration_ns))
    return None if begin is None else round(begin)


def _times_ns(requests: Rows) -> RequestSpans:
    return RequestSpans(
        requests["scheduled_ns"].to_numpy().astype(np.float64),
        requests["done_ns"].to_numpy().astype(np.float64),
    )


def steady_from(parts: Callable[[], Iterable[RequestSpans]], now: float) -> float | None:
    """When the steady part of a run begins; None: there is none.

    ``parts``: yields the requests of the run; it is called twice, so that the requests need not all
    be in memory. ``now``: how long the run has lasted so far, in the unit of ``parts``.
    """
    edges = np.linspace(0, max(now, 0), PARTS + 1)
    # for each edge, how long all requests together were in flight before it
    in_flight_until_edge = np.zeros(PARTS + 1)
    earliest_due = np.zeros(0)
    for times in parts():
        since_due = _time_since(np.sort(times.due), edges)
        since_done = _time_since(np.sort(times.done), edges)
        in_flight_until_edge += since_due - since_done
        earliest_due = np.sort(np.concatenate([earliest_due, times.due]))[:FIRST_REQUESTS]
    if not earliest_due.size or now <= 0:
        return None
    in_flight = np.diff(in_flight_until_edge) * PARTS / now
    # the requests that were due first, at least FIRST_REQUESTS of them, met an empty engine
    first_until = max(float(edges[1]), float(earliest_due[-1]))
    end_to_end = [
        (np.minimum(times.done, now) - times.due)[times.due <= first_until] for times in parts()
    ]
    median_end_to_end = float(np.median(np.concatenate(end_to_end)))
    begin = max(float(edges[_cut(in_flight)]), median_end_to_end)
    return begin if begin <= LATEST_SHARE * now else None


def _cut(in_flight: Floats) -> int:
    """How many parts to cut off: the first cut whose error is close to the least (MSER).

    ``in_flight``: the mean number of requests in flight in each of PARTS parts.
    """
    cuts = np.arange(int(PARTS * LATEST_SHARE) + 1)
    sum_before_cut = np.concatenate([[0.0], np.cumsum(in_flight)])[cuts]
    # what is cut off is a warm-up only if it is a cold start, or if less is in flight than later
    is_cold_start = cuts <= PARTS * COLD_SHARE
    is_below_mean = sum_before_cut < in_flight.mean() * cuts
    squared_errors = _variances_from(in_flight)[cuts] / (PARTS - cuts)
    errors = np.where(is_cold_start | is_below_mean, squared_errors, np.inf)
    # In a run that hardly varies, NEARLY times the least error is still close to zero. So the error
    # of parts that vary by a thousandth of their mean is allowed beside it.
    allowed_error = NEARLY * errors.min() + (1e-3 * in_flight.mean()) ** 2 / PARTS
    return int(np.argmax(errors <= allowed_error))  # the first that is allowed


def _variances_from(values: Floats) -> Floats:
    """The variance of ``values[i:]``, for each i."""
    deviations = values - values.mean()
    counts = np.arange(len(values), 0, -1)
    means = _sums_from(deviations) / counts
    mean_squares = _sums_from(deviations**2) / counts
    variances: Floats = np.maximum(mean_squares - means**2, 0.0)
    return variances


def _sums_from(values: Floats) -> Floats:
    """The sum of ``values[i:]``, for each i."""
    sums: Floats = np.cumsum(values[::-1])[::-1]
    return sums


def _time_since(instants: Floats, edges: Floats) -> Floats:
    """For each edge, the sum of the times since all instants before it. ``instants``: sorted."""
    count = np.searchsorted(instants, edges)
    sum_of_instants = np.concatenate([[0.0], np.cumsum(instants)])[count]
    elapsed: Floats = count * edges - sum_of_instants
    return elapsed

"""Where a run becomes steady, for runs whose warm-up was not given.

MSER on the number of requests in flight (White 1997, "An effective truncation heuristic for bias
reduction in simulation output"; the best of 42 rules in Hoad, Robinson and Davies 2010): cut off
the beginning so that the mean of the rest has the least squared standard error. At least one
end-to-end time is cut off in any case: a closed loop has its full number in flight from the first
instant, and without noise it looks steady before the first answers come.
"""

from collections.abc import Callable, Iterable

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.results.lazy_rows import Rows, slices

PARTS = 64  # the run is cut into so many parts, each with its mean number in flight
# the first cut within so many times the least error counts: in a flat run the least lies anywhere
NEARLY = 1.25
FIRST = 8  # at least so many requests give the end-to-end time of an empty engine
# share of the run in which more may be in flight than later (a cold engine); after it that is
# chance
COLD = 0.1
MOST = 0.5  # share of the run: where it became steady later than that, no part is taken for steady


def steady_from_ns(requests: Rows, duration_ns: int) -> int | None:
    """When the steady part of a run begins, ns; None: there is none. ``duration_ns``: how long
    requests were due.
    """

    def part(rows: Rows) -> tuple[Floats, Floats]:
        due, done = (
            rows[name].to_numpy().astype(np.float64) for name in ("scheduled_ns", "done_ns")
        )
        return due, done

    begin = steady_from(lambda: map(part, slices(requests)), float(duration_ns))
    return None if begin is None else round(begin)


def steady_from(parts: Callable[[], Iterable[tuple[Floats, Floats]]], until: float) -> float | None:
    """As ``steady_from_ns``, for a run until now and in any unit.

    ``parts``: when requests were due and when they were done, some after the others; infinity if
    they have not ended. A request is in flight from when it was due until it was done.
    """
    edges = np.linspace(0, max(until, 0), PARTS + 1)
    waited, earliest = np.zeros(PARTS + 1), np.zeros(0)
    for due, done in parts():
        waited += _waited(np.sort(due), edges) - _waited(np.sort(done), edges)
        earliest = np.sort(np.concatenate([earliest, due]))[:FIRST]
    if not earliest.size or until <= 0:
        return None
    in_flight = np.diff(waited) * PARTS / until
    cuts = np.arange(int(PARTS * MOST) + 1)
    until_cut = np.concatenate([[0.0], np.cumsum(in_flight)])[cuts]
    # only a cold start, or less in flight than later, is a warm-up
    warming = (cuts <= PARTS * COLD) | (until_cut < in_flight.mean() * cuts)
    errors = np.where(warming, _variances(in_flight)[cuts] / (PARTS - cuts), np.inf)
    negligible = (1e-3 * in_flight.mean()) ** 2 / PARTS
    cut = int(np.argmax(errors <= NEARLY * errors.min() + negligible))
    # those that were due first, at least FIRST of them, met an empty engine
    first = max(float(edges[1]), float(earliest[-1]))
    stays = [(np.minimum(done, until) - due)[due <= first] for due, done in parts()]
    begin = max(float(edges[cut]), float(np.median(np.concatenate(stays))))
    return begin if begin <= MOST * until else None


def _variances(values: Floats) -> Floats:
    """The variance of ``values[i:]``, for each i."""
    off, counts = values - values.mean(), np.arange(len(values), 0, -1)
    means, squares = (np.cumsum(one[::-1])[::-1] / counts for one in (off, off**2))
    variances: Floats = np.maximum(squares - means**2, 0.0)
    return variances


def _waited(since: Floats, edges: Floats) -> Floats:
    """For each edge, the sum of the times since all instants before it. ``since``: sorted."""
    count = np.searchsorted(since, edges)
    waited: Floats = count * edges - np.concatenate([[0.0], np.cumsum(since)])[count]
    return waited

"""Where a throughput curve bends: the load beyond which more load gains little."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from orchestrator.analysis.metrics import BACKLOG, FAILING
from orchestrator.analysis.points import StoredPoint

FEWEST = 4  # levels
LEAST = 0.1  # distance from the straight line (both axes scaled to 0..1); less is noise


def knee(levels: Sequence[float], throughputs: Sequence[float]) -> int | None:
    """Index of the knee of throughput over load; None where there is none. ``levels``: ascending.

    With both scaled to 0..1, the knee is the point furthest above the straight line between the
    ends: Kneedle (Satopaa et al., "Finding a Kneedle in a Haystack", ICDCSW 2011), without
    smoothing.
    """
    x, y = np.asarray(levels, float), np.asarray(throughputs, float)
    if x.size < FEWEST or np.ptp(y) <= 0:
        return None
    above = (y - y.min()) / np.ptp(y) - (x - x[0]) / (x[-1] - x[0])
    at = int(above.argmax())
    return at if above[at] >= LEAST else None


def knees(points: Iterable[StoredPoint]) -> frozenset[str]:
    """Ids of the points that are the knee of a curve: one workload on one deployment, under one
    control.
    """
    curves: dict[tuple[str, str, str], list[tuple[float, float, str]]] = {}
    for point in points:
        head, rate = point.head, point.figures.output_token_throughput
        usable = (
            point.used and point.validity in ("valid", FAILING, BACKLOG) and head.level < math.inf
        )
        if usable and rate is not None:
            curve = curves.setdefault((head.deployment_id, head.workload, head.control), [])
            curve.append((head.level, rate, head.point_id))
    found = set()
    for curve in curves.values():
        levels, rates, ids = zip(*sorted(curve), strict=True)
        if (at := knee(levels, rates)) is not None:
            found.add(ids[at])
    return frozenset(found)

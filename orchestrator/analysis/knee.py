"""Where a throughput curve bends: the load beyond which more load gains little."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.metrics import BACKLOG, FAILING, UNCHECKED
from orchestrator.analysis.points import StoredPoint

LEAST_LEVELS = 4
LEAST_DISTANCE = 0.1  # above the diagonal (both axes scaled to 0..1); less is noise


def knee(levels: Sequence[float], throughputs: Sequence[float]) -> int | None:
    """Index of the knee of throughput over load; None where there is none. ``levels``: ascending.

    With both scaled to 0..1, the knee is the point furthest above the diagonal: Kneedle (Satopaa
    et al., "Finding a Kneedle in a Haystack", ICDCSW 2011), without smoothing.
    """
    x, y = np.asarray(levels, float), np.asarray(throughputs, float)
    if x.size < LEAST_LEVELS or np.ptp(y) <= 0:
        return None
    diagonal = (x - x[0]) / (x[-1] - x[0])
    distances = (y - y.min()) / np.ptp(y) - diagonal
    furthest = int(distances.argmax())
    return furthest if distances[furthest] >= LEAST_DISTANCE else None


@dataclass(frozen=True, slots=True, order=True)
class _Level:
    """One load level of a curve, with the output tokens/s of its point."""

    level: float
    throughput: float
    point_id: str


def knees(points: Iterable[StoredPoint]) -> frozenset[str]:
    """Ids of the points that are the knee of a curve.

    A curve has the points of one workload on one deployment under one control.
    """
    curves: dict[tuple[str, str, str], list[_Level]] = {}
    for point in points:
        head = point.head
        throughput = point.figures.output_token_throughput
        if throughput is not None and _shows_throughput(point):
            curve = curves.setdefault((head.deployment_id, head.workload, head.control), [])
            curve.append(_Level(head.level, throughput, head.point_id))
    point_ids = set()
    for curve in curves.values():
        curve.sort()
        index = knee([level.level for level in curve], [level.throughput for level in curve])
        if index is not None:
            point_ids.add(curve[index].point_id)
    return frozenset(point_ids)


def _shows_throughput(point: StoredPoint) -> bool:
    """Whether a point belongs to the curve.

    It does where its requests show how the engine did, at a level that has a place on the axis.
    """
    is_measured = point.validity in ("valid", FAILING, BACKLOG, UNCHECKED)
    return bool(point.used_repeats) and is_measured and point.head.level < math.inf

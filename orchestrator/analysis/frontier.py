"""Finds points that no other point beats: the frontier of two figures, where more is better."""

import numpy as np

from orchestrator.base.arrays import Bools, Floats


def on_frontier(first: Floats, second: Floats) -> Bools:
    """Which points no other point beats.

    A point beats another if it is at least as good in both figures and better in one. Equal points
    do not beat each other, so all of them stay. A point with an unknown figure (NaN) is never on
    the frontier.
    """
    stays = np.zeros(first.size, np.bool_)
    is_known = ~(np.isnan(first) | np.isnan(second))
    # the best first figure comes first, and of equal ones the best second figure
    order = np.lexsort((-second, -first))
    # the best second figure of the points before this one, all at least as good in the first
    best = -np.inf
    best_first = np.inf  # the first figure of the point that has ``best``
    for index in order[is_known[order]]:
        is_equal_to_best = first[index] == best_first and second[index] == best
        if second[index] > best or is_equal_to_best:
            stays[index] = True
            best = second[index]
            best_first = first[index]
    return stays

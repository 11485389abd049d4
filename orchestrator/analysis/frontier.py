"""Points that no other point beats: the frontier of two figures of which more is better."""

import numpy as np

from orchestrator.base.arrays import Bools, Floats


def on_frontier(first: Floats, second: Floats) -> Bools:
    """Which points no other point beats. One beats another if it is at least as good in both figures
    and better in one.

    Equal points beat each other in nothing, so all of them stay. A point with an unknown figure
    (NaN) is never on the frontier.
    """
    stays = np.zeros(first.size, np.bool_)
    is_known = ~(np.isnan(first) | np.isnan(second))
    # from the best of the first figure down; of equal ones the best of the second comes first
    order = np.lexsort((-second, -first))
    best = -np.inf  # of the second figure, among points that are better in the first
    best_first = np.inf  # the first figure of the point that has it
    for index in order[is_known[order]]:
        is_equal_to_best = first[index] == best_first and second[index] == best
        if second[index] > best or is_equal_to_best:
            stays[index] = True
            best = second[index]
            best_first = first[index]
    return stays

"""Estimates the capacity, with an interval, from the first probes of a search on.

Every level that was probed tells something, whether or not it has a verdict
(``capacity/belief.py``). benchmarks/search/RESULTS.md has how often the interval covers the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.capacity.belief import Belief, belief_of
from orchestrator.capacity.levels import LevelEvidence

OUTSIDE = 0.025  # probability that the capacity lies on one side of the interval
LIKELY = 0.95  # a level that is called safe holds with at least this probability
# bounds may lie by this factor below the lowest and above the highest level probed
BOUND_REACH = 2.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the capacity is expected to be.

    ``level``: the highest load at which the target is expected to be met. ``lower``, ``upper``: its
    95 % interval. ``safe``: the highest level probed that was shown to hold, or that holds with a
    probability of 95 %; None: there is none.
    """

    level: float
    lower: float
    upper: float
    safe: float | None

    @property
    def half_width(self) -> float:
        """Half the width of the interval, as a share of the level."""
        return (self.upper - self.lower) / (2 * self.level) if self.level else math.inf


def estimate_of(
    levels: Sequence[LevelEvidence], target: float, whole_numbers: bool = False
) -> Estimate | None:
    """The estimate from these levels, the lowest first.

    None: the levels do not bound the capacity on both sides yet. ``whole_numbers``: there is no
    level between 8 and 9.
    """
    belief = belief_of(levels, target)
    if belief is None:
        return None
    lower, level, upper = belief.quantiles([OUTSIDE, 0.5, 1 - OUTSIDE])
    if lower < belief.lowest / BOUND_REACH or upper > belief.highest * BOUND_REACH:
        return None
    safe = _safe(levels, belief)
    if whole_numbers:
        return Estimate(
            float(math.floor(level)), float(math.floor(lower)), float(math.floor(upper)), safe
        )
    return Estimate(level, lower, upper, safe)


def _safe(levels: Sequence[LevelEvidence], belief: Belief) -> float | None:
    """See ``Estimate.safe``."""
    safe: float | None = None
    for evidence in levels:
        if evidence.verdict == "fails":
            break
        is_likely = evidence.share is not None and belief.chance_to_hold(evidence.level) >= LIKELY
        if evidence.verdict == "holds" or is_likely:
            safe = evidence.level
    return safe

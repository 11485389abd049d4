"""What a search expects the capacity to be, with an interval, from its first probes on.

Every level that was probed tells something, whether or not it has a verdict
(``capacity/belief.py``). How often the interval covers the truth is measured:
benchmarks/search/RESULTS.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.capacity.belief import Belief, belief_of
from orchestrator.capacity.levels import LevelEvidence

OUTSIDE = 0.025  # probability on each side of the interval
LIKELY = 0.95  # probability with which a level that is called safe holds
# times the lowest and the highest level probed: the least and the most that bounds may be
BEYOND = 2.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """``level``: the highest load at which the target is expected to be met. ``lower``, ``upper``:
    its interval of 95 %. ``safe``: the highest level probed that was shown to hold, or holds with a
    probability of 95 %; None: there is none.
    """

    level: float
    lower: float
    upper: float
    safe: float | None

    @property
    def half_width(self) -> float:
        """Half of the interval, as a part of the level."""
        return (self.upper - self.lower) / (2 * self.level) if self.level else math.inf


def estimate_of(
    levels: Sequence[LevelEvidence], target: float, whole_numbers: bool = False
) -> Estimate | None:
    """The estimate from these levels, the lowest first; None: they do not bound the capacity on both
    sides yet. ``whole_numbers``: there is no level between 8 and 9.
    """
    belief = belief_of(levels, target)
    if belief is None:
        return None
    lower, level, upper = belief.quantiles([OUTSIDE, 0.5, 1 - OUTSIDE])
    if lower < belief.lowest / BEYOND or upper > belief.highest * BEYOND:
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

"""What a search expects the capacity to be, with an interval, from its first probes on.

Every level that was probed tells something, whether or not it has a verdict. Levels whose share of
misses is near the one that the target allows are fitted by one curve: there the odds of a miss rise
with a power of the load. Levels farther away only say on which side of the capacity they lie, as
the shape of the curve is another one there (a queue that overflows, a floor of errors).

Counts are those of independent requests (``capacity/design_effect.py``). How often the interval
covers the truth is measured: benchmarks/search/RESULTS.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.capacity.attainment_fit import is_known
from orchestrator.capacity.levels import LevelEvidence
from orchestrator.capacity.sequential_test import FEWEST

CONFIDENCE = 0.95  # of the interval
LIKELY = 0.95  # probability with which a level that is called safe holds
# Logits of a share of misses from the share that may miss, up to which a level is near: from a
# quarter to four times as many misses, about.
NEAR = 1.5
# The power of the load with which the odds of a miss rise near the capacity: log-normal, before
# anything is known. 8 slots have 6, batches 18.
USUAL_POWER = 7.0
POWER_SPREAD = 0.8  # its standard deviation, in logarithms
POWERS = np.geomspace(1.0, 50.0, 16)
STEP = 0.005  # of the grid of capacities, in logarithms
# times the lowest and the highest level probed: where the grid ends, and the least and the most
# that the bounds of an estimate may be
GRID, BEYOND = 8.0, 2.0


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


def estimate_of(
    levels: Sequence[LevelEvidence], target: float, whole_numbers: bool = False
) -> Estimate | None:
    """The estimate from what was probed; None: the probes do not bound the capacity on both sides
    yet. ``whole_numbers``: there is no level between 8 and 9.

    Capacities lie on a geometric grid, on which all are as likely before anything is known, and so
    do powers of the load. Each pair has the likelihood of what was counted at all levels; the
    estimate is the median over the powers, the interval between its quantiles.
    """
    counts = _counts(levels)
    if not counts or target >= 1:
        return None
    lowest, highest = counts[0].level, counts[-1].level
    steps = math.ceil(math.log(highest * GRID**2 / lowest) / STEP)
    log_capacities: Floats = math.log(lowest / GRID) + STEP * np.arange(steps + 1.0)
    chances = _chances(counts, log_capacities, target)
    outside = (1 - CONFIDENCE) / 2
    lower, level, upper = np.exp(
        np.interp([outside, 0.5, 1 - outside], np.cumsum(chances), log_capacities)
    ).tolist()
    if lower < lowest / BEYOND or upper > highest * BEYOND:
        return None
    safe = _safe(levels, log_capacities, chances)
    if whole_numbers:
        return Estimate(
            float(math.floor(level)), float(math.floor(lower)), float(math.floor(upper)), safe
        )
    return Estimate(level, lower, upper, safe)


@dataclass(frozen=True, slots=True)
class _Count:
    """What was counted at a level: independent requests, and the share of them that missed."""

    level: float
    requests: float
    missed: float


def _counts(levels: Sequence[LevelEvidence]) -> list[_Count]:
    """A level that failed without figures counts as one where ``FEWEST`` requests missed."""
    counts: list[_Count] = []
    for evidence in levels:
        if evidence.share is not None:
            independent = evidence.effective or evidence.requests / evidence.usual_effect
            counts.append(_Count(evidence.level, independent, 1 - evidence.share))
        elif is_known(evidence) and evidence.verdict == "fails":
            counts.append(_Count(evidence.level, FEWEST, 1.0))
    return counts


def _chances(counts: Sequence[_Count], log_capacities: Floats, target: float) -> Floats:
    """The probability of each capacity of the grid."""
    allowed_logit = math.log((1 - target) / target)
    log_chances = -0.5 * (np.log(POWERS / USUAL_POWER) / POWER_SPREAD) ** 2
    log_chances = np.broadcast_to(log_chances, (log_capacities.size, POWERS.size)).copy()
    for count in counts:
        # one request more that just meets the target: few requests say little
        missed = (count.missed * count.requests + 1 - target) / (count.requests + 1)
        logit = math.log(missed / (1 - missed)) if missed < 1 else math.inf
        if abs(logit - allowed_logit) <= NEAR:
            distances = math.log(count.level) - log_capacities
            logits = allowed_logit + np.outer(distances, POWERS)
            of_requests = count.missed * logits - np.logaddexp(0, logits)
            log_chances += count.requests * of_requests
        else:
            log_chances += _side(count, log_capacities, target)[:, None]
    chances = np.exp(log_chances - log_chances.max()).sum(axis=1)
    normalized: Floats = chances / chances.sum()
    return normalized


def _side(count: _Count, log_capacities: Floats, target: float) -> Floats:
    """The log-likelihood of capacities on the wrong side of a level, at which no better than the
    target can be met there; 0 on the other side.
    """
    fails = count.missed > 1 - target
    is_above = log_capacities > math.log(count.level)
    is_wrong = is_above if fails else ~is_above
    divergence = _divergence(count.missed, 1 - target)
    return np.where(is_wrong, -count.requests * divergence, 0.0)


def _divergence(share: float, other: float) -> float:
    """The Kullback-Leibler divergence of a share from another one."""
    divergence = 0.0
    if share > 0:
        divergence += share * math.log(share / other)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - other))
    return divergence


def _safe(levels: Sequence[LevelEvidence], log_capacities: Floats, chances: Floats) -> float | None:
    """See ``Estimate.safe``."""
    safe: float | None = None
    for evidence in levels:
        if evidence.verdict == "fails":
            break
        capable = float(chances[log_capacities >= math.log(evidence.level)].sum())
        if evidence.verdict == "holds" or (evidence.share is not None and capable >= LIKELY):
            safe = evidence.level
    return safe

"""How likely each capacity is after the probes of a search, by a fit to all their outcomes.

At a level near the capacity, the odds of a miss are the odds that the target allows, times a power
of the load over the capacity. Both the capacity and the power are unknown: for each pair of them on
a grid, the likelihood of what was counted is computed. Levels whose share of misses is far from the
allowed one only say on which side of the capacity they lie, because the curve has another shape
there: a queue overflows, or a floor of errors stays.

Misses come in runs. How much less they tell than independent ones (the design effect) is learned
from how the share of misses varies between parts of the probes, and from the runs themselves
(``capacity/design_effect.py``). The design effect has an inverse gamma distribution, over which the
likelihood is integrated. Few parts therefore make wide intervals, as in Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.capacity.attainment_fit import is_known
from orchestrator.capacity.levels import LevelEvidence, Part
from orchestrator.capacity.sequential_test import FEWEST_REQUESTS

# A level is near the capacity if its share of misses lies within so many logits of the allowed one:
# for a target of 95 % these are shares from 0.7 to 28 %. With 1.5, the intervals of M/M/8 covered
# the capacity less often.
NEAR = 2.0
# How far the curve strays from a power of the load: its standard deviation in logits, for each
# logit of distance from the target. It was chosen on M/M/8: 0.1 covered the capacity in 19 of 24
# searches, 0.25 in 21.
MISFIT = 0.2
# The power is log-normal before anything is known: its median, and the standard deviation of its
# logarithm. A server of 8 slots has a power of 6, batches 18, flat curves 3.
USUAL_POWER = 7.0
POWER_SPREAD = 0.45
POWERS = np.geomspace(1.0, 50.0, 16)
# the design effect that runs of misses show weighs as much as so many parts of probes
PRIOR_PARTS = 8
# The most evidence (a logarithm) for failure that one probe can bring: one long run of misses may
# be all that it has seen.
MOST_OF_A_PROBE = 5.0
# capacities beyond the levels probed are less likely by this power of their distance
DECAY = 2.0
STEP = 0.005  # of the grid of capacities, in natural logarithms
# the grid reaches by this factor below the lowest and above the highest level probed
GRID_REACH = 3.0


@dataclass(frozen=True, slots=True)
class Belief:
    """How likely each capacity is.

    ``chances`` [capacities, powers]: the probability of each capacity of the grid with each of
    ``POWERS``; their sum is 1. ``allowed``: the share of requests that may miss. ``lowest``,
    ``highest``: of the levels that were probed.
    """

    log_capacities: Floats
    chances: Floats
    allowed: float
    lowest: float
    highest: float

    def quantiles(self, probabilities: Sequence[float]) -> list[float]:
        """Loads below which the capacity lies with these probabilities."""
        cumulated = np.cumsum(self.chances.sum(axis=1))
        log_loads = np.interp(probabilities, cumulated, self.log_capacities)
        quantiles: list[float] = np.exp(log_loads).tolist()
        return quantiles

    def chance_to_hold(self, level: float) -> float:
        """The probability that the level holds."""
        is_enough = self.log_capacities >= math.log(level)
        return float(self.chances[is_enough].sum())

    def information(self, level: float, requests: float) -> float:
        """How much so many independent requests at a level would tell of the capacity, in nats.

        This is the mutual information, as if the logits of shares were normal. Above the capacity,
        runs of misses are longer, so the same number of requests counts for less there.
        """
        # the logit of the share of misses at the level, less that of the allowed share
        logits = np.outer(math.log(level) - self.log_capacities, POWERS)
        logits = np.clip(logits, -NEAR, NEAR)
        missed_shares = 1 / (1 + np.exp(-logits - _logit(self.allowed)))
        independent = requests * np.minimum(self.allowed / missed_shares, 1.0)
        variance_of_counting = 1 / (independent * missed_shares * (1 - missed_shares))
        variance_of_curve = (MISFIT * logits) ** 2
        variances = variance_of_counting + variance_of_curve
        capacity_chances = self.chances.sum(axis=1)
        weights = self.chances / np.maximum(capacity_chances[:, None], 1e-300)
        means = (weights * logits).sum(axis=1)
        mean = (capacity_chances * means).sum()
        between_capacities = (capacity_chances * (means - mean) ** 2).sum()
        between_powers = (self.chances * (logits - means[:, None]) ** 2).sum()
        noise = (self.chances * variances).sum() + between_powers
        return float(0.5 * np.log1p(between_capacities / noise))


def belief_of(levels: Sequence[LevelEvidence], target: float) -> Belief | None:
    """What is believed after these levels, the lowest first.

    None: no level tells anything, or every request must meet the limits.
    """
    counts = _counts(levels)
    if not counts or target >= 1:
        return None
    allowed = 1 - target
    lowest = counts[0].level
    highest = counts[-1].level
    steps = math.ceil(math.log(highest * GRID_REACH**2 / lowest) / STEP)
    log_capacities: Floats = math.log(lowest / GRID_REACH) + STEP * np.arange(steps + 1.0)
    below = math.log(lowest) - log_capacities
    above = log_capacities - math.log(highest)
    # the chances before anything is known, as logarithms up to a constant
    log_prior_of_capacities = -DECAY * np.maximum(np.maximum(below, above), 0.0)
    log_prior_of_powers = -0.5 * (np.log(POWERS / USUAL_POWER) / POWER_SPREAD) ** 2
    log_chances = log_prior_of_capacities[:, None] + log_prior_of_powers
    near = [count for count in counts if abs(_distance(count, allowed)) <= NEAR]
    far = [count for count in counts if abs(_distance(count, allowed)) > NEAR]
    effect = levels[0].usual_effect  # that of all levels, as it was learned from all of them
    log_chances += _likelihood_near(near, log_capacities, allowed, effect)
    for count in far:
        log_chances += _likelihood_of_side(count, log_capacities, allowed)[:, None]
    chances = np.exp(log_chances - log_chances.max())
    return Belief(log_capacities, chances / chances.sum(), allowed, lowest, highest)


@dataclass(frozen=True, slots=True)
class _Count:
    """What was counted at a level.

    ``missed_share``: the share of ``requests`` that missed. ``independent``: how many independent
    requests would say as much. ``most_evidence``: the most that it may count as evidence that the
    level fails (a logarithm).
    """

    level: float
    requests: int
    missed_share: float
    independent: float
    most_evidence: float
    parts: tuple[Part, ...]


def _counts(levels: Sequence[LevelEvidence]) -> list[_Count]:
    """What was counted at each level.

    A level that failed without figures counts as one where ``FEWEST_REQUESTS`` requests missed.
    """
    counts: list[_Count] = []
    for evidence in levels:
        if evidence.share is not None:
            count = _Count(
                evidence.level,
                evidence.requests,
                missed_share=1 - evidence.share,
                independent=evidence.effective or evidence.requests / evidence.usual_effect,
                most_evidence=MOST_OF_A_PROBE * evidence.probes,
                parts=evidence.parts,
            )
            counts.append(count)
        elif is_known(evidence) and evidence.verdict == "fails":
            count = _Count(
                evidence.level,
                requests=FEWEST_REQUESTS,
                missed_share=1.0,
                independent=FEWEST_REQUESTS,
                most_evidence=math.inf,
                parts=(),
            )
            counts.append(count)
    return counts


def _likelihood_near(
    near: Sequence[_Count], log_capacities: Floats, allowed: float, effect: float
) -> Floats:
    """Log-likelihood [capacities, powers] of what was counted near the capacity, up to a constant.

    ``effect``: the design effect that runs of misses show. With e the design effect, D how much
    what was counted differs from a curve (``_from_curve``), and n parts, the likelihood is
    exp(-D/e) / e^(n/2). Integrated over an inverse gamma distribution of e it is (s + D)^(-n/2),
    where s is how much the parts differ from each other (``_PartDifferences.sum``).
    """
    differences = _part_differences(near, effect)
    from_curves = np.zeros((log_capacities.size, POWERS.size))
    for count in near:
        trust = _trust(count, allowed, differences.design_effect)
        from_curves += trust * count.requests * _from_curve(count, log_capacities, allowed)
    likelihood: Floats = -differences.parts / 2 * np.log1p(from_curves / differences.sum)
    return likelihood


@dataclass(frozen=True, slots=True)
class _PartDifferences:
    """How much parts of probes differ from their levels. ``parts``: how many parts there are.
    ``sum``: over the parts, the requests times the divergence of the share of misses from that of
    the level.
    """

    parts: int
    sum: float

    @property
    def design_effect(self) -> float:
        """At least 1. Of independent requests, twice the divergence of a part is 1 on average."""
        return max(2 * self.sum / self.parts, 1.0)


def _part_differences(near: Sequence[_Count], effect: float) -> _PartDifferences:
    """The differences of all parts of these levels, and of ``PRIOR_PARTS`` with a design effect of
    ``effect``.
    """
    parts = PRIOR_PARTS
    divergence = PRIOR_PARTS / 2 * effect
    for count in near:
        parts += len(count.parts)
        for part in count.parts:
            divergence += part.requests * _divergence(part.missed_share, count.missed_share)
    return _PartDifferences(parts, divergence)


def _from_curve(count: _Count, log_capacities: Floats, allowed: float) -> Floats:
    """The Kullback-Leibler divergence [capacities, powers] of a level's share of misses from that
    of the curve with each capacity and power.
    """
    missed = count.missed_share
    logits = _logit(allowed) + np.outer(math.log(count.level) - log_capacities, POWERS)
    divergence: Floats = np.logaddexp(0, logits) - missed * logits - _entropy(missed)
    return divergence


def _trust(count: _Count, allowed: float, effect: float) -> float:
    """By how much a level counts: 1, less where the curve may stray more than the counting does.

    The logit of a level's share has two variances: that of counting, 1 / information, and that with
    which the curve strays, which grows with the distance. The level counts by the share of the
    first. ``effect``: the design effect of the level's requests.
    """
    missed = count.missed_share
    information = count.requests / effect * max(missed * (1 - missed), 1e-3)
    return 1 / (1 + information * (MISFIT * _distance(count, allowed)) ** 2)


def _likelihood_of_side(count: _Count, log_capacities: Floats, allowed: float) -> Floats:
    """Log-likelihood of each capacity, from a level that is far from the capacity.

    Such a level only says whether the capacity lies above or below it. On that side the likelihood
    is 1. On the other side it is that of a level where exactly the allowed share misses: of all
    shares that the level could have there, this one fits best.
    """
    evidence = count.independent * _divergence(count.missed_share, allowed)
    is_above = log_capacities > math.log(count.level)
    if count.missed_share > allowed:
        return np.where(is_above, -min(evidence, count.most_evidence), 0.0)
    return np.where(is_above, 0.0, -evidence)


def _distance(count: _Count, allowed: float) -> float:
    """How far the share of misses lies above the allowed one, in logits; below it: negative.

    One more independent request is counted that misses as often as is allowed, so that a level with
    few requests counts as near.
    """
    missed = (count.missed_share * count.independent + allowed) / (count.independent + 1)
    return _logit(missed) - _logit(allowed)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


def _entropy(share: float) -> float:
    """The entropy of a request that misses with this probability, in nats."""
    return -sum(part * math.log(part) for part in (share, 1 - share) if part > 0)


def _divergence(share: float, other: float) -> float:
    """The Kullback-Leibler divergence of a share from another; infinite where that excludes it."""
    from scipy.special import rel_entr  # imported late: most sweeps search nothing

    return float(rel_entr(share, other) + rel_entr(1 - share, 1 - other))

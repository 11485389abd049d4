"""How sure a share or a rate is, when what happens to one request depends on its neighbours.

Failures come in runs (a queue fills up, then everything behind it is late), so intervals for independent samples are
too narrow: in a synthetic check the usual one let a false claim through in 40 % of runs. Method of batch means
(Schmeiser 1982, "Batch size effects in the analysis of simulation output"): cut each repeat into 10 batches in order of
time, take the spread of the batches for the spread of the mean. Batches of different size and several repeats are
weighed as a ratio estimator (Cochran, "Sampling Techniques", ch. 6). Where whole repeats differ by more than their
batches do, the spread of the repeats counts instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from orchestrator.analysis.requests import Bools, Floats
from orchestrator.analysis.throughput import BATCHES, Batches

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its two-sided interval. ``design_effect``: variance over that of independent samples."""

    estimate: float
    lower: float
    upper: float
    confidence: float = CONFIDENCE
    batches: int = 0
    design_effect: float | None = None

    def scaled(self, factor: float) -> Interval:
        """The same in another unit."""
        return Interval(self.estimate * factor, self.lower * factor, self.upper * factor, self.confidence, self.batches)


def batches_of(flags: Bools) -> Batches:
    """Flags in order of schedule; fewer flags than batches make each its own."""
    sizes = np.full(min(BATCHES, flags.size), flags.size // BATCHES)
    sizes[: flags.size - int(sizes.sum())] += 1
    starts = np.cumsum(sizes) - sizes
    return Batches(np.add.reduceat(flags, starts, dtype=np.float64), sizes.astype(np.float64))


def share_interval(repeats: Sequence[Bools], confidence: float = CONFIDENCE) -> Interval | None:
    """Interval of the share of true flags; None of nothing. ``repeats``: flags of each repeat in order of schedule.

    Wilson's interval (1927) with the effective number of samples n / design effect and Student's t for the batches'
    degrees of freedom. With all flags equal there is no spread to see, and the design effect is taken as 1.
    """
    cut = [batches_of(np.asarray(flags, bool)) for flags in repeats if len(flags)]
    if not cut:
        return None
    share, variance, count = _ratio(cut)
    n = float(sum(part.sizes.sum() for part in cut))
    binomial = share * (1 - share) / n
    effect = max(variance / binomial, 1.0) if binomial > 0 else 1.0
    t2 = _t(count, confidence) ** 2
    n_effective = n / effect
    centre = (share + t2 / (2 * n_effective)) / (1 + t2 / n_effective)
    half = np.sqrt(t2 * (share * (1 - share) / n_effective + t2 / (4 * n_effective**2))) / (1 + t2 / n_effective)
    return Interval(
        share, max(float(centre - half), 0.0), min(float(centre + half), 1.0), confidence, count, float(effect)
    )


def rate_interval(repeats: Sequence[Batches], confidence: float = CONFIDENCE) -> Interval | None:
    """Interval of total amount / total size (a throughput: tokens / seconds); None where there is no size."""
    cut = [batches for batches in repeats if batches.sizes.sum() > 0]
    if not cut:
        return None
    rate, variance, count = _ratio(cut)
    half = float(_t(count, confidence) * np.sqrt(variance))
    return Interval(rate, max(rate - half, 0.0), rate + half, confidence, count)


def _ratio(repeats: Sequence[Batches]) -> tuple[float, float, int]:
    """(ratio of sums, its variance, number of batches)."""
    amounts = np.concatenate([batches.amounts for batches in repeats])
    sizes = np.concatenate([batches.sizes for batches in repeats])
    ratio = float(amounts.sum() / sizes.sum())
    within = _variance(amounts, sizes, ratio)
    between = _variance(
        np.array([batches.amounts.sum() for batches in repeats]),
        np.array([batches.sizes.sum() for batches in repeats]),
        ratio,
    )
    return ratio, max(within, between), amounts.size


def _variance(amounts: Floats, sizes: Floats, ratio: float) -> float:
    """Of the ratio estimator: B/(B-1) * sum((a - ratio * s)^2) / sum(s)^2."""
    count = amounts.size
    if count < 2:
        return 0.0
    return float(count / (count - 1) * ((amounts - ratio * sizes) ** 2).sum() / sizes.sum() ** 2)


def _t(count: int, confidence: float) -> float:
    return float(stdtrit(max(count - 1, 1), (1 + confidence) / 2))

"""Confidence intervals of a share or a rate where the fate of one request depends on its
neighbours.

Failures come in runs: a queue fills up, then everything behind it is late. Intervals for
independent samples are therefore too narrow; in a synthetic check the usual one let a false claim
through in 40 % of runs. This is the method of batch means (Schmeiser 1982, "Batch size effects in
the analysis of simulation output"): each repeat is cut into 10 batches in order of time, and the
spread of the batches gives the standard error of the mean. Batches of different size and several
repeats are weighted as a ratio estimator (Cochran, "Sampling Techniques", ch. 6). Where whole
repeats differ by more than their batches do, the spread of the repeats counts instead.

Two starts of one engine differ by more than anything seen within one start (memory layout, clocks,
compiled code, neighbours). Where there are several starts, the interval is at least that of the
spread between them, with its own degrees of freedom: two starts that happen to agree prove little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.analysis.throughput import BATCHES, Batches
from orchestrator.base.arrays import Bools, Floats

CONFIDENCE = 0.95
MOST_STARTS = 20  # more than this nobody is advised to make


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its two-sided interval. ``design_effect``: its variance over that of
    independent samples.

    ``starts``: engine starts; with one, the interval says nothing of how much another start would
    differ.
    """

    estimate: float
    lower: float
    upper: float
    confidence: float = CONFIDENCE
    batches: int = 0
    design_effect: float | None = None
    starts: int = 1
    standard_error: float = 0.0

    def scaled(self, factor: float) -> Interval:
        """The same in another unit."""
        names = ("estimate", "lower", "upper", "standard_error")
        return replace(self, **{name: getattr(self, name) * factor for name in names})


def exceeds(first: Interval, second: Interval) -> bool:
    """Whether ``first`` is above ``second`` by more than starts differ (Welch's t-test, 1947).

    False where either has fewer than two starts.
    """
    if min(first.starts, second.starts) < 2:
        return False
    variances = [one.standard_error**2 for one in (first, second)]
    difference, total = first.estimate - second.estimate, sum(variances)
    if total == 0:
        return difference > 0
    freedom = total**2 / sum(
        variance**2 / (one.starts - 1)
        for variance, one in zip(variances, (first, second), strict=True)
    )
    return bool(difference > _t(freedom) * np.sqrt(total))


def starts_to_decide(first: Interval, second: Interval) -> int | None:
    """How many starts of each would show the observed difference, if the spread stays; None: more
    than MOST_STARTS.
    """
    for starts in range(2, MOST_STARTS + 1):
        if exceeds(_of_starts(first, starts), _of_starts(second, starts)):
            return starts
    return None


def _of_starts(one: Interval, starts: int) -> Interval:
    """The interval expected from ``starts`` starts that differ as those seen do."""
    return replace(
        one, starts=starts, standard_error=one.standard_error * float(np.sqrt(one.starts / starts))
    )


NO_BATCHES = Batches(np.zeros(0), np.zeros(0))


def batches_of(flags: Bools) -> Batches:
    """BATCHES batches of nearly equal size; fewer where there are fewer flags. ``flags``: in order
    of schedule.
    """
    sizes = np.full(min(BATCHES, flags.size), flags.size // BATCHES)
    sizes[: flags.size - int(sizes.sum())] += 1
    starts = np.cumsum(sizes) - sizes
    return Batches(np.add.reduceat(flags, starts, dtype=np.float64), sizes.astype(np.float64))


def share_interval(repeats: Sequence[Bools], starts: Sequence[int] = ()) -> Interval | None:
    """Interval of the share of true flags; None without flags. ``repeats``: the flags of each
    repeat, in order of schedule. ``starts``: the engine start that each repeat was measured on;
    empty: all on one.

    Wilson's interval (1927) with n / design effect as the effective sample size, and Student's t
    with the degrees of freedom of the batches or starts. Where all flags are equal there is no
    spread to see: the design effect is 1.
    """
    cut = [batches_of(np.asarray(flags, bool)) if len(flags) else NO_BATCHES for flags in repeats]
    ratio = _ratio(cut, starts)
    if ratio is None:
        return None
    share, n = ratio.estimate, ratio.size
    binomial = share * (1 - share) / n
    effect = max(ratio.variance / binomial, 1.0) if binomial > 0 else 1.0
    t2 = ratio.t**2
    n_effective = n / effect
    centre = (share + t2 / (2 * n_effective)) / (1 + t2 / n_effective)
    half = np.sqrt(t2 * (share * (1 - share) / n_effective + t2 / (4 * n_effective**2))) / (
        1 + t2 / n_effective
    )
    lower, upper = max(float(centre - half), 0.0), min(float(centre + half), 1.0)
    error = float(np.sqrt(ratio.variance))
    return Interval(
        share, lower, upper, CONFIDENCE, ratio.batches, float(effect), ratio.starts, error
    )


def rate_interval(repeats: Sequence[Batches], starts: Sequence[int] = ()) -> Interval | None:
    """Interval of total amount / total size, such as tokens / seconds; None where the size is 0.

    ``starts``: see ``share_interval``.
    """
    ratio = _ratio(repeats, starts)
    if ratio is None:
        return None
    rate, error = ratio.estimate, float(np.sqrt(ratio.variance))
    half = ratio.t * error
    return Interval(
        rate,
        max(rate - half, 0.0),
        rate + half,
        CONFIDENCE,
        ratio.batches,
        None,
        ratio.starts,
        error,
    )


@dataclass(frozen=True, slots=True)
class _Ratio:
    """Total amount over total ``size``. ``t``: half the interval's width, in square roots of the
    variance.
    """

    estimate: float
    size: float
    variance: float
    t: float
    batches: int
    starts: int


def _ratio(repeats: Sequence[Batches], starts: Sequence[int]) -> _Ratio | None:
    """None where the size is 0. The variance is that of batches, repeats or starts, whichever
    differ most.
    """
    measured = list(zip(repeats, starts or [0] * len(repeats), strict=True))
    measured = [(one, start) for one, start in measured if one.sizes.sum() > 0]
    if not measured:
        return None
    amounts, sizes = (
        np.concatenate([getattr(one, name) for one, _ in measured]) for name in ("amounts", "sizes")
    )
    ratio, groups = float(amounts.sum() / sizes.sum()), sorted({start for _, start in measured})
    sums = np.array([(one.amounts.sum(), one.sizes.sum()) for one, _ in measured])
    within = max(_variance(amounts, sizes, ratio), _variance(sums[:, 0], sums[:, 1], ratio))
    spreads = [(within, _t(amounts.size - 1))]
    if len(groups) > 1:
        of_start = np.array([start for _, start in measured])
        sums = np.array([sums[of_start == start].sum(0) for start in groups])
        spreads.append((_variance(sums[:, 0], sums[:, 1], ratio), _t(len(groups) - 1)))
    variance = max(of for of, _ in spreads)
    t = max(t * np.sqrt(of / variance) for of, t in spreads) if variance > 0 else spreads[0][1]
    return _Ratio(ratio, float(sizes.sum()), variance, float(t), amounts.size, len(groups))


def _variance(amounts: Floats, sizes: Floats, ratio: float) -> float:
    """Variance of the ratio estimator: B/(B-1) * sum((a - ratio * s)^2) / sum(s)^2."""
    count = amounts.size
    if count < 2:
        return 0.0
    return float(count / (count - 1) * ((amounts - ratio * sizes) ** 2).sum() / sizes.sum() ** 2)


def _t(freedom: float) -> float:
    from scipy.special import stdtrit  # imported late: `load` starts without scipy

    return float(stdtrit(max(freedom, 1), (1 + CONFIDENCE) / 2))

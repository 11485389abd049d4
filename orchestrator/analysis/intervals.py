"""Confidence intervals of shares and rates where requests depend on their neighbours.

Failures come in runs: a queue fills up, then everything behind it is late. Intervals for
independent samples are therefore too narrow: in a synthetic check, the usual interval let a false
claim through in 40 % of runs. The method here is that of batch means (Schmeiser 1982, "Batch size
effects in the analysis of simulation output"): each repeat is cut into 10 batches in order of time,
and the spread of the batches gives the standard error of the mean. Batches of different size and
several repeats are weighted as a ratio estimator (Cochran, "Sampling Techniques", ch. 6). Where
whole repeats differ by more than their batches do, the spread of the repeats counts instead.

Two starts of one engine differ by more than anything seen within one start (memory layout, clocks,
compiled code, neighbours). Where there are several starts, the interval is at least as wide as the
spread between them makes it. That spread has its own degrees of freedom, because two starts that
happen to agree prove little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from orchestrator.analysis.start_spread import CommonSpread, Spread
from orchestrator.analysis.throughput import BATCHES, Batches
from orchestrator.base.arrays import Bools, Ints

CONFIDENCE = 0.95
CONFIDENCE_OF_MODEL = 0.9  # of the interval of a simulated figure
MOST_STARTS = 20  # nobody is advised to make more starts than this


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its two-sided interval.

    ``design_effect``: the variance of the estimate over that of as many independent samples.
    ``starts``: engine starts; with one, the interval does not include how much another start would
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
        """The same interval in another unit."""
        return replace(
            self,
            estimate=self.estimate * factor,
            lower=self.lower * factor,
            upper=self.upper * factor,
            standard_error=self.standard_error * factor,
        )

    @property
    def variance(self) -> float:
        """The variance of the estimate."""
        return self.standard_error**2

    @property
    def start_spread(self) -> Spread | None:
        """The relative variance of single starts, or of their requests if that is larger.

        None: there is one start, or the estimate is 0.
        """
        if self.starts < 2 or self.estimate <= 0:
            return None
        return Spread(self.starts * self.variance / self.estimate**2, self.starts - 1)


def interval_of_model(estimate: float, lower: float, upper: float) -> Interval:
    """A simulated figure, and the bounds between which nine in ten measurements of it lie.

    The bounds are NaN where the model's error is not known.
    """
    return Interval(estimate, lower, upper, confidence=CONFIDENCE_OF_MODEL)


def exceeds(first: Interval, second: Interval, common: CommonSpread | None = None) -> bool:
    """Whether ``first`` is above ``second`` by more than engine starts vary.

    False where either has fewer than two starts. ``common``: the relative variance between starts
    that several deployments show, for Student's t-test; None: the starts of the two alone tell how
    much they vary (Welch's t-test, 1947).
    """
    if min(first.starts, second.starts) < 2:
        return False
    difference = first.estimate - second.estimate
    uncertainty = _welch(first, second) if common is None else _pooled(first, second, common)
    if uncertainty.variance == 0:
        return difference > 0
    return bool(difference > student_t(uncertainty.freedom) * np.sqrt(uncertainty.variance))


def _welch(first: Interval, second: Interval) -> Spread:
    """The variance of the difference of two estimates whose starts vary differently."""
    variance = first.variance + second.variance
    if variance == 0:
        return Spread(0.0, 1)
    freedom = variance**2 / (
        first.variance**2 / (first.starts - 1) + second.variance**2 / (second.starts - 1)
    )
    return Spread(variance, freedom)


def _pooled(first: Interval, second: Interval, common: CommonSpread) -> Spread:
    """The variance of the difference of two estimates whose starts vary alike, relatively."""
    spread = common.of(_spread_of_both(first, second))
    relative_to = first.estimate**2 / first.starts + second.estimate**2 / second.starts
    return Spread(spread.variance * relative_to, spread.freedom)


def _spread_of_both(first: Interval, second: Interval) -> Spread | None:
    spreads = [each.start_spread for each in (first, second)]
    of_starts = [spread for spread in spreads if spread is not None]
    freedom = sum(spread.freedom for spread in of_starts)
    if freedom == 0:
        return None
    return Spread(sum(each.variance * each.freedom for each in of_starts) / freedom, freedom)


def starts_to_decide(
    first: Interval, second: Interval, common: CommonSpread | None = None
) -> int | None:
    """How many starts of each would show that ``first`` is above; None: more than MOST_STARTS.

    This takes for granted that more starts show the same difference and the same spread.
    ``common``: see ``exceeds``.
    """
    for starts in range(2, MOST_STARTS + 1):
        if exceeds(_of_starts(first, starts), _of_starts(second, starts), common):
            return starts
    return None


def _of_starts(interval: Interval, starts: int) -> Interval:
    """The interval expected with ``starts`` starts, if they vary as those seen do."""
    standard_error = interval.standard_error * float(np.sqrt(interval.starts / starts))
    return replace(interval, starts=starts, standard_error=standard_error)


NO_BATCHES = Batches(np.zeros(0), np.zeros(0))


def batches_of(flags: Bools) -> Batches:
    """Cuts flags into BATCHES batches of nearly equal size; fewer batches if there are fewer flags.

    ``flags``: in order of schedule.
    """
    sizes = np.full(min(BATCHES, flags.size), flags.size // BATCHES)
    sizes[: flags.size - int(sizes.sum())] += 1
    begins = np.cumsum(sizes) - sizes
    return Batches(np.add.reduceat(flags, begins, dtype=np.float64), sizes.astype(np.float64))


def share_interval(repeats: Sequence[Bools], starts: Sequence[int] = ()) -> Interval | None:
    """Interval of the share of true flags; None without flags.

    ``repeats``: the flags of each repeat, in order of schedule. ``starts``: the engine start that
    each repeat was measured on; empty: all on one.

    Wilson's interval (1927) with n / design effect as the effective sample size, and Student's t
    with the degrees of freedom of the batches or starts. Where all flags are equal there is no
    spread to see: the design effect is 1.
    """
    batches = []
    for flags in repeats:
        batches.append(batches_of(np.asarray(flags, bool)) if len(flags) else NO_BATCHES)
    ratio = _ratio(batches, starts)
    if ratio is None:
        return None
    share = ratio.estimate
    n = ratio.size
    binomial_variance = share * (1 - share) / n
    effect = 1.0
    if binomial_variance > 0:
        effect = max(ratio.variance / binomial_variance, 1.0)
    t2 = ratio.t**2
    n_effective = n / effect
    denominator = 1 + t2 / n_effective
    centre = (share + t2 / (2 * n_effective)) / denominator
    spread = share * (1 - share) / n_effective + t2 / (4 * n_effective**2)
    half = np.sqrt(t2 * spread) / denominator
    return Interval(
        estimate=share,
        lower=max(float(centre - half), 0.0),
        upper=min(float(centre + half), 1.0),
        batches=ratio.batches,
        design_effect=float(effect),
        starts=ratio.starts,
        standard_error=ratio.standard_error,
    )


def rate_interval(repeats: Sequence[Batches], starts: Sequence[int] = ()) -> Interval | None:
    """Interval of total amount / total size, such as tokens / seconds; None where the size is 0.

    The bounds are NaN where there is only one batch.

    ``starts``: see ``share_interval``.
    """
    ratio = _ratio(repeats, starts)
    if ratio is None:
        return None
    # one batch says nothing of the spread
    half = ratio.t * ratio.standard_error if ratio.batches > 1 else math.nan
    return Interval(
        estimate=ratio.estimate,
        lower=max(ratio.estimate - half, 0.0),
        upper=ratio.estimate + half,
        batches=ratio.batches,
        starts=ratio.starts,
        standard_error=ratio.standard_error,
    )


@dataclass(frozen=True, slots=True)
class _Ratio:
    """Total amount over total size. ``t``: half the interval's width, in standard errors."""

    estimate: float
    size: float
    variance: float
    t: float
    batches: int
    starts: int

    @property
    def standard_error(self) -> float:
        return float(np.sqrt(self.variance))


@dataclass(frozen=True, slots=True)
class _Spread:
    """The variance of a ratio as some of its parts show it, and Student's t for as many parts."""

    variance: float
    t: float


def _ratio(repeats: Sequence[Batches], starts: Sequence[int]) -> _Ratio | None:
    """The ratio over all repeats; None where their total size is 0.

    Its variance is that of the batches, the repeats or the starts, whichever is largest.
    """
    start_of_repeat = list(starts) or [0] * len(repeats)
    measured: list[Batches] = []
    start_of_measured: list[int] = []
    for repeat, start in zip(repeats, start_of_repeat, strict=True):
        if repeat.sizes.sum() > 0:
            measured.append(repeat)
            start_of_measured.append(start)
    if not measured:
        return None
    batches = Batches(
        np.concatenate([repeat.amounts for repeat in measured]),
        np.concatenate([repeat.sizes for repeat in measured]),
    )
    ratio = float(batches.amounts.sum() / batches.sizes.sum())
    spreads = _spreads(ratio, batches, measured, start_of_measured)
    variance = max(spread.variance for spread in spreads)
    t = spreads[0].t
    if variance > 0:
        t = max(spread.t * np.sqrt(spread.variance / variance) for spread in spreads)
    return _Ratio(
        estimate=ratio,
        size=float(batches.sizes.sum()),
        variance=variance,
        t=float(t),
        batches=batches.amounts.size,
        starts=len(set(start_of_measured)),
    )


def _spreads(
    ratio: float, batches: Batches, repeats: Sequence[Batches], start_of_repeat: Sequence[int]
) -> list[_Spread]:
    """The spread of a ratio within starts and, if there are several, the one between them.

    ``batches``: those of all repeats. Within starts, batches or whole repeats count, whichever
    differ more.
    """
    totals = Batches(
        np.array([repeat.amounts.sum() for repeat in repeats]),
        np.array([repeat.sizes.sum() for repeat in repeats]),
    )
    within_starts = max(_variance(batches, ratio), _variance(totals, ratio))
    spreads = [_Spread(within_starts, student_t(batches.amounts.size - 1))]
    starts = sorted(set(start_of_repeat))
    if len(starts) > 1:
        of_starts = _totals_of_starts(totals, np.array(start_of_repeat), starts)
        spreads.append(_Spread(_variance(of_starts, ratio), student_t(len(starts) - 1)))
    return spreads


def _totals_of_starts(totals: Batches, start_of_repeat: Ints, starts: Sequence[int]) -> Batches:
    """The amount and the size of all repeats of each start."""
    rows = np.column_stack([totals.amounts, totals.sizes])
    sums = np.array([rows[start_of_repeat == start].sum(axis=0) for start in starts])
    return Batches(sums[:, 0], sums[:, 1])


def _variance(parts: Batches, ratio: float) -> float:
    """Variance of the ratio estimator: B/(B-1) * sum((a - ratio * s)^2) / sum(s)^2."""
    amounts = parts.amounts
    sizes = parts.sizes
    count = amounts.size
    if count < 2:
        return 0.0
    squares = ((amounts - ratio * sizes) ** 2).sum()
    return float(count / (count - 1) * squares / sizes.sum() ** 2)


@lru_cache(1_000)
def student_t(freedom: float) -> float:
    """Student's t of CONFIDENCE, two-sided."""
    from scipy.special import stdtrit  # imported late: `load` starts without scipy

    return float(stdtrit(max(freedom, 1), (1 + CONFIDENCE) / 2))

"""Whether one figure got worse between two sweeps, judged over engine starts.

Two starts of one engine differ by more than anything seen within one start, so a start is the unit
of every test here: its figure is one value. Latencies and rates are compared as log ratios, shares
as differences. With two or three starts a side, a test of one pair alone finds little, so all pairs
share what they show of the variance between starts (``start_spread.py``). Where all pairs together
show that NEW's starts spread more than BASE's, or less, each pair's degrees of freedom are those of
Welch and Satterthwaite for that ratio. Shares are judged by
Welch's test (1947) of each pair. Holm's method (1979) holds the false alarms of everything that is
gated together at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from orchestrator.analysis.intervals import CONFIDENCE, MOST_STARTS
from orchestrator.analysis.start_spread import CommonSpread, Spread, common_spread
from orchestrator.results.records import RequestTotals

# P-value below which NEW's starts count as spread differently from BASE's: a larger one than that of
# UNEVEN_LEVEL, because three pairs of two starts show little of it (benchmarks/compare)
SIDES_LEVEL = 0.1
# probability of at least one false alarm among all figures that are gated together
FALSE_ALARMS = 1 - CONFIDENCE


class Verdict(StrEnum):
    """The verdict on one figure of one pair."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class StartValues:
    """One figure of one side: a value per engine start.

    ``noise``: the least standard error that the mean can have, as the requests within the starts
    show it; 0: unknown.
    """

    values: tuple[float, ...]
    noise: float = 0.0

    @property
    def starts(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def variance(self) -> float:
        """The variance between starts; 0 with one start."""
        return float(np.var(self.values, ddof=1)) if self.starts > 1 else 0.0

    @property
    def variance_of_mean(self) -> float:
        return max(self.variance / self.starts, self.noise**2)

    def logs(self) -> StartValues:
        """The natural logarithms. Raises ValueError where a value is not above 0."""
        return StartValues(tuple(math.log(value) for value in self.values))


@dataclass(frozen=True, slots=True)
class Sides:
    """One figure of both sides of a pair, on the scale on which it is compared."""

    base: StartValues
    new: StartValues

    @property
    def difference(self) -> float:
        return self.new.mean - self.base.mean

    @property
    def least_starts(self) -> int:
        return min(self.base.starts, self.new.starts)

    @property
    def spread(self) -> Spread | None:
        """The variance between starts that the pair alone shows, if both sides spread alike.

        None: no side has two starts.
        """
        freedom = self.base.starts + self.new.starts - 2
        if freedom == 0:
            return None
        squares = [side.variance * (side.starts - 1) for side in (self.base, self.new)]
        return Spread(sum(squares) / freedom, freedom)

    def uneven_spread(self, variance_ratio: float) -> Spread | None:
        """The same where the variance of NEW is ``variance_ratio`` times that of BASE.

        It is the mean of both sides, weighted so that it gives the variance of their difference.
        Its degrees of freedom are those of Welch and Satterthwaite at that ratio.
        """
        if self.least_starts < 2:
            return None
        of_base, of_new = 1 / self.base.starts, 1 / self.new.starts
        squares = self.base.variance * of_base + self.new.variance * of_new
        share = of_base / (of_base + of_new * variance_ratio)
        return Spread(squares / (of_base + of_new), self._welch_freedom(share))

    def _welch_freedom(self, base_share: float) -> float:
        """The degrees of freedom of Welch and Satterthwaite. Both sides have two starts or more.

        ``base_share``: of BASE's mean in the variance of the difference.
        """
        of_base = base_share**2 / (self.base.starts - 1)
        of_new = (1 - base_share) ** 2 / (self.new.starts - 1)
        return 1 / (of_base + of_new)


@dataclass(frozen=True, slots=True)
class Difference:
    """NEW minus BASE, with its standard error and Student's degrees of freedom."""

    estimate: float
    standard_error: float
    freedom: float

    def p_below(self, bound: float) -> float:
        """One-sided p of "the true difference is not below ``bound``"."""
        from scipy.special import stdtr

        distance = self.estimate - bound
        if self.standard_error == 0:
            return 0.0 if distance < 0 else 1.0
        return float(stdtr(self.freedom, distance / self.standard_error))

    def p_above(self, bound: float) -> float:
        """One-sided p of "the true difference is not above ``bound``"."""
        return replace(self, estimate=-self.estimate).p_below(-bound)

    @property
    def p_two_sided(self) -> float:
        """P of "there is no difference"."""
        return min(2 * min(self.p_below(0.0), self.p_above(0.0)), 1.0)

    @property
    def half_width(self) -> float:
        """Half the width of its two-sided confidence interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2)) * self.standard_error


@dataclass(frozen=True, slots=True)
class Gated:
    """One figure of one pair, to be judged.

    ``bound``: the fall that is tolerated, on the scale of ``sides``. ``spread``: how much starts of
    this pair differ; None: Welch's test says it from the pair's own starts. ``growth_bound``: the
    growth that is tolerated; None: as much as of a fall.
    """

    sides: Sides
    higher_is_better: bool
    bound: float
    spread: Spread | None = None
    growth_bound: float | None = None

    @property
    def tolerated_growth(self) -> float:
        return self.bound if self.growth_bound is None else self.growth_bound

    def difference(self) -> Difference | None:
        """NEW minus BASE; None where either side has one start."""
        if self.sides.least_starts < 2:
            return None
        return welch(self.sides) if self.spread is None else pooled(self.sides, self.spread)

    def p_worse(self) -> float:
        """One-sided p of "NEW is not worse"; 1 where either side has one start."""
        difference = self.difference()
        if difference is None:
            return 1.0
        return difference.p_below(0.0) if self.higher_is_better else difference.p_above(0.0)

    def p_better(self) -> float:
        """One-sided p of "NEW is not better"; 1 where either side has one start."""
        return replace(self, higher_is_better=not self.higher_is_better).p_worse()


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one figure.

    ``more_starts``: how many more starts the side that has fewer needs for a verdict, if figures
    and spread stay; None: it is decided, or would take more than MOST_STARTS starts.
    """

    verdict: Verdict
    difference: Difference | None
    more_starts: int | None = None


@dataclass(frozen=True, slots=True)
class SharedSpread:
    """What all pairs together show of the variance between starts.

    ``variance_ratio``: NEW's variance over BASE's; None: no test shows that they differ.
    """

    common: CommonSpread
    variance_ratio: float | None

    def of(self, pair: Sides) -> Spread:
        """The variance between starts by which a pair is judged."""
        return self.common.of(_own_spread(pair, self.variance_ratio))


def spread_of_pairs(pairs: Sequence[Sides]) -> SharedSpread | None:
    """The variance between starts of all pairs; None: see ``common_spread``."""
    variance_ratio = _variance_ratio(pairs)
    spreads = [_own_spread(pair, variance_ratio) for pair in pairs]
    common = common_spread([spread for spread in spreads if spread is not None])
    return None if common is None else SharedSpread(common, variance_ratio)


def judged_spread(pair: Sides, shared: SharedSpread | None) -> Spread | None:
    """The variance between starts by which a pair is judged. ``shared``: of all pairs."""
    return None if shared is None else shared.of(pair)


def _own_spread(pair: Sides, variance_ratio: float | None) -> Spread | None:
    return pair.spread if variance_ratio is None else pair.uneven_spread(variance_ratio)


def _variance_ratio(pairs: Sequence[Sides]) -> float | None:
    """NEW's mean variance between starts over BASE's; None where an F-test finds them the same."""
    from scipy.special import fdtr, fdtrc

    base = _mean_spread([pair.base for pair in pairs])
    new = _mean_spread([pair.new for pair in pairs])
    if base is None or new is None or min(base.variance, new.variance) == 0:
        return None
    ratio = new.variance / base.variance
    freedoms = new.freedom, base.freedom
    p_alike = 2 * min(fdtr(*freedoms, ratio), fdtrc(*freedoms, ratio))
    return ratio if p_alike < SIDES_LEVEL else None


def _mean_spread(sides: Sequence[StartValues]) -> Spread | None:
    """The mean variance between starts of one side of all pairs; None: none has two starts."""
    freedom = sum(side.starts - 1 for side in sides)
    if freedom == 0:
        return None
    squares = sum(side.variance * (side.starts - 1) for side in sides)
    return Spread(squares / freedom, freedom)


def welch(sides: Sides) -> Difference:
    """Welch's t-test of two starts or more on each side.

    The same as ``scipy.stats.ttest_ind(new, base, equal_var=False)``, except where the noise within
    starts is larger than the spread between them.
    """
    return _unequal(
        sides.difference,
        sides.base.variance_of_mean,
        sides.new.variance_of_mean,
        (sides.base.starts, sides.new.starts),
    )


def _unequal(estimate: float, of_base: float, of_new: float, starts: tuple[int, int]) -> Difference:
    """A difference between sides of unequal variance.

    ``of_base``, ``of_new``: the variances of the means; ``starts``: of BASE and of NEW. The degrees
    of freedom are those of Welch and Satterthwaite.
    """
    variance = of_base + of_new
    freedom = 1.0
    if variance > 0:
        share = of_base / variance  # the squares of small variances would underflow to 0
        freedom = 1 / (share**2 / (starts[0] - 1) + (1 - share) ** 2 / (starts[1] - 1))
    return Difference(estimate, math.sqrt(variance), freedom)


def pooled(sides: Sides, spread: Spread) -> Difference:
    """Student's t-test with a known estimate of the variance between starts."""
    variance = spread.variance * (1 / sides.base.starts + 1 / sides.new.starts)
    return Difference(sides.difference, math.sqrt(variance), spread.freedom)


def judge_together(gated: Sequence[Gated]) -> list[Judged]:
    """Judges each figure, with a limit on the false alarms of all of them.

    ``worse`` and ``better``: the difference is certain (by Holm's method over everything gated),
    and the measured difference is beyond the bounds. ``same``: two one-sided tests show that the
    difference is within them. With one start on either side nothing is decided.
    """
    # what further starts may show must pass the strictest of Holm's levels
    level = FALSE_ALARMS / max(len(gated), 1)
    judged = []
    for each, verdict in zip(gated, verdicts_together(gated), strict=True):
        more_starts = None
        if verdict is Verdict.UNDECIDED:
            more_starts = _more_starts(each, level)
        judged.append(Judged(verdict, each.difference(), more_starts))
    return judged


def verdicts_together(gated: Sequence[Gated]) -> list[Verdict]:
    """The verdicts of ``judge_together`` alone, without what further starts would show."""
    worse = holm([each.p_worse() for each in gated])
    better = holm([each.p_better() for each in gated])
    return [
        _verdict(each, each.difference(), is_worse, is_better)
        for each, is_worse, is_better in zip(gated, worse, better, strict=True)
    ]


def holm(p_values: Sequence[float], level: float = FALSE_ALARMS) -> list[bool]:
    """Which null hypotheses are rejected; a true one is, with probability ``level`` at most."""
    fallen = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - rank):
            break
        fallen[index] = True
    return fallen


def p_more_failed(base: RequestTotals, new: RequestTotals) -> float:
    """One-sided p of "requests fail no oftener in NEW" (Fisher's exact test)."""
    from scipy.stats import fisher_exact

    table = [
        [new.failed, new.scheduled - new.failed],
        [base.failed, base.scheduled - base.failed],
    ]
    return float(fisher_exact(table, alternative="greater").pvalue)


def _verdict(
    gated: Gated, difference: Difference | None, is_worse: bool, is_better: bool
) -> Verdict:
    if difference is None:
        return Verdict.UNDECIDED
    is_beyond = not -gated.bound <= difference.estimate <= gated.tolerated_growth
    if is_worse and is_beyond:
        return Verdict.WORSE
    if is_better and is_beyond:
        return Verdict.BETTER
    p_growth = difference.p_below(gated.tolerated_growth)
    p_outside = max(p_growth, difference.p_above(-gated.bound))
    return Verdict.SAME if p_outside <= FALSE_ALARMS else Verdict.UNDECIDED


def _more_starts(gated: Gated, level: float) -> int | None:
    """How many more starts the side that has fewer needs; None: over MOST_STARTS starts in all."""
    sides = gated.sides
    if sides.least_starts < 2 and gated.spread is None:
        return 2 - sides.least_starts  # the spread is not known
    for starts in range(max(sides.least_starts + 1, 2), MOST_STARTS + 1):
        difference = _of_starts(gated, starts)
        is_certain = min(difference.p_below(0.0), difference.p_above(0.0)) <= level
        verdict = _verdict(gated, difference, is_certain, is_certain)
        if verdict is not Verdict.UNDECIDED:
            return starts - sides.least_starts
    return None


def _of_starts(gated: Gated, starts: int) -> Difference:
    """The difference expected with ``starts`` starts a side, if they vary as those seen do."""
    sides, spread = gated.sides, gated.spread
    if spread is not None:
        added = 2 * starts - sides.base.starts - sides.new.starts
        standard_error = math.sqrt(2 * spread.variance / starts)
        return Difference(sides.difference, standard_error, spread.freedom + max(added, 0))
    of_base = sides.base.variance_of_mean * sides.base.starts / starts
    of_new = sides.new.variance_of_mean * sides.new.starts / starts
    return _unequal(sides.difference, of_base, of_new, (starts, starts))

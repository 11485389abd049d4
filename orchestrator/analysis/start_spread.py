"""How much engine starts differ, as several deployments together show it.

Two starts of one deployment tell little about the variance between starts; ten deployments of two
starts tell more, if all spread alike. Each estimate of a variance is therefore moderated: averaged
with the mean of all, as if that mean had a number of degrees of freedom (after Smyth 2004,
"Linear models and empirical Bayes methods", without his estimate of that number, which is too
unsteady for ten variances of two degrees of freedom). A test says how large this number may be.

The test asks how uneven the standard deviations are: their squared mean is divided by the mean
variance, and the share of even sweeps in which this quotient is smaller is its P-value. It is
counted in draws (Barnard 1963), because Bartlett's test finds less where each variance has one or
two degrees of freedom: where half of ten deployments spread four times as much as the others, it
notices that in 72 % of sweeps at 5 %, this one in 81 %; where a single one does, in 47 and 60 %
(benchmarks/compare).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orchestrator.base.arrays import Floats

# P-value below which the spreads of deployments count as different
UNEVEN_LEVEL = 0.05
# Degrees of freedom with which the mean of all counts beside each deployment's own variance. They are
# chosen by simulation (benchmarks/compare): larger ones find smaller differences, and raise more
# false alarms where the test does not notice that some deployments spread more than others.
PRIOR_FREEDOM_PER_DEPLOYMENT = 0.8
MOST_PRIOR_FREEDOM = 8.0
FREEDOM_IF_UNEVEN = 1.5
DRAWS = 10_000
SEED = 1


@dataclass(frozen=True, slots=True)
class Spread:
    """An estimate of the variance between starts, and its degrees of freedom."""

    variance: float
    freedom: float


@dataclass(frozen=True, slots=True)
class CommonSpread:
    """The mean variance between starts of several deployments.

    ``freedom``: its degrees of freedom. ``is_even``: no test shows that the deployments differ in
    it. ``deployments``: how many there are. ``prior_freedom``: the degrees of freedom with which
    the mean counts beside a deployment's own variance.
    """

    variance: float
    freedom: float
    is_even: bool
    deployments: int
    prior_freedom: float

    def of(self, own: Spread | None) -> Spread:
        """The variance of one deployment, moderated. ``own``: None: it shows none by itself."""
        if own is None:
            return Spread(self.variance, self.freedom)
        own_share = own.freedom / (self.prior_freedom + own.freedom)
        variance = (1 - own_share) * self.variance + own_share * own.variance
        if self.is_even:
            # Variances of estimates, in units of 2 * variance**2: the mean has 1 / F, the own one
            # 1 / f. The own one is part of the mean, so their covariance is 1 / F, too. With its
            # share w the sum is (1 - w)**2 / F + 2 * w * (1 - w) / F + w**2 / f, or:
            freedom = 1 / ((1 - own_share**2) / self.freedom + own_share**2 / own.freedom)
        else:
            freedom = min(self.prior_freedom + own.freedom, self.freedom)
        return Spread(variance, freedom)


def usual_prior_freedom(deployments: int) -> float:
    """The degrees of freedom of the mean beside each deployment's own, where all spread alike."""
    return min(PRIOR_FREEDOM_PER_DEPLOYMENT * deployments, MOST_PRIOR_FREEDOM)


def common_spread(
    spreads: Sequence[Spread], prior_freedom_if_even: float | None = None
) -> CommonSpread | None:
    """Averages the variances of several deployments, weighted by their degrees of freedom.

    A variance of 0 counts like any other: a rounded figure may have it. None where there are no
    variances, and where no start of any deployment differs.

    ``prior_freedom_if_even``: ``CommonSpread.prior_freedom`` where the deployments spread alike;
    None: ``usual_prior_freedom``. Where they do not, it is FREEDOM_IF_UNEVEN at most.
    """
    variances = np.array([spread.variance for spread in spreads])
    if not variances.any():
        return None
    freedoms = np.array([spread.freedom for spread in spreads])
    is_even = p_even(spreads) >= UNEVEN_LEVEL
    prior_freedom = prior_freedom_if_even
    if prior_freedom is None:
        prior_freedom = usual_prior_freedom(len(spreads))
    if not is_even:
        prior_freedom = min(prior_freedom, FREEDOM_IF_UNEVEN)
    return CommonSpread(
        variance=float(np.average(variances, weights=freedoms)),
        freedom=float(freedoms.sum()),
        is_even=is_even,
        deployments=len(spreads),
        prior_freedom=prior_freedom,
    )


def p_even(spreads: Sequence[Spread]) -> float:
    """The P-value of "all have the same variance", for starts whose figures are normal."""
    if len(spreads) < 2:
        return 1.0
    variances = np.array([spread.variance for spread in spreads])
    drawn = _drawn_evenness(tuple(sorted(spread.freedom for spread in spreads)))
    smaller = int(np.searchsorted(drawn, _evenness(variances), side="right"))
    return (smaller + 1) / (DRAWS + 1)


def _evenness(variances: Floats) -> float:
    """The squared mean of standard deviations over the mean variance: 1 where all are equal."""
    return float(np.sqrt(variances).mean() ** 2 / variances.mean())


@lru_cache(maxsize=8)
def _drawn_evenness(freedoms: tuple[float, ...]) -> Floats:
    """DRAWS values of ``_evenness`` of estimates of one variance, ascending."""
    random = np.random.default_rng(SEED)
    deviations = np.zeros(DRAWS)
    variances = np.zeros(DRAWS)
    for freedom in freedoms:
        drawn = random.chisquare(freedom, DRAWS) / freedom
        deviations += np.sqrt(drawn)
        variances += drawn
    return np.sort(deviations**2 / variances / len(freedoms))

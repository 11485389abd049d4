"""Other rules than the program's for how much pairs share what they show of the variance.

    python -m benchmarks.compare.rules [--sweeps 20000]

Sweeps of ten deployments and two starts a side are drawn, and judged by Student's t-tests and
Holm's method as in ``analysis/difference.py``. Three rules give the variance of each pair:

- *ours*: ``analysis/start_spread.py``;
- *limma*: the moderated t-test of Smyth (2004), which estimates from the variances themselves what
  they have in common and how many degrees of freedom that is worth;
- *best weights*: how many degrees of freedom the mean counts is chosen for each range of the P-value
  of "all spread alike", by a linear program that knows the cases: those at which 95 % of slowdowns
  are found, and the fewest false alarms are raised in the worst case;
- *best table*: any rule at all that looks at three facts of a pair: its difference in standard
  errors, its own variance over that of the others, and how uneven the others are. A linear program
  that knows the cases chooses for each cell of a table how often ``worse`` is said. It is judged by
  other sweeps than those that it was made of.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import linprog
from scipy.special import digamma, polygamma, stdtr

from benchmarks.compare.power import (
    BOUND,
    ONE_IN_FOUR,
    ONE_IN_TEN,
    QUIET_AND_NOISY,
    Case,
    share,
)
from orchestrator.analysis.difference import FALSE_ALARMS
from orchestrator.analysis.start_spread import Spread, common_spread, p_even
from orchestrator.base.arrays import Bools, Floats, Ints

DEPLOYMENTS = 10
STARTS = 2  # a side
FREEDOM = 2  # of a pair's own variance
SLOWER = Case(STARTS, DEPLOYMENTS, (0.01,), -0.05)
IDENTICAL = [
    Case(STARTS, DEPLOYMENTS, spreads)
    for spreads in (
        (0.01,),
        (0.02,),
        (0.01, 0.02),
        QUIET_AND_NOISY,
        (0.01, 0.10),
        ONE_IN_FOUR,
        ONE_IN_TEN,
    )
]
FOUND = 0.95  # share of slowdowns that the best weights have to find
# P-values of "all spread alike" at which the ranges of the best weights begin
RANGES = (0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
WEIGHTS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)  # degrees of freedom


@dataclass(frozen=True, slots=True)
class Sweeps:
    """Drawn sweeps, each a row. ``differences``: NEW minus BASE of each deployment. ``variances``:
    between starts, of each deployment's own.
    """

    differences: Floats
    variances: Floats

    def p_worse(self, variances: Floats, freedoms: Floats) -> Floats:
        """P of "NEW is not slower", where the variances are moderated like this."""
        errors = np.sqrt(2 * variances / STARTS)
        p_values: Floats = stdtr(freedoms, self.differences / errors)
        return p_values

    def worse(self, p_values: Floats) -> Bools:
        """The deployments whose verdict is ``worse``, by Holm's method."""
        ranked = np.argsort(p_values, axis=1)
        levels = FALSE_ALARMS / (DEPLOYMENTS - np.arange(DEPLOYMENTS))
        passes = np.take_along_axis(p_values, ranked, axis=1) <= levels
        rejected = np.zeros_like(passes)
        np.put_along_axis(rejected, ranked, np.logical_and.accumulate(passes, axis=1), axis=1)
        is_worse: Bools = rejected & (self.differences < -BOUND)
        return is_worse


Rule = Callable[[Sweeps], Floats]


def drawn(case: Case, sweeps: int, random: np.random.Generator) -> Sweeps:
    spreads = np.array([case.spreads[n % len(case.spreads)] for n in range(DEPLOYMENTS)])
    base, new = random.normal(0.0, spreads[:, None], (2, sweeps, DEPLOYMENTS, STARTS))
    differences = new.mean(axis=2) - base.mean(axis=2)
    differences[:, 0] += np.log(1 + case.change)
    variances = (base.var(axis=2, ddof=1) + new.var(axis=2, ddof=1)) / 2
    return Sweeps(differences, variances)


def ours(sweeps: Sweeps) -> Floats:
    variances = np.empty_like(sweeps.variances)
    freedoms = np.empty_like(sweeps.variances)
    for row, own in enumerate(sweeps.variances):
        spreads = [Spread(variance, FREEDOM) for variance in own]
        common = common_spread(spreads)
        assert common is not None
        moderated = [common.of(spread) for spread in spreads]
        variances[row] = [spread.variance for spread in moderated]
        freedoms[row] = [spread.freedom for spread in moderated]
    return sweeps.p_worse(variances, freedoms)


def limma(sweeps: Sweeps) -> Floats:
    """Smyth, "Linear models and empirical Bayes methods" (2004), equations 3 to 5; where the
    variances differ no more than chance makes them, the prior has endless degrees of freedom.
    """
    logs = np.log(sweeps.variances) - digamma(FREEDOM / 2) + np.log(FREEDOM / 2)
    excess = logs.var(axis=1, ddof=1, keepdims=True) - polygamma(1, FREEDOM / 2)
    has_prior = excess > 0
    half = _inverse_trigamma(np.where(has_prior, excess, 1.0))
    of_logs = np.exp(logs.mean(axis=1, keepdims=True) + digamma(half) - np.log(half))
    prior = np.where(has_prior, of_logs, sweeps.variances.mean(axis=1, keepdims=True))
    own_share = np.where(has_prior, FREEDOM / (2 * half + FREEDOM), 0.0)
    variances = (1 - own_share) * prior + own_share * sweeps.variances
    endless = float(FREEDOM * DEPLOYMENTS)
    freedoms = np.where(has_prior, np.minimum(2 * half + FREEDOM, endless), endless)
    return sweeps.p_worse(variances, np.broadcast_to(freedoms, variances.shape))


def _inverse_trigamma(values: Floats) -> Floats:
    """Newton's iteration of Smyth (2004), appendix."""
    found: Floats = 0.5 + 1 / values
    for _ in range(50):
        trigamma = polygamma(1, found)
        found = found + trigamma * (1 - trigamma / values) / polygamma(2, found)
    return found


def weighted(prior_freedom: float) -> Rule:
    """The rule of ``CommonSpread.of`` where all spread alike, with this weight of the mean."""

    def p_values(sweeps: Sweeps) -> Floats:
        own_share = FREEDOM / (prior_freedom + FREEDOM)
        mean = sweeps.variances.mean(axis=1, keepdims=True)
        variances = (1 - own_share) * mean + own_share * sweeps.variances
        of_mean = (1 - own_share**2) / (FREEDOM * DEPLOYMENTS)
        freedom = 1 / (of_mean + own_share**2 / FREEDOM)
        return sweeps.p_worse(variances, np.full_like(variances, freedom))

    return p_values


def shares_by_range(sweeps: Sweeps, ranges: Ints, flags: Bools) -> Floats:
    """The share of all sweeps that are flagged and in each range."""
    counts = np.bincount(ranges[flags], minlength=len(RANGES))
    return counts / len(sweeps.differences)


def best_weights(slower: Sweeps, identical: Sequence[Sweeps]) -> list[float]:
    """The share of slowdowns found, then those of false alarms in each of ``identical``."""
    tables = [_table(slower, of_first=True), *(_table(sweeps) for sweeps in identical)]
    cells = tables[0].size
    worst = np.append(np.zeros(cells), 1.0)  # the last unknown: the most false alarms
    finds = np.append(-tables[0].ravel(), 0.0)
    stays_below = [np.append(table.ravel(), -1.0) for table in tables[1:]]
    one_weight = np.zeros((len(RANGES), cells + 1))
    for row, column in product(range(len(RANGES)), range(len(WEIGHTS))):
        one_weight[row, row * len(WEIGHTS) + column] = 1.0
    solved = linprog(
        worst,
        A_ub=np.array([finds, *stays_below]),
        b_ub=[-FOUND, *np.zeros(len(stays_below))],
        A_eq=one_weight,
        b_eq=np.ones(len(RANGES)),
    )
    return [float(table.ravel() @ solved.x[:-1]) for table in tables]


def _table(sweeps: Sweeps, of_first: bool = False) -> Floats:
    """By range and weight, the share of sweeps in which ``worse`` is said of any deployment, or of
    the first.
    """
    p_values = [p_even([Spread(each, FREEDOM) for each in own]) for own in sweeps.variances]
    ranges = np.searchsorted(RANGES, p_values, side="right") - 1
    columns = []
    for weight in WEIGHTS:
        worse = sweeps.worse(weighted(weight)(sweeps))
        flags: Bools = worse[:, 0] if of_first else np.any(worse, axis=1)
        columns.append(shares_by_range(sweeps, ranges, flags))
    return np.stack(columns, axis=1)


# Edges of the cells of the best table
STANDARD_ERRORS = (
    *(2.0, 2.5, 3.0, 3.3, 3.6, 3.9, 4.2, 4.5, 4.8, 5.2, 5.6),
    *(6.0, 6.5, 7.0, 8.0, 9.0, 10.0, 12.0),
)
OWN_OVER_OTHERS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0)
UNEVENNESS = (0.5, 0.65, 0.8, 0.95, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0)
TABLE_SHAPE = (len(STANDARD_ERRORS) + 1, len(OWN_OVER_OTHERS) + 1, len(UNEVENNESS) + 1)
TABLE_CELLS = int(np.prod(TABLE_SHAPE))


def cells(sweeps: Sweeps) -> Ints:
    """The cell of the best table in which each deployment of each sweep is."""
    own = sweeps.variances
    others = (own.sum(axis=1, keepdims=True) - own) / (DEPLOYMENTS - 1)
    # the variance of a deployment has two degrees of freedom: its median is ln 2 times its mean
    typical = np.median(own, axis=1, keepdims=True) / np.log(2)
    distances = -sweeps.differences / np.sqrt(own.mean(axis=1, keepdims=True))
    places = (
        np.digitize(distances, STANDARD_ERRORS),
        np.digitize(own / others, OWN_OVER_OTHERS),
        np.digitize(others / typical, UNEVENNESS),
    )
    numbers: Ints = np.ravel_multi_index(places, TABLE_SHAPE)
    return numbers


def best_table(slower: Sweeps, identical: Sequence[Sweeps]) -> Floats:
    """For each cell the probability with which ``worse`` is said. It finds FOUND of the slowdowns,
    and its expected number of false alarms in a sweep is the least in the worst case.
    """
    found = _beyond_bound(slower, of_first=True)
    alarms = [_beyond_bound(sweeps) for sweeps in identical]
    solved = linprog(
        np.append(np.zeros(TABLE_CELLS), 1.0),  # the last unknown: the most false alarms
        A_ub=np.array([np.append(-found, 0.0), *(np.append(each, -1.0) for each in alarms)]),
        b_ub=[-FOUND, *np.zeros(len(alarms))],
        bounds=(0, 1),
    )
    probabilities: Floats = solved.x[:-1]
    return probabilities


def _beyond_bound(sweeps: Sweeps, of_first: bool = False) -> Floats:
    """By cell, how many deployments of a sweep are in it and beyond the bound, on average."""
    places, is_beyond = cells(sweeps), sweeps.differences < -BOUND
    if of_first:
        places, is_beyond = places[:, 0], is_beyond[:, 0]
    return np.bincount(places[is_beyond], minlength=TABLE_CELLS) / len(sweeps.differences)


def worse_by_table(sweeps: Sweeps, probabilities: Floats, random: np.random.Generator) -> Bools:
    """The deployments whose verdict is ``worse``."""
    drawn_shares = random.random(sweeps.differences.shape)
    is_worse: Bools = (sweeps.differences < -BOUND) & (drawn_shares < probabilities[cells(sweeps)])
    return is_worse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=20_000)
    count = parser.parse_args().sweeps
    random = np.random.default_rng(1)
    slower = drawn(SLOWER, count, random)
    identical = [drawn(case, count, random) for case in IDENTICAL]
    of_best = best_weights(slower, identical)
    others = np.random.default_rng(2)
    probabilities = best_table(
        drawn(SLOWER, count, others), [drawn(case, count, others) for case in IDENTICAL]
    )
    print("| spread | one changed by | | ours | limma | best weights | best table |")
    print("|---|---|---|---|---|---|---|")
    found = [share(list(slower.worse(rule(slower))[:, 0])) for rule in (ours, limma)]
    by_table = share(list(worse_by_table(slower, probabilities, others)[:, 0]))
    shares = [*found, f"{of_best[0]:.1%}", by_table]
    print(f"| {SLOWER.spread_text} | -5% | found | {' | '.join(shares)} |")
    for case, sweeps, best in zip(IDENTICAL, identical, of_best[1:], strict=True):
        alarms = [share(list(map(any, sweeps.worse(rule(sweeps))))) for rule in (ours, limma)]
        by_table = share(list(map(any, worse_by_table(sweeps, probabilities, others))))
        shares = [*alarms, f"{best:.1%}", by_table]
        print(f"| {case.spread_text} | +0% | false alarm | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()

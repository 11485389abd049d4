"""How much less requests tell that depend on each other, where misses come in runs.

The *design effect* is the variance of batch means (Schmeiser 1982) over that of independent
requests. It rises with the share of misses, and one probe with few runs of misses hardly shows it.
So it is learned from all levels that were probed, for a level at which just as many requests miss
as are allowed to. Where no level tells anything, it is ``PRIOR_EFFECT``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.base.arrays import Bools, Ints

PRIOR_EFFECT = 20.0  # design effect where nothing is known of it
PRIOR_RUNS = 4  # ``PRIOR_EFFECT`` weighs as much as so many runs of misses
NEAR = 4  # a level tells of runs only if at most this many times the allowed requests miss
FEWEST_BATCHES = 10  # of each probe
# requests in a batch, unless a probe has too few for ``FEWEST_BATCHES`` of this size
FEWEST_IN_A_BATCH = 10


@dataclass(frozen=True, slots=True, order=True)
class MissRuns:
    """What one level tells of runs of misses. Levels are ordered by the share that missed.

    ``missed``: the share of requests that missed. ``effect``: their design effect. ``runs``: how
    many runs of misses there were.
    """

    missed: float
    effect: float
    runs: int


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches of the requests of all probes. ``met``: how many requests of each batch met the test.
    ``sizes``: how many requests each batch has.
    """

    met: Ints
    sizes: Ints


def design_effect(probes: Sequence[Bools]) -> float:
    """How many times the variance of the share is that of independent requests; at least 1.

    ``probes``: for each probe, whether each request met the test, in order of when they were due.
    The result is the largest over batches of several sizes: one size alone would not show runs of
    misses that are longer than a batch, or much shorter. With one size, 8 of 156 searches of M/M/8
    said that a level fails which holds; with the largest, none of 76 did. Searches take up to a
    quarter more load for it.
    """
    with_requests = [probe for probe in probes if len(probe)]
    # of each probe: at place i, how many of its first i requests met the test
    sums = [np.concatenate([[0], np.cumsum(probe)]) for probe in with_requests]
    requests = sum(len(probe) for probe in with_requests)
    met = sum(int(cumulated[-1]) for cumulated in sums)
    share = met / requests
    if not 0 < share < 1:
        return 1.0
    # of the number of requests that meet the test, if they were independent
    independent_variance = requests * share * (1 - share)
    largest = 1.0
    batches_per_probe = FEWEST_BATCHES
    most_per_probe = max(requests / FEWEST_IN_A_BATCH / len(sums), FEWEST_BATCHES)
    while batches_per_probe <= most_per_probe:
        variance = _variance_of_met(_cut(sums, batches_per_probe), share)
        largest = max(largest, variance / independent_variance)
        batches_per_probe *= 2
    return largest


def _variance_of_met(batches: _Batches, share: float) -> float:
    """The variance of the number of all requests that meet the test, as it shows in how far each
    batch is from the ``share`` of all.
    """
    squares = float(((batches.met - share * batches.sizes) ** 2).sum())
    count = batches.sizes.size
    return squares * count / max(count - 1, 1)


def _cut(sums: Sequence[Ints], batches_per_probe: int) -> _Batches:
    """Cuts each probe into so many batches of equal size; into fewer if it has fewer requests.

    ``sums``: of each probe: at place i, how many of its first i requests met the test.
    """
    met: list[Ints] = []
    sizes: list[Ints] = []
    for cumulated in sums:
        requests = cumulated.size - 1
        batches = min(batches_per_probe, requests)
        edges = np.arange(batches + 1) * requests // batches
        met.append(np.diff(cumulated[edges]))
        sizes.append(np.diff(edges))
    return _Batches(np.concatenate(met), np.concatenate(sizes))


def miss_runs(probes: Sequence[Bools], target: float) -> MissRuns | None:
    """What all probes of a level tell of runs of misses.

    None: no request missed, or so many did that they say nothing about a level at the target.
    """
    requests = sum(len(probe) for probe in probes)
    met = sum(int(np.count_nonzero(probe)) for probe in probes)
    missed = requests - met
    allowed = (1 - target) * requests
    if not missed or missed > NEAR * allowed:
        return None
    runs = sum(_runs_begun(probe) for probe in probes)
    return MissRuns(1 - met / requests, design_effect(probes), runs)


def _runs_begun(probe: Bools) -> int:
    """How many runs of misses began in a probe, after a request that met the test."""
    changes = np.diff(np.asarray(probe, np.int8))
    return int(np.count_nonzero(changes < 0))


def usual_effect(miss_runs_of_levels: Iterable[MissRuns], target: float) -> float:
    """The design effect of a level at which just as many requests miss as are allowed to.

    It is interpolated between levels that were probed, in logarithms of effect and share of
    misses, and never falls as the share of misses rises. Each level weighs as much as the number of
    its runs of misses, beside ``PRIOR_RUNS`` of ``PRIOR_EFFECT``, so a level with few runs tells
    little. With the largest effect of any level instead, searches took 39 % more load.
    """
    levels = sorted(miss_runs_of_levels)
    if not levels:
        return PRIOR_EFFECT
    weights = [level.runs + PRIOR_RUNS for level in levels]
    log_effects: list[float] = []
    for level, weight in zip(levels, weights, strict=True):
        mean = (level.runs * level.effect + PRIOR_RUNS * PRIOR_EFFECT) / weight
        log_effects.append(math.log(mean))
    rising = not_rising(log_effects[::-1], weights[::-1])[::-1]
    log_missed = np.log([level.missed for level in levels])
    log_effect = np.interp(math.log(1 - target), log_missed, rising)
    return float(np.exp(log_effect))


def not_rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The values nearest to these, by weighted squares, that do not rise from one to the next.

    Pool adjacent violators: Ayer et al. 1955.
    """
    from scipy.optimize import isotonic_regression  # imported late: most sweeps search nothing

    fitted: list[float] = isotonic_regression(values, weights=weights, increasing=False).x.tolist()
    return fitted

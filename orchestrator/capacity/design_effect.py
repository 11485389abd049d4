"""How much less dependent requests tell than independent ones, where misses come in runs.

The *design effect* is how many times the variance of batch means (Schmeiser 1982) is above that of
independent requests. It rises with the share of misses, and one probe with few runs of them hardly
tells it; so it is learned from all levels that were probed, for a level at which just so many miss
as may. Where nobody can tell, it is ``PRIOR_EFFECT``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.requests import Bools

PRIOR_EFFECT = 20.0  # design effect where nothing is known of it
PRIOR_RUNS = 4  # of misses, that weigh as much as what is assumed of a design effect
NEAR = 4  # times as many misses as there may be, at most, where runs of them are learned from
FEWEST_BATCHES = 10


@dataclass(frozen=True, slots=True)
class MissRuns:
    """What one level tells of runs of misses: the share of requests that miss, their design effect,
    how many runs.
    """

    missed: float
    effect: float
    runs: int


def design_effect(runs: Sequence[Bools]) -> float:
    """How many times the variance of the share is that of independent requests; at least 1.
    ``runs``: per probe whether each request met the test, in order of when they were due. The
    largest over batches of several sizes.
    """
    sums = [np.concatenate([[0], np.cumsum(run)]) for run in runs if len(run)]
    count, met = sum(one.size - 1 for one in sums), sum(int(one[-1]) for one in sums)
    share, found, batches = met / count, 1.0, FEWEST_BATCHES
    while 0 < share < 1 and batches <= max(count / 10 / len(sums), FEWEST_BATCHES):
        parts = [min(batches, one.size - 1) for one in sums]
        edges = [
            np.arange(some + 1) * (one.size - 1) // some
            for one, some in zip(sums, parts, strict=True)
        ]
        amounts = np.concatenate(
            [np.diff(one[edge]) for one, edge in zip(sums, edges, strict=True)]
        )
        sizes = np.concatenate([np.diff(edge) for edge in edges])
        spread = float(((amounts - share * sizes) ** 2).sum()) * sizes.size / max(sizes.size - 1, 1)
        found = max(found, spread / (count * share * (1 - share)))
        batches *= 2
    return found


def miss_runs(runs: Sequence[Bools], target: float) -> MissRuns | None:
    """Of all probes of a level; None: no request missed, or so many that they say nothing of the
    target.
    """
    count, met = sum(len(run) for run in runs), sum(int(np.count_nonzero(run)) for run in runs)
    if met == count or count - met > NEAR * (1 - target) * count:
        return None
    begun = sum(int(np.count_nonzero(np.diff(np.asarray(run, np.int8)) < 0)) for run in runs)
    return MissRuns(1 - met / count, design_effect(runs), begun)


def usual_effect(seen: Iterable[MissRuns], target: float) -> float:
    """Design effect where just so many miss as may: between the levels that were seen."""
    levels = sorted(seen, key=lambda one: (one.missed, one.effect, one.runs))
    if not levels:
        return PRIOR_EFFECT
    weights = [one.runs + PRIOR_RUNS for one in levels]
    known = [
        math.log((one.runs * one.effect + PRIOR_RUNS * PRIOR_EFFECT) / weight)
        for one, weight in zip(levels, weights, strict=True)
    ]
    rising = isotonic(known[::-1], weights[::-1])[::-1]
    return float(
        np.exp(np.interp(math.log(1 - target), np.log([one.missed for one in levels]), rising))
    )


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest values, by weighted squares, that do not rise from one to the next."""
    from scipy.optimize import isotonic_regression  # imported late: most sweeps search nothing

    fitted: list[float] = isotonic_regression(values, weights=weights, increasing=False).x.tolist()
    return fitted

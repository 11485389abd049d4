"""How often a slowdown of 5 % could be found at most, where one deployment in ten is noisy.

    python -m benchmarks.compare.oracle [--sweeps 2000000]

An oracle is told what no sweep of two starts a side can know: that nine deployments spread by 1 %
and one by 4 %, and that a slow one is slower by 5 %. It judges each pair by the likelihood ratio of
"quiet and slower" against "noisy and unchanged", which no rule beats (Neyman and Pearson, 1933).
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import chi2, norm

from benchmarks.compare.power import BOUND

SLOWDOWN = -np.log(1 - 0.05)
QUIET, NOISY = 0.01, 0.04  # standard deviations of log throughput between starts
FREEDOM = 2  # of a pair's own variance: two starts a side
QUIET_DEPLOYMENTS = 9


def drawn(
    spread: float, change: float, sweeps: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """For each sweep, NEW minus BASE of one pair, and its own variance between starts."""
    differences = random.normal(change, spread, sweeps)  # of two means of two starts each
    variances = spread**2 * random.chisquare(FREEDOM, sweeps) / FREEDOM
    return differences, variances


def evidence(differences: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Log likelihood of "quiet and slower" minus that of "noisy and unchanged".

    Minus infinity where the verdict cannot be ``worse``, because the difference is within the bound.
    """
    no_better = np.maximum(differences, -SLOWDOWN)  # a larger slowdown is no less suspicious
    slower = norm.logpdf(no_better, -SLOWDOWN, QUIET) + _log_density(variances, QUIET)
    unchanged = norm.logpdf(no_better, 0.0, NOISY) + _log_density(variances, NOISY)
    return np.where(differences < -BOUND, slower - unchanged, -np.inf)


def _log_density(variances: np.ndarray, spread: float) -> np.ndarray:
    scale = spread**2 / FREEDOM
    density: np.ndarray = chi2.logpdf(variances / scale, FREEDOM) - np.log(scale)
    return density


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=2_000_000)
    sweeps = parser.parse_args().sweeps
    random = np.random.default_rng(1)
    of_noisy = evidence(*drawn(NOISY, 0.0, sweeps, random))
    of_quiet = evidence(*drawn(QUIET, 0.0, sweeps, random))
    of_slower = evidence(*drawn(QUIET, -SLOWDOWN, sweeps, random))
    print("| false alarm in a sweep | found |")
    print("|---|---|")
    for alarms_of_noisy in (0.03, 0.035, 0.04, 0.045, 0.05):
        needed = np.quantile(of_noisy, 1 - alarms_of_noisy)
        alarms_of_quiet = np.mean(of_quiet > needed)
        alarms = 1 - (1 - alarms_of_noisy) * (1 - alarms_of_quiet) ** QUIET_DEPLOYMENTS
        print(f"| {alarms:.1%} | {np.mean(of_slower > needed):.1%} |")


if __name__ == "__main__":
    main()

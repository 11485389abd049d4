"""How often a slowdown of 5 % could be found at most, where one deployment in ten is noisy.

    python -m benchmarks.compare.oracle [--sweeps 2000000]

An oracle is told what no sweep of two starts a side can know: that nine deployments spread by 1 %
and one by 4 %, and that a slow one is quiet and slower by exactly 5 %. It judges each pair by the
likelihood ratio of "slower" against "unchanged, and noisy in one of ten cases", which no rule that
judges each pair by itself beats (Neyman and Pearson, 1933).

The last line bounds all rules, those too that look at the other pairs: a sweep with a slow
deployment and one with a noisy deployment differ in this pair alone, so the likelihood ratio of the
two for this pair says what can be found if it is the only one that ever raises a false alarm.
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
ALARMS_OF_NOISY = (0.035, 0.04, 0.045, 0.05)  # shares of sweeps
MOST_ALARMS = 0.05


def drawn(
    spread: float, change: float, sweeps: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """For each sweep, NEW minus BASE of one pair, and its own variance between starts."""
    differences = random.normal(change, spread, sweeps)  # of two means of two starts each
    variances = spread**2 * random.chisquare(FREEDOM, sweeps) / FREEDOM
    return differences, variances


def evidence(
    differences: np.ndarray, variances: np.ndarray, quiet_deployments: int = QUIET_DEPLOYMENTS
) -> np.ndarray:
    """Log likelihood of "quiet and slower" minus that of "unchanged", of a pair that is one of
    ``quiet_deployments`` quiet ones or the noisy one.

    Minus infinity where the verdict cannot be ``worse``, because the difference is within the bound.
    """
    slower = _log_likelihood(differences, variances, -SLOWDOWN, QUIET)
    unchanged = _log_likelihood(differences, variances, 0.0, NOISY)
    if quiet_deployments:
        of_quiet = _log_likelihood(differences, variances, 0.0, QUIET)
        unchanged = np.logaddexp(unchanged, np.log(quiet_deployments) + of_quiet)
    return np.where(differences < -BOUND, slower - unchanged, -np.inf)


def _log_likelihood(
    differences: np.ndarray, variances: np.ndarray, change: float, spread: float
) -> np.ndarray:
    scale = spread**2 / FREEDOM
    of_variances = chi2.logpdf(variances / scale, FREEDOM) - np.log(scale)
    likelihood: np.ndarray = norm.logpdf(differences, change, spread) + of_variances
    return likelihood


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=2_000_000)
    sweeps = parser.parse_args().sweeps
    random = np.random.default_rng(1)
    noisy = drawn(NOISY, 0.0, sweeps, random)
    quiet = drawn(QUIET, 0.0, sweeps, random)
    slower = drawn(QUIET, -SLOWDOWN, sweeps, random)
    print("| rule | false alarm in a sweep | found |")
    print("|---|---|---|")
    for alarms_of_noisy in ALARMS_OF_NOISY:
        needed = np.quantile(evidence(*noisy), 1 - alarms_of_noisy)
        alarms_of_quiet = np.mean(evidence(*quiet) > needed)
        alarms = 1 - (1 - alarms_of_noisy) * (1 - alarms_of_quiet) ** QUIET_DEPLOYMENTS
        found = np.mean(evidence(*slower) > needed)
        print(f"| the oracle's | {alarms:.1%} | {found:.1%} |")
    needed = np.quantile(evidence(*noisy, quiet_deployments=0), 1 - MOST_ALARMS)
    found = np.mean(evidence(*slower, quiet_deployments=0) > needed)
    print(f"| any | {MOST_ALARMS:.1%} | {found:.1%} at most |")


if __name__ == "__main__":
    main()

"""How often ``orchestrator compare`` raises a false alarm, and how often it finds a slowdown.

    python -m benchmarks.compare.power [--repetitions 2000] [--only TEXT]

Sweeps are drawn, not run: each start of each deployment has a throughput around its true one, with
a log-normal spread between starts. All is judged by the program's own ``verdicts_together``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bartlett

from orchestrator.analysis.difference import (
    Gated,
    Sides,
    StartValues,
    Verdict,
    judged_spread,
    spread_of_pairs,
    verdicts_together,
)
from orchestrator.analysis.start_spread import UNEVEN_LEVEL, Spread, p_even

BOUND = -math.log(1 - 0.03)
GROWTH_BOUND = math.log(1 + 0.03)
# of the two other figures that `compare` gates unless it is told otherwise
TTFT_SPREAD = 0.05
ATTAINMENT = 0.95
REQUESTS = 400  # of each start


@dataclass(frozen=True, slots=True)
class Case:
    """``spreads``: the standard deviation of log throughput between starts, taken in turn by the
    deployments. ``change``: of the first deployment's throughput; all others stay. ``levels``: how
    many points each deployment has; half of the variance between starts is common to them.
    ``new_spread``: of NEW, as a multiple of BASE's. ``gates_three``: TTFT p99 and attainment, which
    do not change, are gated beside throughput.
    """

    starts: int
    deployments: int
    spreads: tuple[float, ...]
    change: float = 0.0
    levels: int = 1
    new_spread: float = 1.0
    gates_three: bool = False

    @property
    def spread_text(self) -> str:
        kinds = dict.fromkeys(self.spreads)
        text = " and ".join(f"{spread:.0%}" for spread in kinds)
        noisy = self.spreads.count(max(self.spreads))
        if len(kinds) > 1 and noisy * 2 != len(self.spreads):
            text += f", 1 in {len(self.spreads) // noisy}"
        if self.new_spread != 1:
            text += f", NEW {self.new_spread:g} times that"
        if self.gates_three:
            text += ", three figures"
        return text

    @property
    def text(self) -> str:
        points = f"{self.deployments}" + (f" x {self.levels} levels" if self.levels > 1 else "")
        return f"| {self.starts} | {points} | {self.spread_text} | {self.change:+.0%} |"


QUIET_AND_NOISY = (0.01, 0.04)
ONE_IN_FOUR = (0.01, 0.01, 0.01, 0.04)
ONE_IN_TEN = (*(0.01,) * 9, 0.04)
ONE_IN_THREE = (0.01, 0.01, 0.04)
ONE_IN_SIX = (*(0.01,) * 5, 0.04)
ONE_IN_TWENTY = (*(0.01,) * 19, 0.04)


def cases() -> Iterator[Case]:
    for spread in (0.01, 0.02):
        for change in (0.0, -0.03, -0.05, -0.08, -0.10):
            yield Case(2, 10, (spread,), change)
        for starts in (3, 5):
            yield Case(starts, 10, (spread,), -0.05)
    for deployments in (1, 30):
        yield Case(2, deployments, (0.01,), -0.05)
    yield Case(2, 10, QUIET_AND_NOISY)
    yield Case(2, 10, QUIET_AND_NOISY, -0.05)
    yield Case(3, 10, QUIET_AND_NOISY)
    yield Case(2, 4, QUIET_AND_NOISY)
    yield Case(2, 30, QUIET_AND_NOISY)
    yield Case(2, 10, (0.01, 0.02))
    yield Case(2, 10, (0.01, 0.10))
    yield Case(2, 10, ONE_IN_FOUR)
    yield Case(2, 10, ONE_IN_TEN)
    yield Case(3, 10, ONE_IN_TEN)
    yield Case(2, 10, (0.01,), new_spread=4.0)
    yield Case(2, 2, (0.02,), levels=5)
    yield Case(2, 1, (0.02,), levels=10)
    yield Case(2, 3, (0.01,), -0.05)
    yield Case(3, 3, (0.01,), -0.05)
    yield Case(2, 3, ONE_IN_THREE)
    yield Case(2, 6, ONE_IN_SIX)
    yield Case(2, 20, ONE_IN_TWENTY)
    yield Case(2, 20, (0.01, 0.02))
    yield Case(2, 10, (0.02, 0.08))
    yield Case(2, 3, (0.02,), new_spread=4.0)
    yield Case(2, 10, (0.01,), gates_three=True)
    for deployments in (10, 1):
        for starts in (2, 3):
            yield Case(starts, deployments, (0.01,), -0.05, gates_three=True)


def judged(case: Case, random: np.random.Generator) -> list[Verdict]:
    """The verdicts on one drawn sweep, deployment by deployment, first those on throughput."""
    pairs = []
    for deployment in range(case.deployments):
        spread = case.spreads[deployment % len(case.spreads)]
        shift = math.log(1 + case.change) if deployment == 0 else 0.0
        of_base = _points(case, random, 0.0, spread)
        of_new = _points(case, random, shift, spread * case.new_spread)
        pairs += [Sides(base, new) for base, new in zip(of_base, of_new, strict=True)]
    shared = spread_of_pairs(pairs)
    gated = [Gated(pair, True, BOUND, judged_spread(pair, shared)) for pair in pairs]
    if case.gates_three:
        gated += _gated_ttfts(case, random) + _gated_attainments(case, random)
    return verdicts_together(gated)


def _gated_ttfts(case: Case, random: np.random.Generator) -> list[Gated]:
    pairs = []
    for _ in range(case.deployments):
        base, new = random.normal(0.0, TTFT_SPREAD, (2, case.starts))
        pairs.append(Sides(StartValues(tuple(base)), StartValues(tuple(new))))
    shared = spread_of_pairs(pairs)
    return [Gated(pair, False, BOUND, judged_spread(pair, shared), GROWTH_BOUND) for pair in pairs]


def _gated_attainments(case: Case, random: np.random.Generator) -> list[Gated]:
    noise = math.sqrt(ATTAINMENT * (1 - ATTAINMENT) / (REQUESTS * case.starts))
    gated = []
    for _ in range(case.deployments):
        base, new = random.binomial(REQUESTS, ATTAINMENT, (2, case.starts)) / REQUESTS
        pair = Sides(StartValues(tuple(base), noise), StartValues(tuple(new), noise))
        gated.append(Gated(pair, True, 0.03))
    return gated


def _points(
    case: Case, random: np.random.Generator, mean: float, spread: float
) -> list[StartValues]:
    """The starts of one side of a deployment at each of its levels."""
    if case.levels == 1:
        return [StartValues(tuple(random.normal(mean, spread, case.starts)))]
    part = spread / math.sqrt(2)
    of_starts = random.normal(mean, part, case.starts)
    return [
        StartValues(tuple(of_starts + random.normal(0.0, part, case.starts)))
        for _ in range(case.levels)
    ]


def share(flags: Sequence[bool]) -> str:
    return f"{np.mean(flags):.1%}"


def _print_noticed(case: Case, options: argparse.Namespace) -> None:
    """Prints how often two tests at 5 % notice that the deployments spread differently."""
    by_bartlett, by_quotient = [], []
    for repetition in range(options.repetitions):
        random = np.random.default_rng([options.first_seed, repetition])
        deviations = [case.spreads[n % len(case.spreads)] for n in range(case.deployments)]
        # two starts a side: a variance has two degrees of freedom, like one of three values
        samples = [random.normal(0.0, deviation, 3) for deviation in deviations]
        spreads = [Spread(float(np.var(sample, ddof=1)), 2) for sample in samples]
        by_bartlett.append(bartlett(*samples).pvalue < UNEVEN_LEVEL)
        by_quotient.append(p_even(spreads) < UNEVEN_LEVEL)
    counts = f"{share(by_bartlett)} | {share(by_quotient)}"
    print(f"| {case.deployments} | {case.spread_text} | {counts} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", default="", help="the cases whose line holds this text")
    options = parser.parse_args()
    print(
        "| starts a side | deployments | spread | one changed by | found | false alarm in a sweep |"
    )
    print("|---|---|---|---|---|---|")
    drawn_cases = [case for case in cases() if options.only in case.text]
    for case in drawn_cases:
        found, alarms = [], []
        for repetition in range(options.repetitions):
            random = np.random.default_rng([options.first_seed, repetition])
            verdicts = judged(case, random)
            unchanged = verdicts[case.levels :] if case.change else verdicts
            found.append(bool(case.change) and verdicts[0] is Verdict.WORSE)
            alarms.append(Verdict.WORSE in unchanged)
        found_text = share(found) if case.change else "-"
        print(f"{case.text} {found_text} | {share(alarms)} |", flush=True)
    print("\n| deployments | spread | Bartlett | quotient |")
    print("|---|---|---|---|")
    for case in drawn_cases:
        has_two_starts_at_one_level = case.starts == 2 and case.levels == 1 and not case.gates_three
        if has_two_starts_at_one_level and case.change == 0 and case.deployments > 1:
            _print_noticed(case, options)


if __name__ == "__main__":
    main()

"""How often ``orchestrator compare`` raises a false alarm, and how often it finds a slowdown.

    python -m benchmarks.compare.power [--repetitions 1000]

Sweeps are drawn, not run: each start of each deployment has a throughput around its true one, with
a log-normal spread between starts. All is judged by the program's own ``judge_together``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.difference import (
    Gated,
    Judged,
    Sides,
    StartValues,
    Verdict,
    common_spread,
    judge_together,
)

BOUND = -math.log(1 - 0.03)


@dataclass(frozen=True, slots=True)
class Case:
    """``spreads``: the standard deviation of log throughput between starts, taken in turn by the
    deployments. ``change``: of the first deployment's throughput; all others stay.
    """

    starts: int
    deployments: int
    spreads: tuple[float, ...]
    change: float

    @property
    def text(self) -> str:
        spreads = " and ".join(f"{spread:.0%}" for spread in self.spreads)
        return f"| {self.starts} | {self.deployments} | {spreads} | {self.change:+.0%} |"


def cases() -> Iterator[Case]:
    for spread in (0.01, 0.02):
        for change in (0.0, -0.03, -0.05, -0.08, -0.10):
            yield Case(2, 10, (spread,), change)
        for starts in (3, 5):
            yield Case(starts, 10, (spread,), -0.05)
    for change in (0.0, -0.05):
        yield Case(2, 10, (0.01, 0.04), change)
    for deployments in (1, 30):
        yield Case(2, deployments, (0.01,), -0.05)


def judged(case: Case, random: np.random.Generator) -> list[Judged]:
    """The verdicts on one drawn sweep."""
    sides = []
    for deployment in range(case.deployments):
        spread = case.spreads[deployment % len(case.spreads)]
        shift = math.log(1 + case.change) if deployment == 0 else 0.0
        base = StartValues(tuple(random.normal(0.0, spread, case.starts)))
        new = StartValues(tuple(random.normal(shift, spread, case.starts)))
        sides.append(Sides(base, new))
    shared = common_spread(sides)
    return judge_together([Gated(pair, True, BOUND, shared) for pair in sides])


def share(flags: Sequence[bool]) -> str:
    return f"{np.mean(flags):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--first-seed", type=int, default=1)
    options = parser.parse_args()
    print(
        "| starts a side | deployments | spread | one changed by | found | false alarm in a sweep |"
    )
    print("|---|---|---|---|---|---|")
    for case in cases():
        found, alarms = [], []
        for repetition in range(options.repetitions):
            random = np.random.default_rng([options.first_seed, repetition])
            verdicts = [each.verdict for each in judged(case, random)]
            unchanged = verdicts[1:] if case.change else verdicts
            found.append(bool(case.change) and verdicts[0] is Verdict.WORSE)
            alarms.append(Verdict.WORSE in unchanged)
        found_text = share(found) if case.change else "-"
        print(f"{case.text} {found_text} | {share(alarms)} |", flush=True)


if __name__ == "__main__":
    main()

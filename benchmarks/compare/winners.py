"""How often ``orchestrator best`` names a winner that is none, and how often it finds a real one.

    python -m benchmarks.compare.winners [--repetitions 4000]

Rankings are drawn, not run: each start of each deployment has a throughput around its true one,
with a normal spread between starts. The winner is certain if the program's own ``exceeds`` says
that it is ahead of every other. *Alone*: each two deployments are judged by their own starts, as
where no spread can be pooled. *Pooled*: by what ``pooled_spread`` says, as in ``best``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.intervals import Interval, exceeds
from orchestrator.analysis.start_spread import CommonSpread
from orchestrator.capacity.doubts import pooled_spread


@dataclass(frozen=True, slots=True)
class Case:
    """``spreads``: the relative standard deviation between starts, taken in turn by deployments.

    ``lead``: how far the first deployment is ahead of all others, which are equal; 0: not at all.
    """

    starts: int
    deployments: int
    spreads: tuple[float, ...]
    lead: float = 0.0

    @property
    def text(self) -> str:
        spreads = ", ".join(f"{spread:.0%}" for spread in self.spreads)
        return f"| {self.starts} | {self.deployments} | {spreads} | {self.lead:+.0%} |"


def cases() -> Iterator[Case]:
    for starts in (2, 3):
        for deployments in (2, 3, 4, 10):
            for lead in (0.0, 0.03, 0.05):
                yield Case(starts, deployments, (0.01,), lead)
    for deployments, spreads in (
        (3, (0.01, 0.04, 0.01)),
        (4, (0.01, 0.01, 0.01, 0.04)),
        (4, (0.01, 0.04)),
        (10, (0.01, 0.02)),
        (10, (0.01, 0.04)),
        (10, (0.01, 0.01, 0.01, 0.04)),
    ):
        yield Case(2, deployments, spreads)


def drawn(case: Case, random: np.random.Generator) -> list[Interval]:
    """The throughputs of one drawn ranking, the best first."""
    throughputs = []
    for deployment in range(case.deployments):
        mean = 100 * (1 + case.lead) if deployment == 0 else 100.0
        spread = mean * case.spreads[deployment % len(case.spreads)]
        starts = random.normal(mean, spread, case.starts)
        error = float(np.std(starts, ddof=1)) / math.sqrt(case.starts)
        estimate = float(np.mean(starts))
        throughputs.append(Interval(estimate, 0.0, 0.0, starts=case.starts, standard_error=error))
    return throughputs


def is_named(throughputs: Sequence[Interval], spread: CommonSpread | None) -> bool:
    """Whether the best is certain."""
    first, *others = sorted(throughputs, key=lambda each: -each.estimate)
    return all(exceeds(first, other, spread) for other in others)


def share(flags: Sequence[bool]) -> str:
    return f"{np.mean(flags):.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--first-seed", type=int, default=1)
    options = parser.parse_args()
    print("| starts | deployments | spread | lead of one | named, alone | named, pooled |")
    print("|---|---|---|---|---|---|")
    for case in cases():
        alone, pooled = [], []
        for repetition in range(options.repetitions):
            random = np.random.default_rng([options.first_seed, repetition])
            throughputs = drawn(case, random)
            alone.append(is_named(throughputs, None))
            pooled.append(is_named(throughputs, pooled_spread(throughputs)))
        print(f"{case.text} {share(alone)} | {share(pooled)} |", flush=True)


if __name__ == "__main__":
    main()

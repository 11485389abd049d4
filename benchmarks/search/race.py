"""Which of many deployments is the best: regret and load of a race, beside a search of the whole
grid.

    python -m benchmarks.search.race [--repetitions 200] [--sizes 24 96 200] [--server smooth]

A grid of TP x PP x quantization x max_num_seqs x GPU whose capacities per GPU are drawn anew in
each repetition; the predictor is off by a log-normal factor of sigma 0.4. One deployment runs at a
time, race and searches are the program's own, and probes run as in claims.py, on a server whose
misses are independent (in every other repetition in runs of 5).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np

from benchmarks.search.claims import CAP_S, SLO, Spent, probe
from benchmarks.search.servers import TARGET, Server, curve
from orchestrator.capacity.dominance import worth
from orchestrator.capacity.race import Entrant, Race
from orchestrator.capacity.search import Capacity
from orchestrator.capacity.strategy import Question

AXES = {
    "tensor_parallel_size": (1, 2, 4, 8, 16), "pipeline_parallel_size": (1, 2), "quantization": ("none", "fp8"),
    "max_num_seqs": (64, 128, 256, 512, 1024), "gpu": ("a", "b"),
}  # fmt: skip
SIGMA = 0.4
STEEPNESS = {"smooth": 8.0, "flat": 3.0, "steep": 24.0}


class Search(Capacity):
    """Of one deployment, as far as it has come."""

    def __init__(
        self, race: Race, name: str, devices: int, capacity: float, server: Server, guess: float
    ) -> None:
        super().__init__(
            Question((), "request_rate", (SLO,), first_guess=guess, rivals=race.rivals(name, "w"))
        )
        self.race, self.name, self.devices, self.capacity, self.server = (
            race,
            name,
            devices,
            capacity,
            server,
        )
        (self.tier,) = self._tiers
        self.value, self.waited = guess / devices, False  # as predicted

    def go_on(self, gives_way: Callable[[], bool], rng: np.random.Generator, spent: Spent) -> None:
        """One launch: until it knows, is dominated, or others come first."""
        while (level := self.ask()) is not None:
            if self.may_wait and gives_way():
                self.waited = True
                return
            self.tier.tell(probe(self.server, level.value, rng, spent, self.tier, CAP_S))
            self._told += 1
            self._wanted_levels = None
            self.look()
            self.tell_race()

    def tell_race(self) -> None:
        claim, reach = self.claims()[SLO.name], self.reaches()[SLO.name]
        self.race.tell(self.name, "w", SLO.name, claim, reach, self.ask() is not None)

    @property
    def probes(self) -> int:
        return self._told


def grid(size: int, kind: str, runs: float, rng: np.random.Generator) -> tuple[Race, list[Search]]:
    """So many deployments, those predicted best first."""
    cells = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]
    gains = {
        name: dict(zip(map(str, values), rng.lognormal(0, 0.25, len(values)), strict=True))
        for name, values in AXES.items()
    }
    found, entrants = [], dict[str, Entrant]()
    race = Race(entrants)
    for number in rng.permutation(len(cells))[:size]:
        cell, name = cells[number], str(number)
        devices = cell["tensor_parallel_size"] * cell["pipeline_parallel_size"]
        gain = np.prod([gains[axis][str(value)] for axis, value in cell.items()]) * rng.lognormal(
            0, 0.1
        )
        capacity = 4.0 * float(gain) * devices
        server = Server("", curve(capacity, STEEPNESS[kind], runs), 0.5, (1.0, 2.0))
        found.append(
            Search(race, name, devices, capacity, server, capacity * float(rng.lognormal(0, SIGMA)))
        )
        entrants[name] = Entrant("all", float(devices), cell)
    return race, sorted(found, key=lambda one: -one.value)


def follow(race: Race, searches: Sequence[Search]) -> list[Search]:
    """Those that ask for a level, after all have looked at the race."""
    seen = -1
    while seen != race.version:
        seen = race.version
        for one in searches:
            if one.look():
                one.tell_race()
    return [one for one in searches if one.ask() is not None]


def gives_way(race: Race, one: Search, queue: Sequence[Search]) -> bool:
    """Once: to all that were not probed yet, and to those that may come further."""
    priority = race.priority(one.name)
    return not one.waited and any(
        not other.probes or race.priority(other.name) > priority for other in queue
    )


def alone(kind: str, count: int) -> float:
    """Mean load of a search to its end, in seconds."""
    spent = Spent()
    for seed in range(count):
        rng = np.random.default_rng([seed, 1])
        _, (one,) = grid(1, kind, (1, 5)[seed % 2], rng)
        one.go_on(lambda: False, rng, spent)
    return spent.seconds / count


def run(size: int, kind: str, seed: int, patient: bool) -> tuple[float, Spent, int]:
    """Regret (how much of the best value per GPU the winner lacks), load, and starts of engines."""
    rng, spent, starts = np.random.default_rng([seed, size]), Spent(), 0
    race, searches = grid(size, kind, (1, 5)[seed % 2], rng)
    while queue := follow(race, searches):
        one = min(queue, key=lambda each: (each.probes > 0, -race.priority(each.name)))
        queue.remove(one)
        starts += 1
        one.go_on(partial(gives_way, race, one, queue) if patient else lambda: False, rng, spent)
    best = max(one.capacity / one.devices for one in searches)
    winner = max(searches, key=lambda one: worth(one.tier.claim, TARGET) / one.devices)
    held = winner.capacity if winner.tier.claim.claim is not None else 0.0
    return 1.0 - held / winner.devices / best, spent, starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument(
        "--alone",
        type=int,
        default=96,
        help="searches to their end, of which the whole grid's load is",
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[24, 96, 200])
    parser.add_argument(
        "--server", choices=STEEPNESS, default="smooth", help="how attainment falls with the load"
    )
    parser.add_argument(
        "--impatient", action="store_true", help="every leader is searched to its end at once"
    )
    options = parser.parse_args()
    each_s = alone(options.server, options.alone)
    print(
        "| deployments | repetitions | regret <= 2 % | worst | load s, race | whole grid | ratio "
        "| probes | starts |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        began = time.process_time()
        raced = [
            run(size, options.server, seed, not options.impatient)
            for seed in range(options.repetitions)
        ]
        regrets = np.array([regret for regret, _, _ in raced])
        load_s, full_s = float(np.mean([spent.seconds for _, spent, _ in raced])), size * each_s
        probes, starts = (
            np.mean([spent.probes for _, spent, _ in raced]),
            np.mean([count for *_, count in raced]),
        )
        print(
            f"| {size} | {options.repetitions} | {np.mean(regrets <= 0.02):.1%} | "
            f"{regrets.max():.1%} "
            f"| {load_s:,.0f} | {full_s:,.0f} | {load_s / full_s:.3f} | {probes:.0f} | "
            f"{starts:.1f} |",
            flush=True,
        )
        print(f"{time.process_time() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

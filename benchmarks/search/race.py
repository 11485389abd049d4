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
from dataclasses import dataclass
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
        self.race = race
        self.name = name
        self.devices = devices
        self.capacity = capacity
        self.server = server
        (self.tier,) = self._tiers
        self.predicted_value = guess / devices
        self.has_yielded = False

    def go_on(self, gives_way: Callable[[], bool], rng: np.random.Generator, spent: Spent) -> None:
        """One launch: until it knows, is dominated, or others come first."""
        while (level := self.ask()) is not None:
            if self.may_wait and gives_way():
                self.has_yielded = True
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
    gains: dict[str, dict[str, float]] = {}
    for axis, values in AXES.items():
        gains_of_values = rng.lognormal(0, 0.25, len(values))
        gains[axis] = dict(zip(map(str, values), gains_of_values, strict=True))
    searches: list[Search] = []
    entrants: dict[str, Entrant] = {}
    race = Race(entrants)
    for number in rng.permutation(len(cells))[:size]:
        cell = cells[number]
        name = str(number)
        devices = cell["tensor_parallel_size"] * cell["pipeline_parallel_size"]
        gain = np.prod([gains[axis][str(value)] for axis, value in cell.items()])
        capacity = 4.0 * float(gain * rng.lognormal(0, 0.1)) * devices
        server = Server("", curve(capacity, STEEPNESS[kind], runs), 0.5, (1.0, 2.0))
        guess = capacity * float(rng.lognormal(0, SIGMA))
        searches.append(Search(race, name, devices, capacity, server, guess))
        entrants[name] = Entrant("all", float(devices), cell)
    return race, sorted(searches, key=lambda search: -search.predicted_value)


def follow(race: Race, searches: Sequence[Search]) -> list[Search]:
    """Those that ask for a level, after all have looked at the race."""
    seen = -1
    while seen != race.version:
        seen = race.version
        for search in searches:
            if search.look():
                search.tell_race()
    return [search for search in searches if search.ask() is not None]


def gives_way(race: Race, search: Search, queue: Sequence[Search]) -> bool:
    """Once: to all that were not probed yet, and to those that may come further."""
    if search.has_yielded:
        return False
    priority = race.priority(search.name)
    return any(not other.probes or race.priority(other.name) > priority for other in queue)


def alone(kind: str, count: int) -> float:
    """Mean load of a search to its end, in seconds."""
    spent = Spent()
    for seed in range(count):
        rng = np.random.default_rng([seed, 1])
        _, (search,) = grid(1, kind, (1, 5)[seed % 2], rng)
        search.go_on(lambda: False, rng, spent)
    return spent.seconds / count


@dataclass(frozen=True)
class Outcome:
    """What came of one race. ``regret``: how much of the best value per GPU the winner lacks.
    ``starts``: of engines.
    """

    regret: float
    spent: Spent
    starts: int


def run(size: int, kind: str, seed: int, patient: bool) -> Outcome:
    """One race. ``patient``: leaders give way once."""
    rng = np.random.default_rng([seed, size])
    spent = Spent()
    starts = 0
    race, searches = grid(size, kind, (1, 5)[seed % 2], rng)
    queue = follow(race, searches)
    while queue:
        search = min(queue, key=lambda other: (other.probes > 0, -race.priority(other.name)))
        queue.remove(search)
        starts += 1
        yields = partial(gives_way, race, search, queue) if patient else lambda: False
        search.go_on(yields, rng, spent)
        queue = follow(race, searches)
    best = max(search.capacity / search.devices for search in searches)
    winner = max(searches, key=lambda search: worth(search.tier.claim, TARGET) / search.devices)
    held = winner.capacity if winner.tier.claim.claim is not None else 0.0
    return Outcome(1.0 - held / winner.devices / best, spent, starts)


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
        races = [
            run(size, options.server, seed, not options.impatient)
            for seed in range(options.repetitions)
        ]
        regrets = np.array([race.regret for race in races])
        load_s = float(np.mean([race.spent.seconds for race in races]))
        full_s = size * each_s
        probes = np.mean([race.spent.probes for race in races])
        starts = np.mean([race.starts for race in races])
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

"""Which of many deployments is the best: regret and load of a race, beside a search of the whole
grid.

    python -m benchmarks.search.race [--repetitions 200] [--sizes 24 96 200] [--server smooth]
    python -m benchmarks.search.race --sizes 24 --budget 2h           # where it stands after 2 hours
    python -m benchmarks.search.race --sizes 24 --budget 2h --gpus 1  # after 2 hours of GPU time
    python -m benchmarks.search.race --sizes 24 --within 0.05         # until it is decided

A grid of TP x PP x quantization x max_num_seqs x GPU whose capacities per GPU are drawn anew in
each repetition; the predictor is off by a log-normal factor of sigma 0.4. A deployment has TP x PP
GPUs, 1 to 32, or as many as --gpus says. One deployment runs at a time, so a budget is time, whatever
the number of its GPUs; with one GPU each it is GPU time. Race and searches are the program's own, and
probes run as in claims.py, on a server whose misses are independent (in every other repetition in
runs of 5).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np

from benchmarks.search.claims import CAP_S, SLO, Spent, probe
from benchmarks.search.servers import TARGET, Server, curve
from orchestrator.capacity.race import Entrant, Race, precision_reached
from orchestrator.capacity.search import Capacity
from orchestrator.capacity.standing import Contest, Standing, Standings, standing_of_rates
from orchestrator.capacity.strategy import SearchQuestion
from orchestrator.spec.load import parse_duration

AXES = {
    "tensor_parallel_size": (1, 2, 4, 8, 16), "pipeline_parallel_size": (1, 2), "quantization": ("none", "fp8"),
    "max_num_seqs": (64, 128, 256, 512, 1024), "gpu": ("a", "b"),
}  # fmt: skip
SIGMA = 0.4
ALL = Contest("w", SLO.name, "all")
START_S = 60.0  # of an engine, in races with a budget
STEEPNESS = {"smooth": 8.0, "flat": 3.0, "steep": 24.0}


class Search(Capacity):
    """Of one deployment, as far as it has come."""

    def __init__(
        self, race: Race, name: str, devices: int, capacity: float, server: Server, guess: float
    ) -> None:
        super().__init__(
            SearchQuestion(
                (), "request_rate", (SLO,), first_guess=guess, rivals=race.rivals(name, "w")
            )
        )
        self.race = race
        self.name = name
        self.devices = devices
        self.capacity = capacity
        self.server = server
        (self.tier,) = self._tiers
        self.predicted_value = guess / devices
        # ``precision_reached`` when it last gave way; -1: it never did
        self.precision_at_yield = -1

    def go_on(self, gives_way: Callable[[], bool], rng: np.random.Generator, trial: Trial) -> None:
        """One launch: until it knows, is dominated, others come first, or the race is over."""
        while (level := self.ask()) is not None and not trial.is_over and trial.needs(self):
            if self.may_wait and gives_way():
                self.precision_at_yield = precision_reached(self.tier.claim)
                return
            cap_s = min(CAP_S, trial.left_s)
            begun_s = trial.spent.seconds
            self.tier.tell(probe(self.server, level.value, rng, trial.spent, self.tier, cap_s))
            trial.gpu_s += (trial.spent.seconds - begun_s) * self.devices
            self._probes += 1
            self._wanted = None
            self.look()
            self.tell_race()
            trial.note(self)

    def tell_race(self) -> None:
        claim, reach = self.claims()[SLO.name], self.reaches()[SLO.name]
        self.race.tell(self.name, "w", SLO.name, claim, reach, self.ask() is not None)

    @property
    def probes(self) -> int:
        return self._probes

    def standing(self) -> Standing:
        is_over = SLO.name in self.over()
        return standing_of_rates(self.tier.claim, TARGET, float(self.devices), is_over)


@dataclass
class Trial:
    """A race with an end: its budget in seconds, starts of engines included, or that it is decided
    within a share. ``gpu_s``: for how long GPUs were held, the time of each GPU added.
    """

    budget_s: float = math.inf
    within: float | None = None
    start_s: float = 0.0
    spent: Spent = field(default_factory=Spent)
    starts: int = 0
    gpu_s: float = 0.0

    def __post_init__(self) -> None:
        self.standings = Standings(self.within or 0.0)

    @property
    def held_s(self) -> float:
        """For how long a deployment held GPUs."""
        return self.spent.seconds + self.starts * self.start_s

    @property
    def left_s(self) -> float:
        return self.budget_s - self.held_s

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    def start(self, search: Search) -> None:
        """Starts an engine of this deployment."""
        self.starts += 1
        self.gpu_s += self.start_s * search.devices

    def note(self, search: Search) -> None:
        self.standings.put(ALL, search.name, search.standing())

    def needs(self, search: Search) -> bool:
        return self.within is None or self.standings.needs(search.name)


def grid(
    size: int, kind: str, runs: float, rng: np.random.Generator, gpus: int | None = None
) -> tuple[Race, list[Search]]:
    """So many deployments, those predicted best first. ``gpus``: of each; None: TP x PP."""
    cells = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]
    gains: dict[str, dict[str, float]] = {}
    for axis, values in AXES.items():
        gains_of_values = rng.lognormal(0, 0.25, len(values))
        gains[axis] = dict(zip(map(str, values), gains_of_values, strict=True))
    searches: list[Search] = []
    entrants: dict[str, Entrant] = {}
    race = Race(entrants, targets={SLO.name: TARGET})
    for number in rng.permutation(len(cells))[:size]:
        cell = cells[number]
        name = str(number)
        devices = gpus or cell["tensor_parallel_size"] * cell["pipeline_parallel_size"]
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


def gives_way(race: Race, search: Search, searches: Sequence[Search]) -> bool:
    """Once, and again each time that its capacity is known more precisely: to all that were not
    probed yet, and to those that may come further.
    """
    if precision_reached(search.tier.claim) <= search.precision_at_yield:
        return False
    others = follow(race, [other for other in searches if other is not search])
    priority = race.priority(search.name)
    return any(not other.probes or race.priority(other.name) > priority for other in others)


def alone(kind: str, count: int, gpus: int | None) -> float:
    """Mean load of a search to its end, in seconds. ``gpus``: see ``grid``."""
    alone = Trial()
    for seed in range(count):
        rng = np.random.default_rng([seed, 1])
        _, (search,) = grid(1, kind, (1, 5)[seed % 2], rng, gpus)
        search.go_on(lambda: False, rng, alone)
    return alone.spent.seconds / count


@dataclass(frozen=True)
class Outcome:
    """What came of one race. ``regret``: how much of the best value per GPU the winner lacks.
    ``starts``: of engines. ``is_claimed``: something is claimed of the winner, which is else the
    one with the highest estimate. ``is_decided``: see ``capacity/standing.py``.
    """

    regret: float
    spent: Spent
    starts: int
    is_claimed: bool
    is_decided: bool


def run(
    size: int,
    kind: str,
    seed: int,
    patient: bool,
    trial: Trial | None = None,
    gpus: int | None = None,
) -> Outcome:
    """One race. ``patient``: leaders give way once. ``gpus``: see ``grid``."""
    rng = np.random.default_rng([seed, size])
    trial = trial or Trial()
    race, searches = grid(size, kind, (1, 5)[seed % 2], rng, gpus)
    for search in searches:
        trial.note(search)
    queue = follow(race, searches)
    while queue and not trial.is_over:
        search = min(queue, key=lambda other: (other.probes > 0, -race.priority(other.name)))
        trial.start(search)
        yields = partial(gives_way, race, search, searches) if patient else lambda: False
        search.go_on(yields, rng, trial)
        queue = [other for other in follow(race, searches) if trial.needs(other)]
    best = max(search.capacity / search.devices for search in searches)
    winner = max(searches, key=lambda search: search.standing().precedence)
    standing = winner.standing()
    held = winner.capacity if standing.rank else 0.0
    regret = 1.0 - held / winner.devices / best
    is_decided = trial.standings.are_decided
    return Outcome(regret, trial.spent, trial.starts, standing.is_shown, is_decided)


def ended(options: argparse.Namespace) -> None:
    """Races that end with their budget, or once they are decided."""
    budget_s = parse_duration(options.budget) if options.budget else math.inf
    print(
        "| deployments | repetitions | regret <= 2 % | <= 5 % | worst | claimed | decided | decided "
        "and regret above | held s: median, p90 | GPU hours: median | probes | starts |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        began = time.process_time()
        races = []
        held_s = []
        gpu_s = []
        for seed in range(options.first_seed, options.first_seed + options.repetitions):
            trial = Trial(budget_s, options.within, START_S)
            patient = not options.impatient
            races.append(run(size, options.server, seed, patient, trial, options.gpus))
            held_s.append(trial.held_s)
            gpu_s.append(trial.gpu_s)
        regrets = np.array([race.regret for race in races])
        decided = np.array([race.is_decided for race in races])
        allowed = options.within or 0.0
        wrong = decided & (regrets > max(allowed, 0.001))
        median_s, late_s = np.quantile(held_s, [0.5, 0.9])
        print(
            f"| {size} | {len(races)} | {np.mean(regrets <= 0.02):.1%} | "
            f"{np.mean(regrets <= 0.05):.1%} | {regrets.max():.1%} | "
            f"{np.mean([race.is_claimed for race in races]):.1%} | {decided.mean():.1%} | "
            f"{wrong.mean():.1%} | {median_s:,.0f}, {late_s:,.0f} | "
            f"{np.median(gpu_s) / 3600:.1f} | "
            f"{np.mean([race.spent.probes for race in races]):.0f} | "
            f"{np.mean([race.starts for race in races]):.1f} |",
            flush=True,
        )
        print(f"{time.process_time() - began:.0f} s", file=sys.stderr)


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
    parser.add_argument("--gpus", type=int, help="of each deployment; default: TP x PP, 1 to 32")
    parser.add_argument("--budget", help="of one race, engine starts of 60 s included: 2h")
    parser.add_argument("--within", type=float, help="end once it is decided within this share")
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    if options.budget or options.within is not None:
        ended(options)
        return
    each_s = alone(options.server, options.alone, options.gpus)
    print(
        "| deployments | repetitions | regret <= 2 % | worst | load s, race | whole grid | ratio "
        "| probes | starts |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        began = time.process_time()
        races = [
            run(size, options.server, seed, not options.impatient, gpus=options.gpus)
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

"""Which of many deployments is the best: regret and load of a race, beside a search of the whole grid.

    python -m benchmarks.search.race [--repetitions 20] [--sizes 24 200]

A grid of TP x PP x quantization x max_num_seqs x GPU whose capacities per GPU are drawn anew in each repetition; the
predictor is off by a factor of sigma 0.4. Every search runs as in claims.py, on a server with a smooth curve of which
misses are independent (of runs of 5 in every other repetition).
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np

from benchmarks.search.claims import SLO, Spent, probe
from benchmarks.search.servers import Server, curve
from orchestrator.search.capacity import MOST_PROBES, Tier
from orchestrator.search.racing import Entrant, Race

AXES = {
    "tensor_parallel_size": (1, 2, 4, 8, 16), "pipeline_parallel_size": (1, 2), "quantization": ("none", "fp8"),
    "max_num_seqs": (64, 128, 256, 512, 1024), "gpu": ("a", "b"),
}  # fmt: skip
SIGMA = 0.4


def grid(size: int, rng: np.random.Generator) -> list[tuple[Entrant, float]]:
    """So many deployments with their true capacities."""
    cells = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]
    gains = {
        name: dict(zip(map(str, values), rng.lognormal(0, 0.25, len(values)), strict=True))
        for name, values in AXES.items()
    }
    found = []
    for number in rng.permutation(len(cells))[:size]:
        cell = cells[number]
        gpus = cell["tensor_parallel_size"] * cell["pipeline_parallel_size"]
        per_gpu = 4.0 * np.prod([gains[name][str(value)] for name, value in cell.items()]) * rng.lognormal(0, 0.1)
        capacity = float(per_gpu * gpus)
        found.append((Entrant(str(number), gpus, capacity * float(rng.lognormal(0, SIGMA)), cell), capacity))
    return found


def searched(
    server: Server, guess: float | None, race: Race, entrant: Entrant, rng: np.random.Generator, spent: Spent
) -> Tier:
    tier, before = Tier(False, SLO), spent.probes
    while spent.probes - before < MOST_PROBES and not race.lost(entrant, tier.claim):
        if (level := tier.wanted(guess)) is None:
            break
        tier.tell(probe(server, level, rng, spent, tier.prior_effect))
    return tier


def run(size: int, runs: float, seed: int, full_grid: bool) -> tuple[float, Spent]:
    """Regret: how much of the best value per GPU the winner lacks."""
    rng, spent = np.random.default_rng([seed, size]), Spent()
    deployments = grid(size, rng)
    capacities = {one.name: capacity for one, capacity in deployments}
    race = Race([one for one, _ in deployments], full_grid)
    while (found := race.next()) is not None:
        entrant, guess = found
        server = Server("", curve(capacities[entrant.name], 8.0, runs), 0.5, (1.0, 2.0))
        race.tell(entrant, searched(server, guess, race, entrant, rng, spent).claim)
    best = max(capacities[one.name] / one.divisor for one, _ in deployments)
    leader = race.leader
    return 1.0 - (capacities[leader[0].name] / leader[0].divisor / best if leader else 0.0), spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--full", type=int, default=2, help="repetitions of the whole grid, to compare the load with")
    parser.add_argument("--sizes", type=int, nargs="*", default=[24, 96, 200])
    options = parser.parse_args()
    print("| deployments | repetitions | regret <= 2 % | worst regret | load s, race | whole grid | ratio | probes |")
    print("|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        raced = [run(size, (1, 5)[seed % 2], seed, False) for seed in range(options.repetitions)]
        whole = [run(size, (1, 5)[seed % 2], seed, True) for seed in range(options.full)]
        regrets = np.array([regret for regret, _ in raced])
        load_s, full_s = (float(np.mean([spent.seconds for _, spent in some])) for some in (raced, whole))
        probes = np.mean([spent.probes for _, spent in raced])
        print(
            f"| {size} | {options.repetitions} ({options.full}) | {np.mean(regrets <= 0.02):.1%} | {regrets.max():.1%} "
            f"| {load_s:,.0f} | {full_s:,.0f} | {load_s / full_s:.3f} | {probes:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

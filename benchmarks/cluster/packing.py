"""How well launches are packed: the sweep's own ``choose`` on a simulated clock, against the lower
bound of any order.

    python benchmarks/cluster/packing.py [--seeds 20]

Nodes of 8 GPUs; replicas of 1, 2, 4, 8 and 16 GPUs (1:2:3:3:1), log-normal durations (median 25
min, sigma 0.6), and estimates that are off by a log-normal factor (sigma 0.4). A share is the lower
bound over the makespan. ``shared``: launches side by side on a node; ``exclusive``: each alone on
its nodes, where a node counts as taken whole. ``predicted``: each is predicted at random, and the
front comes first, as in the order of a sweep that measures all.

Prints one JSON document; exit status 1 when a case misses its target.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys

import numpy as np

from orchestrator.cluster.base import Bundle, Machine
from orchestrator.plan.order import FRONT
from orchestrator.sweep.admission import Queue, Reservation, Waiting, choose
from orchestrator.sweep.resource_request import ResourceRequest

PER_NODE = 8
SIZES, SHARES = (1, 2, 4, 8, 16), (0.1, 0.2, 0.3, 0.3, 0.1)
# deployments, nodes, exclusive, predicted -> least mean share, least of any seed; None: only stated
TARGETS = {
    (100, 8, False, False): (0.95, 0.92),
    (400, 8, False, False): (0.98, 0.92),
    (100, 8, True, False): (None, None),
    (400, 8, True, False): (None, None),
    (100, 3, False, False): (None, None),
    (100, 8, False, True): (0.95, 0.92),
    (400, 8, False, True): (0.98, 0.92),
    (100, 8, True, True): (None, None),
}


def makespan_s(jobs: list[Waiting], took_s: dict[str, float], nodes: int) -> float:
    """From the first start to the last end."""
    machines = [Machine(f"n{at:02}", f"10.0.0.{at}", PER_NODE, 96.0) for at in range(nodes)]
    queue, left, now_s = Queue(jobs), len(jobs), 0.0
    ends: list[tuple[float, str]] = []
    reservations: dict[str, Reservation] = {}
    while left or ends:
        while (found := choose(queue, machines, list(reservations.values()), now_s)) is not None:
            job, chosen, _ = found
            queue.remove(job)
            left -= 1
            reservations[job.key] = Reservation(job.resources, chosen, now_s + job.estimate_s)
            heapq.heappush(ends, (now_s + took_s[job.key], job.key))
        now_s, key = heapq.heappop(ends)
        del reservations[key]
    return now_s


def share(seed: int, count: int, nodes: int, exclusive: bool, predicted: bool) -> float:
    """Lower bound over makespan, of one draw."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice(SIZES, size=count, p=SHARES)
    took_s = 1500.0 * np.exp(rng.normal(0.0, 0.6, count))
    estimates_s = took_s * np.exp(rng.normal(0.0, 0.4, count))
    whole = -(-sizes // PER_NODE)  # nodes of each
    front = (rng.random(count) >= FRONT) & predicted
    jobs = []
    for at, (size, spread, estimate_s) in enumerate(zip(sizes, whole, estimates_s, strict=True)):
        need = ResourceRequest(
            ((Bundle(int(size // spread), 1.0),) * int(spread),), exclusive=exclusive
        )
        jobs.append(Waiting(f"{at:04}", need, float(estimate_s), priority=float(front[at])))
    taken = whole * PER_NODE if exclusive else sizes
    bounds = [float(np.sum(taken * took_s)) / (nodes * PER_NODE), float(np.max(took_s))]
    for least in (PER_NODE, PER_NODE // 2 + 1):  # of these, one a node
        bounds.append(float(np.sum((whole * took_s)[sizes >= least])) / nodes)
    by_key = {job.key: float(took) for job, took in zip(jobs, took_s, strict=True)}
    return max(bounds) / makespan_s(jobs, by_key, nodes)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    out, missed = [], False
    for (count, nodes, exclusive, predicted), (mean, worst) in TARGETS.items():
        shares = [share(seed, count, nodes, exclusive, predicted) for seed in range(seeds)]
        missed |= (mean is not None and np.mean(shares) < mean) or (
            worst is not None and min(shares) < worst
        )
        isolation = "exclusive" if exclusive else "shared"
        case = {
            "deployments": count,
            "nodes": nodes,
            "isolation": isolation,
            "predicted": predicted,
        }
        found = {"mean": round(float(np.mean(shares)), 4), "worst": round(min(shares), 4)}
        out.append(case | found | {"target_mean": mean, "target_worst": worst})
    print(json.dumps(out, indent=2))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

"""What growing costs: whole sweeps of 40 deployments, on 8 standing nodes and on 0 to 8 that an
autoscaler adds.

    python benchmarks/cluster/growing.py [--node-start-s 180]

The real sweep, from the queue to committed rows, on the simulated cluster of its unit tests: time
jumps. Replicas of 1 to 16 GPUs on nodes of 8, each launch alone on its nodes, six levels of 70 s.
Nodes come so long after they were asked for and leave when they were idle for 5 min. Prints one
JSON document; exit status 1 when the growing sweep takes longer than the standing one by more than
15 % and one node start.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from orchestrator.cluster.base import Footprint, Machine
from orchestrator.results.store import Store
from tests.unit.sweep.simulation import VirtualClock, World, node, plan_of, sweep

NODES, IDLE_S = 8, 300.0
SIZES = [{"tensor_parallel_size": size} for size in (1, 2, 4, 8)]
GANG = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}  # two nodes, by itself
LEVELS = "1, 2, 4, 8, 16, 32"


@dataclass
class Growing(World):
    """A cluster whose autoscaler adds whole nodes, at most ``most``, and takes back what stays
    idle.
    """

    most: int = NODES
    made: int = 0
    # since when until when a node is paid
    paid_s: dict[str, tuple[float, float | None]] = field(default_factory=dict)

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        self.desired = list(footprints)
        busy = {name for names in self.held.values() for name in names}
        idle = [one for one in self.nodes if one.node_id not in busy]
        wanted = sum(len(one.bundles) for one in footprints) - len(idle) - self._coming
        for _ in range(min(wanted, self.most - len(self.nodes) - self._coming)):
            self.made, self._coming = self.made + 1, self._coming + 1
            name = f"grown{self.made}"
            self.paid_s[name] = (self.clock.now_s(), None)
            self.clock.at(self.clock.now_s() + self.grow_after_s, lambda name=name: self.join(name))

    def join(self, name: str) -> None:
        self._join(node(name))
        self._watch(name, self.clock.now_s())

    def _watch(self, name: str, idle_since_s: float) -> None:
        """Every ten seconds: does somebody hold it?"""

        def look() -> None:
            now_s = self.clock.now_s()
            busy = any(name in names for names in self.held.values())
            if not busy and now_s - idle_since_s >= IDLE_S:
                self.lose(name)
                self.paid_s[name] = (self.paid_s[name][0], now_s)
            elif self.open:
                self._watch(name, now_s if busy else idle_since_s)

        self.clock.at(self.clock.now_s() + 10.0, look)

    open: bool = True


def run(world: World) -> float:
    """Its makespan in seconds."""
    cases = [f"{{{', '.join(f'{key}: {value}' for key, value in (one | {'max_num_seqs': 8 * more}).items())}}}"
             for more in range(1, 9) for one in (*SIZES, GANG)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        report = sweep(world, plan_of(", ".join(cases), levels=LEVELS), Store.open(folder, "x"))
    assert (report.counts.measured, report.counts.failed) == (240, 0), report
    return report.wall_s


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--node-start-s", type=float, default=180.0)
    start_s = parser.parse_args().node_start_s
    standing_s = run(World(VirtualClock(), [node(f"n{at}") for at in range(NODES)]))
    none: list[Machine] = []
    world = Growing(VirtualClock(), none, autoscaler=True, grow_after_s=start_s)
    growing_s = run(world)
    world.open = False
    paid_s = sum(
        (growing_s if until is None else until) - since for since, until in world.paid_s.values()
    )
    limit_s = 1.15 * standing_s + start_s
    figures = {
        "standing_s": round(standing_s), "growing_s": round(growing_s), "limit_s": round(limit_s),
        "over_standing_and_one_start": round((growing_s - start_s) / standing_s - 1, 4),
        "nodes_started": world.made,
        "node_hours": {"standing": round(NODES * standing_s / 3600, 2), "growing": round(paid_s / 3600, 2)},
    }  # fmt: skip
    print(json.dumps(figures, indent=2))
    return int(growing_s > limit_s)


if __name__ == "__main__":
    sys.exit(main())

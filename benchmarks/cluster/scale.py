"""What the driver costs: a whole sweep of 10,000 points on 1,000 simulated nodes.

    python benchmarks/cluster/scale.py [--deployments 2000] [--nodes 1000] [--results FOLDER]

The real sweep on the simulated cluster of its unit tests, five points of 70 s a deployment; time
jumps. Prints one JSON document with the processor's seconds: of the driver (admission, launches,
rows and figures written to disk), of it the thread that admits (queue, admission, what is left), of
the simulated cluster, agents and clients, and memory at each tenth. Exit status 1 when the driver
takes more than 1 % of a core.

The driver receives clients' reports as from another process. Not counted are the calls to agents
and clients that Ray would carry, waiting, and what it takes to count the simulation's calls. Seven
files a point are stored, and ext4 takes up to forty times as long to make one where many were just
removed. So clients' temporary files, which they remove on machines of their own, are in memory; and
the document says what a stored file of 5 KB took, before and after.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.store import Store
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.driver_heap import share_one_heap
from orchestrator.sweep.sweep import Sweep
from tests.unit.sweep.simulation import (
    FakeAgent,
    FakeClients,
    FakeRun,
    Placed,
    VirtualClock,
    World,
    node,
    plan_of,
)

LEVELS = "1, 2, 4, 8, 16"
POINTS = 5
SIMULATED = (FakeAgent, FakeClients, FakeRun, Placed, VirtualClock, World)
# real ones take as long, or longer
AS_REAL = ("now_s", "unix_ns", "reports", "progress", "leaving")


class Aside(threading.local):
    """Seconds of the processor in calls of the simulation, of all threads together."""

    total_s, calls = 0.0, 0
    inside = False

    def count(self, of: type) -> None:
        """From now on count the calls of a class's methods."""
        for name, method in list(vars(of).items()):
            if (
                callable(method)
                and name not in AS_REAL
                and (not name.startswith("_") or name == "_block")
            ):
                # the clients' rows are encoded in a thread of their own, while no other runs
                setattr(
                    of,
                    name,
                    self._counted(
                        method, time.process_time if name == "packed" else time.thread_time
                    ),
                )

    def _counted(
        self, method: Callable[..., Any], now_s: Callable[[], float]
    ) -> Callable[..., Any]:
        @wraps(method)
        def call(*given: Any, **named: Any) -> Any:
            if self.inside:
                return method(*given, **named)
            self.inside, began_s = True, now_s()
            try:
                return method(*given, **named)
            finally:
                self.inside = False
                Aside.total_s += now_s() - began_s  # one thread runs at a time
                Aside.calls += 1

        return call

    def cost_s(self, calls: int = 100_000) -> float:
        """Seconds that one counted call takes beside those that are counted."""

        class Nothing:
            def call(self) -> None: ...

        self.count(Nothing)
        nothing, began_s, before = Nothing(), time.process_time(), (Aside.total_s, Aside.calls)
        for _ in range(calls):
            nothing.call()
        took_s = time.process_time() - began_s - (Aside.total_s - before[0])
        Aside.total_s, Aside.calls = before
        return took_s / calls


def _file_ms(folder: str, files: int = 300) -> float:
    """Milliseconds of the processor to store a file of 5 KB there."""
    store, began_s = Store.open(folder, "files"), time.process_time()
    for at in range(files):
        store.write_log(f"{at}", b"." * 5_000)
    return round((time.process_time() - began_s) / files * 1e3, 3)


def _from_elsewhere() -> None:
    """From now on reports come as from another process: packed there, unpacked by the driver."""
    made = FakeRun.reports
    setattr(FakeRun, "packed", lambda run: pickle.dumps(made(run)))  # noqa: B010
    setattr(FakeRun, "reports", lambda run: pickle.loads(run.packed()))  # noqa: B010


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deployments", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument(
        "--results",
        metavar="FOLDER",
        help="where results are stored; by default the temporary folder",
    )
    given = parser.parse_args()
    share_one_heap()  # as ``run`` does
    shapes = ("tensor_parallel_size: 1", "tensor_parallel_size: 4", "tensor_parallel_size: 8",
              "tensor_parallel_size: 8, pipeline_parallel_size: 4")  # fmt: skip
    cases = (f"{{{shapes[at % 4]}, max_num_seqs: {at + 1}}}" for at in range(given.deployments))
    plan = plan_of(", ".join(cases), levels=LEVELS)
    world = World(VirtualClock(), [node(f"n{at:04}") for at in range(given.nodes)])
    process, memory_mb, used_s, measured = psutil.Process(), list[float](), list[float](), 0
    tenth = max(1, given.deployments * POINTS // 10)

    def told(item: Event | Phase) -> None:
        nonlocal measured
        if isinstance(item, Event) and item.kind == "measured":
            measured += 1
            if measured % tenth == 0:
                memory_mb.append(round(process.memory_info().rss / 1e6))
                used_s.append(time.process_time() - began_s - Aside.total_s - Aside.calls * call_s)
                print(f"{measured} points, {memory_mb[-1]} MB", file=sys.stderr, flush=True)
            for noted in (
                world.log,
                world.client_counts,
                world.loads,
                world.firsts,
                world.ranks,
                world.api_keys,
            ):
                noted.clear()  # what the simulation notes of its own

    aside = Aside()
    _from_elsewhere()
    for one in SIMULATED:
        aside.count(one)
    call_s = aside.cost_s()
    with tempfile.TemporaryDirectory(dir=given.results) as folder:
        file_ms = [_file_ms(folder)]
        tempfile.tempdir = "/dev/shm"
        world.store = Store.open(folder, "x")  # the clients' own
        context = SweepContext(plan, world, Store.open(folder, "x"), told, clock=world.clock)
        began_s, began_admitting_s = time.process_time(), time.thread_time()
        report = Sweep(context).run()
        whole_s, admitting_s = time.process_time() - began_s, time.thread_time() - began_admitting_s
        aside_s = Aside.total_s + Aside.calls * call_s
        file_ms.append(_file_ms(folder))
    hours, driver_s = report.wall_s / 3600, whole_s - aside_s
    share = driver_s / report.wall_s
    figures = {
        "points": report.counts.measured, "failed": report.counts.failed, "nodes": given.nodes,
        "most_launches_at_once": world.most_held, "simulated_hours": round(hours, 2),
        "driver_share_of_a_core": round(share, 4), "driver_s_per_hour": round(driver_s / hours, 1),
        "driver_ms_per_point": round(1e3 * driver_s / measured, 2),
        "admitting_s_per_hour": round(admitting_s / hours, 2),
        "simulation_ms_per_point": round(1e3 * aside_s / measured, 2),
        "counted_calls": Aside.calls, "us_to_count_one": round(1e6 * call_s, 2), "ms_to_store_a_file": file_ms,
        "memory_mb_at_each_tenth": memory_mb,
        "ms_per_point_in_each_tenth": [round(1e3 * (b - a) / tenth, 1) for a, b in pairwise([0.0, *used_s])],
    }  # fmt: skip
    print(json.dumps(figures, indent=2))
    return int(share > 0.01)


if __name__ == "__main__":
    sys.exit(main())

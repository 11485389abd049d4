"""One simulated launch: when it begins, how long it takes, and how it ends."""

from __future__ import annotations

import threading
from pathlib import Path

from orchestrator.results.records import LaunchRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store
from orchestrator.simulation.launch import SimulatedLaunch
from orchestrator.simulation.so_far import SimulationInputs, SweepSoFar
from orchestrator.simulation.virtual_clock import EPOCH_NS
from orchestrator.sweep.deployment_work import DeploymentWork
from tests.unit.simulation.builders import EXPERIMENT, planned

ONE_DEPLOYMENT = EXPERIMENT.replace(", {tensor_parallel_size: 2}", "")


class Sweep:
    """A sweep of one deployment, before its first launch."""

    def __init__(self, folder: Path, text: str = ONE_DEPLOYMENT) -> None:
        plan = planned(text)
        self.stop = threading.Event()
        self.store = Store.open(str(folder), plan.name)
        inputs = SimulationInputs.of(plan, self.store, lambda item: None, self.stop)
        self.so_far = SweepSoFar(inputs, committed={})

    @property
    def work(self) -> DeploymentWork:
        (work,) = self.so_far.queue.waiting.values()
        return work

    def rows(self) -> list[LaunchRow]:
        return rows_of(self.store.read("launches", include_failed=True), LaunchRow)


def test_a_launch_begins_at_the_next_whole_millisecond(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.so_far.clock.unix_ns = EPOCH_NS + 1
    SimulatedLaunch(sweep.so_far, sweep.work)
    assert sweep.so_far.clock.unix_ns == EPOCH_NS + 1_000_000


def test_a_launch_takes_its_start_and_then_its_points(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    start_s = sweep.work.start_estimate_s
    SimulatedLaunch(sweep.so_far, sweep.work).run()
    (row,) = sweep.rows()
    assert row.simulated
    assert row.ready_s == start_s
    assert row.held_s == sweep.so_far.clock.now_s
    # two points, each of 5 s to warm up and 20 s
    assert sweep.so_far.clock.now_s >= start_s + 2 * 25
    assert sweep.work.left == 0


def test_a_launch_that_the_user_stops_is_not_committed(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.stop.set()
    SimulatedLaunch(sweep.so_far, sweep.work).run()
    assert sweep.rows() == []
    assert sweep.work.left == 2


def test_a_launch_that_no_model_covers_fails_in_no_time(tmp_path: Path) -> None:
    text = ONE_DEPLOYMENT.replace("{tensor_parallel_size: 1}", "{cpu_offload_gb: 1}")
    sweep = Sweep(tmp_path, text)
    SimulatedLaunch(sweep.so_far, sweep.work).run()
    (row,) = sweep.rows()
    assert row.status == "failed"
    assert row.held_s == 0
    assert sweep.so_far.state.counts.failed == 2

"""SIGKILL anywhere, run again, count: each measurement once, all there, nothing left. The engine is emulated.

One engine per deployment starts an orphan child in its own session that ignores SIGTERM, so that "nothing left" is
asked of the worst case.
"""

from __future__ import annotations

import collections
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from scripts.ray_on_this_machine import RayOnThisMachine
from tests.harness import (
    MODEL,
    assert_nothing_left,
    assert_rows_equal_schedule,
    engine_processes,
    manifests,
    orchestrator,
    start,
    wait_for,
    write_experiment,
)

pytestmark = pytest.mark.chaos

EXPERIMENT = f"""
version: 1
name: chaos
model: {{id: {MODEL}}}
deployments:
  engine: emulator
  profile: orphan.yaml
  vary: [{{cases: [{{tensor_parallel_size: 1}}, {{tensor_parallel_size: 2, nnodes: 2}}]}}]
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [1, 2]}}, duration: 1s, warmup: 0s}}
"""
MEASUREMENTS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayOnThisMachine]:
    """A cluster of its own: these tests kill its processes, and the last one a node."""
    with RayOnThisMachine(nodes=2, cpus=4) as made:
        yield made


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    (tmp_path / "orphan.yaml").write_text("faults: {orphan: true}\n")
    return write_experiment(tmp_path, EXPERIMENT)


def actors(title: str) -> list[psutil.Process]:
    """Ray names its actors' processes ``ray::Class.method``."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if title in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def run_and_kill(
    cluster: RayOnThisMachine, experiment: Path, when: Callable[[Path], object], what: Callable[[], None], ends: bool
) -> Path:
    """Start a sweep, do ``what`` once ``when`` is true, see it end (or kill it as the driver), run again, check all."""
    folder = experiment.parent
    results = folder / "results"
    argv = ("run", str(experiment), "--results", str(results), "--address", cluster.address)
    driver = start(*argv, log=folder / "driver.log")
    try:
        wait_for(lambda: when(results), 120, f"the moment to strike; {(folder / 'driver.log').read_text()[-2000:]}")
        if ends:
            what()
            driver.wait(180)
        else:
            driver.kill()
            driver.wait(10)
            assert_nothing_left()
    finally:
        driver.kill()
        driver.wait(10)
    again = orchestrator(*argv)
    assert again.returncode == 0, (folder / "driver.log").read_text()[-3000:] + again.stderr[-3000:]
    check(results)
    return results


def check(results: Path) -> None:
    """Exactly once, all there, a row for each scheduled request, nothing left."""
    ok = collections.Counter(one["measurement_id"] for one in manifests(results) if one["status"] == "ok")
    assert len(ok) == MEASUREMENTS
    assert set(ok.values()) == {1}
    assert_rows_equal_schedule(results)
    assert_nothing_left()


def no_kill() -> None: ...


def one_commit(results: Path) -> bool:
    return len(manifests(results)) == 1


@pytest.mark.parametrize("commits", [0, 1, 3])  # in the first launch, under its load, in the second
def test_the_driver_is_killed(cluster: RayOnThisMachine, experiment: Path, commits: int) -> None:
    def moment(results: Path) -> bool:
        return bool(engine_processes()) and len(manifests(results)) >= commits

    run_and_kill(cluster, experiment, moment, no_kill, ends=False)


def test_an_engine_is_killed_under_load(cluster: RayOnThisMachine, experiment: Path) -> None:
    def strike() -> None:
        servers = [one for one in engine_processes() if "orchestrator.emulator" in " ".join(one.cmdline())]
        kill(servers[0])

    run_and_kill(cluster, experiment, one_commit, strike, ends=True)


def test_a_client_is_killed_under_load(cluster: RayOnThisMachine, experiment: Path) -> None:
    results = run_and_kill(cluster, experiment, one_commit, lambda: kill(actors("ray::ClientHost")[0]), ends=True)
    lost = [one for one in manifests(results) if one["status"] == "failed"]
    assert [one["failure_class"] for one in lost] == ["infra"]
    assert "client" in lost[0]["reason"]


def test_an_agent_is_killed_under_load(cluster: RayOnThisMachine, experiment: Path) -> None:
    run_and_kill(cluster, experiment, one_commit, lambda: kill(actors("ray::RayEngineHost")[0]), ends=True)


def test_a_node_is_lost_and_comes_back(cluster: RayOnThisMachine, experiment: Path) -> None:
    def strike() -> None:
        worker = next(node for node in cluster.cluster.list_all_nodes() if not node.is_head())
        cluster.cluster.remove_node(worker, allow_graceful=False)
        cluster.add_node()

    run_and_kill(cluster, experiment, one_commit, strike, ends=True)

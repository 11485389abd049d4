"""What is lost while a sweep runs on a real cluster: a node that is given notice, and the head."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.cluster.ray.actors import RayEngineHost
from orchestrator.results.phases import PhaseName
from scripts.ray_on_this_machine import RayOnThisMachine
from tests.harness import (
    MODEL,
    assert_nothing_left,
    engine_processes,
    exit_status,
    full,
    manifests,
    orchestrator,
    rows,
    start,
    wait_for,
    write_experiment,
)

pytestmark = pytest.mark.cluster

EXPERIMENT = """
version: 1
name: notice
model: {{id: {model}}}
deployments: {{engine: emulator}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [1, 2, 3]}}, duration: 2s, warmup: 0s}}
"""


def test_a_node_under_notice_gets_no_new_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = tmp_path / "notice"
    with RayOnThisMachine(nodes=1, cpus=0) as cluster:
        cluster.add_node(cpus=8)
        monkeypatch.setenv("ORCHESTRATOR_NOTICE_FILE", str(notice))
        spot = cluster.add_node(cpus=2)  # the fullest that fits: taken first
        monkeypatch.delenv("ORCHESTRATOR_NOTICE_FILE")
        experiment = write_experiment(tmp_path, EXPERIMENT.format(model=MODEL))
        results = tmp_path / "results"
        argv = ("run", str(experiment), "--results", str(results), "--address", cluster.address)
        driver = start(*argv, log=tmp_path / "log")
        try:
            wait_for(lambda: manifests(results), 90, "no point was measured")
            notice.write_text("300")
            assert exit_status(driver, 120, tmp_path / "log") == 0, (tmp_path / "log").read_text()
        finally:
            driver.kill()
            driver.wait()
        ok = [one["measurement_id"] for one in manifests(results) if one["status"] == "ok"]
        assert len(ok) == len(set(ok)) == 3
        others = {one["failure_class"] for one in manifests(results) if one["status"] != "ok"}
        assert others <= {"client_bound"}  # the point under way ended; this machine may be busy
        first, second = sorted(rows(results, "launches"), key=lambda row: row["started_unix_ns"])
        assert (first["failure_kind"], second["status"]) == ("preempted", "ok")
        where = [json.loads(row["placement_json"])[0]["node_id"] for row in (first, second)]
        assert where[0] == spot.node_id != where[1]
        assert first["log_uri"], "it was not stopped in order"
        assert re.search("is being taken back in (2..|300) s", first["reason"])
    assert_nothing_left()


@pytest.mark.parametrize("at", ["start", pytest.param("point", marks=pytest.mark.long)])
def test_a_client_whose_disk_is_full_is_replaced_on_a_host_that_has_room(
    at: str, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(disk))
    with RayOnThisMachine(nodes=1, cpus=0) as cluster, ExitStack() as filled:
        monkeypatch.delenv("TMPDIR")
        cluster.add_node(cpus=8)  # the engine's: clients run there if they have to
        experiment = write_experiment(tmp_path, EXPERIMENT.format(model=MODEL))
        results, log = tmp_path / "results", tmp_path / "log"
        if at == "start":
            filled.enter_context(full(disk))
        driver = start(
            "run", str(experiment), "--results", str(results), "--address", cluster.address, log=log
        )
        try:
            if at == "point":
                wait_for(lambda: manifests(results), 90, "no point was measured")
                filled.enter_context(full(disk))
            assert exit_status(driver, 240, log) == 0, log.read_text()
        finally:
            driver.kill()
            driver.wait()
        ok = [one["measurement_id"] for one in manifests(results) if one["status"] == "ok"]
        assert len(ok) == len(set(ok)) == 3
        lost = [
            one["reason"] for one in rows(results, "points") if one["failure_kind"] == "client_lost"
        ]
        assert (len(lost) > 0) == (at == "point"), log.read_text()
        assert all(f"rows cannot be kept in {disk}" in reason for reason in lost)
    assert_nothing_left()


@pytest.mark.long
@pytest.mark.parametrize("back", [False, True])
def test_a_lost_head_is_reported_and_used_again_when_it_is_back(back: bool, tmp_path: Path) -> None:
    longer = EXPERIMENT.replace("[1, 2, 3]", "[1, 2, 3, 4]").replace("2s", "8s")
    experiment, log = write_experiment(tmp_path, longer.format(model=MODEL)), tmp_path / "log"
    argv = ("run", str(experiment), "--results", str(tmp_path / "results"), "--address")
    with RayOnThisMachine(nodes=1) as cluster:
        gcs = cluster.cluster.head_node.all_processes["gcs_server"][0].process.pid
        limit = {} if back else {"RAY_gcs_rpc_server_reconnect_timeout_s": "30"}
        driver = start(*argv, cluster.address, log=log, **limit)
        try:
            wait_for(lambda: manifests(tmp_path / "results"), 180, "no point was measured")
            os.kill(gcs, signal.SIGSTOP if back else signal.SIGKILL)
            began_s = time.monotonic()
            wait_for(lambda: "has been silent for" in log.read_text(), 30, "nothing is said")
            if back:
                os.kill(gcs, signal.SIGCONT)
                assert exit_status(driver, 180, log) == 0, log.read_text()
                assert "answers again after" in log.read_text()
                return
            assert driver.wait(40) == 1, log.read_text()
            assert time.monotonic() - began_s < 40
            assert "once a cluster runs again, the same command continues" in log.read_text()
        finally:
            driver.kill()
            driver.wait()
    done = orchestrator(*argv, "local")
    assert done.returncode == 0, done.stderr
    ok = [one["measurement_id"] for one in manifests(tmp_path / "results") if one["status"] == "ok"]
    assert len(ok) == len(set(ok)) == 4


@pytest.mark.long
def test_a_restarted_head_ends_the_run_and_keeps_what_was_measured(
    tmp_path: Path,
) -> None:
    """The new head knows nothing of the cluster, and Ray itself ends the drivers of the old one."""
    longer = EXPERIMENT.replace("[1, 2, 3]", "[1, 2, 3, 4]").replace("2s", "8s")
    experiment, log = write_experiment(tmp_path, longer.format(model=MODEL)), tmp_path / "log"
    argv = ("run", str(experiment), "--results", str(tmp_path / "results"), "--address")
    with RayOnThisMachine(nodes=1) as cluster:
        driver = start(*argv, cluster.address, log=log)
        try:
            wait_for(lambda: manifests(tmp_path / "results"), 180, "no point was measured")
            head = cluster.cluster.head_node
            head.kill_gcs_server(False)
            head.start_gcs_server()
            assert driver.wait(30) == 1, log.read_text()
            assert "WrongClusterID" in log.read_text()
        finally:
            driver.kill()
            driver.wait()
        assert_nothing_left(120)
    done = orchestrator(*argv, "local")
    assert done.returncode == 0, done.stderr
    ok = [one["measurement_id"] for one in manifests(tmp_path / "results") if one["status"] == "ok"]
    assert len(ok) == len(set(ok)) == 4


ON_TWO_NODES = """
version: 1
name: parted
model: {{id: {model}}}
deployments: {{engine: emulator, tensor_parallel_size: 2, nnodes: 2}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [2]}}, duration: 16s, warmup: 0s}}
"""


def agent_of_first_rank() -> psutil.Process:
    """The agent of the engine that serves: it holds the pipe from which that engine's guard reads."""
    (engine,) = [
        process
        for process in engine_processes()
        if "orchestrator.emulator" in process.cmdline() and "--headless" not in process.cmdline()
    ]
    pipe = os.readlink(f"/proc/{engine.ppid()}/fd/0")
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            is_agent = process.cmdline()[:1] == [f"ray::{RayEngineHost.__name__}"]
            files = Path(f"/proc/{process.pid}/fd").iterdir()
            if is_agent and pipe in [os.readlink(file) for file in files]:
                return process
    raise AssertionError(f"no agent holds {pipe}")


def is_measuring(results: Path) -> bool:
    """Whether the record of the run says that a point runs."""
    for record in results.glob("parted/runs/*.json"):
        deployments = json.loads(record.read_text())["deployments"].values()
        if any(deployment["doing"].startswith(PhaseName.MEASURE) for deployment in deployments):
            return True
    return False


def test_an_agent_that_is_killed_leaves_what_the_others_read_and_the_point_says_that_it_is_lost(
    tmp_path: Path, two_nodes: RayOnThisMachine
) -> None:
    """The nodes are on one host, which the agent of the second rank reads."""
    experiment = write_experiment(tmp_path, ON_TWO_NODES.format(model=MODEL))
    results, log = tmp_path / "results", tmp_path / "log"
    argv = ("run", str(experiment), "--results", str(results), "--address", two_nodes.address)
    driver = start(*argv, log=log)
    try:
        wait_for(lambda: is_measuring(results), 180, "no point was measured")
        agent_of_first_rank().kill()
        assert exit_status(driver, 240, log) == 0, log.read_text()
    finally:
        driver.kill()
        driver.wait()
    lost, *_, measured = sorted(rows(results, "points"), key=lambda row: row["attempt_id"])
    assert (lost["status"], lost["failure_kind"]) == ("failed", "agent_lost")
    assert "The node agent or its node was lost" in lost["reason"]
    assert measured["status"] == "ok"
    readings = Counter(row["attempt_id"] for row in rows(results, "hosts"))
    assert readings[lost["attempt_id"]] > 0
    assert readings[measured["attempt_id"]] > 0
    assert_nothing_left()

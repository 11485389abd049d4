"""``doctor`` and a sweep on two Ray nodes that ask for a token: with it all goes, without it a
sentence says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cluster.ray.private import head_answers
from tests.cluster.autoscaling import OBJECT_STORE_BYTES, processes_of
from tests.harness import (
    MODEL,
    ROOT,
    assert_nothing_left,
    environment,
    free_port,
    manifests,
    orchestrator,
    start,
    wait_for,
    write_experiment,
)

pytestmark = pytest.mark.cluster

EXPERIMENT = f"""
version: 1
name: guarded
model: {{id: {MODEL}}}
deployments: {{engine: emulator}}
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [2]}}, duration: 1s, warmup: 0s}}
"""


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[str, dict[str, str]]]:
    """Address of two nodes with a temp-dir of their own each, and the environment that opens them."""
    port = free_port()
    with tempfile.TemporaryDirectory(
        prefix="orch-tk-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        Path(folder, "token").write_text("a" * 64)
        token = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": f"{folder}/token",
            "RAY_worker_niceness": "0",
        }
        started = []
        for name, place in (
            ("1", ["--head", f"--port={port}"]),
            ("2", [f"--address=127.0.0.1:{port}"]),
        ):
            argv = [
                str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats", *place,
                "--num-cpus=2", f"--object-store-memory={OBJECT_STORE_BYTES}", "--node-ip-address=127.0.0.1",
                f"--dashboard-agent-listen-port={free_port()}", f"--temp-dir={folder}/{name}",
                *(["--include-dashboard=false", f"--ray-client-server-port={free_port()}"] if name == "1" else []),
            ]  # fmt: skip
            with open(f"{folder}/log{name}", "wb") as log:
                started.append(
                    subprocess.Popen(argv, env=environment(**token), stdout=log, stderr=log)
                )
            wait_for(
                lambda: head_answers(f"127.0.0.1:{port}", 1.0),
                60.0,
                Path(folder, f"log{name}").read_text(),
            )
        try:
            yield f"127.0.0.1:{port}", token
        finally:
            for process in started:
                process.terminate()
            for process in started:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            for left in processes_of(folder):
                left.kill()


def test_doctor_asks_every_node_and_a_sweep_runs_where_ray_asks_for_a_token(
    guarded: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, token = guarded
    experiment, results = str(write_experiment(tmp_path, EXPERIMENT)), str(tmp_path / "results")
    wanted = ("--experiment", experiment, "--results", results, "--address", address)

    def both() -> subprocess.CompletedProcess[str] | None:
        done = orchestrator("doctor", *wanted, "--format", "json", **token)
        return done if done.stdout.count('"node_id"') == 2 else None

    done = wait_for(both, 60.0, "the second node has joined")
    document = json.loads(done.stdout)
    # what a test machine lacks are warnings
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert {one["versions"]["Ray"] for one in document["nodes"]} == {__import__("ray").__version__}
    assert {one["level"] for one in document["findings"]} <= {"warning"}
    assert (
        any("2 nodes on one host" in one["what"] for one in document["findings"])
        or document["nodes"][0]["cores"] > 3
    )
    assert not (tmp_path / "results").exists(), "it starts nothing"
    measured = orchestrator("run", experiment, "--results", results, "--address", address, **token)
    assert measured.returncode == 0, measured.stderr
    assert [one["status"] for one in manifests(tmp_path / "results")].count("ok") == 1
    assert_nothing_left()


def test_without_the_token_a_sentence_says_what_is_missing(
    guarded: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """Both commands at once: each asks for as long as a head may take to answer."""
    address, _ = guarded
    experiment = str(write_experiment(tmp_path, EXPERIMENT))
    asked = {"doctor": [], "run": [experiment, "--results", str(tmp_path / "results")]}
    other = tmp_path / "other"
    other.write_text("b" * 64)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(other)}
    started = {
        command: start(command, *more, "--address", address, log=tmp_path / command, **token)
        for command, more in asked.items()
    }
    statuses = {command: process.wait(120) for command, process in started.items()}
    for command, status in statuses.items():
        said = (tmp_path / command).read_text()
        assert status == 2, said
        assert "RAY_AUTH" in said
        assert "Traceback" not in said


DRAINS = """
import json, sys, time
import ray
from ray._private.state import state
from orchestrator.cluster.ray import private as ray_private
ray.init(sys.argv[1], logging_level="warning", log_to_driver=False)
while len(ray.nodes()) < 2:
    time.sleep(0.5)
gcs = ray.get_runtime_context().gcs_address
nobody_can_tell = lambda: None
report = ray_private.autoscaler_report(gcs, nobody_can_tell)
reports = report is not None, len(ray_private._report_v2(gcs, nobody_can_tell).types)
node = next(one["NodeID"] for one in ray.nodes() if "node:__internal_head__" not in one["Resources"])
ray_private.drain(node, 300.0, "notice")
gone = {one["NodeID"] for one in ray.nodes() if not one["Alive"]}
print(json.dumps([*reports, node in gone | set(state.get_draining_nodes())]))
"""


def test_with_the_token_a_node_is_drained_and_the_autoscalers_report_is_read(
    guarded: tuple[str, dict[str, str]],
) -> None:
    """The last test here: the second node leaves."""
    address, token = guarded
    argv = [sys.executable, "-c", DRAINS, address]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env=environment(**token),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True, 2, True]

"""``doctor`` and a sweep on two Ray nodes that require a token: they run with it, and without it a
sentence says what is missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

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
    """The address of two nodes, each with its own temp-dir, and the variables with their token."""
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
        for name, role in (
            ("1", ["--head", f"--port={port}"]),
            ("2", [f"--address=127.0.0.1:{port}"]),
        ):
            argv = [
                str(Path(sys.executable).parent / "ray"), "start", "--block", "--disable-usage-stats", *role,
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
            for left_over in processes_of(folder):
                left_over.kill()


def test_doctor_asks_every_node_and_a_sweep_runs_where_ray_requires_a_token(
    guarded: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, token = guarded
    experiment = str(write_experiment(tmp_path, EXPERIMENT))
    results = str(tmp_path / "results")
    options = ("--experiment", experiment, "--results", results, "--address", address)

    def doctor_of_both_nodes() -> subprocess.CompletedProcess[str] | None:
        completed = orchestrator("doctor", *options, "--format", "json", **token)
        return completed if completed.stdout.count('"node_id"') == 2 else None

    doctor = wait_for(doctor_of_both_nodes, 60.0, "the second node has joined")
    document = json.loads(doctor.stdout)
    # 3: a test machine lacks something, of which doctor warns
    assert doctor.returncode in (0, 3), doctor.stdout + doctor.stderr
    assert {node["versions"]["Ray"] for node in document["nodes"]} == {ray.__version__}
    assert {finding["level"] for finding in document["findings"]} <= {"warning"}
    has_many_cores = document["nodes"][0]["cores"] > 3
    is_one_host = any("2 nodes on one host" in finding["what"] for finding in document["findings"])
    assert is_one_host or has_many_cores
    assert not (tmp_path / "results").exists(), "doctor starts nothing"
    sweep = orchestrator("run", experiment, "--results", results, "--address", address, **token)
    assert sweep.returncode == 0, sweep.stderr
    statuses = [manifest["status"] for manifest in manifests(tmp_path / "results")]
    assert statuses.count("ok") == 1
    assert_nothing_left()


def test_without_the_token_a_sentence_says_what_is_missing(
    guarded: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """Both commands run at once, since each tries as long as a head may take to answer."""
    address, _ = guarded
    experiment = str(write_experiment(tmp_path, EXPERIMENT))
    arguments = {"doctor": [], "run": [experiment, "--results", str(tmp_path / "results")]}
    wrong_token = tmp_path / "wrong-token"
    wrong_token.write_text("b" * 64)
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(wrong_token)}
    started = {
        command: start(command, *words, "--address", address, log=tmp_path / command, **variables)
        for command, words in arguments.items()
    }
    statuses = {command: process.wait(120) for command, process in started.items()}
    for command, status in statuses.items():
        log = (tmp_path / command).read_text()
        assert status == 2, log
        assert "RAY_AUTH" in log
        assert "Traceback" not in log


DRAINS = """
import json, sys, time
import ray
from ray._private.state import state
from orchestrator.cluster.ray import private as ray_private
ray.init(sys.argv[1], logging_level="warning", log_to_driver=False)
while len(ray.nodes()) < 2:
    time.sleep(0.5)
gcs = ray.get_runtime_context().gcs_address
unknown = lambda: None
report = ray_private.autoscaler_report(gcs, unknown)
reports = report is not None, len(ray_private._report_v2(gcs, unknown).types)
workers = [node for node in ray.nodes() if "node:__internal_head__" not in node["Resources"]]
node = workers[0]["NodeID"]
ray_private.drain(node, 300.0, "notice")
gone = {node["NodeID"] for node in ray.nodes() if not node["Alive"]}
print(json.dumps([*reports, node in gone | set(state.get_draining_nodes())]))
"""


def test_with_the_token_a_node_is_drained_and_the_autoscalers_report_is_read(
    guarded: tuple[str, dict[str, str]],
) -> None:
    """The last test of these nodes, since the second one leaves."""
    address, token = guarded
    argv = [sys.executable, "-c", DRAINS, address]
    completed = subprocess.run(
        argv,
        cwd=ROOT,
        env=environment(**token),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout.splitlines()[-1]) == [True, 2, True]

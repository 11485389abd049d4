"""Cluster files that this machine can run are run: each measures a sweep, with the emulator as its
engine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import (
    MEASURED_ONCE,
    MODEL,
    ROOT,
    assert_nothing_left,
    assert_rows_equal_schedule,
    environment,
    free_port,
    manifests,
    only_disturbed,
    orchestrator,
    rows,
    wait_for,
    write_experiment,
)

pytestmark = pytest.mark.cluster
RAY = str(Path(sys.executable).parent / "ray")
SWEEP = f"""
version: 1
name: small
model: {{id: {MODEL}}}
hardware: HARDWARE
deployments:
  engine: emulator
  hardware: here
  vary: [{{cases: [{{tensor_parallel_size: 1}}, {{tensor_parallel_size: 2, nnodes: 2}}]}}]
workloads: [{{name: short, input_tokens: 16, output_tokens: 8}}]
load: {{levels: {{concurrency: [2]}}, duration: 1s, warmup: 0s}}
"""


@contextmanager
def running(script: str, log: Path, says: str, **env: str) -> Iterator[dict[str, str]]:
    """A script of clusters/local while it runs: the variables it says to set. It leaves no process
    and no folder.
    """
    before = set(os.listdir("/tmp"))
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(ROOT / "clusters" / "local" / script)],
            env=environment(RAY=RAY, **env),
            stdout=out,
            stderr=out,
        )
    try:
        wait_for(
            lambda: process.poll() is not None or says in log.read_text(),
            60,
            f"{script}: {log.read_text()}",
        )
        assert process.poll() is None, log.read_text()
        yield dict(re.findall(r"(RAY_AUTH\w+)=(\S+)", log.read_text()))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    folders = [
        Path("/tmp", name)
        for name in set(os.listdir("/tmp")) - before
        if name.startswith(("ray2-", "rayas-"))
    ]
    assert folders == []


def test_a_job_on_the_two_local_nodes_measures_on_both(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path, SWEEP.replace("HARDWARE", "{here: {accelerator: cpu}}"))
    results = tmp_path / "results"
    port, another = free_port(), {"RAY_AUTH_TOKEN": "of-another-cluster-" * 3}
    env = another | {
        "PORT": str(port),
        "DASHBOARD_PORT": str(dashboard := free_port(4)),
        "CPUS": "2",
    }
    with running("two-nodes.sh", tmp_path / "log", "two nodes:", **env) as token:
        package = tmp_path / "package"
        shutil.copytree(
            ROOT / "orchestrator",
            package / "orchestrator",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        run = [
            sys.executable,
            "-m",
            "orchestrator",
            "run",
            str(experiment),
            *MEASURED_ONCE,
            "--results",
            str(results),
        ]
        submit = [
            RAY,
            "job",
            "submit",
            "--address",
            f"http://127.0.0.1:{dashboard}",
            "--working-dir",
            str(package),
        ]
        assert (
            "Missing authentication token" in _submitted([*submit, "--", *run], tmp_path, {}).stderr
        )
        done = wait_for(
            lambda: _accepted([*submit, "--", *run], tmp_path, token), 60, "jobs are taken"
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0 or only_disturbed(said), said
    assert len({one["measurement_id"] for one in manifests(results) if one["status"] == "ok"}) == 2
    assert len({row["node_id"] for row in _seats(results)}) == 2
    assert_nothing_left()


def _submitted(
    argv: list[str], folder: Path, token: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=folder,
        env=environment(**token),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def _accepted(
    argv: list[str], folder: Path, token: dict[str, str]
) -> subprocess.CompletedProcess[str] | None:
    done = _submitted(argv, folder, token)
    return None if "No available agent" in done.stdout + done.stderr else done


def _seats(results: Path) -> list[dict[str, str]]:
    return [seat for row in rows(results, "launches") for seat in json.loads(row["placement_json"])]


def test_the_local_cluster_that_grows_measures_a_sweep_from_nothing(tmp_path: Path) -> None:
    grown = "{here: {accelerator: H100-80GB, gpus_per_node: 8, labels: {pool: grown}}}"
    experiment = write_experiment(tmp_path, SWEEP.replace("HARDWARE", grown))
    results, port = tmp_path / "results", free_port(3)
    where = ("--address", f"127.0.0.1:{port}")
    with running("autoscaling.sh", tmp_path / "log", "it grows:", PORT=str(port)) as token:
        refused = orchestrator("doctor", *where, RAY_AUTH_MODE="disabled")
        assert refused.returncode == 2 and "RAY_AUTH" in refused.stderr, refused.stderr
        done = orchestrator("run", str(experiment), "--results", str(results), *where, **token)
    assert done.returncode == 0, done.stderr
    assert len({one["measurement_id"] for one in manifests(results) if one["status"] == "ok"}) == 2
    assert_rows_equal_schedule(results)
    assert_nothing_left()

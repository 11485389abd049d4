"""Nodes at other addresses than the driver's, as on a real cluster: here a second loopback address."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.ray_on_this_machine import OBJECT_STORE_BYTES, RayOnThisMachine
from tests.cluster.test_jobs_and_s3 import EXPERIMENT, KEYS, s3
from tests.harness import (
    MODEL,
    assert_nothing_left,
    manifests,
    orchestrator,
    rows,
    write_experiment,
)

__all__ = ["s3"]  # a fixture

pytestmark = pytest.mark.cluster
ELSEWHERE = "127.0.0.2"
SPREAD = f"""
version: 1
name: spread
model: {{id: {MODEL}}}
deployments: {{engine: emulator, tensor_parallel_size: 2, nnodes: 2}}
workloads: [{{name: short, input_tokens: 32, output_tokens: 16}}]
load: {{levels: {{concurrency: [4]}}, duration: 2s, warmup: 0s}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayOnThisMachine]:
    """The head node at this machine's address, one more elsewhere. Its environment holds no
    credentials.
    """
    assert "AWS_ACCESS_KEY_ID" not in os.environ
    with (
        RayOnThisMachine(nodes=1) as made,
        tempfile.TemporaryDirectory(prefix="orch-", ignore_cleanup_errors=True) as path,
    ):
        made.cluster.add_node(
            num_cpus=4,
            object_store_memory=OBJECT_STORE_BYTES,
            node_ip_address=ELSEWHERE,
            temp_dir=path,
        )
        yield made


def test_a_sweep_uses_nodes_elsewhere(cluster: RayOnThisMachine, tmp_path: Path) -> None:
    experiment, results = write_experiment(tmp_path, EXPERIMENT), tmp_path / "results"
    done = orchestrator(
        "run", str(experiment), "--results", str(results), "--address", cluster.address
    )
    assert done.returncode == 0, done.stderr
    # the engine or its client was elsewhere: clients keep off an engine's node
    assert rows(results, "requests")
    assert_nothing_left()


def test_nodes_without_credentials_are_refused_before_anything_starts(
    cluster: RayOnThisMachine, s3: str, tmp_path: Path
) -> None:
    experiment = write_experiment(tmp_path, EXPERIMENT)
    refused = orchestrator(
        "run", str(experiment), "--results", s3 + "", "--address", cluster.address, **KEYS
    )
    assert refused.returncode == 2, refused.stderr
    assert f"node {ELSEWHERE}: " in refused.stderr
    assert "credentials of its own" in refused.stderr
    assert "2 problems; nothing was started" in refused.stderr
    assert manifests(tmp_path) == []


def test_both_nodes_of_a_replica_are_sampled_on_one_clock(
    cluster: RayOnThisMachine, tmp_path: Path
) -> None:
    """Both have this machine's name, so their address is in the name of each."""
    experiment, results = write_experiment(tmp_path, SPREAD), tmp_path / "results"
    done = orchestrator(
        "run", str(experiment), "--results", str(results), "--address", cluster.address
    )
    assert done.returncode == 0, done.stderr
    (point,) = rows(results, "points")
    readings = rows(results, "hosts")
    assert {row["attempt_id"] for row in readings} == {point["attempt_id"]}
    hosts = {row["host"] for row in readings}
    assert len(hosts) == 2 and f"{socket.gethostname()} ({ELSEWHERE})" in hosts
    for host in hosts:
        of_host = [row for row in readings if row["host"] == host]
        since_s = []
        for row in of_host:
            driver_ns = row["unix_ns"] - row["clock_offset_ns"]
            since_s.append((driver_ns - point["started_unix_ns"]) / 1e9)
        assert since_s == sorted(since_s)
        assert since_s[0] <= 0.25 and since_s[-1] >= 2.0, "from before the load to its end"
        # it is one clock
        assert abs(of_host[0]["clock_offset_ns"]) <= of_host[0]["clock_error_ns"] < 10**9
    (launch,) = rows(results, "launches")
    assert set(json.loads(launch["environment_json"])) == hosts

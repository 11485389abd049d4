"""Nodes at other addresses than the driver's, as on a real cluster: here a second loopback address."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.ray_on_this_machine import OBJECT_STORE_BYTES, RayOnThisMachine
from tests.cluster.test_jobs_and_s3 import EXPERIMENT, KEYS, s3
from tests.harness import assert_nothing_left, manifests, orchestrator, rows, write_experiment

__all__ = ["s3"]  # a fixture

pytestmark = pytest.mark.cluster
ELSEWHERE = "127.0.0.2"


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

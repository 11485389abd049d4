from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.cluster.local import LocalCluster


@pytest.fixture(scope="package")
def two_nodes() -> Iterator[LocalCluster]:
    """A two-node Ray cluster on this machine, shared by all tests that do not break it."""
    with LocalCluster(nodes=2, cpus=4) as cluster:
        yield cluster

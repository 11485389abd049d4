"""What every kind of cluster does, over Ray: tests/contract/test_clusters.py on two nodes of this
machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from orchestrator.cluster.ray import cluster as ray_cluster
from orchestrator.cluster.ray.cluster import RayCluster
from orchestrator.results.store import Store
from scripts.ray_on_this_machine import RayOnThisMachine
from tests.contract.test_clusters import *  # noqa: F403
from tests.contract.test_clusters import OpenCluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def open_cluster(
    store: Store, two_nodes: RayOnThisMachine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenCluster]:
    monkeypatch.setattr(ray_cluster, "INFEASIBLE_S", 0.0)  # no node here joins again
    with ExitStack() as stack:

        def opened(client_limit: int | None = None) -> RayCluster:
            made = RayCluster(store, two_nodes.address, client_limit)
            stack.callback(made.close)
            return made

        yield opened

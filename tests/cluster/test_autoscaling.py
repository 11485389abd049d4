"""A cluster that grows for what is desired and shrinks afterwards: Ray's own autoscaler, with fake nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cluster.base import Bundle, Footprint, Machine, Patience
from orchestrator.cluster.ray_cluster import RayCluster
from orchestrator.results.store import Store
from tests.cluster.autoscaling import autoscaling_ray
from tests.harness import wait_for

pytestmark = pytest.mark.cluster

NODE = Footprint((Bundle(8, 1.0),), (("pool", "grown"),))
GROW_S = 60.0
SHRINK_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with autoscaling_ray() as address:
        made = RayCluster(Store.open(str(tmp_path), "x"), address)
        yield made
        made.close()


def grown(cluster: RayCluster) -> list[Machine]:
    return [machine for machine in cluster.machines() if machine.gpus]


def test_nodes_come_for_what_is_desired_are_not_taken_from_launches_and_leave(cluster: RayCluster) -> None:
    assert cluster.growth().may
    assert grown(cluster) == []

    cluster.desire([NODE, NODE])
    wait_for(lambda: len(grown(cluster)) == 2, GROW_S, "two nodes have come")

    # One launch takes a node that a desire holds; what is still desired is then not on it.
    first = grown(cluster)[0].node_id
    placement = cluster.place("grown", NODE, [first], Patience(20.0))
    assert placement.agents[0].allocation.node_id == first
    assert len(placement.agents[0].allocation.devices) == 8
    cluster.desire([NODE, NODE])
    wait_for(lambda: len(grown(cluster)) == 3, GROW_S, "a third node has come beside the one that is held")

    cluster.desire([])
    wait_for(lambda: [one.node_id for one in grown(cluster)] == [first], SHRINK_S, "only the held node is left")
    placement.release()
    wait_for(lambda: not grown(cluster), SHRINK_S, "all nodes have left")

"""Which cluster an address opens."""

from __future__ import annotations

import pytest

from orchestrator.cluster.local import LocalCluster
from orchestrator.cluster.open_cluster import LOCAL, open_cluster
from orchestrator.cluster.ray import cluster as ray_cluster


def test_the_address_local_opens_this_machine_without_ray() -> None:
    cluster = open_cluster(None, LOCAL, client_limit=3)
    try:
        assert isinstance(cluster, LocalCluster)
        assert cluster.most_clients() == 3
    finally:
        cluster.close()


@pytest.mark.parametrize("address", [None, "auto", "10.0.0.1:6379"])
def test_any_other_address_opens_ray_there(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[object, ...]] = []
    monkeypatch.setattr(ray_cluster, "RayCluster", lambda *arguments: opened.append(arguments))
    open_cluster(None, address, client_limit=3)
    assert opened == [(None, address, 3)]

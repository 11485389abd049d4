"""What the driver does on a Ray cluster whose nodes are taken back or no longer needed. Ray is a
fake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import PlacementError
from orchestrator.cluster.base import Bundle, Footprint, Machine, PlacementDeadline
from orchestrator.cluster.client_host import ClientHost
from orchestrator.cluster.ray import cluster as ray_cluster
from orchestrator.cluster.ray import growth as ray_growth
from orchestrator.cluster.ray.cluster import RayCluster

ONE = Footprint((Bundle(8, 4.0),))


class Fake:
    """Ray with the driver's node and n1. ``drains``: node -> when it is gone, in ms since 1970; 0:
    nobody knows.
    """

    def __init__(self) -> None:
        self.drains, self.groups, self.agents, self.killed = (
            dict[str, int](),
            list[object](),
            list[str](),
            list[str](),
        )
        self.util = SimpleNamespace(get_node_ip_address=lambda: "head")

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="head:1")

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "NodeManagerAddress": name, "Resources": {}, "Alive": True}
            for name in ("head", "n1")
        ]

    def placement_group(self, *_: object, **__: object) -> object:
        self.groups.append(group := object())
        return group

    def agent(
        self, cluster: RayCluster, group: object, rank: int, launch_id: str, footprint: Footprint
    ) -> None:
        self.agents.append(launch_id)
        raise PlacementError("it would hang")

    def client(self, cluster: RayCluster, machine: Machine) -> Any:
        def begin(method: Callable[..., Any], *_: object) -> Future[Any]:
            answers: dict[Callable[..., Any], object] = {
                ClientHost.lease: False,
                ClientHost.release_lease: True,
                ClientHost.process: (machine.node_id, 1),
            }
            made: Future[Any] = Future()
            made.set_result(answers[method])
            return made

        return SimpleNamespace(begin=begin, kill=lambda: self.killed.append(machine.node_id))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(ray_cluster, "ray", made)
    monkeypatch.setattr(ray_cluster, "draining", lambda: made.drains)
    monkeypatch.setattr(RayCluster, "_agent", lambda *given: made.agent(*given))
    monkeypatch.setattr(RayCluster, "_client", lambda *given: made.client(*given))
    monkeypatch.setattr(ray_growth, "placement_group", made.placement_group)
    monkeypatch.setattr(ray_growth, "remove_placement_group", made.groups.remove)
    return made


def test_no_agent_starts_on_a_node_that_drained_meanwhile(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_await", lambda *_: fake.drains.update(n1=0))
    with pytest.raises(PlacementError, match="node n1 is being taken back"):
        RayCluster(None).place("launch", ONE, ["n1"], PlacementDeadline(60.0))
    assert (fake.agents, fake.groups) == ([], [])


def test_nodes_of_a_gang_with_too_little_left_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = {
        "n1": {"CPU": 8.0, "GPU": 8.0},
        "n2": {"CPU": 8.0, "GPU": 7.0},
        "n3": {"CPU": 1.0, "GPU": 8.0},
        "n4": {},
    }
    monkeypatch.setattr(ray_cluster, "free_resources", lambda: free)
    gang = Footprint((Bundle(8, 2.0),) * 4)
    assert ray_cluster._nodes_in_use(gang, ["n1", "n2", "n3", "gone"]) == {"n2", "n3"}
    assert ray_cluster._nodes_in_use(Footprint((Bundle(4, 1.0),) * 2), ["n2", "n2"]) == {"n2"}, (
        "both together"
    )
    assert ray_cluster._nodes_in_use(Footprint((Bundle(0, 1.0),)), ["n4"]) == {"n4"}, (
        "Ray leaves out what is all taken"
    )


@pytest.mark.parametrize("later_s", [0, 600])
def test_a_second_drain_of_a_node_makes_it_no_later(later_s: int, fake: Fake) -> None:
    cluster, now_ms = RayCluster(None), int(1e3 * time.time())
    fake.drains["n1"] = now_ms + 100_000
    assert cluster.leaving() == {"n1": pytest.approx(100, abs=30)}
    fake.drains["n1"] = later_s and now_ms + 1000 * later_s
    assert cluster.leaving() == {"n1": pytest.approx(100, abs=30)}
    fake.drains["n1"] = now_ms + 50_000
    assert cluster.leaving() == {"n1": pytest.approx(50, abs=19)}


def test_idle_clients_elsewhere_end_once_no_nodes_are_asked_for(fake: Fake) -> None:
    cluster = RayCluster(None)
    cluster.clients(2, {}).release()
    cluster.desire([ONE])
    assert fake.killed == []
    cluster.desire([])
    assert fake.killed == ["n1"]

"""What a launch takes of a cluster, and which nodes an autoscaler is asked for."""

from __future__ import annotations

import math

import pytest

from orchestrator.cluster.base import (
    Bundle,
    Footprint,
    Growth,
    Machine,
    NodeType,
)
from orchestrator.plan.model import Deployment
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.sweep.admission import (
    fit,
)
from orchestrator.sweep.resource_request import (
    RETURN_S,
    ROOM_S,
    ResourceRequest,
    WaitLimit,
    resources_of,
)

GPU8 = [Machine(f"n{i}", f"10.0.0.{i}", gpus=8, cpus=96) for i in range(3)]


def gpu_need(gpus: int, nodes: int = 1, replicas: int = 1, **more: object) -> ResourceRequest:
    return ResourceRequest(((Bundle(gpus, float(gpus)),) * nodes,) * replicas, **more)  # type: ignore[arg-type]


def test_an_exclusive_launch_asks_for_whole_nodes() -> None:
    need = gpu_need(2, replicas=2, gpus_per_node=4)
    assert need.footprints() == [Footprint((Bundle(2, 2.0),))] * 2
    assert need.nodes_worth_adding(GPU8) == [Footprint((Bundle(4, 4.0),))]  # one for both
    assert gpu_need(3, 2, replicas=2).nodes_worth_adding(GPU8) == [Footprint((Bundle(8, 6.0),) * 2)]
    assert gpu_need(2).nodes_worth_adding([]) == [Footprint((Bundle(2, 2.0),))]
    assert gpu_need(2).nodes_worth_adding(GPU8) == [Footprint((Bundle(8, 2.0),))]
    assert gpu_need(2, labels=(("pool", "a"),)).nodes_worth_adding(GPU8)[0].bundles == (
        Bundle(2, 2.0),
    )


def test_launches_that_share_nodes_ask_for_what_they_take() -> None:
    assert gpu_need(2, exclusive=False, gpus_per_node=8).nodes_worth_adding(GPU8) == [
        Footprint((Bundle(2, 2.0),))
    ]


def test_replicas_of_several_sizes_and_their_router_take_together_what_each_takes() -> None:
    prefill, decode, router = (Bundle(2, 2.0),), (Bundle(4, 4.0),), (Bundle(0, 0.0),)
    need = ResourceRequest((prefill, prefill, decode, router))
    assert fit(need, GPU8[:1], ()) == (("n0",),) * 4
    assert fit(ResourceRequest((prefill, prefill, prefill, decode, router)), GPU8[:1], ()) is None
    assert str(need) == "2 x one node with 2 GPUs + one node with 4 GPUs + one node for a router"
    assert [one.bundles[0].gpus for one in need.nodes_worth_adding(GPU8)] == [8], (
        "one node holds all"
    )
    assert need.least_nodes(GPU8) == 1
    gang = ResourceRequest(((Bundle(8, 8.0),) * 2, (Bundle(0, 0.0),)))
    assert [len(one.bundles) for one in gang.nodes_worth_adding(GPU8)] == [2], (
        "a router asks for no node of its own"
    )


@pytest.mark.parametrize(
    ("label", "told", "may"),
    [
        # Ray labels the node itself when it starts
        (("ray.io/accelerator-type", "H100"), {}, True),
        (("ray.io/accelerator-type", "H100"), {"ray.io/accelerator-type": "A100"}, False),
        (("pool", "a"), {}, False),
        (("pool", "a"), None, True),
        (("pool", "a"), {"pool": "a"}, True),
    ],
)
def test_a_node_type_may_hold_what_its_labels_do_not_deny(
    label: tuple[str, str], told: dict[str, str] | None, may: bool
) -> None:
    assert gpu_need(8, labels=(label,)).could_use_type(NodeType("h", 8, 96.0, 4, told)) == may
    assert not gpu_need(8, labels=(label,)).could_use_type(NodeType("h", 4, 96.0, 4, told))


def test_a_replica_over_two_nodes_needs_a_bundle_on_each() -> None:
    settings = EngineSettings(
        engine="vllm", model="m", tensor_parallel_size=8, pipeline_parallel_size=2, nnodes=2
    )
    deployment = Deployment(id="d", label="d", settings=settings, hardware=H100, status="planned")
    need = resources_of(deployment, exclusive=True)
    assert need.replicas == ((Bundle(8, 8.0),) * 2,)
    assert need.labels == (("pool", "a"),)


H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8, labels={"pool": "a"})


@pytest.mark.parametrize(
    ("growth", "was_placeable", "most_nodes", "limit_s", "why"),
    [
        (Growth(may_grow=False), False, math.inf, ROOM_S, "it has no autoscaler"),
        (Growth(may_grow=False), True, math.inf, RETURN_S, "it has no autoscaler"),
        (Growth(), False, math.inf, 300.0, "none was added within 300 s"),
        (Growth(coming={"h8": 1}), False, math.inf, 1200.0, "none was added within 1200 s"),
        (Growth(), False, 1.0, 0.0, "it takes 2 nodes where --max-nodes allows 1"),
    ],
)
def test_how_long_nodes_are_waited_for_and_why_there_are_none_then(
    growth: Growth, was_placeable: bool, most_nodes: float, limit_s: float, why: str
) -> None:
    gang = gpu_need(8, 2)
    limit = gang.patience([], growth, was_placeable, most_nodes, 300.0)
    assert limit == WaitLimit(limit_s, why)


def test_the_hardest_replicas_to_place_come_first() -> None:
    small, large, gang = (Bundle(1, 1.0),), (Bundle(4, 4.0),), (Bundle(1, 1.0),) * 2
    assert ResourceRequest((small, large, gang)).by_size() == [2, 1, 0]

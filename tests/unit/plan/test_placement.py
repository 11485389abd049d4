"""Placement: which replicas nodes hold, and how large ones are spread."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan.placement import placement_problems, spread
from orchestrator.spec.settings import EngineSettings, Hardware
from tests.unit.plan.files import H100, planned


def settings(**fields: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": "m", **fields})


@given(
    st.integers(1, 8), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 8)
)
def test_a_replica_is_placeable_when_nodes_share_it_evenly_and_hold_it(
    tensor: int, pipeline: int, data: int, nodes: int, per_node: int
) -> None:
    one = settings(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        data_parallel_size=data,
        nnodes=nodes,
    )
    world = tensor * pipeline * data
    found = placement_problems(one, Hardware(name="h", accelerator="X", gpus_per_node=per_node))
    assert (found == []) == (world % nodes == 0 and world <= nodes * per_node)


def test_problems_name_the_sizes_and_a_remedy() -> None:
    one = settings(tensor_parallel_size=4, pipeline_parallel_size=2, nnodes=3)
    assert placement_problems(one, Hardware(name="h", accelerator="X")) == [
        "8 GPUs (tensor 4 x pipeline 2) cannot be spread evenly over nnodes: 3"
    ]
    assert placement_problems(settings(nnodes=2), Hardware(name="cpu")) == [
        "1 core cannot be spread evenly over nnodes: 2"
    ]
    big = placement_problems(
        settings(tensor_parallel_size=16), Hardware(name="h", accelerator="X", gpus_per_node=8)
    )
    assert big == ["needs 16 GPUs on one node; a node of 'h' has 8 (nnodes: 2 would spread it)"]


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("tgi", "TGI runs on one node"),
        (
            "tensorrt_llm",
            "the ranks of TensorRT-LLM on several nodes need a launcher of their own: start them "
            "with it and "
            "measure the server as engine: endpoint",
        ),
    ],
)
def test_several_nodes_are_no_advice_for_an_engine_that_cannot_use_them(
    engine: str, reason: str
) -> None:
    one_node = Hardware(name="h", accelerator="X", gpus_per_node=8)
    too_big = EngineSettings(engine=engine, model="m", tensor_parallel_size=16)
    assert placement_problems(too_big, one_node) == [
        f"needs 16 GPUs on one node; a node of 'h' has 8 ({reason})"
    ]


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 8), st.sampled_from([1, 2, 4, 8]))
def test_a_large_replica_is_spread_over_the_fewest_nodes(
    tensor: int, pipeline: int, per_node: int
) -> None:
    nodes = Hardware(name="h", accelerator="X", gpus_per_node=per_node)
    made = spread(settings(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline), nodes)
    if tensor > per_node:  # no node holds a stage
        assert made.nnodes == 1
        assert placement_problems(made, nodes)
        return
    assert placement_problems(made, nodes) == []
    assert pipeline % made.nnodes == 0
    assert not any(
        pipeline % fewer == 0 and pipeline // fewer * tensor <= per_node
        for fewer in range(1, made.nnodes)
    )


def test_nodes_that_are_given_win() -> None:
    given = settings(tensor_parallel_size=8, pipeline_parallel_size=2, nnodes=1)
    assert spread(given, Hardware(name="h", accelerator="X", gpus_per_node=8)) is given
    assert (
        spread(settings(tensor_parallel_size=16), Hardware(name="h", accelerator="X")).nnodes == 1
    )


@pytest.mark.parametrize(
    ("settings", "nodes", "reason"),
    [
        (
            {"tensor_parallel_size": 16},
            None,
            "needs 16 GPUs on one node; a node of 'h100' has 8 (nnodes: 2 would spread it)",
        ),
        ({"tensor_parallel_size": 16, "nnodes": 2}, 1, "needs 2 nodes; the cluster has 1"),
        ({"tensor_parallel_size": 16, "nnodes": 2}, 2, None),
        ({"tensor_parallel_size": 8}, None, None),
        ({"tensor_parallel_size": 4, "nnodes": 3}, None, "3"),
    ],
)
def test_replicas_that_no_node_holds_are_impossible(
    settings: dict[str, Any], nodes: int | None, reason: str | None
) -> None:
    deployments = {"engine": "vllm", "hardware": "h100", **settings}
    (deployment,) = planned(hardware=H100, deployments=deployments, cluster_nodes=nodes).deployments
    assert deployment.status == ("impossible" if reason else "planned")
    if reason:
        assert reason in deployment.reasons[0]

"""Placement and lengths, as far as numbers alone tell."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan.placement import placement_problems, spread
from orchestrator.plan.verdict import workload_mismatch
from orchestrator.spec.load import Workload
from orchestrator.spec.settings import EngineSettings, Hardware


def settings(**fields: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": "m", **fields})


def workload(**fields: Any) -> Workload:
    return Workload.model_validate(
        {"name": "w", "input_tokens": 100, "output_tokens": 50, **fields}
    )


@given(
    st.integers(1, 8), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 8)
)
def test_a_replica_is_placeable_exactly_when_nodes_share_it_evenly_and_hold_their_part(
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


def test_the_sentence_says_what_is_spread_and_what_would_help() -> None:
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
def test_a_replica_larger_than_a_node_is_spread_over_as_few_as_hold_whole_stages(
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


@pytest.mark.parametrize(("limit", "wrong"), [(None, False), (150, False), (149, True)])
def test_the_model_length_is_prompt_and_answer_together(limit: int | None, wrong: bool) -> None:
    assert (workload_mismatch(workload(), settings(), limit, ["completions"]) is not None) == wrong


@pytest.mark.parametrize(
    ("limit", "lengths", "found"),
    [
        (99, {}, ("impossible", "every prompt of workload 'w' is longer, max_input_len is 99")),
        (100, {}, None),
        (100, {"shared_prefix_tokens": 1}, ("impossible", "every prompt")),
        (
            768,
            {"input_tokens": {"uniform": {"min": 700, "max": 900}}},
            ("risky", "about 6[4-8]% of the prompts of"),
        ),
        (900, {"input_tokens": {"uniform": {"min": 700, "max": 900}}}, None),
        (
            4000,
            {"input_tokens": {"lognormal": {"mean": 100, "sigma": 0.5}}},
            ("risky", "about 1% of the prompts"),
        ),
        (250, {"kind": "conversations", "turns": 2}, None),  # 100 + 50 + 100
        (
            249,
            {"kind": "conversations", "turns": 2},
            ("risky", "about 50% of the prompts of workload 'w' are longer"),
        ),
        # nobody counted them
        (1, {"kind": "file", "prompts": "nowhere.txt", "input_tokens": None}, None),
    ],
)
def test_a_limit_on_prompts_is_held_against_their_lengths(
    limit: int, lengths: dict[str, Any], found: tuple[str, str] | None
) -> None:
    fields = {
        name: value
        for name, value in ({"input_tokens": 100} | lengths).items()
        if value is not None
    }
    asked = Workload.model_validate({"name": "w", "output_tokens": 50} | fields)
    told = workload_mismatch(
        asked, settings(engine="tgi", max_input_len=limit), None, ["completions"]
    )
    assert (told and told.status) == (found and found[0])
    assert told is None or found is None or re.search(found[1], told.sentence)

"""Placement and lengths, as far as numbers alone tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan.checks import placement_problems, request_tokens, workload_mismatch
from orchestrator.spec.load import Workload
from orchestrator.spec.settings import EngineSettings, Hardware


def settings(**fields: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": "m", **fields})


def workload(**fields: Any) -> Workload:
    return Workload.model_validate({"name": "w", "input_tokens": 100, "output_tokens": 50, **fields})


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 8))
def test_a_replica_is_placeable_exactly_when_nodes_share_it_evenly_and_hold_their_part(
    tensor: int, pipeline: int, data: int, nodes: int, per_node: int
) -> None:
    one = settings(tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, data_parallel_size=data, nnodes=nodes)
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
    big = placement_problems(settings(tensor_parallel_size=16), Hardware(name="h", accelerator="X", gpus_per_node=8))
    assert big == ["needs 16 GPUs on one node; a node of 'h' has 8 (nnodes: 2 would spread it)"]


@pytest.mark.parametrize(
    ("fields", "bounds"),
    [
        ({}, (150, 150)),
        ({"shared_prefix_tokens": 30}, (180, 180)),
        ({"turns": 4}, (150, 150)),
        ({"turns": 4, "kind": "conversations", "shared_prefix_tokens": 30}, (630, 630)),
        ({"input_tokens": {"uniform": {"min": 5, "max": 10}}}, (55, 60)),
        ({"input_tokens": {"lognormal": {"mean": 99, "sigma": 1}}}, (51, None)),
        ({"output_tokens": {"lognormal": {"mean": 99, "sigma": 1, "min": 4, "max": 8}}}, (104, 108)),
    ],
)
def test_the_longest_request_is_known_within_bounds(fields: dict[str, Any], bounds: tuple[int, int | None]) -> None:
    assert request_tokens(workload(**fields)) == bounds


@pytest.mark.parametrize(
    ("lines", "least"),
    [
        (['{"prompt": "x", "output_tokens": 7}', '{"prompt": "x", "output_tokens": 3}'], 4),
        (['{"prompt": "x", "output_tokens": 900}', '{"prompt": "x"}'], 501),
        (['{"prompt": "x", "output_tokens": 900}'], 901),
        (["text"], 501),
    ],
)
def test_the_least_of_a_file_is_what_its_lines_ask_for(lines: list[str], least: int, tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_text("\n".join(lines))
    one = workload(kind="file", prompts=str(file), input_tokens=None, output_tokens=500)
    assert request_tokens(one) == (least, None)
    assert workload_mismatch(one, "vllm", least, ["completions"]) is None
    assert workload_mismatch(one, "vllm", least - 1, ["completions"]) is not None


@pytest.mark.parametrize(("limit", "wrong"), [(None, False), (150, False), (149, True)])
def test_the_model_length_is_prompt_and_answer_together(limit: int | None, wrong: bool) -> None:
    assert (workload_mismatch(workload(), "vllm", limit, ["completions"]) is not None) == wrong

"""Labels: short, unique, and only what differs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan.labels import LONGEST, Unlabelled, labels
from orchestrator.spec.settings import EngineSettings


def settings(**fields: Any) -> EngineSettings:
    return EngineSettings.model_validate({"engine": "vllm", "model": "org/model", **fields})


def labelled(*every: EngineSettings, hardware: str = "h100") -> list[str]:
    return labels([Unlabelled(f"{place:016x}", one, hardware) for place, one in enumerate(every)])


def test_one_deployment_is_its_engine() -> None:
    assert labelled(settings(tensor_parallel_size=8, max_num_seqs=4)) == ["vllm"]


def test_labels_show_only_differences() -> None:
    found = labelled(
        settings(max_num_seqs=4),
        settings(max_num_seqs=4, tensor_parallel_size=2),
        settings(max_num_seqs=4, pipeline_parallel_size=2),
    )
    assert found == ["vllm tp=1 pp=1", "vllm tp=2 pp=1", "vllm tp=1 pp=2"]


def test_engines_are_compared_within_themselves() -> None:
    found = labelled(
        settings(dtype="float32"),
        settings(dtype="float32", tensor_parallel_size=2),
        settings(engine="transformers", executable="/x/y"),
    )
    assert found == ["vllm tp=1", "vllm tp=2", "transformers"]


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"quantization": "fp8"}, "vllm quant=fp8"),
        ({"enforce_eager": True}, "vllm enforce_eager=on"),
        ({"enable_prefix_caching": False}, "vllm prefix_caching=off"),
        ({"model": "org/other"}, "vllm model=other"),
        ({"url": "http://host:8000"}, "vllm host:8000"),
        ({"served_model_name": "org/name"}, "vllm serves=name"),
        ({"env": {"A": "1"}}, "vllm A=1"),
        ({"extra_args": {"--async": True}}, "vllm --async=on"),
        ({"speculative": {"method": "ngram", "num_speculative_tokens": 4}}, "vllm spec=ngram:4"),
        ({"hf_overrides": {"a": 1}}, 'vllm hf_overrides={"a":1}'),
    ],
)
def test_values_are_short(fields: dict[str, Any], label: str) -> None:
    assert labelled(settings(), settings(**fields))[1] == label


def labelled_with_excluded(kept: list[EngineSettings], excluded: EngineSettings) -> list[str]:
    deployments = [Unlabelled(f"{place:016x}", each, "h100") for place, each in enumerate(kept)]
    return labels([*deployments, Unlabelled("f" * 16, excluded, "h100", is_excluded=True)])


def test_what_sets_only_excluded_deployments_apart_stands_in_their_labels_alone() -> None:
    kept = [settings(nnodes=1), settings(nnodes=1, tensor_parallel_size=2)]
    excluded = settings(nnodes=2, tensor_parallel_size=2)
    assert labelled_with_excluded(kept, excluded) == [
        "vllm tp=1",
        "vllm tp=2",
        "vllm tp=2 nodes=2",
    ]


def test_a_label_stays_long_where_it_would_equal_that_of_an_excluded_deployment() -> None:
    kept = [settings(max_num_seqs=4), settings(max_num_seqs=4, tensor_parallel_size=2)]
    excluded = settings(tensor_parallel_size=2)  # without a number of sequences
    assert labelled_with_excluded(kept, excluded) == [
        "vllm tp=1 seqs=4",
        "vllm tp=2 seqs=4",
        "vllm tp=2",
    ]


def test_hardware_is_shown_when_it_differs() -> None:
    deployments = [
        Unlabelled("1" * 16, settings(), "h100"),
        Unlabelled("2" * 16, settings(), "a100"),
    ]
    assert labels(deployments) == ["vllm h100", "vllm a100"]


def test_places_are_shown_by_as_many_names_as_tell_them_apart() -> None:
    found = labelled(
        settings(model="/m/tiny/gptq4"),
        settings(model="/m/small/gptq4"),
        settings(model="/m/tiny/int8"),
    )
    assert found == ["vllm model=tiny/gptq4", "vllm model=small/gptq4", "vllm model=tiny/int8"]


def test_the_folder_of_the_user_is_a_path_as_any_other() -> None:
    assert labelled(settings(model=".")) == ["vllm"]
    labels_of_two = labelled(settings(model="."), settings(model="./tiny"))
    assert labels_of_two == ["vllm model=.", "vllm model=tiny"]


def test_equal_labels_get_a_piece_of_the_id() -> None:
    deployments = [
        Unlabelled("a" * 16, settings(model="a/m"), "h"),
        Unlabelled("b" * 16, settings(model="a//m"), "h"),
    ]
    assert labels(deployments) == ["vllm model=m #aaaaaa", "vllm model=m #bbbbbb"]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.none() | st.integers(1, 3), st.booleans()),
        unique=True,
        min_size=1,
    )
)
def test_labels_are_unique_and_short(rows: list[tuple[int, int | None, bool]]) -> None:
    every = [settings(tensor_parallel_size=a, max_num_seqs=b, enforce_eager=c) for a, b, c in rows]
    found = labelled(*every)
    assert len(set(found)) == len(found)
    assert all(len(label) <= LONGEST + 8 for label in found)

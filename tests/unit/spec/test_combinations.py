"""The grid: how many combinations, which ones, in what order, and which a rule leaves out."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.spec.combinations import MOST_COMBINATIONS
from orchestrator.spec.settings import EngineSettings
from tests.unit.spec.files import parsed, problem, problems

SIZES = [
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_num_seqs",
    "max_model_len",
    "nnodes",
]
axes = st.dictionaries(
    st.sampled_from(SIZES), st.lists(st.integers(1, 64), min_size=1, max_size=4), min_size=1
)


def settings(**deployments: Any) -> list[EngineSettings]:
    return [
        deployment.settings
        for deployment in parsed(deployments={"engine": "vllm", **deployments}).combinations
    ]


@given(axes)
def test_a_grid_is_the_product_of_its_axes_in_their_order(grid: dict[str, list[int]]) -> None:
    combinations = settings(vary=[{"grid": grid}])
    expected = list(itertools.product(*grid.values()))
    assert [
        tuple(getattr(deployment, name) for name in grid) for deployment in combinations
    ] == expected


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.tuples(*[st.lists(st.integers(1, 64), min_size=n, max_size=n)] * 3)
    )
)
def test_a_zip_pairs_its_lists(lists: tuple[list[int], ...]) -> None:
    content = dict(zip(SIZES, lists, strict=False))
    combinations = settings(vary=[{"zip": content}])
    assert [
        tuple(getattr(deployment, name) for name in content) for deployment in combinations
    ] == list(zip(*lists, strict=True))


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4))
def test_blocks_multiply_and_the_last_varies_fastest(lists: list[list[int]]) -> None:
    kinds: list[dict[str, Any]] = [{"grid": {SIZES[0]: lists[0]}}]
    kinds += [
        {"cases": [{SIZES[i + 1]: value} for value in values]} for i, values in enumerate(lists[1:])
    ]
    combinations = settings(vary=kinds)
    assert len(combinations) == math.prod(len(values) for values in lists)
    assert [
        tuple(getattr(deployment, name) for name in SIZES[: len(lists)])
        for deployment in combinations
    ] == list(itertools.product(*lists))


@given(axes, st.sampled_from(SIZES), st.sampled_from(["<", ">=", "==", "!="]), st.integers(1, 64))
def test_a_rule_leaves_out_what_python_says_it_does(
    grid: dict[str, list[int]], name: str, sign: str, value: int
) -> None:
    grid = {**grid, name: [1, value, 64]}
    rule = f"{name} {sign} {value} and not ({SIZES[0]} * {SIZES[1]} > 100)"
    for deployment in parsed(
        deployments={"engine": "vllm", "vary": [{"grid": grid}], "exclude": [rule]}
    ).combinations:
        assert (deployment.excluded_by == rule) == eval(rule, {}, dict(deployment.settings))


def test_the_first_rule_that_applies_is_the_one_named() -> None:
    rules = ["tensor_parallel_size > 100", "tensor_parallel_size > 2", "tensor_parallel_size > 1"]
    vary = [{"grid": {"tensor_parallel_size": [1, 2, 4]}}]
    combinations = parsed(
        deployments={"engine": "vllm", "vary": vary, "exclude": rules}
    ).combinations
    assert [deployment.excluded_by for deployment in combinations] == [None, rules[2], rules[1]]


def test_a_varied_value_takes_the_place_of_the_base_value() -> None:
    combinations = settings(
        max_num_seqs=8, dtype="float32", vary=[{"cases": [{"max_num_seqs": 16}, {}]}]
    )
    assert [(deployment.max_num_seqs, deployment.dtype) for deployment in combinations] == [
        (16, "float32"),
        (8, "float32"),
    ]


def test_env_and_extra_args_are_added_to() -> None:
    vary = [{"grid": {"env": [{"B": "2"}, {"A": "3"}]}}, {"cases": [{"env": {"C": "4"}}]}]
    combinations = settings(env={"A": "1"}, vary=vary)
    assert [deployment.env for deployment in combinations] == [
        {"A": "1", "B": "2", "C": "4"},
        {"A": "3", "C": "4"},
    ]


def test_a_list_of_deployments_is_the_union_of_its_grids() -> None:
    first = {
        "engine": "vllm",
        "max_num_seqs": 4,
        "vary": [{"grid": {"tensor_parallel_size": [1, 2]}}],
    }
    combinations = parsed(
        deployments=[first, {"engine": "transformers", "model": "other/model"}]
    ).combinations
    assert [
        (deployment.settings.engine, deployment.settings.model, deployment.settings.max_num_seqs)
        for deployment in combinations
    ] == [
        ("vllm", "org/model", 4),
        ("vllm", "org/model", 4),
        ("transformers", "other/model", None),
    ]


def test_derived_values_may_use_those_before_and_rules_may_use_all() -> None:
    derive = {"gpus": "tensor_parallel_size * pipeline_parallel_size", "half": "gpus // 2"}
    vary = [{"grid": {"tensor_parallel_size": [2, 8]}}]
    combinations = parsed(
        deployments={"engine": "vllm", "vary": vary, "derive": derive, "exclude": ["half > 2"]}
    ).combinations
    assert [dict(deployment.derived) for deployment in combinations] == [
        {"gpus": 2, "half": 1},
        {"gpus": 8, "half": 4},
    ]
    assert [deployment.excluded_by for deployment in combinations] == [None, "half > 2"]


def test_what_reads_a_name_that_could_not_be_derived_is_no_problem_of_its_own() -> None:
    derive = {"gpus": "tp * 2", "half": "gpus // 2"}
    exclude = ["gpus > 8", "half > 4", "gpu > 8"]
    reported = problems(deployments={"engine": "vllm", "derive": derive, "exclude": exclude})
    assert [one.message.partition(":")[0] for one in reported] == ["in 'tp * 2'", "in 'gpu > 8'"]


def test_a_derived_setting_that_is_impossible_says_of_which_values_it_came() -> None:
    deployments = {
        "engine": "vllm",
        "vary": [{"grid": {"tensor_parallel_size": [8, 16], "max_num_seqs": [1, 2]}}],
        "derive": {"replicas": "8 // tensor_parallel_size"},
    }
    [problem] = problems(deployments=deployments)
    assert problem.message == "'replicas' must be at least 1, not 0"
    origin = "derived as 8 // tensor_parallel_size, where tensor_parallel_size is 16"
    assert problem.hint == origin


def test_a_derived_name_that_is_a_setting_sets_it() -> None:
    combinations = settings(
        vary=[{"grid": {"max_num_seqs": [8, 16]}}],
        derive={"max_num_batched_tokens": "max_num_seqs * 64"},
    )
    assert [deployment.max_num_batched_tokens for deployment in combinations] == [512, 1024]


def test_hardware_is_an_axis_and_rules_know_its_name() -> None:
    hardware = {"h100": {"accelerator": "H100-80GB"}}
    deployments = {
        "engine": "vllm",
        "vary": [{"grid": {"hardware": ["h100", "cpu", None]}}],
        "exclude": ["hardware == 'cpu'"],
    }
    combinations = parsed(hardware=hardware, deployments=deployments).combinations
    assert [
        (deployment.hardware, deployment.excluded_by is None) for deployment in combinations
    ] == [
        ("h100", True),
        ("cpu", False),
        (None, True),
    ]


def test_a_deployment_with_its_own_model_gets_no_other_revision() -> None:
    vary = [{"grid": {"model": ["org/model", "org/other"]}}]
    model = {"id": "org/first", "revision": "abc", "tokenizer": "org/tokens"}
    combinations = parsed(
        model=model, deployments=[{"engine": "vllm"}, {"engine": "vllm", "vary": vary}]
    ).combinations
    assert [
        (deployment.settings.model, deployment.settings.revision) for deployment in combinations
    ] == [
        ("org/first", "abc"),
        ("org/model", None),
        ("org/other", None),
    ]


def test_a_grid_that_is_too_large_is_refused_before_it_is_made() -> None:
    values = list(range(1, 1001))
    vary = [
        {"grid": {"tensor_parallel_size": values, "max_num_seqs": [1]}},
        {"grid": {"max_model_len": values}},
    ]
    message = problem(deployments={"engine": "vllm", "vary": vary})
    assert message == f"makes 1,000,000 combinations; at most {MOST_COMBINATIONS:,} are allowed"


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"grid": {"nnodes": [1]}}, "'vary' must be a list, not a mapping"),
        ([{"gird": {"nnodes": [1]}}], "unknown key 'gird' (did you mean 'grid'?)"),
        ([{}], "a block of 'vary' must be one of grid, zip or cases"),
        ([{"grid": {"nnodes": [1]}, "zip": {"nnodes": [1]}}], "a block of 'vary' must be one of"),
        (["grid"], "'vary' must be a mapping (name: value), not 'grid'"),
        ([{"grid": {"nnodes": 2}}], "'nnodes' must be a list, not 2 (write nnodes: [2])"),
        ([{"grid": {"nnodes": []}}], "'nnodes' is empty"),
        ([{"grid": []}], "'grid' must be a mapping (name: value), not a list"),
        ([{"cases": {"nnodes": 2}}], "'cases' must be a list, not a mapping"),
        ([{"cases": [2]}], "'cases' must be a mapping (name: value), not 2"),
        (
            [{"zip": {"nnodes": [1, 2], "max_num_seqs": [1]}}],
            "of equal length: nnodes has 2, max_num_seqs has 1",
        ),
        (
            [{"grid": {"nnodes": [1]}}, {"cases": [{"nnodes": 2}]}],
            "'nnodes' is varied in an earlier block already",
        ),
        ([{"grid": {"vary": [1]}}], "unknown key 'vary'"),
    ],
)
def test_a_block_of_the_wrong_shape_is_refused(vary: Any, message: str) -> None:
    assert message in problem(deployments={"engine": "vllm", "vary": vary})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"derive": {"nnodes": "2"}, "nnodes": 2}, "'nnodes' is given already"),
        ({"derive": {"a-b": "2"}}, "'a-b' cannot be derived"),
        ({"derive": {"hardware": "'cpu'"}}, "'hardware' cannot be derived"),
        ({"derive": {"x": 2}}, "'x' must be text, not 2 (put it in quotes)"),
        ({"derive": ["x"]}, "'derive' must be a mapping (name: value), not a list"),
        (
            {"exclude": "nnodes > 2"},
            "'exclude' must be a list, not 'nnodes > 2' (write exclude: ['nnodes > 2'])",
        ),
        ({"exclude": ["nnode > 2"]}, "unknown field 'nnode'; did you mean 'nnodes'?"),
        ({"exclude": ["open('x')"]}, "\"open('x')\" is not allowed"),
        (
            {"exclude": ["max_num_seqs > 2"]},
            "has no value: '>' not supported between instances of 'NoneType' and 'int'; not set",
        ),
        (
            {"derive": {"nnodes": "tensor_parallel_size / 2"}},
            "'nnodes' must be a whole number, not 0.5",
        ),
        ({"derive": {"x": "y", "y": "1"}}, "unknown field 'y'"),
        ({"env": {"HF_TOKEN": "abc"}}, "'HF_TOKEN' looks like a secret"),
        ({"extra_args": {"--api-key": "abc"}}, "'--api-key' looks like a secret"),
        ({"extra_args": {"--hf-token=abc": True}}, "'--hf-token' looks like a secret"),
        (
            {"extra_args": {"--header": ["Authorization: Bearer abcdefgh12345"]}},
            "'--header' looks like a secret",
        ),
        ({"env": {"MY_SETTING": "hf_" + "a1B2" * 8}}, "'MY_SETTING' looks like a secret"),
        ({"hf_overrides": {"a": [{"b": "sk-" + "a1B2" * 8}]}}, "'b' looks like a secret"),
        (
            {"url": "http://me:secret@host:8000"},
            "'url' looks like a secret (export it where the engines run",
        ),
        (
            {"engine": "endpoint", "url": "http://h:1", "api_key_env": "my-key!"},
            "'api_key_env': must be the name of an environment variable, like MY_KEY",
        ),
        ({"vary": [{"cases": [{"env": {"AWS_SECRET_ACCESS_KEY": "x"}}]}]}, "looks like a secret"),
    ],
)
def test_rules_derived_names_and_secrets_are_checked(more: dict[str, Any], message: str) -> None:
    assert message in problem(deployments={"engine": "vllm", **more})


def test_a_variable_that_only_sounds_like_a_secret_is_fine() -> None:
    env = {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "5", "KEY": "5"}
    assert settings(env=env, extra_args={"--return-token-ids": True})[0].env == env

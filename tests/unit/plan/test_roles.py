"""Prefill and decode replicas behind a router: how a file says them, and what a plan makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.analysis.prediction import PredictedStart
from orchestrator.base.errors import ProblemsError
from orchestrator.plan.model import Plan
from orchestrator.plan.predictions import with_predictions
from orchestrator.spec.settings import EngineSettings
from tests.unit.plan.conftest import verdict
from tests.unit.plan.files import planned, statuses
from tests.unit.spec.files import parsed, problem, problems_in

pytestmark = pytest.mark.usefixtures("judged")

H100 = {"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 3.0}}
TWO: dict[str, Any] = {
    "engine": "vllm",
    "hardware": "h100",
    "max_model_len": 4096,
    "env": {"A": "1"},
    "roles": {"prefill": {"replicas": 2, "tensor_parallel_size": 2}, "decode": {"env": {"B": "2"}}},
    "router": {"engine": "vllm_router", "executable": "/opt/router"},
}


def plan(cluster_nodes: int | None = None, **changes: Any) -> Plan:
    top = {name: changes.pop(name) for name in ("slos",) if name in changes}
    return planned(hardware=H100, deployments=TWO | changes, cluster_nodes=cluster_nodes, **top)


def parts(**changes: Any) -> dict[str, EngineSettings]:
    (deployment,) = plan(**changes).deployments
    return deployment.settings.parts


def test_roles_have_shared_and_own_settings_and_the_router_their_model() -> None:
    made = parts()
    assert list(made) == ["prefill", "decode", "router"]
    assert (made["prefill"].replicas, made["prefill"].tensor_parallel_size) == (2, 2)
    assert (made["decode"].replicas, made["decode"].tensor_parallel_size) == (1, 1)
    assert {part.max_model_len for part in (made["prefill"], made["decode"])} == {4096}
    assert made["decode"].env == {"A": "1", "B": "2"}
    assert (made["router"].engine, made["router"].model, made["router"].env) == (
        "vllm_router",
        "org/model",
        {},
    )


def test_devices_of_all_roles_count_and_a_router_has_none() -> None:
    (deployment,) = plan().deployments
    assert deployment.devices == 2 * 2 + 1
    assert deployment.settings.least_nodes(8) == 1
    assert deployment.settings.least_nodes(4) == 2
    assert deployment.settings.least_nodes(None) == 1


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            {"router": None},
            "'roles' need a 'router' in front of them (write router: {engine: vllm_router})",
        ),
        (
            {"router": {"executable": "/x"}},
            "'router' names no engine (write router: {engine: vllm_router})",
        ),
        (
            {"router": {"engine": "vllm_ruter"}},
            "unknown router 'vllm_ruter' (did you mean 'vllm_router'?)",
        ),
        (
            {"router": {"engine": "vllm_router", "max_num_seqs": 3}},
            "unknown key 'router.max_num_seqs' (",
        ),
        (
            {"roles": {"prefill": {}}},
            "'roles.prefill' stands alone: it needs 'roles.decode' beside it",
        ),
        ({"roles": {"prefill": {}, "decode": {}, "draft": {}}}, "unknown key 'roles.draft' ("),
        (
            {"roles": {"prefill": {}, "decode": {"model": "m"}}},
            "unknown key 'roles.decode.model' (",
        ),
        ({"roles": {"prefill": {}, "decode": 3}}, "'roles.decode' must be a mapping of settings"),
        ({"roles": 3, "router": None}, "'roles' must be a mapping of settings"),
        ({"replicas": 2}, "'replicas' belongs to each role"),
        (
            {"roles": {"prefill": {}, "decode": {"replicas": 0}}},
            "'replicas' must be at least 1, not 0",
        ),
        (
            {"exclude": ["roles.prefil.replicas > 1"]},
            "in 'roles.prefil.replicas > 1': unknown field 'roles.prefil.",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_problems_of_roles_are_problems_of_the_file(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        plan(**changes)
    said = [
        problem.message + (f" ({problem.hint})" if problem.hint else "")
        for problem in caught.value.problems
    ]
    assert any(text.startswith(wanted) for text in said), said


def test_a_problem_inside_a_role_names_its_line() -> None:
    text = """version: 1
name: x
model: m
deployments:
  engine: vllm
  roles:
    prefill:
      tensor_parallel_size: none
    decode: {}
  router: {engine: vllm_router}
  vary:
    - grid:
        roles.decode.max_num_seqs: [1, -1]
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [1]}}
"""
    assert [line for line, _ in problems_in(text)] == [8, 13]


def test_dotted_names_vary_exclude_and_label_settings_of_roles() -> None:
    grid = {"roles.prefill.replicas": [1, 2], "roles.decode.tensor_parallel_size": [1, 4]}
    made = plan(
        vary=[{"grid": grid}],
        exclude=["roles.prefill.replicas > roles.decode.tensor_parallel_size"],
    )
    assert statuses(made) == {
        "vllm prefill.replicas=1 decode.tp=1": "planned",
        "vllm prefill.replicas=1 decode.tp=4": "planned",
        "vllm prefill.replicas=2 decode.tp=1": "excluded",
        "vllm prefill.replicas=2 decode.tp=4": "planned",
    }
    assert len({deployment.id for deployment in made.deployments}) == 4


def test_one_file_compares_roles_with_equal_replicas_behind_a_router_and_without() -> None:
    none = {"roles": None, "replicas": 3}
    made = plan(vary=[{"cases": [{"max_num_seqs": 64}, none, none | {"router": None}]}])
    started = [list(deployment.settings.parts) for deployment in made.deployments]
    assert started == [["prefill", "decode", "router"], ["", "router"], [""]]
    assert [deployment.devices for deployment in made.deployments] == [5, 3, 3]
    labels = [deployment.label for deployment in made.deployments]
    assert labels[1:] == ["vllm tp=1 replicas=3 router=vllm_router", "vllm tp=1 replicas=3"]
    assert labels[0].startswith(
        "vllm seqs=64 prefill.tp=2 prefill.replicas=2 decode.tp=1 decode.replicas=1 "
    )


def test_without_roles_the_id_is_of_settings_and_pins_alone() -> None:
    (plain,) = planned(
        hardware=H100, deployments={"engine": "vllm", "hardware": "h100"}
    ).deployments
    assert plain.id == "556e1b3b545145d7"


@pytest.mark.parametrize(
    "changes",
    [
        {"router": TWO["router"] | {"executable": "/opt/other"}},
        {"router": TWO["router"] | {"extra_args": {"--policy": "random"}}},
        {"roles": TWO["roles"] | {"decode": {"env": {"B": "3"}}}},
    ],
    ids=["router's place", "router's policy", "a role's environment"],
)
def test_settings_of_any_part_change_the_id(changes: dict[str, Any]) -> None:
    assert plan(**changes).deployments[0].id != plan().deployments[0].id


def test_the_verdict_is_the_worst_of_the_roles_and_names_them(judged: Any) -> None:
    judged(lambda settings: verdict("fits", kv_cache_tokens=settings.tensor_parallel_size))
    (deployment,) = plan().deployments
    assert deployment.status == "planned"
    assert deployment.predicted.starts == {
        "prefill": PredictedStart(kv_cache_tokens=2),
        "decode": PredictedStart(kv_cache_tokens=1),
    }
    document = deployment.predicted.document()
    assert document["prefill.kv_cache_tokens"] == 2
    assert document["decode.kv_cache_tokens"] == 1
    judged(
        lambda settings: verdict("risky" if settings.tensor_parallel_size == 1 else "fits", "tight")
    )
    (deployment,) = plan().deployments
    assert (deployment.status, deployment.reasons) == ("risky", ("prefill: tight", "decode: tight"))


SGLANG: dict[str, Any] = {"engine": "sglang", "router": {"engine": "sglang_router"}}
BACKEND = "--disaggregation-transfer-backend"


def test_sglang_has_roles_behind_its_own_router() -> None:
    (deployment,) = plan(**SGLANG).deployments
    assert (deployment.status, deployment.devices, deployment.settings.router.engine) == (
        "planned",
        5,
        "sglang_router",
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"router": TWO["router"]},
            "roles: SGLang's prefill and decode replicas need sglang_router",
        ),
        ({"hardware": "cpu"}, "roles: SGLang hands KV caches over between GPUs only"),
        (
            {"roles": {"prefill": {"block_size": 1}, "decode": {"block_size": 64}}},
            "roles: block_size: 1 for prefill, 64",
        ),
        (
            {"roles": {"prefill": {"kv_cache_dtype": "fp8"}, "decode": {"kv_cache_dtype": "bf16"}}},
            "roles: kv_cache_dtype: fp8 for prefill, bf16",
        ),
        (
            {"extra_args": {BACKEND: "fake"}},
            f"roles: extra_args: {BACKEND} fake hands nothing over",
        ),
        (
            {"roles": {"prefill": {"extra_args": {BACKEND: "nixl"}}, "decode": {}}},
            f"roles: extra_args: {BACKEND}: nixl for prefill, mooncake for decode",
        ),
        (
            {"extra_args": {"--disaggregation-mode": "decode"}},
            "prefill: extra_args: --disaggregation-mode is set by",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_settings_that_sglang_cannot_hand_over_are_impossible(
    changes: dict[str, Any], reason: str
) -> None:
    hardware = H100 | {"cpu": {"accelerator": "cpu"}}
    (deployment,) = planned(hardware=hardware, deployments=TWO | SGLANG | changes).deployments
    assert deployment.status == "impossible"
    assert any(text.startswith(reason) for text in deployment.reasons), deployment.reasons


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": "tgi"}, "roles: TGI has no prefill and decode replicas here"),
        (
            {"roles": {"prefill": {"tensor_parallel_size": 16}, "decode": {}}},
            "prefill: needs 16 GPUs on one node",
        ),
        (
            {"roles": {"prefill": {"stream_interval": 2, "nnodes": 3}, "decode": {}}},
            "prefill: 1 GPU cannot be spread",
        ),
        (
            {"router": {"engine": "vllm_router", "extra_args": {"--port": 1}}},
            "router: extra_args: --port is set by",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_part_that_cannot_run_makes_the_deployment_impossible(
    changes: dict[str, Any], reason: str
) -> None:
    (deployment,) = plan(**changes).deployments
    assert deployment.status == "impossible"
    assert any(text.startswith(reason) for text in deployment.reasons), deployment.reasons


def test_all_roles_together_need_no_more_nodes_than_there_are() -> None:
    roles = {"prefill": {"tensor_parallel_size": 8}, "decode": {"tensor_parallel_size": 8}}
    assert plan(cluster_nodes=1, roles=roles).deployments[0].status == "impossible"
    assert plan(cluster_nodes=2, roles=roles).deployments[0].status == "planned"


def test_a_plan_with_roles_is_the_same_after_it_was_written() -> None:
    made = plan()
    assert Plan.from_json(made.to_json()) == made


def test_an_endpoint_has_no_roles() -> None:
    message = problem(
        deployments={
            "engine": "endpoint",
            "url": "http://x",
            "roles": {"prefill": {}, "decode": {}},
        }
    )
    assert message.startswith("'roles' need a 'router'")
    assert parsed().combinations[0].settings.parts == {"": parsed().combinations[0].settings}


def test_roles_are_not_predicted_and_the_plan_says_so() -> None:
    (deployment,) = with_predictions(plan(slos={"x": {"ttft": "1s"}})).deployments
    assert deployment.predicted.not_predicted == "the model has no term for replicas with roles"

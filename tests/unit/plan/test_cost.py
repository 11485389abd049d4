"""What a plan takes: starts of engines, seconds on so many nodes, GPU hours and money."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.analysis.prediction import PredictedCapacity, Prediction
from orchestrator.plan.cost import (
    EMULATED_START_S,
    READ_BYTES_S,
    START_S,
    PlanEstimate,
    estimated_start_s,
)
from orchestrator.plan.model import Deployment, Plan
from tests.unit.plan.conftest import verdict
from tests.unit.plan.files import H100, grid, planned

pytestmark = pytest.mark.usefixtures("judged")

MINUTE = {"levels": {"concurrency": [1]}, "duration": "50s", "warmup": "10s"}  # of load


def sized(sizes: list[int], **more: Any) -> Plan:
    """A minute of load on a deployment of each tensor-parallel size, on nodes of 8 GPUs."""
    deployments = {**grid(tensor_parallel_size=sizes), "hardware": "h100", **more}
    return planned(deployments=deployments, hardware=H100, load=MINUTE)


def estimate_without_starts(plan: Plan, nodes: int | None = None) -> PlanEstimate:
    """The estimate for a cluster of ``nodes`` nodes where engines start in no time."""
    known_start_s = {deployment.id: 0.0 for deployment in plan.deployments}
    return PlanEstimate(plan, nodes, known_start_s)


def test_a_start_reads_the_weights_of_a_node(judged: Callable[..., None]) -> None:
    device_bytes = 10e9
    judged(lambda settings: verdict("fits", weight_bytes=device_bytes))
    (deployment,) = sized([4]).deployments
    assert estimated_start_s(deployment) == START_S + 4 * device_bytes / READ_BYTES_S
    (over_two_nodes,) = sized([4], nnodes=2).deployments
    assert estimated_start_s(over_two_nodes) == START_S + 2 * device_bytes / READ_BYTES_S


def test_weights_are_read_at_the_rate_of_the_hardware(judged: Callable[..., None]) -> None:
    judged(lambda settings: verdict("fits", weight_bytes=10e9))
    hardware = {"h100": H100["h100"] | {"weights_gb_s": 4}}
    plan = planned(
        deployments={**grid(tensor_parallel_size=[1]), "hardware": "h100"},
        hardware=hardware,
        load=MINUTE,
    )
    (deployment,) = plan.deployments
    assert estimated_start_s(deployment) == START_S + 2.5
    assert PlanEstimate(plan).notes()[-1] == (
        "engine starts are estimates: 62 s, reading weights at 4 GB/s"
    )
    # the rate of a disk is no other deployment
    assert deployment.id == sized([1]).deployments[0].id


def test_weights_that_are_made_are_not_read(judged: Callable[..., None]) -> None:
    judged(lambda settings: verdict("fits", weight_bytes=10e9))
    plan = sized([1], load_format="dummy")
    (deployment,) = plan.deployments
    assert estimated_start_s(deployment) == START_S
    assert "reading" not in PlanEstimate(plan).notes()[-1]


def test_endpoints_need_no_start_and_emulators_little() -> None:
    deployments = [
        {"engine": "endpoint", "url": "http://h:1", "served_model_name": "m"},
        {"engine": "emulator"},
    ]
    endpoint, emulator = planned(deployments=deployments).deployments
    assert estimated_start_s(endpoint) == 0.0
    assert estimated_start_s(emulator) == EMULATED_START_S


def test_an_emulator_of_no_hardware_takes_cores_and_five_seconds() -> None:
    plan = planned(
        deployments=[{"engine": "emulator"}, {"engine": "emulator", "hardware": "h100"}],
        hardware=H100,
    )
    estimate = PlanEstimate(plan)
    of_no_hardware, of_gpus = plan.deployments
    assert estimate.cost(of_no_hardware).gpu_hours == 0
    assert estimate.cost(of_gpus).gpu_hours > 0
    assert "engine starts are estimates: 5 s" in estimate.notes()


def test_starts_cost_gpu_hours_and_known_start_times_count() -> None:
    plan = sized([2])
    sums = PlanEstimate(plan, known_start_s={plan.deployments[0].id: 240.0}).totals()
    assert (sums.start_s, sums.load_s) == (240.0, 60.0)
    assert sums.gpu_hours == pytest.approx(2 * 300 / 3600)
    assert sums.usd == pytest.approx(2 * sums.gpu_hours)
    assert PlanEstimate(plan).totals().start_s == START_S
    assert "engine starts are estimates: 60 s" in PlanEstimate(plan).notes()
    assert not any("estimates" in note for note in estimate_without_starts(plan).notes())


def test_equal_start_times_are_noted_once(judged: Callable[..., None]) -> None:
    # times that differ by hundredths of a second are one time in words
    judged(lambda settings: verdict("fits", weight_bytes=10e6 * settings.tensor_parallel_size))
    assert (
        "engine starts are estimates: 60 s, reading weights at 1 GB/s"
        in PlanEstimate(sized([1, 2])).notes()
    )


def test_every_start_of_a_deployment_is_counted() -> None:
    plan = planned(load=MINUTE, repeats=4, starts=2)
    sums = PlanEstimate(plan, known_start_s={plan.deployments[0].id: 30.0}).totals()
    assert (sums.start_s, sums.load_s) == (60.0, 240.0)


@pytest.mark.parametrize(("nodes", "minutes"), [(1, 4.0), (2, 2.0), (3, 2.0), (4, 1.0), (9, 1.0)])
def test_deployments_share_the_nodes(nodes: int, minutes: float) -> None:
    assert estimate_without_starts(sized([1, 2, 4, 8]), nodes).makespan_s() == minutes * 60


@pytest.mark.parametrize(
    ("orders_by_prediction", "makespan_s"),
    [
        (True, 90.0 + 180.0),  # both of 90 s at once, then the one of 180 s
        (False, 180.0),  # the longest first, and the others one after the other beside it
    ],
)
def test_the_best_prediction_starts_first_as_in_the_sweep(
    orders_by_prediction: bool, makespan_s: float
) -> None:
    sizes = {**grid(tensor_parallel_size=[1, 2, 4]), "hardware": "h100"}
    plan = planned(
        deployments=sizes,
        hardware=H100,
        load=MINUTE,
        predictions={"order": orders_by_prediction},
    )
    first, second, longest = plan.deployments
    plan = plan.with_deployments(
        [
            with_predicted_throughput(first, 900.0),
            with_predicted_throughput(second, 900.0),
            with_predicted_throughput(longest, 300.0),
        ]
    )
    # with a minute of load each: 90 s, 90 s and 180 s
    known_start_s = {first.id: 30.0, second.id: 30.0, longest.id: 120.0}
    assert PlanEstimate(plan, 2, known_start_s).makespan_s() == makespan_s


def with_predicted_throughput(deployment: Deployment, per_gpu: float) -> Deployment:
    """``per_gpu``: output tokens per second of a GPU."""
    capacity = PredictedCapacity("request_rate", 1.0, per_gpu, per_gpu, (per_gpu, per_gpu), None)
    prediction = Prediction(capacities={"s": {"w": capacity}})
    return deployment.model_copy(update={"predicted": prediction})


def test_replicas_over_several_nodes_take_them_all_at_once() -> None:
    """Three deployments of a minute each take two nodes, two nodes, and one."""
    cases = [{"replicas": 2}, {"nnodes": 2, "tensor_parallel_size": 16}, {}]
    plan = sized([8], tensor_parallel_size=8, vary=[{"cases": cases}])
    assert [deployment.status for deployment in plan.deployments] == ["planned"] * 3
    assert estimate_without_starts(plan, 2).makespan_s() == 180.0
    # the last one runs beside one of the others
    assert estimate_without_starts(plan, 3).makespan_s() == 120.0
    assert estimate_without_starts(plan).makespan_s() is None


def test_replicas_that_no_nodes_hold_together_are_impossible() -> None:
    settings = {"engine": "vllm", "hardware": "h100", "tensor_parallel_size": 8, "replicas": 3}
    (deployment,) = planned(deployments=settings, hardware=H100, cluster_nodes=2).deployments
    assert deployment.reasons == ("needs 3 nodes; the cluster has 2",)
    two_on_a_node = {**settings, "tensor_parallel_size": 4, "replicas": 4}
    (deployment,) = planned(deployments=two_on_a_node, hardware=H100, cluster_nodes=2).deployments
    assert deployment.status == "planned"


def test_the_budget_of_time_is_held_against_the_nodes() -> None:
    plan = planned(
        deployments=grid(tensor_parallel_size=[1, 2]), load=MINUTE, budget={"wall": "90s"}
    )
    assert estimate_without_starts(plan, 2).over_budget() == []
    assert estimate_without_starts(plan, 1).over_budget() == [
        "it takes 2 min on 1 node; the budget is 90 s"
    ]


def test_a_slightly_exceeded_budget_is_noted_with_the_difference() -> None:
    """In words, both the 3 minutes that the plan takes and a budget of 170 s are 3 min."""

    def over(wall: str) -> list[str]:
        plan = planned(
            deployments=grid(tensor_parallel_size=[1, 2, 4]), load=MINUTE, budget={"wall": wall}
        )
        return estimate_without_starts(plan, 1).over_budget()

    assert over("170s") == ["it takes 10 s more on 1 node; the budget is 3 min"]
    assert over("179.9s") == []  # less than half a second is no excess


def test_an_unset_key_of_an_endpoint_is_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    endpoint = {
        "engine": "endpoint",
        "url": "http://h:1",
        "served_model_name": "m",
        "api_key_env": "SOME_KEY",
    }
    plan = planned(deployments=endpoint)
    assert plan.unset_keys() == ["SOME_KEY"]
    assert any(
        note.startswith("SOME_KEY (api_key_env) is not set here")
        for note in PlanEstimate(plan).notes()
    )
    monkeypatch.setenv("SOME_KEY", "x")
    assert plan.unset_keys() == []


def routed(engine: str, router: str) -> dict[str, Any]:
    return {
        "engine": engine,
        "router": {"engine": router, "executable": "/opt/router"},
        "replicas": 2,
    }


@pytest.mark.parametrize(
    ("deployment", "titles"),
    [
        ({"engine": "transformers"}, ["transformers serve"]),
        ({"engine": "vllm"}, []),
        ({"engine": "emulator"}, []),
        (routed("vllm", "vllm_router"), ["vLLM's router"]),
        (routed("sglang", "sglang_router"), []),
    ],
)
def test_engines_and_routers_without_a_key_are_noted(
    deployment: dict[str, Any], titles: list[str]
) -> None:
    notes = PlanEstimate(planned(deployments=deployment)).notes()
    no_key = " asks for no key: whoever reaches its node can use it, and on one host all its users"
    assert [note.removesuffix(no_key) for note in notes if note.endswith(no_key)] == titles


@pytest.mark.parametrize(
    ("levels", "is_noted"), [({"request_rate": [1, 8]}, True), ({"concurrency": [1, 8]}, False)]
)
def test_a_rate_that_is_not_kept_up_with_may_take_longer(
    levels: dict[str, list[int]], is_noted: bool
) -> None:
    plan = planned(load={"levels": levels, "duration": "60s", "drain_timeout": "4m"})
    late = [note for note in PlanEstimate(plan).notes() if "by up to 4 min (drain_timeout)" in note]
    assert len(late) == is_noted

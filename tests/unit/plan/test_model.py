"""The frozen plan: exact in JSON, refused when it is not ours, and its sums."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.analysis.prediction import (
    NOTHING_PREDICTED,
    PredictedCapacity,
    PredictedStart,
    Prediction,
)
from orchestrator.base.errors import InputError, ProblemsError
from orchestrator.capacity.strategy import LevelsInOrder
from orchestrator.plan import make
from orchestrator.plan.cost import PlanEstimate
from orchestrator.plan.make import load_plan, write_plan
from orchestrator.plan.model import Plan
from orchestrator.spec.load import Level
from tests.unit.plan.files import grid, measurements, planned
from tests.unit.spec.files import GOOD

pytestmark = pytest.mark.usefixtures("judged")

RICH: dict[str, Any] = {
    "hardware": {"h100": {"accelerator": "H100-80GB", "usd_per_gpu_hour": 3.0, "labels": {"a": "b"}}},
    "deployments": {
        "engine": "vllm",
        "hardware": "h100",
        "extra_args": {"--async-scheduling": True, "--middleware": ["a"], "--watermark": 1.5},
        "vary": [
            {"grid": {"tensor_parallel_size": [1, 4]}},
            {"cases": [{}, {"hf_overrides": {"rope": {"factor": 2.0}}}]},
        ],
        "derive": {"gpus": "tensor_parallel_size", "pair": "(1, gpus)"},
        "exclude": ["gpus == 4 and hf_overrides is not None"],
    },
    "workloads": [
        {"name": "talk", "kind": "conversations", "turns": 3, "think_time": "250ms", "output_tokens": 7,
         "input_tokens": {"lognormal": {"mean": 50, "sigma": 0.1}}},
    ],
    "load": {
        "levels": {"request_rate": [0.5], "concurrency": [3]},
        "arrivals": {"process": "steps", "steps": [[0.5, "60s"], [2, "30s"]]},
        "duration": "90s",
        "max_in_flight": 10,
    },
    "slos": {"fast": {"ttft": "500ms", "attainment": 0.9}},
    "budget": {"gpu_hours": 1, "usd": 1.5, "wall": "1h"},
    "repeats": 2,
}  # fmt: skip


def test_a_plan_survives_json_exactly() -> None:
    plan = planned(**RICH)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert measurements(again) == measurements(plan)
    assert again.to_json() == plan.to_json()


def test_deployments_read_back_share_the_prediction_of_nothing() -> None:
    plan = planned(deployments={**grid(tensor_parallel_size=[1, 2]), "exclude": ["True"]})
    again = Plan.from_json(plan.to_json())
    assert all(each.predicted is NOTHING_PREDICTED for each in again.deployments)


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=3),
    st.floats(0.001, 1e6),
    st.integers(1, 10**6),
    st.sampled_from(["250ms", "0.1s", "3us", "1h"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_plans_of_any_numbers_survive_json(
    sizes: list[int], rate: float, requests: int, warmup: str
) -> None:
    load = {"levels": {"request_rate": [rate]}, "requests": requests, "warmup": warmup}
    plan = planned(deployments=grid(tensor_parallel_size=sizes), load=load)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_written_plan_is_read_as_it_is(tmp_path: Path) -> None:
    plan = planned(**RICH)
    write_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_an_experiment_in_json_is_not_taken_for_a_plan(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(GOOD))
    assert load_plan(tmp_path / "x.json").name == "small"


def test_a_plan_of_another_version_is_refused_with_the_reason(tmp_path: Path) -> None:
    text = planned().to_json()
    content = json.loads(text) | {"program_version": "0.0.1"}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(
        InputError, match=r"written by version 0\.0\.1, this is .*: plan the experiment again"
    ):
        load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"deployments": 5}, "deployments"),
        ({"plan_format": 2}, "plan the experiment again"),
        ({"loads": [{}]}, "loads.0"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_damaged_plan_is_refused(change: dict[str, Any], message: str) -> None:
    content = json.loads(planned().to_json()) | change
    with pytest.raises(InputError, match=message):
        Plan.from_json(json.dumps(content))


def test_a_plan_that_holds_a_secret_is_not_run_and_the_secret_not_shown() -> None:
    secret = "hf_" + "a" * 30
    text = planned().to_json().replace('"org/model"', f'"{secret}"')
    assert secret in text
    with pytest.raises(InputError, match="looks like a secret") as caught:
        Plan.from_json(text)
    assert secret not in str(caught.value)
    assert Plan.from_json(text, to_run=False)  # one that is stored is still read


DEEP = pytest.param("[" * 100_000, id="deep")


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", '{"plan_format": ', DEEP])
def test_a_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a plan"):
        Plan.from_json(text)


@pytest.mark.parametrize("predicted", [[], {"capacity": 3}, {"levels": [{"workload": "chat"}]}])
def test_a_plan_whose_prediction_is_none_is_refused(predicted: Any) -> None:
    content = json.loads(planned().to_json())
    content["deployments"][0]["predicted"] = predicted
    with pytest.raises(InputError, match=r"deployments\.0\.predicted: .*not a prediction"):
        Plan.from_json(json.dumps(content))


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError, match="cannot be read"):
        load_plan(tmp_path / "none.yaml")


def test_of_a_plan_that_is_too_large_no_more_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(planned(), tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").deployments
    monkeypatch.setattr(make, "MOST_PLAN_BYTES", 100)
    with pytest.raises(InputError, match=r"plan.json: cannot be read: it is larger than 100 bytes"):
        load_plan(tmp_path / "plan.json")


def test_a_plan_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_plan(planned(), tmp_path / "no" / "plan.json")


def test_a_strategy_knows_the_predicted_capacity_of_its_deployment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, asked = planned(slos={"fast": {"ttft": "1s"}, "slow": {"ttft": "9s"}}), []
    monkeypatch.setattr(
        LevelsInOrder, "__init__", lambda self, question: asked.append(question.first_guess)
    )
    load, (one, *_) = plan.loads[0], plan.deployments
    slow = PredictedCapacity("request_rate", 9.0, 90.0, 90.0, (80.0, 99.0), None)
    capacities = {
        "slow": {load.workload.name: slow},
        "fast": {load.workload.name: replace(slow, level=2.5)},
    }
    started = Prediction({"": PredictedStart(weight_bytes=1)})
    for predicted in (NOTHING_PREDICTED, started, Prediction(capacities=capacities)):
        changed = plan.model_copy(
            update={"deployments": (one.model_copy(update={"predicted": predicted}),)}
        )
        Plan.from_json(changed.to_json()).strategy(load, one.id)
    assert asked == [None, None, 2.5]


def test_a_point_of_a_level_is_always_the_same() -> None:
    plan = planned(**RICH)
    deployment, load = plan.runnable()[0], plan.loads[0]
    asked = [plan.point(deployment.id, load, level) for level in load.levels]
    assert asked == plan.points_of(deployment.id)
    again = Plan.from_json(plan.to_json())
    assert again.point(deployment.id, again.loads[0], load.levels[0]) == asked[0]
    other = Level(control=load.levels[0].control, value=12345.0)
    assert plan.point(deployment.id, load, other).point_id not in {
        point.point_id for point in asked
    }
    with pytest.raises(KeyError):
        plan.deployment("none")


def test_more_starts_keep_the_measurements_of_the_first_start() -> None:
    before = {measurement.measurement_id for measurement in measurements(planned(repeats=2))}
    after = measurements(planned(repeats=2, starts=2))
    assert {(one.start, one.measurement_id in before) for one in after} == {(0, True), (1, False)}


def test_an_endpoint_is_measured_on_one_start_and_the_plan_says_so() -> None:
    endpoint = {"engine": "endpoint", "url": "http://h:1", "served_model_name": "m"}
    plan = planned(deployments=[endpoint, {"engine": "vllm"}], repeats=2, starts=2)
    starts = {
        plan.deployment(measurement.deployment_id).settings.engine: measurement.start
        for measurement in measurements(plan)
    }
    assert starts == {"endpoint": 0, "vllm": 1}  # of the last repeat
    assert [note for note in plan.notes if note.startswith("starts: 2 does not apply to endpoints")]
    assert not planned(repeats=2, starts=2).notes


def test_totals_add_up_the_load() -> None:
    plan = planned(**RICH)
    sums = PlanEstimate(
        plan, known_start_s=dict.fromkeys((deployment.id for deployment in plan.deployments), 0.0)
    ).totals()
    assert (sums.planned, sums.excluded, sums.points, sums.measurements) == (3, 1, 6, 12)
    each_s = 2 * 2 * 90.0  # repeats, levels and duration
    assert sums.load_s == 3 * each_s
    assert sums.gpu_hours == pytest.approx((1 + 1 + 4) * each_s / 3600)
    assert sums.usd == pytest.approx(sums.gpu_hours * 3.0)


def test_a_sweep_above_the_budget_is_noted_with_its_starts() -> None:
    tight = {**RICH, "budget": {"gpu_hours": 0.5, "usd": 1, "wall": "100s"}}
    plan = planned(**tight)
    estimate = PlanEstimate(
        plan, known_start_s=dict.fromkeys((deployment.id for deployment in plan.deployments), 80.0)
    )
    assert estimate.over_budget() == [
        "it takes 0.73 GPU hours; the budget is 0.5",
        "it costs 2.20 USD; the budget is 1",
        "it takes 7 min for one deployment alone; the budget is 100 s",
    ]
    assert PlanEstimate(planned(**{**RICH, "budget": None})).over_budget() == []
    assert "note: it costs" in estimate.summary()


def test_a_plan_without_points_says_so() -> None:
    plan = planned(deployments={"engine": "vllm", "exclude": ["true"]})
    assert "note: nothing is left to measure" in PlanEstimate(plan).summary()
    assert "nothing is left" not in PlanEstimate(planned()).summary()


def test_a_number_of_requests_lasts_as_long_as_its_arrivals() -> None:
    load = {"levels": {"request_rate": [4], "concurrency": [2]}, "requests": 100, "warmup": "5s"}
    assert [point.load.estimated_s(point.level) for point in planned(load=load).points] == [
        30.0,
        65.0,
    ]


def test_cores_are_no_gpu_hours() -> None:
    assert (
        PlanEstimate(planned(deployments={"engine": "vllm", "hardware": "cpu"})).totals().gpu_hours
        == 0
    )

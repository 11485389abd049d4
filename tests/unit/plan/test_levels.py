"""Levels that scale with a deployment."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.base.errors import ProblemsError
from orchestrator.cli.plan import plan as plan_command
from orchestrator.plan.cost import PlanEstimate
from orchestrator.plan.model import Plan
from orchestrator.sweep.commit import deployment_row
from orchestrator.sweep.state import cost_of
from tests.unit.plan.files import grid, planned
from tests.unit.spec.files import GOOD

TWO = grid(tensor_parallel_size=[1, 4]) | {
    "derive": {"half": "tensor_parallel_size // 2"},
    "max_num_seqs": 64,
}


def levels(plan: Plan) -> list[list[tuple[str, float]]]:
    return [
        [(point.level.control, point.level.value) for point in plan.points_of(deployment.id)]
        for deployment in plan.deployments
    ]


def found(**load: Any) -> list[list[tuple[str, float]]]:
    return levels(planned(deployments=TWO, load=load))


def test_levels_per_gpu_and_expressions_are_those_of_each_deployment() -> None:
    assert found(levels={"request_rate_per_gpu": [0.5, 2], "request_rate": [8]}) == [
        [("request_rate", 8), ("request_rate", 0.5), ("request_rate", 2)],
        [("request_rate", 8), ("request_rate", 2)],  # 4 GPUs x 2 is the 8 that is given already
    ]
    assert found(levels={"concurrency": [1, "max_num_seqs // 2", "max_num_seqs * devices"]}) == [
        [("concurrency", 1), ("concurrency", 32), ("concurrency", 64)],
        [("concurrency", 1), ("concurrency", 32), ("concurrency", 256)],
    ]
    assert found(levels={"concurrency_per_gpu": [2], "request_rate": ["1 + half"]}) == [
        [("request_rate", 1), ("concurrency", 2)],
        [("request_rate", 3), ("concurrency", 8)],
    ]


def test_points_at_equal_levels_have_equal_ids_however_the_file_says_them() -> None:
    plain, scaled = (
        planned(deployments=grid(tensor_parallel_size=[2]), load={"levels": one})
        for one in ({"request_rate": [2, 4]}, {"request_rate_per_gpu": [1, 2]})
    )
    assert [point.point_id for point in plain.points] == [point.point_id for point in scaled.points]
    again = Plan.from_json(scaled.to_json())
    assert again == scaled and again.points == scaled.points


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"request_rate": ["2 * tensor_paralel_size"]},
            "unknown field 'tensor_paralel_size'; did you mean",
        ),
        ({"request_rate": ["2 *"]}, "is not an expression"),
        ({"request_rate": ["half"]}, "'half' is 0, and a level is a number above 0"),
        ({"request_rate": ["max_model_len"]}, "is None, and a level is a number above 0"),
        ({"request_rate": ["max_model_len * 2"]}, "not set here: max_model_len"),
        ({"request_rate": ["'a'"]}, "a level is a number above 0"),
        ({"request_rate": ["1e9"]}, "a point may have"),
        (
            {"concurrency": ["devices / 3"]},
            "'devices / 3' is 0.333333, and concurrency is a whole number",
        ),
        ({"concurrency": ["200000"]}, "at most 100000"),
        ({"concurrency_per_gpu": [60_000]}, "at most 100000"),
        ({"request_rate_per_gpu": [1, 1]}, "request_rate_per_gpu 1.0 is given twice"),
    ],
)
def test_invalid_levels_are_problems_with_their_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        planned(deployments=TWO, load={"levels": given})
    assert any(said in str(problem) for problem in caught.value.problems), caught.value
    assert all(problem.line for problem in caught.value.problems)


def test_an_expression_that_is_none_is_parsed_once_for_all_deployments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = list[str]()

    def parse(text: str, known: object) -> object:
        parsed.append(text)
        raise ValueError(f"{text} is not an expression")

    monkeypatch.setattr("orchestrator.plan.levels.parse_expression", parse)
    with pytest.raises(ProblemsError, match=r"once over is not an expression"):
        planned(deployments=TWO, load={"levels": {"request_rate": ["once over"]}})
    assert parsed == ["once over"]


def test_an_endpoint_has_no_gpus_to_count() -> None:
    with pytest.raises(
        ProblemsError, match=r"say how many GPUs the endpoint has \(endpoint_gpus: 8\)"
    ):
        planned(
            deployments={"engine": "endpoint", "url": "http://x:1", "model": "m"},
            load={"levels": {"request_rate_per_gpu": [1]}},
        )


def test_an_endpoint_has_its_stated_gpus_and_costs_no_start() -> None:
    made = planned(
        deployments={
            "engine": "endpoint",
            "url": "http://x:1",
            "model": "m",
            "endpoint_gpus": 16,
            "hardware": "h100",
        },
        hardware={
            "h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 3.0}
        },
        load={"levels": {"request_rate_per_gpu": [0.5]}},
        repeats=2,
        starts=2,
    )
    assert levels(made) == [[("request_rate", 8)]]
    (deployment,) = made.deployments
    row = deployment_row(deployment, made.name)
    assert deployment.status == "planned"
    assert row.devices == 16
    assert row.usd_per_hour == 48.0
    assert not row.launched
    assert PlanEstimate(made).cost(deployment).gpu_hours == cost_of(deployment, 3600.0).gpu_s == 0


def test_excluded_deployments_need_no_levels() -> None:
    some = TWO | {"exclude": ["half == 0"]}
    assert levels(planned(deployments=some, load={"levels": {"request_rate": ["half"]}})) == [
        [],
        [("request_rate", 2)],
    ]


def test_auto_is_a_curve_and_nothing_else() -> None:
    plan = planned(load={"levels": "auto", "control": "concurrency"})
    assert (plan.loads[0].search, plan.loads[0].levels) == ("curve", ())
    assert [point.level.value for point in plan.points] == [2**step for step in range(8)]
    with pytest.raises(
        ProblemsError, match="'levels: auto' is search: curve, and the search is 'levels'"
    ):
        planned(load={"levels": "auto", "search": "levels"})
    with pytest.raises(ProblemsError, match="it finds levels by itself"):
        planned(load={"levels": {"request_rate": [1]}, "search": "curve"})


def test_the_plan_shows_the_levels_of_each_deployment(tmp_path: Any) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        json.dumps({**GOOD, "deployments": TWO, "load": {"levels": {"request_rate_per_gpu": [1]}}})
    )
    shown = CliRunner().invoke(plan_command, [str(file)]).output
    assert "levels: 1 req/s\n  vllm tp=1" in shown and "levels: 4 req/s\n  vllm tp=4" in shown
    document = json.loads(CliRunner().invoke(plan_command, [str(file), "--format", "json"]).output)
    assert [one["levels"] for one in document["deployments"]] == [
        [{"control": "request_rate", "value": 1.0}], [{"control": "request_rate", "value": 4.0}],
    ]  # fmt: skip

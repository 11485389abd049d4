"""Candidates: unknown names, hardware, paths, and combinations that are equal."""

from __future__ import annotations

import pytest

from tests.unit.plan.files import (
    grid,
    only_problem,
    planned,
)

pytestmark = pytest.mark.usefixtures("judged")


def test_equal_deployments_are_merged_with_a_note() -> None:
    plan = planned(deployments=grid(tensor_parallel_size=[2, 2, 1]))
    assert [deployment.label for deployment in plan.deployments] == ["vllm tp=2", "vllm tp=1"]
    assert plan.notes == ("1 combinations are equal to another one and are measured once",)


def test_of_equal_deployments_the_one_that_is_not_excluded_counts() -> None:
    first = {**grid(tensor_parallel_size=[1, 2]), "exclude": ["tensor_parallel_size == 2"]}
    plan = planned(deployments=[first, {"engine": "vllm", "tensor_parallel_size": 2}])
    assert [deployment.status for deployment in plan.deployments] == ["planned", "planned"]


def test_a_launched_engine_without_hardware_takes_any() -> None:
    assert planned().deployments[0].hardware.name == "any"


def test_cpu_is_built_in() -> None:
    (deployment,) = planned(
        deployments={"engine": "vllm", "hardware": "cpu", "tensor_parallel_size": 2}
    ).deployments
    assert deployment.hardware.is_cpu
    assert deployment.devices == 2


def test_a_variable_that_is_not_set_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_FOLDER", raising=False)
    problem = only_problem(model={"id": "${NO_SUCH_FOLDER}/model"})
    assert problem.message == "environment variable 'NO_SUCH_FOLDER' is not set"

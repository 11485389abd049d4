"""The step models of a plan's deployments, and when two of them give the same times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.plan.model import Plan
from orchestrator.simulation.models import EngineModels, engines_of, model_digest
from tests.unit.simulation.builders import EXPERIMENT, planned

SEARCH = "load: {search: capacity, control: request_rate, duration: 20s, warmup: 5s}"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


def rules_digest(plan: Plan) -> str:
    return EngineModels(plan).rules_digest(plan.deployments[0])


def test_equal_deployments_have_models_of_one_digest(plan: Plan) -> None:
    first, second = plan.deployments
    models = EngineModels(plan)
    digest = model_digest(models.step_model(first))
    assert digest == model_digest(EngineModels(plan).step_model(first))
    assert digest != model_digest(models.step_model(second))


@pytest.mark.parametrize("changes", [{"jitter": 0.5}, {"request_overhead_s": 1.0}])
def test_every_time_of_a_model_changes_its_digest(plan: Plan, changes: dict[str, Any]) -> None:
    model = EngineModels(plan).step_model(plan.deployments[0])
    other = replace(model, rank=replace(model.rank, **changes))
    assert model_digest(other) != model_digest(model)


def test_rules_of_a_search_are_part_of_what_attempts_depend_on(plan: Plan) -> None:
    fine = planned(load=SEARCH.replace("}", ", precision: 0.02}"))
    coarse = planned(load=SEARCH.replace("}", ", precision: 0.1}"))
    assert rules_digest(fine) != rules_digest(coarse)
    longer = planned(load="load: {levels: {request_rate: [2, 8]}, duration: 30s, warmup: 5s}")
    assert rules_digest(longer) == rules_digest(plan)


def test_engines_are_as_many_as_the_deployment_has_replicas() -> None:
    text = EXPERIMENT.replace("{tensor_parallel_size: 2}", "{replicas: 3}")
    plan = planned(text)
    (deployment,) = [each for each in plan.deployments if each.settings.replicas == 3]
    engines = engines_of(deployment, EngineModels(plan).step_model(deployment))
    assert engines.replicas == 3

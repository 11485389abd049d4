"""A plan as JSON, in pieces."""

from __future__ import annotations

import json

from orchestrator.plan.cost import PlanEstimate
from orchestrator.plan.model import Plan
from orchestrator.report.plan_json import plan_json
from tests.unit.plan.stored_sweeps import planned


def pieces(plan: Plan) -> list[bytes]:
    return list(plan_json(PlanEstimate(plan)))


def test_the_pieces_are_one_json_text_with_a_piece_for_each_deployment() -> None:
    plan = planned()
    texts = pieces(plan)
    document = json.loads(b"".join(texts))
    assert len(texts) == len(plan.deployments) + 2
    assert [each["label"] for each in document["deployments"]] == [
        deployment.label for deployment in plan.deployments
    ]
    assert document["name"] == "exp"
    assert document["measurements"] == 2


def test_a_deployment_that_does_not_run_costs_nothing() -> None:
    plan = planned()
    first, second = plan.deployments
    excluded = first.model_copy(update={"status": "excluded"})
    document = json.loads(b"".join(pieces(plan.with_deployments([excluded, second]))))
    costs = [each["cost"] for each in document["deployments"]]
    assert costs[0] is None
    assert costs[1]["load_s"] > 0


def test_a_plan_without_deployments_is_json_too() -> None:
    document = json.loads(b"".join(pieces(planned().with_deployments([]))))
    assert document["deployments"] == []

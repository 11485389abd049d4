"""Plans of small experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Measurement, Plan, Point
from orchestrator.spec.experiment import Experiment, parse_experiment
from tests.unit.spec.files import GOOD

H100 = {"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8, "usd_per_gpu_hour": 2.0}}


def experiment(file: Path | str = "x.yaml", **changes: Any) -> Experiment:
    return parse_experiment(json.dumps({**GOOD, **changes}), str(file))


def planned(
    file: Path | str = "x.yaml", *, cluster_nodes: int | None = None, **changes: Any
) -> Plan:
    return make_plan(experiment(file, **changes), cluster_nodes=cluster_nodes)


def only_problem(**changes: Any) -> Problem:
    """The one problem that keeps the good experiment from being planned after these changes."""
    with pytest.raises(ProblemsError) as caught:
        planned(**changes)
    (problem,) = caught.value.problems
    return problem


def grid(**axes: list[Any]) -> dict[str, Any]:
    """Deployments of vLLM over a grid."""
    return {"engine": "vllm", "vary": [{"grid": axes}]}


def statuses(plan: Plan) -> dict[str, str]:
    return {deployment.label: deployment.status for deployment in plan.deployments}


def measurements(plan: Plan) -> list[Measurement]:
    """All that are known beforehand: the first repeat of every point, then the second, and so on."""
    points: list[tuple[Point, int]] = []
    for deployment in plan.deployments:
        for known in plan.known_levels(deployment.id):
            points.append((plan.point(deployment.id, known.load, known.level), known.repeats))
    most = max((repeats for _, repeats in points), default=0)
    return [
        plan.measurement(point, repeat)
        for repeat in range(most)
        for point, repeats in points
        if repeat < repeats
    ]

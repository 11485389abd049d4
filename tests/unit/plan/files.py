"""Plans of small experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Measurement, Plan
from orchestrator.spec.experiment import Experiment, parse_experiment
from tests.unit.spec.files import GOOD


def experiment(file: Path | str = "x.yaml", **changes: Any) -> Experiment:
    return parse_experiment(json.dumps({**GOOD, **changes}), str(file))


def planned(
    file: Path | str = "x.yaml", *, cluster_nodes: int | None = None, **changes: Any
) -> Plan:
    return make_plan(experiment(file, **changes), cluster_nodes=cluster_nodes)


def grid(**axes: list[Any]) -> dict[str, Any]:
    """Deployments of vLLM over a grid."""
    return {"engine": "vllm", "vary": [{"grid": axes}]}


def statuses(plan: Plan) -> dict[str, str]:
    return {one.label: one.status for one in plan.deployments}


def measurements(plan: Plan) -> list[Measurement]:
    """All that are known beforehand: the first repeat of every point, then the second, and so on."""
    counted = [(one.id, *known) for one in plan.deployments for known in plan.known_levels(one.id)]
    known = [(plan.point(name, load, level), times) for name, load, level, times in counted]
    most = max((times for _, times in known), default=0)
    return [
        plan.measurement(point, repeat)
        for repeat in range(most)
        for point, times in known
        if repeat < times
    ]

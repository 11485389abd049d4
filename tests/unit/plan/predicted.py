"""Plans with predictions, of one model on H100s."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.plan.model import Deployment, Plan
from orchestrator.plan.predictions import with_predictions
from tests.unit.plan.files import planned

EXPERIMENT: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "hardware": {"h100": {"accelerator": "H100-80GB", "gpus_per_node": 8}},
    "deployments": {"engine": "vllm", "hardware": "h100", "max_model_len": 8192,
                    "vary": [{"grid": {"tensor_parallel_size": [1, 2, 4]}}]},
    "workloads": [{"name": "chat", "input_tokens": 600, "output_tokens": {"uniform": {"min": 50, "max": 450}}}],
    "load": {"levels": {"request_rate": [1, 4, 4000]}},
    "slos": {"fast": {"ttft": "500ms", "tpot": "20ms"}, "slow": {"ttft": "2s", "tpot": "100ms"}},
}  # fmt: skip


def predicted_plan(file: Path | str = "x.yaml", **changes: Any) -> Plan:
    return with_predictions(planned(file, **{**EXPERIMENT, **changes}))


def deployments(**changes: Any) -> dict[str, Any]:
    return {**EXPERIMENT["deployments"], **changes}


def capacity(deployment: Deployment, slo: str = "fast", workload: str = "chat") -> dict[str, Any]:
    of_workload: dict[str, Any] = prediction_of(deployment)["capacity"][slo][workload]
    return of_workload


def prediction_of(deployment: Deployment) -> dict[str, Any]:
    """The prediction as plan.json has it."""
    return deployment.predicted.document()


def reasons_not_predicted(plan: Plan) -> set[str]:
    return {deployment.predicted.not_predicted or "" for deployment in plan.deployments}

"""What a plan predicts of its deployments, as records."""

from __future__ import annotations

from typing import Any

from orchestrator.analysis.prediction import Prediction
from orchestrator.plan.model import Deployment, Plan
from orchestrator.report.documents.predicted_deployment import (
    PredictedMemory,
    predicted_deployments,
    predicted_memory,
)
from tests.unit.plan.stored_sweeps import planned

MEMORY = {
    "weight_bytes": 2**30,
    "kv_cache_tokens": 1024,
    "max_concurrency": 4.0,
    "max_num_seqs": 8,
}
CAPACITY = {
    "control": "request_rate",
    "level": 24.0,
    "output_throughput": 192.0,
    "output_throughput_per_gpu": 96.0,
    "interval_per_gpu": [80.0, 120.0],
    "usd_per_million_tokens": None,
}


def predicting(*predicted: dict[str, Any] | None) -> Plan:
    """A plan whose two deployments have these predictions."""
    plan = planned()
    deployments = [
        deployment.model_copy(update={"predicted": Prediction.from_document(prediction or {})})
        for deployment, prediction in zip(plan.deployments, predicted, strict=True)
    ]
    return plan.with_deployments(deployments)


def first(predicted: dict[str, Any] | None) -> Deployment:
    return predicting(predicted, None).deployments[0]


def test_no_more_sequences_run_at_once_than_there_are_slots() -> None:
    assert predicted_memory(first(MEMORY | {"max_num_seqs": 1})).sequences_at_once == 1
    assert predicted_memory(first(MEMORY)) == PredictedMemory(2**30, 1024, 4.0)


def test_of_replicas_with_roles_those_that_decode_hold_the_cache() -> None:
    of_roles = {f"decode.{name}": value for name, value in MEMORY.items()}
    of_roles["prefill.kv_cache_tokens"] = 7
    assert predicted_memory(first(of_roles)).kv_cache_tokens == 1024


def test_without_a_prediction_nothing_is_known_of_memory() -> None:
    assert predicted_memory(first(None)) == PredictedMemory(None, None, None)


def test_capacities_and_errors_are_records() -> None:
    error = {
        "ttft": 0.3,
        "tpot": 0.05,
        "source": "x",
        "within": {"ttft": 2, "tpot": 1.2},
        "counted": False,
    }
    predicted = {"capacity": {"interactive": {"chat": CAPACITY}}, "error": error}
    deployment, _ = predicted_deployments(predicting(predicted, None))
    assert deployment.capacities["interactive"]["chat"].interval_per_gpu == (80.0, 120.0)
    assert deployment.error is not None
    assert (deployment.error.ttft, deployment.error.is_counted) == (0.3, False)


def test_the_reason_for_a_missing_prediction_is_kept() -> None:
    without, bare = predicted_deployments(predicting({"not_predicted": "it runs already"}, None))
    assert (without.not_predicted, without.error, without.capacities) == (
        "it runs already",
        None,
        {},
    )
    assert (bare.not_predicted, bare.missing_row) == (None, None)

"""What a plan predicts of its deployments: the records that ``plan --predict`` shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.deployments import PredictedCapacity, prediction_of
from orchestrator.plan.model import Deployment, Plan


@dataclass(frozen=True, slots=True)
class PredictionError:
    """How far off such predictions were: median errors of TTFT and TPOT as shares.

    ``source``: what they were compared with. ``is_counted``: intervals hold nine in ten points by
    count; else they would if logarithms of errors were normal.
    """

    ttft: float
    tpot: float
    source: str
    is_counted: bool


@dataclass(frozen=True, slots=True)
class PredictedDeployment:
    """``capacities``: by SLO, then by workload.

    ``missing_row``: why tables were asked for and the formula answered. ``not_predicted``: why
    nothing is predicted. None: no such reason. ``simulated``: the capacities come from `simulate`.
    """

    label: str
    capacities: Mapping[str, Mapping[str, PredictedCapacity]]
    error: PredictionError | None
    missing_row: str | None
    not_predicted: str | None
    simulated: bool


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """Of one device: bytes of weights and tokens of KV cache; and how many sequences of
    ``max_model_len`` run at once. None: not known.
    """

    weight_bytes: float | None
    kv_cache_tokens: int | None
    sequences_at_once: float | None


def predicted_memory(deployment: Deployment) -> PredictedMemory:
    """Of replicas with roles, those that decode: they hold the KV cache of all that is answered."""
    figures = dict(deployment.predicted or {})
    for name, value in list(figures.items()):
        figures[name.removeprefix("decode.")] = value
    at_once = figures.get("max_concurrency")
    if at_once:
        at_once = min(at_once, figures["max_num_seqs"])
    return PredictedMemory(
        weight_bytes=figures.get("weight_bytes"),
        kv_cache_tokens=figures.get("kv_cache_tokens"),
        sequences_at_once=at_once,
    )


def predicted_deployments(plan: Plan) -> list[PredictedDeployment]:
    """Every deployment of a plan, also those that have no prediction."""
    return [
        _predicted_deployment(deployment.label, deployment.predicted or {})
        for deployment in plan.deployments
    ]


def _predicted_deployment(label: str, predicted: Mapping[str, Any]) -> PredictedDeployment:
    """``predicted``: as plan.json has it."""
    prediction = prediction_of(predicted)
    error = None if "not_predicted" in predicted else predicted.get("error")
    return PredictedDeployment(
        label=label,
        capacities=prediction.capacities,
        error=_prediction_error(error),
        missing_row=predicted.get("no_row"),
        not_predicted=predicted.get("not_predicted"),
        simulated=prediction.simulated,
    )


def _prediction_error(error: Mapping[str, Any] | None) -> PredictionError | None:
    if not error:
        return None
    return PredictionError(
        ttft=error["ttft"],
        tpot=error["tpot"],
        source=error["source"],
        is_counted=bool(error.get("counted")),
    )

"""What a plan predicts of its deployments: the records that ``plan --predict`` shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.deployments import PredictedCapacity, prediction_of
from orchestrator.plan.model import Deployment, Plan


@dataclass(frozen=True, slots=True)
class PredictionError:
    """How far off such predictions were: the median errors of TTFT and TPOT, as shares.

    ``source``: with what they were compared. ``is_counted``: intervals hold nine in ten points by
    count; else they would hold so many if the logarithms of errors were normal.
    """

    ttft: float
    tpot: float
    source: str
    is_counted: bool


@dataclass(frozen=True, slots=True)
class PredictedDeployment:
    """What is predicted of one deployment.

    ``capacities``: by SLO, then by workload. ``missing_row``: why the formula was used although
    tables were asked for; None: it was not. ``not_predicted``: why nothing is predicted; None:
    something is. ``simulated``: the capacities come from `simulate`.
    """

    label: str
    capacities: Mapping[str, Mapping[str, PredictedCapacity]]
    error: PredictionError | None
    missing_row: str | None
    not_predicted: str | None
    simulated: bool


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """What is predicted of the memory of one device; None: unknown.

    ``sequences_at_once``: how many sequences of ``max_model_len`` run at once.
    """

    weight_bytes: float | None
    kv_cache_tokens: int | None
    sequences_at_once: float | None


def predicted_memory(deployment: Deployment) -> PredictedMemory:
    """The predicted memory of a deployment.

    Where replicas have roles, it is that of those that decode, since they hold the KV cache of
    every request that is being answered.
    """
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
    """Makes the record of one deployment. ``predicted``: as in plan.json."""
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

"""What a plan predicts of its deployments: the records that ``plan --predict`` shows."""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.analysis.prediction import PredictedCapacity, Prediction, PredictionError
from orchestrator.plan.model import Deployment, Plan


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
    start = deployment.predicted.starts.get("decode", deployment.predicted.start)
    at_once = start.max_concurrency
    if at_once and start.max_num_seqs is not None:
        at_once = min(at_once, start.max_num_seqs)
    return PredictedMemory(
        weight_bytes=start.weight_bytes,
        kv_cache_tokens=start.kv_cache_tokens,
        sequences_at_once=at_once,
    )


def predicted_deployments(plan: Plan) -> list[PredictedDeployment]:
    """Every deployment of a plan, also those that have no prediction."""
    return [
        _predicted_deployment(deployment.label, deployment.predicted)
        for deployment in plan.deployments
    ]


def _predicted_deployment(label: str, prediction: Prediction) -> PredictedDeployment:
    # where nothing is predicted, the error is about what a simulation would find
    error = prediction.error if prediction.not_predicted is None else None
    return PredictedDeployment(
        label=label,
        capacities=prediction.capacities,
        error=error,
        missing_row=prediction.missing_row,
        not_predicted=prediction.not_predicted,
        simulated=prediction.simulated,
    )

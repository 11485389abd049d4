"""What a plan predicts of its deployments: the records that ``plan --predict`` shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.deployments import PredictedCapacity, prediction_of
from orchestrator.plan.model import Plan


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
    nothing is predicted. None: no such reason.
    """

    label: str
    capacities: Mapping[str, Mapping[str, PredictedCapacity]]
    error: PredictionError | None
    missing_row: str | None
    not_predicted: str | None


def predicted_deployments(plan: Plan) -> list[PredictedDeployment]:
    """Every deployment of a plan, also those that have no prediction."""
    return [
        _predicted_deployment(deployment.label, deployment.predicted or {})
        for deployment in plan.deployments
    ]


def _predicted_deployment(label: str, predicted: Mapping[str, Any]) -> PredictedDeployment:
    """``predicted``: as plan.json has it."""
    return PredictedDeployment(
        label=label,
        capacities=prediction_of(predicted).capacities,
        error=_prediction_error(predicted.get("error")),
        missing_row=predicted.get("no_row"),
        not_predicted=predicted.get("not_predicted"),
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

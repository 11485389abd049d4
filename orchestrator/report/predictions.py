"""The text of ``orchestrator plan --predict``: what a plan predicts, best first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.prediction import PredictedCapacity, PredictionError
from orchestrator.analysis.slo import format_slo
from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import listed
from orchestrator.plan.model import Plan
from orchestrator.plan.order import predicted_share
from orchestrator.plan.predictions import DEFAULT_SLO, limits_of
from orchestrator.report.documents.predicted_deployment import (
    PredictedDeployment,
    predicted_deployments,
)
from orchestrator.report.text import Column, figure, styled, table
from orchestrator.spec.load import Slo, load_text

MOST_ROWS = 200
MOST_LABELS = 8  # named with a reason; the others are counted
MOST_WITH_ERROR = 3  # likewise with an error


def predictions_text(plan: Plan) -> Iterator[str]:
    """A table per workload and SLO, then how far off predictions are, and what has none."""
    deployments = predicted_deployments(plan)
    for slo in limits_of(plan):
        for load in plan.loads:
            yield from _table(deployments, load.workload.name, slo)
    yield from _errors(deployments)
    yield from _reasons(deployments)
    if predicted_share(plan):
        yield _order_text(plan)
    yield ""


def _errors(deployments: Sequence[PredictedDeployment]) -> Iterator[str]:
    """Each error once; of several with the deployments whose error it is."""
    labels_by_error = values_by_key(
        (deployment.error, deployment.label)
        for deployment in deployments
        if deployment.error is not None
    )
    for error, labels in labels_by_error.items():
        names = f": {listed(labels, most=MOST_WITH_ERROR)}" if len(labels_by_error) > 1 else ""
        yield f"{_error_text(error)}{names}"


def _error_text(error: PredictionError) -> str:
    median = f"{error.ttft:.0%} (TTFT), {error.tpot:.0%} (TPOT)"
    intervals = "would hold 9 in 10 if logarithms of errors were normal"
    if error.is_counted:
        intervals = "hold 9 in 10"
    return f"median error of predictions: {median}, on {error.source}; intervals {intervals}"


def _reasons(deployments: Sequence[PredictedDeployment]) -> Iterator[str]:
    """Each reason once, with the deployments that it is about."""
    by_formula = values_by_key(
        (deployment.missing_row, deployment.label) for deployment in deployments
    )
    for reason, labels in by_formula.items():
        if reason:
            names = listed(labels, most=MOST_LABELS)
            yield f"predicted by the formula, no tables: {reason}: {names}"
    without = values_by_key(
        (deployment.not_predicted, deployment.label) for deployment in deployments
    )
    for reason, labels in without.items():
        if reason:
            yield f"not predicted: {reason}: {listed(labels, most=MOST_LABELS)}"


def _order_text(plan: Plan) -> str:
    if plan.predictions.order:
        return (
            "'run' starts with those predicted best (predictions: {order: false}: with the longest)"
        )
    return "the longest are run first (predictions: {order: false})"


@dataclass(frozen=True, slots=True)
class _PredictedRow:
    throughput_per_gpu: float
    cells: list[str]


def _table(deployments: Sequence[PredictedDeployment], workload: str, slo: Slo) -> Iterator[str]:
    rows = []
    for deployment in deployments:
        capacity = deployment.capacities.get(slo.name, {}).get(workload)
        if capacity is not None:
            cells = _cells(deployment.label, capacity)
            rows.append(_PredictedRow(capacity.output_throughput_per_gpu, cells))
    if not rows:
        return
    rows.sort(key=lambda row: (-row.throughput_per_gpu, row.cells))
    name = "default limits (MLPerf interactive)" if slo is DEFAULT_SLO else slo.name
    origin = "simulated" if any(each.simulated for each in deployments) else "predicted"
    yield styled(f"{origin} capacity of {workload} under {name}: {format_slo(slo)}", "bold")
    titles = [
        "load",
        "output tokens/s\nper GPU",
        "9 in 10 within",
        "USD per million\noutput tokens",
    ]
    columns = [Column("deployment", fold=True), *map(Column, titles)]
    yield from table(columns, [row.cells for row in rows[:MOST_ROWS]])
    if len(rows) > MOST_ROWS:
        yield f"… and {len(rows) - MOST_ROWS:,} more; --format json shows all"
    yield ""


def _cells(label: str, capacity: PredictedCapacity) -> list[str]:
    level = "none holds"
    if capacity.level:
        three_digits = float(f"{capacity.level:.3g}")
        level = load_text(capacity.control, three_digits)
    lowest, highest = capacity.interval_per_gpu
    usd = capacity.usd_per_million_tokens
    return [
        label,
        level,
        figure(capacity.output_throughput_per_gpu),
        f"{figure(lowest)}-{figure(highest)}",
        "-" if usd is None else f"{usd:.2f}",
    ]

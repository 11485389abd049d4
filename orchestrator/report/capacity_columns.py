"""The columns of a searched capacity, as ``orchestrator.capacities`` has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter

from orchestrator.analysis.deployments import StoredDeployment
from orchestrator.analysis.prediction import PredictedCapacity
from orchestrator.analysis.slo import format_slo
from orchestrator.capacity.claim import claim_document
from orchestrator.report.column import SIMULATED, ReportColumn, field_of
from orchestrator.report.columns import by_name
from orchestrator.report.documents.capacity import CapacityBounds, CapacityDocument
from orchestrator.report.shared_columns import (
    deployment_columns,
    setting_columns,
)
from orchestrator.results.records import PointHead

CapacityColumn = ReportColumn[CapacityDocument]
USUAL_OF_CAPACITIES = (
    *("experiment", "workload", "deployment", "deployment_id", "engine", "model", "hardware"),
    *("devices", "slo_name", "slo", "control", "claim", "low", "high", "status", "estimate"),
    *("estimate.lower", "estimate.upper", "safe", "claim_per_gpu"),
    *("low_per_gpu", "high_per_gpu", "predicted.level", "measured_over_predicted", "emulated"),
    "simulated",
)


@cache
def capacity_columns() -> dict[str, CapacityColumn]:
    """All columns of a searched capacity."""
    columns = [
        *_capacity_head(),
        *deployment_columns(_deployment_of_capacity),
        *_claim(),
        *_bounds_per_unit(),
        *_predicted_capacity(),
        *setting_columns(_deployment_of_capacity),
    ]
    return by_name(columns, USUAL_OF_CAPACITIES)


def _head_of_capacity(document: CapacityDocument) -> PointHead:
    return document.probe.head


def _deployment_of_capacity(document: CapacityDocument) -> StoredDeployment:
    return document.probe.deployment


def _limits_of_capacity(document: CapacityDocument) -> str:
    return format_slo(document.slo)


def _predicted(document: CapacityDocument) -> PredictedCapacity | None:
    return document.predicted


def _capacity_head() -> Iterator[CapacityColumn]:
    def of(name: str) -> Callable[[CapacityDocument], object]:
        return field_of(_head_of_capacity, name)

    label = field_of(_deployment_of_capacity, "label")
    yield ReportColumn("experiment", "", "name of the experiment", of("experiment"), str)
    yield ReportColumn("workload", "", "name of the workload", of("workload"), str)
    yield ReportColumn("deployment", "", "label of the deployment", label, str)
    yield ReportColumn("deployment_id", "", "id of the deployment", of("deployment_id"), str)
    description = "whether an emulator answered"
    yield ReportColumn("emulated", "", description, attrgetter("probe.emulated"), bool)
    yield ReportColumn("simulated", "", SIMULATED, attrgetter("probe.simulated"), bool)
    yield ReportColumn("slo_name", "", "name of the limits", attrgetter("slo.name"), str)
    yield ReportColumn("slo", "", "the limits", _limits_of_capacity, str)
    control = "request_rate or concurrency: what was searched"
    yield ReportColumn("control", "", control, attrgetter("control"), str)


def _claim() -> Iterator[CapacityColumn]:
    def of(name: str) -> Callable[[CapacityDocument], float | str | None]:
        def value(document: CapacityDocument) -> float | str | None:
            return claim_document(document.claim)[name]

        return value

    yield ReportColumn("claim", "", "load that the search claims", of("claim"))
    yield ReportColumn("low", "", "highest load shown to hold", of("low"))
    yield ReportColumn("high", "", "lowest load shown to fail", of("high"))
    yield ReportColumn("status", "", "how the search ended", of("status"), str)
    yield ReportColumn("estimate", "", "load that the probes expect to hold", of("estimate"))
    for end in ("lower", "upper"):
        description = f"{end} end of its interval of 95 %"
        yield ReportColumn(f"estimate.{end}", "", description, of(f"estimate.{end}"))
    safe = "highest load probed that was shown to hold, or does with 95 %"
    yield ReportColumn("safe", "", safe, of("safe"))


def _bounds_per_unit() -> Iterator[CapacityColumn]:
    for unit, bounds_of_row in (("gpu", _per_gpu), ("usd", _per_usd)):
        for name in ("claim", "low", "high"):
            yield ReportColumn(
                name=f"{name}_per_{unit}",
                unit="",
                description=f"{name} per {unit.upper()}",
                value=_finite(bounds_of_row, name),
            )


def _per_gpu(document: CapacityDocument) -> CapacityBounds | None:
    return document.per_gpu


def _per_usd(document: CapacityDocument) -> CapacityBounds | None:
    return document.per_usd


def _finite(
    bounds_of_row: Callable[[CapacityDocument], CapacityBounds | None], name: str
) -> Callable[[CapacityDocument], float | None]:
    """Reads a field of bounds; None where it is infinite: no level was shown to fail."""

    def value(document: CapacityDocument) -> float | None:
        bounds = bounds_of_row(document)
        number: float | None = None if bounds is None else getattr(bounds, name)
        return None if number is None or number == float("inf") else number

    return value


def _predicted_capacity() -> Iterator[CapacityColumn]:
    level = field_of(_predicted, "level")
    yield ReportColumn("predicted.level", "", "load that the plan predicts", level)
    ratio = "the claim over the predicted load"
    yield ReportColumn("measured_over_predicted", "", ratio, attrgetter("measured_over_predicted"))
    yield ReportColumn(
        name="worse_than_predicted",
        unit="",
        description="whether it fails below the interval of the prediction",
        value=attrgetter("is_worse_than_predicted"),
        kind=bool,
    )

"""The columns of a point.

``--where``, ``--sort`` and ``--columns`` of ``orchestrator results`` name them, and frames of
``orchestrator.points`` have them. The JSON of a point has the same names, nested ones with dots.
Two of them are no single values there: ``repeats`` is a list (``merged.used`` is its number), and
``slo`` is an object (``slo.text`` has the limits). docs/reference/metrics.md defines the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

from orchestrator.analysis.deployments import StoredDeployment
from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.prediction import ErrorFactors
from orchestrator.report.agreement import agreement_fields
from orchestrator.report.column import (
    SETTINGS,
    SIMULATED,
    SOURCE,
    ReportColumn,
    RowT,
    bounds_of,
    field_of,
    named_column,
)
from orchestrator.report.documents.point import PointDocument, SloResult, per_device
from orchestrator.report.documents.prediction import FIGURES
from orchestrator.report.efficiency_columns import efficiency_columns
from orchestrator.report.fact_columns import fact_columns
from orchestrator.report.shared_columns import (
    deployment_columns,
    figure_columns,
    limit_columns,
    setting_columns,
)
from orchestrator.results.records import Figures, LaunchRow, PointHead

PointColumn: TypeAlias = ReportColumn[PointDocument]

SIMULATED_BESIDE_MEASURED = (
    "simulated points do not compare with measured ones: take one kind, such as"
    ' points[points["simulated"]]'
)
SOURCES_MIXED = (
    "points of other tools do not compare with measured ones, or with each other's: take those of"
    ' one, such as points[points["source"].isna()]'
)
USUAL = (
    *("experiment", "workload", "deployment", "deployment_id", "point_id", "engine", "model"),
    *("hardware", "devices", "control", "level", "validity", "emulated", "simulated", "source"),
    *("starts", "repeats"),
    *("requests.failed", "output_token_throughput", "output_token_throughput.lower"),
    *("output_token_throughput.upper", "per_device", "per_device.lower", "per_device.upper"),
    *("per_user", "ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "tpot_ms.p99", "e2e_ms.p50"),
    *("e2e_ms.p99", "attainment", "attainment.lower", "attainment.upper", "met", "goodput"),
)


@cache
def point_columns() -> dict[str, PointColumn]:
    """All columns by name, those of USUAL first, settings last."""
    columns = [
        *_identity(),
        *_verdict(),
        *_with_intervals(figure_columns(_figures)),
        *limit_columns(_first_result),
        *efficiency_columns(),
        *_comparisons(),
        *setting_columns(_deployment),
    ]
    return by_name(columns, USUAL)


def by_name(
    columns: Iterable[ReportColumn[RowT]], usual: tuple[str, ...]
) -> dict[str, ReportColumn[RowT]]:
    """Columns by name. ``usual``: names of those that are shown by default; they come first."""
    all_columns = {column.name: column for column in columns}
    usual_columns = {name: replace(all_columns[name], is_usual=True) for name in usual}
    return usual_columns | {
        name: column for name, column in all_columns.items() if name not in usual_columns
    }


def named_slo_columns(names: Iterable[str]) -> Iterator[PointColumn]:
    """The columns of each SLO of the file, such as ``slos.interactive.attainment``."""
    for name in names:
        yield from limit_columns(_result_named(name), f"slos.{name}.")


def column_names() -> list[str]:
    """All names that ``column_named`` finds."""
    columns = point_columns()
    settings = [name.removeprefix(SETTINGS) for name in columns if name.startswith(SETTINGS)]
    return list(dict.fromkeys([*columns, *settings]))


def column_named(name: str) -> PointColumn | None:
    """The column of this name; None: there is none. ``settings.`` may be left out of a name."""
    return named_column(point_columns(), name)


def _head(document: PointDocument) -> PointHead:
    return document.point.head


def _deployment(document: PointDocument) -> StoredDeployment:
    return document.point.deployment


def _figures(document: PointDocument) -> Figures:
    return document.point.figures


def _first_result(document: PointDocument) -> SloResult | None:
    results = document.slo_results
    return results[0] if results else None


def _result_named(name: str) -> Callable[[PointDocument], SloResult | None]:
    def result(document: PointDocument) -> SloResult | None:
        for each in document.slo_results:
            if each.slo.name == name:
                return each
        return None

    return result


def _identity() -> Iterator[PointColumn]:
    label = field_of(_deployment, "label")
    yield _of_head("experiment", "name of the experiment")
    yield _of_head("workload", "name of the workload")
    yield ReportColumn("deployment", "", "label of the deployment", label, str)
    yield _of_head("deployment_id", "id of the deployment")
    yield _of_head("point_id", "id of the point")
    yield from deployment_columns(_deployment)
    yield _of_head("control", "request_rate or concurrency")
    level = field_of(_head, "level")
    yield ReportColumn("level", "", "load: requests/s, or requests in flight", level)
    yield _of_head("arrivals", "when requests are due")
    yield from fact_columns()
    yield ReportColumn("knee", "", "whether the curve bends there", _is_knee, bool)


def _of_head(name: str, description: str) -> PointColumn:
    return ReportColumn(name, "", description, field_of(_head, name), str)


def _is_knee(document: PointDocument) -> bool:
    return document.is_knee


def _verdict() -> Iterator[PointColumn]:
    yield ReportColumn("status", "", "ok, or failed", _status, str)
    yield ReportColumn("reason", "", "why it failed", _failure("reason"), str)
    description = "who failed: docs/reference/failures.md"
    yield ReportColumn("failure_class", "", description, _failure("failure_class"), str)
    description = "what failed: docs/reference/failures.md"
    yield ReportColumn("failure_kind", "", description, _failure("failure_kind"), str)
    yield ReportColumn("log_uri", "", "log of the engine", field_of(_launch, "log_uri"), str)
    yield ReportColumn("log_tail", "", "its last lines", field_of(_launch, "log_tail"), str)
    yield ReportColumn("validity", "", "how honestly it was measured", _validity, str)
    yield ReportColumn("validity_reasons", "", "what to know of it", _reasons, str)
    yield ReportColumn("emulated", "", "whether an emulator answered", _emulated, bool)
    yield ReportColumn("simulated", "", SIMULATED, _simulated, bool)
    yield ReportColumn("source", "", SOURCE, _source, str)
    factor = "factor of what is simulated that 9 in 10 measurements lie within"
    yield ReportColumn("model_error.ttft", "", f"{factor}: TTFT", field_of(_model_error, "ttft"))
    yield ReportColumn(
        "model_error.others", "", f"{factor}: all else", field_of(_model_error, "tpot")
    )
    source = "what the model's error was found on"
    yield ReportColumn("model_error.source", "", source, field_of(_model_error, "source"), str)
    yield ReportColumn("current", "", "whether the plan asks for it", _is_current, bool)
    yield ReportColumn("starts", "", "engine starts that it was measured on", _starts, int)
    yield ReportColumn("repeats", "", "repeats that its figures come from", _repeats, int)
    yield ReportColumn("merged.of", "", "repeats that are stored", _stored_repeats, int)
    yield ReportColumn("merged.failed", "", "repeats that failed", _failed_repeats, int)


def _status(document: PointDocument) -> str:
    return "ok" if document.point.used_repeats else "failed"


def _failure(name: str) -> Callable[[PointDocument], Any]:
    def value(document: PointDocument) -> Any:
        failed = document.failed
        return getattr(failed[0] if failed else document.point.head, name)

    return value


def _launch(document: PointDocument) -> LaunchRow | None:
    return document.launch


def _validity(document: PointDocument) -> str:
    return document.point.validity


def _reasons(document: PointDocument) -> list[str]:
    return document.point.reasons


def _emulated(document: PointDocument) -> bool:
    return document.point.emulated


def _simulated(document: PointDocument) -> bool:
    return document.point.simulated


def _source(document: PointDocument) -> str | None:
    return document.point.source


def _model_error(document: PointDocument) -> ErrorFactors | None:
    return document.point.model_error


def _is_current(document: PointDocument) -> bool:
    return document.is_current


def _starts(document: PointDocument) -> int:
    return len(set(document.point.starts))


def _repeats(document: PointDocument) -> int:
    return len(document.point.used_repeats)


def _stored_repeats(document: PointDocument) -> int:
    return len(document.point.repeats)


def _failed_repeats(document: PointDocument) -> int:
    return len(document.failed)


def _with_intervals(columns: Iterable[PointColumn]) -> Iterator[PointColumn]:
    """The columns; after output tokens per second come their interval, and both per device."""
    for column in columns:
        yield column
        if column.name == "output_token_throughput":
            yield from bounds_of(column.name, "tokens/s", _tokens_interval)
            yield ReportColumn(
                name="per_device",
                unit="tokens/s",
                description="output tokens per GPU or core",
                value=field_of(_per_device_interval, "estimate"),
            )
            yield from bounds_of("per_device", "tokens/s", _per_device_interval)


def _tokens_interval(document: PointDocument) -> Interval | None:
    return document.point.output_token_throughput()


def _per_device_interval(document: PointDocument) -> Interval | None:
    return per_device(_tokens_interval(document), document.point.deployment.devices)


def _comparisons() -> Iterator[PointColumn]:
    description = "share of tokens equal to the reference's"
    yield ReportColumn("agreement", "", description, _agreement("agreement"))
    yield ReportColumn("agreement_n", "", "tokens compared", _agreement("agreement_n"), int)
    description = "what was compared: tokens or characters"
    yield ReportColumn("agreement_unit", "", description, _agreement("agreement_unit"), str)
    description = "the deployment that it is compared with"
    reference = _agreement("agreement_reference")
    yield ReportColumn("agreement_reference", "", description, reference, str)
    description = "why there is no share"
    yield ReportColumn("agreement_note", "", description, _agreement("agreement_note"), str)
    units = {"ttft_ms": "ms", "tpot_ms": "ms", "output_throughput": "tokens/s"}
    for name in FIGURES:
        yield ReportColumn(
            name=f"predicted.{name}",
            unit=units[name],
            description=f"{name} as the plan predicts it",
            value=_predicted(name),
        )
        yield ReportColumn(
            name=f"measured_over_predicted.{name}",
            unit="",
            description=f"measured {name} over what was predicted",
            value=_measured_over_predicted(name),
        )
    description = "whether it is worse than the prediction's known error explains"
    yield ReportColumn("worse_than_predicted", "", description, _is_worse, bool)


def _agreement(name: str) -> Callable[[PointDocument], object]:
    def value(document: PointDocument) -> object:
        return agreement_fields(document.point)[name]

    return value


def _predicted(name: str) -> Callable[[PointDocument], float | None]:
    def value(document: PointDocument) -> float | None:
        return None if document.prediction is None else document.prediction.predicted[name]

    return value


def _measured_over_predicted(name: str) -> Callable[[PointDocument], float | None]:
    def value(document: PointDocument) -> float | None:
        return None if document.prediction is None else document.prediction.ratio[name]

    return value


def _is_worse(document: PointDocument) -> bool | None:
    return None if document.prediction is None else bool(document.prediction.worse)

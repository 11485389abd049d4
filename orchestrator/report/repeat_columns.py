"""The columns of a repeat, as ``orchestrator.repeats`` has them.

A column that a point has too has the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter

from orchestrator.report.column import (
    SETTINGS,
    SIMULATED,
    SOURCE,
    ReportColumn,
    field_of,
    seen_from,
)
from orchestrator.report.columns import PointColumn, by_name, point_columns
from orchestrator.report.documents.point import PointDocument, RepeatDocument, SloResult
from orchestrator.report.shared_columns import (
    figure_columns,
    limit_columns,
)
from orchestrator.results.records import EngineSide, Figures, PointHead


@dataclass(frozen=True, slots=True)
class RepeatRow:
    """One repeat, and the point that it belongs to."""

    document: PointDocument
    repeat: RepeatDocument


RepeatColumn = ReportColumn[RepeatRow]
USUAL_OF_REPEATS = (
    *("experiment", "workload", "deployment", "point_id", "measurement_id", "engine", "model"),
    *("hardware", "devices", "control", "level", "repeat", "start", "seed", "status", "validity"),
    "source",
    *("requests.failed", "output_token_throughput", "per_user", "ttft_ms.p50", "ttft_ms.p99"),
    *("tpot_ms.p50", "tpot_ms.p99", "e2e_ms.p50", "e2e_ms.p99", "attainment"),
    *("attainment.lower", "attainment.upper", "met", "goodput"),
)
_UNITS_OF_ENGINE_SIDE = {
    "queue_time_mean_ms": "ms",
    "ttft_mean_ms": "ms",
    "prompt_tokens": "tokens",
    "generation_tokens": "tokens",
}
# columns of a point whose values all its repeats share
_SHARED_BY_REPEATS = (
    *("experiment", "workload", "deployment", "deployment_id", "point_id"),
    *("engine", "model", "hardware", "devices", "usd_per_hour", "control", "level", "arrivals"),
)


@cache
def repeat_columns() -> dict[str, RepeatColumn]:
    """All columns of a repeat."""
    columns: list[RepeatColumn] = []
    for name, column in point_columns().items():
        if name in _SHARED_BY_REPEATS:
            columns.append(_shared(column))
    columns += _repeat_head()
    columns += figure_columns(_figures_of_repeat)
    columns += limit_columns(_first_result_of_repeat)
    columns += _engine_side_columns()
    for name, column in point_columns().items():
        if name.startswith(SETTINGS):
            columns.append(_shared(column))
    return by_name(columns, USUAL_OF_REPEATS)


def _shared(column: PointColumn) -> RepeatColumn:
    return seen_from(column, attrgetter("document"))


def _head(row: RepeatRow) -> PointHead:
    return row.repeat.repeat.head


def _figures_of_repeat(row: RepeatRow) -> Figures:
    return row.repeat.repeat.figures


def _first_result_of_repeat(row: RepeatRow) -> SloResult | None:
    results = row.repeat.slo_results
    return results[0] if results else None


def _engine_side(row: RepeatRow) -> EngineSide | None:
    return row.repeat.repeat.engine_side


def _repeat_head() -> Iterator[RepeatColumn]:
    def of(name: str) -> Callable[[RepeatRow], object]:
        return field_of(_head, name)

    yield ReportColumn("measurement_id", "", "id of the repeat", of("measurement_id"), str)
    yield ReportColumn("attempt_id", "", "the attempt that counts", of("attempt_id"), str)
    yield ReportColumn("launch_id", "", "engine start that it ran on", of("launch_id"), str)
    yield ReportColumn("repeat", "", "number of the repeat, from 0", of("repeat"), int)
    yield ReportColumn("start", "", "number of the engine start, from 0", of("start"), int)
    yield ReportColumn("seed", "", "seed of the schedule", of("seed"), int)
    yield ReportColumn("status", "", "ok, or failed", of("status"), str)
    yield ReportColumn("reason", "", "why it failed", of("reason"), str)
    description = "who failed: docs/reference/failures.md"
    yield ReportColumn("failure_class", "", description, of("failure_class"), str)
    description = "what failed: docs/reference/failures.md"
    yield ReportColumn("failure_kind", "", description, of("failure_kind"), str)
    yield ReportColumn("validity", "", "how honestly it was measured", of("validity"), str)
    description = "what to know of it"
    yield ReportColumn("validity_reasons", "", description, of("validity_reasons"), str)
    yield ReportColumn("emulated", "", "whether an emulator answered", of("emulated"), bool)
    yield ReportColumn("simulated", "", SIMULATED, of("simulated"), bool)
    yield ReportColumn("source", "", SOURCE, of("source"), str)
    yield ReportColumn("clients", "", "client processes", of("clients"), int)
    attempts = attrgetter("repeat.repeat.attempts")
    yield ReportColumn("attempts", "", "attempts at it, failed ones too", attempts, int)
    description = "begin of the steady window, since the point's start"
    yield ReportColumn("window_start_ns", "ns", description, of("window_start_ns"), int)
    description = "end of the steady window, since the point's start"
    yield ReportColumn("window_end_ns", "ns", description, of("window_end_ns"), int)
    description = "the point's start, by the driver's wall clock"
    yield ReportColumn("started_unix_ns", "ns", description, of("started_unix_ns"), int)


def _engine_side_columns() -> Iterator[RepeatColumn]:
    for field in fields(EngineSide):
        words = field.name.removesuffix("_ms").replace("_", " ")
        yield ReportColumn(
            name=f"engine_side.{field.name}",
            unit=_UNITS_OF_ENGINE_SIDE.get(field.name, ""),
            description=f"{words}, as the engines report it",
            value=field_of(_engine_side, field.name),
        )

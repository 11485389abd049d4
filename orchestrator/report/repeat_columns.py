"""The columns of a repeat, as ``orchestrator.repeats`` has them.

A column that a point has too has the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache

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
    """One repeat with its SLO results, and the point that it belongs to."""

    point: PointDocument
    judged: RepeatDocument


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
    return seen_from(column, _point)


def _point(row: RepeatRow) -> PointDocument:
    return row.point


def _head(row: RepeatRow) -> PointHead:
    return row.judged.repeat.head


def _figures_of_repeat(row: RepeatRow) -> Figures:
    return row.judged.repeat.figures


def _first_result_of_repeat(row: RepeatRow) -> SloResult | None:
    results = row.judged.slo_results
    return results[0] if results else None


def _attempts(row: RepeatRow) -> int:
    return row.judged.repeat.attempts


def _engine_side(row: RepeatRow) -> EngineSide | None:
    return row.judged.repeat.engine_side


def _head_column(name: str, description: str, kind: type = str, unit: str = "") -> RepeatColumn:
    return ReportColumn(name, unit, description, field_of(_head, name), kind)


def _repeat_head() -> list[RepeatColumn]:
    """The columns of a repeat's row in ``points``, and the number of its attempts."""
    return [
        _head_column("measurement_id", "id of the repeat"),
        _head_column("attempt_id", "the attempt that counts"),
        _head_column("launch_id", "engine start that it ran on"),
        _head_column("repeat", "number of the repeat, from 0", int),
        _head_column("start", "number of the engine start, from 0", int),
        _head_column("seed", "seed of the schedule", int),
        _head_column("status", "ok, or failed"),
        _head_column("reason", "why it failed"),
        _head_column("failure_class", "who failed: docs/reference/failures.md"),
        _head_column("failure_kind", "what failed: docs/reference/failures.md"),
        _head_column("validity", "how honestly it was measured"),
        _head_column("validity_reasons", "what to know of it"),
        _head_column("emulated", "whether an emulator answered", bool),
        _head_column("simulated", SIMULATED, bool),
        _head_column("source", SOURCE),
        _head_column("clients", "client processes", int),
        ReportColumn("attempts", "", "attempts at it, failed ones too", _attempts, int),
        _head_column(
            "window_start_ns", "beginning of the steady window, since the point's start", int, "ns"
        ),
        _head_column(
            "window_end_ns", "end of the steady window, since the point's start", int, "ns"
        ),
        _head_column("started_unix_ns", "the point's start, by the driver's wall clock", int, "ns"),
    ]


def _engine_side_columns() -> Iterator[RepeatColumn]:
    for field in fields(EngineSide):
        words = field.name.removesuffix("_ms").replace("_", " ")
        yield ReportColumn(
            name=f"engine_side.{field.name}",
            unit=_UNITS_OF_ENGINE_SIDE.get(field.name, ""),
            description=f"{words}, as the engines report it",
            value=field_of(_engine_side, field.name),
        )

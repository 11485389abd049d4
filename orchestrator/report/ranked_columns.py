"""The columns of a ranking, as ``orchestrator.best`` has them.

A column that a point has too has the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from operator import attrgetter

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.slo import format_slo
from orchestrator.capacity.best import Comparison
from orchestrator.capacity.claim import claim_document
from orchestrator.report.column import ReportColumn, bounds_of, field_of, seen_from
from orchestrator.report.columns import PointColumn, by_name, point_columns
from orchestrator.report.documents.answer import ComparisonDocument, RankedDocument
from orchestrator.report.documents.point import PointDocument


@dataclass(frozen=True, slots=True)
class RankedRow:
    """A deployment in a ranking. ``rank``: from 1. ``document``: the point that stands for it."""

    rank: int
    comparison: ComparisonDocument
    ranked: RankedDocument
    document: PointDocument


RankedColumn = ReportColumn[RankedRow]
USUAL_OF_RANKED = (
    *("experiment", "workload", "model", "hardware", "slo_name", "slo", "rank", "deployment"),
    *("point_id", "engine", "devices", "control", "level", "value", "value.lower", "value.upper"),
    *("unit", "certain", "censored", "estimated"),
    *("capacity.claim", "capacity.low", "capacity.high"),
    *("attainment", "attainment.lower", "attainment.upper", "per_user"),
    *("ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "tpot_ms.p99"),
    *("starts", "repeats", "emulated", "simulated", "source"),
)
# columns of a point that a ranking lacks: they are about a curve, or a plan's earlier versions
_NOT_OF_RANKED = ("knee", "current")


@cache
def ranked_columns() -> dict[str, RankedColumn]:
    """All columns of a ranking; those of its points come last."""
    columns: dict[str, RankedColumn] = {column.name: column for column in _ranking()}
    for name, column in point_columns().items():
        if name not in columns and name not in _NOT_OF_RANKED:
            columns[name] = _of_point(column)
    return by_name(columns.values(), USUAL_OF_RANKED)


def _of_point(column: PointColumn) -> RankedColumn:
    return seen_from(column, attrgetter("document"))


def _comparison(row: RankedRow) -> Comparison:
    return row.comparison.comparison


def _throughput(row: RankedRow) -> Interval:
    return row.ranked.deployment.throughput


def _attainment(row: RankedRow) -> Interval:
    return row.ranked.deployment.attainment


def _limits_of_ranked(row: RankedRow) -> str:
    return format_slo(_comparison(row).slo)


def _ranking() -> Iterator[RankedColumn]:
    """The columns that a deployment has because it is in a ranking."""
    yield ReportColumn("rank", "", "place in the ranking, from 1", attrgetter("rank"), int)
    yield ReportColumn("slo", "", "the limits", _limits_of_ranked, str)
    slo_name = field_of(field_of(_comparison, "slo"), "name")
    yield ReportColumn("slo_name", "", "their name in the file", slo_name, str)
    content = field_of(_comparison, "content")
    yield ReportColumn("content", "", "what else was the same for all", content, str)
    yield ReportColumn("per", "", "what throughputs are per", field_of(_comparison, "per"), str)
    yield ReportColumn("unit", "", "unit of the values", attrgetter("comparison.unit"), str)
    certain = field_of(_comparison, "certain")
    yield ReportColumn("certain", "", "whether the first is shown to be the best", certain, bool)
    yield ReportColumn("why", "", "how certain it is", attrgetter("comparison.verdict"), str)
    decide = "what would make it certain"
    yield ReportColumn("decide", "", decide, attrgetter("comparison.remedies"), str)
    estimate = field_of(_throughput, "estimate")
    yield ReportColumn("value", "", "throughput in the unit of column unit", estimate)
    yield from bounds_of("value", "", _throughput)
    share = field_of(_attainment, "estimate")
    yield ReportColumn("attainment", "", "share of requests that met the limits", share)
    yield from bounds_of("attainment", "", _attainment)
    starts = field_of(_throughput, "starts")
    yield ReportColumn("starts", "", "engine starts that it was measured on", starts, int)
    yield ReportColumn("censored", "", "whether it may hold more", _is_censored, bool)
    is_estimate = attrgetter("ranked.deployment.is_estimate")
    estimated = "whether the value is an estimate: nothing is claimed of it yet"
    yield ReportColumn("estimated", "", estimated, is_estimate, bool)
    for name, description in (
        ("claim", "load that a search claims"),
        ("low", "highest load shown to hold"),
        ("high", "lowest load shown to fail"),
        ("estimate", "load that the probes expect to hold"),
        ("estimate.lower", "lower end of its interval of 95 %"),
        ("estimate.upper", "upper end of its interval of 95 %"),
        ("safe", "highest load probed that was shown to hold, or does with 95 %"),
    ):
        yield ReportColumn(f"capacity.{name}", "", description, _capacity(name))
    yield ReportColumn("capacity.status", "", "how the search ended", _capacity("status"), str)
    yield ReportColumn("notes", "", "what to know of it", attrgetter("ranked.notes"), str)


def _is_censored(row: RankedRow) -> bool:
    return row.ranked.deployment.lower_bound_only


def _capacity(name: str) -> Callable[[RankedRow], float | str | None]:
    def value(row: RankedRow) -> float | str | None:
        capacity = row.ranked.deployment.capacity
        return None if capacity is None else claim_document(capacity)[name]

    return value

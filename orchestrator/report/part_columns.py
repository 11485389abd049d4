"""The columns of a part of a mix, as ``orchestrator.parts`` has them.

A column that a point has too has the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import attrgetter

from orchestrator.report.column import SETTINGS, ReportColumn, seen_from
from orchestrator.report.columns import PointColumn, by_name, point_columns
from orchestrator.report.documents.part import PartDocument
from orchestrator.report.documents.point import SloResult
from orchestrator.report.shared_columns import figure_columns, limit_columns

PartColumn = ReportColumn[PartDocument]
USUAL_OF_PARTS = (
    *("experiment", "workload", "part", "deployment", "deployment_id", "point_id", "engine"),
    *("model", "hardware", "devices", "control", "level", "validity", "emulated", "simulated"),
    *("source", "share_of_requests", "share_of_output_tokens", "requests.scheduled"),
    *("requests.failed", "request_throughput", "output_token_throughput", "per_user"),
    *("ttft_ms.p50", "ttft_ms.p99", "tpot_ms.p50", "tpot_ms.p99", "e2e_ms.p50", "e2e_ms.p99"),
    *("attainment", "attainment.lower", "attainment.upper", "met", "goodput"),
)
_COLUMNS_OF_THE_POINT = (
    *("experiment", "workload", "deployment", "deployment_id", "point_id", "engine", "model"),
    *("hardware", "devices", "usd_per_hour", "control", "level", "arrivals", "status", "validity"),
    *("validity_reasons", "emulated", "simulated", "source", "current", "starts", "repeats"),
)
_FACTS = ("cached_share", "expected_cached_share", "constraint_violations")


@cache
def part_columns() -> dict[str, PartColumn]:
    """All columns of a part."""
    columns: list[PartColumn] = []
    for name in _COLUMNS_OF_THE_POINT:
        columns.append(_column_of_the_point(point_columns()[name]))
    columns += _columns_of_the_part()
    columns += figure_columns(attrgetter("figures"))
    columns += limit_columns(_result_of_first_slo)
    for name, column in point_columns().items():
        if name.startswith(SETTINGS):
            columns.append(_column_of_the_point(column))
    return by_name(columns, USUAL_OF_PARTS)


def named_slo_columns_of_parts(names: Iterable[str]) -> Iterator[PartColumn]:
    """The columns of each SLO of the file, such as ``slos.interactive.attainment``."""
    for name in names:
        yield from limit_columns(_result_of_slo(name), f"slos.{name}.")


def _column_of_the_point(column: PointColumn) -> PartColumn:
    """A column whose value all parts of a point share."""
    return seen_from(column, attrgetter("point"))


def _columns_of_the_part() -> Iterator[PartColumn]:
    """The columns of the part itself: its name, its shares of the mix, and its facts."""
    yield ReportColumn("part", "", "name of the part of the mix", attrgetter("part"), str)
    description = "share of the mix's requests that were due in the steady window"
    yield ReportColumn("share_of_requests", "", description, attrgetter("share_of_requests"))
    description = "share of the mix's output tokens in the steady window"
    value = attrgetter("share_of_output_tokens")
    yield ReportColumn("share_of_output_tokens", "", description, value)
    for name in _FACTS:
        description = point_columns()[name].description
        yield ReportColumn(name, "", description, attrgetter(f"facts.{name}"))


def _result_of_first_slo(document: PartDocument) -> SloResult | None:
    return document.slo_results[0] if document.slo_results else None


def _result_of_slo(name: str) -> Callable[[PartDocument], SloResult | None]:
    """Reads the result under the SLO of this name; None where the part was not judged by it."""

    def result_of(document: PartDocument) -> SloResult | None:
        for result in document.slo_results:
            if result.slo.name == name:
                return result
        return None

    return result_of

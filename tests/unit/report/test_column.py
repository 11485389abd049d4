"""Columns: fields, entries of mappings, and the choice of some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from orchestrator.analysis.intervals import Interval
from orchestrator.base.errors import InputError
from orchestrator.report.column import (
    ReportColumn,
    bounds_of,
    chosen_columns,
    field_of,
    named_column,
)


@dataclass
class Row:
    interval: Interval | None = None
    errors: Mapping[str, object] | None = None


def interval(row: Row) -> Interval | None:
    return row.interval


def errors(row: Row) -> Mapping[str, object] | None:
    return row.errors


RATE: ReportColumn[Row] = ReportColumn(
    "rate", "1/s", "a rate", field_of(interval, "estimate"), is_usual=True
)
ERRORS: ReportColumn[Row] = ReportColumn("errors", "", "errors", errors, Mapping)
COLUMNS = {column.name: column for column in (RATE, *bounds_of("rate", "1/s", interval), ERRORS)}


def test_a_field_of_nothing_is_nothing() -> None:
    row = Row(interval=Interval(2.0, 1.0, 3.0))
    assert [COLUMNS[name].value(row) for name in ("rate", "rate.lower", "rate.upper")] == [2, 1, 3]
    assert [COLUMNS[name].value(Row()) for name in ("rate", "rate.upper")] == [None, None]


def test_an_entry_of_a_mapping_is_found_however_deep_it_lies() -> None:
    column = named_column(COLUMNS, "errors.http.500")
    assert column is not None
    assert column.value(Row(errors={"http": {"500": 3}})) == 3
    assert column.value(Row(errors={})) is None
    assert column.value(Row()) is None
    assert named_column(COLUMNS, "rate.middle") is None


def test_columns_are_chosen_in_the_order_in_which_they_are_named() -> None:
    def names(asked: object) -> list[str]:
        return [column.name for column in chosen_columns(COLUMNS, asked)]

    assert names(None) == ["rate"]
    assert names("all") == ["rate", "rate.lower", "rate.upper", "errors"]
    assert names(["errors.timeout", "rate", "rate"]) == ["errors.timeout", "rate"]
    assert names("rate.upper") == ["rate.upper"]


def test_a_name_that_is_no_column_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown column 'rate.uper'; did you mean 'rate.upper'"):
        chosen_columns(COLUMNS, ["rate.uper"])

"""Rows as Arrow tables, and these as frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest

from orchestrator.base.errors import InputError
from orchestrator.report.arrow_frames import arrow_table, as_frame
from orchestrator.report.column import ReportColumn


def column(kind: type) -> ReportColumn[dict[str, Any]]:
    return ReportColumn("value", "ms", "a value", itemgetter("value"), kind)


def table_of(kind: type, *values: object) -> pa.Table:
    return arrow_table([column(kind)], [{"value": value} for value in values])


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        (float, (1, None, 0.1 + 0.2), [1.0, None, 0.1 + 0.2]),
        (float, (math.nan, math.inf), [None, math.inf]),
        (int, (2**60, None), [2**60, None]),
        (bool, (True, None), [True, None]),
        (str, (["a", "b"], (), None), ["a; b", "", None]),
        (object, (1, 2.5), [1.0, 2.5]),
        (object, (True, "on", None), ["True", "on", None]),
        (object, (None,), [None]),
    ],
)
def test_a_column_has_one_type(kind: type, values: tuple[object, ...], stored: list[Any]) -> None:
    assert table_of(kind, *values)["value"].to_pylist() == stored


def test_entries_of_mappings_are_columns_of_their_own() -> None:
    table = table_of(Mapping, {"a": 1, "b": {"c": "x"}}, None, {"a": 2})
    assert table.column_names == ["value.a", "value.b.c"]
    assert table["value.a"].to_pylist() == [1, None, 2]
    assert table["value.b.c"].to_pylist() == ["x", None, None]


def test_pandas_keeps_types_and_takes_units_along() -> None:
    frame = as_frame(table_of(int, 1, None), "pandas")
    assert str(frame["value"].dtype) == "Int64"
    assert frame.attrs == {"units": {"value": "ms"}, "descriptions": {"value": "a value"}}
    assert frame[frame["value"] > 0].attrs == frame.attrs


def test_metadata_of_the_table_are_attributes_of_the_frame() -> None:
    table = arrow_table([column(int)], [], {"why": "nothing holds"})
    assert as_frame(table, "arrow") is table
    assert as_frame(table, "pandas").attrs["why"] == "nothing holds"
    assert as_frame(table, "polars").shape == (0, 1)


def test_a_module_that_is_no_library_of_frames_is_refused() -> None:
    with pytest.raises(
        InputError, match="unknown library of frames 'panda'; did you mean 'pandas'"
    ):
        as_frame(table_of(int, 1), "panda")


def test_all_values_of_a_row_are_read_together() -> None:
    """Figures of stored points are decoded in blocks of rows: column by column takes thrice as
    long.
    """
    read = []

    def value(row: int) -> int:
        read.append(row)
        return row

    columns = [ReportColumn(name, "", "a value", value, int) for name in ("a", "b")]
    arrow_table(columns, [1, 2])
    assert read == [1, 1, 2, 2]

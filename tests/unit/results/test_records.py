"""Records and their Arrow schemas: one says what the other is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.results.records import I16, PointHead, PointRow
from orchestrator.results.schemas import RECORDS, TABLES, arrow_schema, rows_of, table_of
from tests.unit.results.builders import point_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    mean: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    key: Annotated[str, "what it is called"]
    small: Annotated[I16 | None, "may be unknown"] = None
    inner: Inner | None = None
    counts: Mapping[str, int]


def test_a_field_is_a_column_with_type_description_and_nulls() -> None:
    schema = arrow_schema(Outer)
    assert schema.field("key").metadata == {b"description": b"what it is called"}
    assert (schema.field("key").type, schema.field("key").nullable) == (pa.string(), False)
    assert (schema.field("small").type, schema.field("small").nullable) == (pa.int16(), True)
    assert schema.field("inner").type.field("mean").type == pa.float64()
    assert schema.field("counts").type == pa.map_(pa.string(), pa.int64())


INNER = st.builds(Inner, mean=st.floats(allow_nan=False), names=st.lists(st.text()).map(tuple))
OUTER = st.builds(
    Outer,
    key=st.text(),
    small=st.none() | st.integers(-(2**15), 2**15 - 1),
    inner=st.none() | INNER,
    counts=st.dictionaries(st.text(), st.integers(0, 2**40)),
)


@settings(deadline=None)
@given(st.lists(OUTER))
def test_what_is_written_comes_back(rows: list[Outer]) -> None:
    assert rows_of(table_of(rows, Outer), Outer) == rows


def test_a_record_takes_its_own_columns_of_a_wider_table() -> None:
    (row,) = rows_of(table_of([PointRow(**point_row("m0", "a0"))], PointRow), PointHead)
    assert type(row) is PointHead
    assert (row.measurement_id, row.window) == ("m0", (0, 10**10))


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(KeyError, match="attempt_id"):
        rows_of(pa.table({"measurement_id": ["m0"]}), PointHead)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_says_what_it_is(table: str) -> None:
    assert TABLES[table].names == list(arrow_schema(RECORDS[table]).names)
    assert all(field.metadata[b"description"] for field in TABLES[table])

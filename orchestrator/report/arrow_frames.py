"""Makes Arrow tables of rows, with units and descriptions, and pandas or Polars frames of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa

from orchestrator.base.errors import InputError
from orchestrator.base.extras import PACKAGES, how_to_install
from orchestrator.base.registry import unknown_name
from orchestrator.report.column import ReportColumn, RowT
from orchestrator.report.formats import flat

Library = Literal["pandas", "polars", "arrow"]
Frame: TypeAlias = Any  # pandas.DataFrame, polars.DataFrame or pyarrow.Table
_ARROW: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
}
_KINDS = (bool, int, float, str)  # in this order: a bool is an int too
_NULLABLE = {
    pa.bool_(): "boolean",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
}


def arrow_table(
    columns: Sequence[ReportColumn[RowT]],
    rows: Sequence[RowT],
    about: Mapping[str, str] | None = None,
) -> pa.Table:
    """A table of these columns. Each field has its column's unit and description as metadata.

    The entries of mappings become columns of their own. ``about``: metadata of the table.
    """
    values_of_columns: list[list[object]] = [[] for _ in columns]
    for row in rows:  # row by row, since the figures of a row are decoded when they are read
        for column, values in zip(columns, values_of_columns, strict=True):
            values.append(column.value(row))
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for column, values in zip(columns, values_of_columns, strict=True):
        for plain in _plain_columns(column, values):
            array = _array(plain.kind, plain.values)
            metadata = {"unit": column.unit, "description": plain.description}
            arrays.append(array)
            fields.append(pa.field(plain.name, array.type, metadata=metadata))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=about))


def as_frame(table: pa.Table, library: Library) -> Frame:
    """The table as a frame of a library.

    A pandas frame's ``attrs`` have ``units`` and ``descriptions`` by column, and the table's
    metadata. Raises InputError for a library that is unknown or not installed.
    """
    if library == "arrow":
        return table
    frames = library_of_frames(library)
    if library == "polars":
        return frames.from_arrow(table)
    frame = table.replace_schema_metadata(None).to_pandas(types_mapper=_pandas_type)
    frame.attrs = {
        "units": _texts_of_fields(table.schema, b"unit"),
        "descriptions": _texts_of_fields(table.schema, b"description"),
    }
    for name, text in (table.schema.metadata or {}).items():
        frame.attrs[name.decode()] = text.decode()
    return frame


def with_units(table: pa.Table) -> pa.Table:
    """A stored table with the unit of each column added to the metadata of its field.

    The names of stored columns say their units (docs/reference/stored-columns.md).
    """
    fields = []
    for field in table.schema:
        metadata = {**(field.metadata or {}), b"unit": _unit_of_stored(field.name).encode()}
        fields.append(field.with_metadata(metadata))
    schema = pa.schema(fields, metadata=table.schema.metadata)
    return pa.Table.from_arrays(table.columns, schema=schema)


def _unit_of_stored(name: str) -> str:
    """The unit of a stored column, by its name; empty for names and for numbers of things."""
    if name.endswith("_ns"):
        return "ns"
    return "tokens" if "tokens" in name.split("_") else ""


def library_of_frames(library: Library) -> Any:
    """The module of this name. Raises InputError if it is no such library or is not installed."""
    if library not in get_args(Library):
        raise InputError(unknown_name("library of frames", library, get_args(Library)))
    try:
        return import_module(library)
    except ImportError as error:
        command = how_to_install(library) if library in PACKAGES else f"pip install {library}"
        text = f"these frames need {library}: {command}"
        raise InputError(text) from error


def _pandas_type(arrow_type: pa.DataType) -> Any:
    """The pandas type that keeps integers and booleans beside nulls; None: the usual one."""
    import pandas as pd

    name = _NULLABLE.get(arrow_type)
    return None if name is None else pd.api.types.pandas_dtype(name)


def _texts_of_fields(schema: pa.Schema, key: bytes) -> dict[str, str]:
    texts = {}
    for field in schema:
        text = (field.metadata or {}).get(key, b"").decode()
        if text:
            texts[field.name] = text
    return texts


@dataclass(frozen=True, slots=True)
class _PlainColumn:
    """A column without mappings, with its values."""

    name: str
    description: str
    kind: type
    values: Sequence[object]


def _plain_columns(column: ReportColumn[RowT], values: Sequence[object]) -> Iterator[_PlainColumn]:
    """The column itself, or one for each entry that any of its mappings has."""
    if column.kind is not Mapping:
        yield _PlainColumn(column.name, column.description, column.kind, values)
        return
    entries_of_rows = [flat(value or {}) for value in values]
    names: dict[str, None] = {}  # in the order in which they first come
    for entries in entries_of_rows:
        names.update(dict.fromkeys(entries))
    for name in names:
        yield _PlainColumn(
            name=f"{column.name}.{name}",
            description=f"{column.description}: {name}",
            kind=object,
            values=[entries.get(name) for entries in entries_of_rows],
        )


def _array(kind: type, values: Sequence[object]) -> pa.Array:
    """Makes an array of one type. NaN becomes null; lists and values of mixed types become text."""
    plain = [_text_of_list(value) for value in values]
    if kind is object:
        kind = _kind_of(plain)
    if kind is str:
        plain = [None if value is None else str(value) for value in plain]
    return pa.array(plain, _ARROW[kind], from_pandas=True)


def _text_of_list(value: object) -> object:
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _kind_of(values: Sequence[object]) -> type:
    kinds = set()
    for value in values:
        if value is not None:
            kinds.add(next((kind for kind in _KINDS if isinstance(value, kind)), str))
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 else str

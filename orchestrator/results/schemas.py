"""The Arrow schema of every table, made from its record class (records.py); converts records,
tables and Parquet.
"""

import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import (
    Annotated,
    Any,
    Generic,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.base.errors import ResultsError
from orchestrator.results import records

SCHEMA_VERSION = 1
# level 3 makes files 1 % smaller or larger, and takes a third longer
ZSTD_LEVEL = 1
# A table of at most so many bytes is written without compression and dictionaries, which would take
# as long as all else and save next to nothing.
SMALL_BYTES = 16 << 10
# Up to so many bytes it is compressed by LZ4, which takes half the time of zstd, and makes files a
# fifth larger.
MEDIUM_BYTES = 1 << 20
# a list of at least so many values is not copied into a table: it may be mapped from disk
LARGE_LIST = 1 << 16
# A row group of 2,000 rows has some 400,000 gaps, which fit the CPU's caches when a reader decodes it.
ROWS_PER_GROUP = {"token_events": 2_000}
_DEFAULT_ROWS_PER_GROUP = 100_000

RecordT = TypeVar("RecordT")
_PLAIN = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
RECORDS: dict[str, type] = {
    "requests": records.RequestRow,
    "token_events": records.TokenEventsRow,
    "points": records.PointRow,
    "deployments": records.DeploymentRow,
    "launches": records.LaunchRow,
    "answers": records.AnswerRow,
    "events": records.EventRow,
    "engine_metrics": records.EngineMetricsRow,
    "telemetry": records.TelemetryRow,
    "hosts": records.HostRow,
    "imported": records.ImportedRow,
}


def table_of(rows: Iterable[RecordT], record: type[RecordT]) -> pa.Table:
    """Records as an Arrow table in the record's schema."""
    schema = arrow_schema(cast(type, record))
    plain = [_plain(row) for row in rows]
    if len(plain) == 1 and _has_large_list(plain[0]):
        columns = [_column(plain[0][field.name], field.type) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)
    # one array of structs takes half the time of one array per column
    return pa.Table.from_struct_array(pa.array(plain, _struct(cast(type, record))))


def _has_large_list(row: Mapping[str, Any]) -> bool:
    return any(getattr(value, "size", 0) >= LARGE_LIST for value in row.values())


def _column(value: Any, kind: pa.DataType) -> pa.Array:
    """One row's value as a column; an array is not copied."""
    if isinstance(value, np.ndarray):
        return pa.ListArray.from_arrays(
            [0, value.size], pa.array(value, kind.value_type), type=kind
        )
    return pa.array([value], kind)


def rows_of(table: pa.Table, record: type[RecordT]) -> list[RecordT]:
    """A table's rows as records; other columns are ignored. Raises KeyError when it lacks a column
    of the record.

    Nulls of columns that older versions did not write become the record's defaults.
    """
    defaults = _defaults(cast(type, record))
    rows = [object.__new__(record) for _ in range(table.num_rows)]
    # column by column: a frozen record's __init__ takes three times as long
    for name, hint in _hints(cast(type, record)).items():
        column = table[name]
        if name in defaults:
            column = column.fill_null(defaults[name])
        set_field = getattr(record, name).__set__
        # the deque keeps nothing: it runs the calls, in half the time of a loop
        deque(map(set_field, rows, _values(column, hint)), maxlen=0)
    return rows


def _values(column: pa.ChunkedArray, hint: Any) -> list[Any]:
    """A whole column as values of a record's field."""
    kind = column.type
    if pa.types.is_struct(kind):
        return _records(column, hint)
    if pa.types.is_string(kind):
        return _texts(column)
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        return _lists_of_records(column, hint)
    if pa.types.is_nested(kind):
        shape = dict if pa.types.is_map(kind) else tuple
        return [None if value is None else shape(value) for value in column.to_pylist()]
    if column.null_count:
        return cast("list[Any]", column.to_pylist())
    return cast("list[Any]", column.to_numpy().tolist())


def _records(column: pa.ChunkedArray, hint: Any) -> list[Any]:
    """A column of structs as records, with None where a struct is null."""
    # the field's type is the record, or ``record | None``
    record = next(part for part in (hint, *get_args(hint)) if is_dataclass(part))
    structs = pa.Table.from_struct_array(column.drop_null())
    records = iter(rows_of(structs, cast("type[Any]", record)))
    return [next(records) if is_valid else None for is_valid in column.is_valid().to_pylist()]


def _lists_of_records(column: pa.ChunkedArray, hint: Any) -> list[Any]:
    """A column of lists of structs as tuples of records, empty where a list is null."""
    record = next(part for part in get_args(hint) if is_dataclass(part))
    lists = column.combine_chunks()
    records = _records(pa.chunked_array([lists.flatten()]), record)
    ends = np.cumsum(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    begins = [0, *ends[:-1].tolist()]
    return [tuple(records[begin:end]) for begin, end in zip(begins, ends.tolist(), strict=False)]


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """A column of strings. Equal ones become one object, since many rows repeat them."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = [*encoded.dictionary.to_pylist(), None]  # at index -1, what nulls become
    return [texts[index] for index in encoded.indices.fill_null(-1).to_pylist()]


class LazyRecords(Generic[RecordT]):
    """Records of a struct column, made in blocks when asked for: they take ten times the memory of
    the column. The last two blocks are kept, because the repeats of a point may lie in both.
    """

    _BLOCK = 256

    def __init__(self, column: pa.ChunkedArray, record: type[Any]) -> None:
        self._column = column
        self._record = record
        self._blocks: dict[int, list[RecordT]] = {}  # by number, the oldest first

    def __getitem__(self, index: int) -> RecordT:
        number, place = divmod(index, self._BLOCK)
        if number not in self._blocks:
            if len(self._blocks) == 2:
                self._blocks.pop(next(iter(self._blocks)))
            rows = self._column.slice(number * self._BLOCK, self._BLOCK)
            self._blocks[number] = _values(rows, self._record)
        return self._blocks[number][place]


@cache
def arrow_schema(record: type) -> pa.Schema:
    """One column per field, with its type and description; nullable if it may be None. Nested
    records are structs.
    """
    return pa.schema(_fields(record))


def _fields(record: type) -> list[pa.Field]:
    return [
        _field(name, hint) for name, hint in get_type_hints(record, include_extras=True).items()
    ]


def _field(name: str, hint: Any) -> pa.Field:
    annotations = getattr(hint, "__metadata__", ())
    description = next((item for item in annotations if isinstance(item, str)), None)
    metadata = {"description": description} if description else None
    column_type = _column_type(hint)
    return pa.field(name, column_type.kind, nullable=column_type.is_nullable, metadata=metadata)


@dataclass(frozen=True, slots=True)
class _ColumnType:
    """Arrow's type of a column, and whether its values may be null."""

    kind: pa.DataType
    is_nullable: bool = False


def _column_type(hint: Any) -> _ColumnType:
    """The column for a field of this Python type."""
    origin = get_origin(hint)
    if origin is Annotated:
        for item in hint.__metadata__:
            if isinstance(item, pa.DataType):
                return _ColumnType(item)
        return _column_type(hint.__origin__)
    if origin in (Union, types.UnionType):
        (inner,) = [part for part in get_args(hint) if part is not type(None)]
        return _ColumnType(_column_type(inner).kind, is_nullable=True)
    if origin is tuple:
        return _ColumnType(pa.list_(_column_type(get_args(hint)[0]).kind))
    if origin is Mapping:
        key, value = get_args(hint)
        return _ColumnType(pa.map_(_column_type(key).kind, _column_type(value).kind))
    if is_dataclass(hint):
        return _ColumnType(pa.struct(_fields(cast(type, hint))))
    return _ColumnType(_PLAIN[hint])


def _plain(value: Any) -> Any:
    """A record, or a value of one, as plain values that pyarrow accepts."""
    if value is None or type(value) in _PLAIN:  # first, since most are
        return value
    if is_dataclass(value):
        return {name: _plain(getattr(value, name)) for name in _hints(cast(type, type(value)))}
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [_plain(item) for item in value]
    return list(value.items()) if isinstance(value, Mapping) else value


@cache
def _struct(record: type) -> pa.StructType:
    return pa.struct(list(arrow_schema(record)))


@cache
def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record)


@cache
def _defaults(record: type) -> dict[str, Any]:
    return {
        field.name: field.default
        for field in fields(record)
        if field.default not in (MISSING, None)
    }


TABLES: dict[str, pa.Schema] = {
    table: arrow_schema(record).with_metadata(
        {"table": table, "schema_version": str(SCHEMA_VERSION)}
    )
    for table, record in RECORDS.items()
}
REQUESTS = TABLES["requests"]
TOKEN_EVENTS = TABLES["token_events"]
ENGINE_METRICS = TABLES["engine_metrics"]


def schema_of(table: str) -> pa.Schema:
    """The schema of a table. Raises ResultsError for an unknown name."""
    if table not in TABLES:
        raise ResultsError(f"there is no table {table!r}; tables: {', '.join(sorted(TABLES))}")
    return TABLES[table]


def conform(table: str, data: pa.Table) -> pa.Table:
    """``data`` in exactly the schema of ``table``: columns ordered and cast, missing nullable ones
    filled with null.

    Raises ResultsError for an unknown column, or one that is missing, of the wrong type, or null
    where it must not be.
    """
    schema = schema_of(table)
    try:
        if data.schema.equals(schema) and not _has_forbidden_nulls(data, schema):
            return pa.Table.from_arrays(data.columns, schema=schema)
        unknown = set(data.column_names) - set(schema.names)
        if unknown:
            raise ValueError(f"unknown columns {', '.join(sorted(unknown))}")
        return pa.concat_tables([schema.empty_table(), data], promote_options="permissive").cast(
            schema
        )
    except (ValueError, pa.ArrowException) as error:
        raise ResultsError(f"table {table}: {error}") from error


def _has_forbidden_nulls(data: pa.Table, schema: pa.Schema) -> bool:
    return any(
        column.null_count and not field.nullable
        for column, field in zip(data.columns, schema, strict=True)
    )


class Compression(StrEnum):
    """How the pages of a file are compressed.

    A file that is not compressed has no dictionaries and no statistics either, which would double
    the size of a few rows.
    """

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


def parquet_writer(
    schema: pa.Schema,
    sink: Any,
    *,
    checksums: bool = False,
    compression: Compression = Compression.ZSTD,
) -> pq.ParquetWriter:
    """A writer to a path or open file with the settings of all our Parquet files.

    ``checksums``: one per page.

    Gaps and nanosecond columns are BYTE_STREAM_SPLIT: 1.4 to 1.8 bytes per gap, where dictionary
    and delta encoding need 2.1 to 2.4. Strings and tokens per chunk have few distinct values and
    get a dictionary; for a million doubles one would take 200 bytes per value while it is built.
    """
    is_compressed = compression is not Compression.NONE
    encodings = _encodings(schema) if is_compressed else _Encodings()
    return pq.ParquetWriter(
        sink,
        schema,
        compression=compression,
        compression_level=ZSTD_LEVEL if compression is Compression.ZSTD else None,
        use_dictionary=list(encodings.dictionary),
        write_statistics=is_compressed,
        column_encoding=dict.fromkeys(encodings.split, "BYTE_STREAM_SPLIT") or None,
        write_page_checksum=checksums,
    )


def write_rows(writer: pq.ParquetWriter, table: str, rows: pa.Table) -> None:
    """Writes rows in row groups of the size that suits the table's readers."""
    writer.write_table(rows, ROWS_PER_GROUP.get(table, _DEFAULT_ROWS_PER_GROUP))


def to_parquet(table: str, data: pa.Table) -> pa.Buffer:
    """Encodes a whole file in memory."""
    sink = pa.BufferOutputStream()
    compression = _compression_for(data.get_total_buffer_size())
    with parquet_writer(data.schema, sink, compression=compression) as writer:
        write_rows(writer, table, data)
    return sink.getvalue()


def _compression_for(table_bytes: int) -> Compression:
    """What suits a table of this size that is encoded at once."""
    if table_bytes <= SMALL_BYTES:
        return Compression.NONE
    return Compression.LZ4 if table_bytes <= MEDIUM_BYTES else Compression.ZSTD


@dataclass(frozen=True, slots=True)
class _Encodings:
    """Paths of the columns that get a dictionary, and of those that are BYTE_STREAM_SPLIT."""

    dictionary: Sequence[str] = ()
    split: Sequence[str] = ()


@cache
def _encodings(schema: pa.Schema) -> _Encodings:
    dictionary: list[str] = []
    split: list[str] = []
    for path, kind in _leaves(schema):
        if pa.types.is_string(kind) or pa.types.is_int16(kind):
            dictionary.append(path)
        elif path.removesuffix(".list.element").endswith(("_ns", "_us")):
            split.append(path)
    return _Encodings(dictionary, split)


def _leaves(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Parquet's leaf columns: path and type of every value, however deeply nested."""
    for field in fields:
        path = above + field.name
        kind = field.type
        if pa.types.is_list(kind):
            path = f"{path}.list.element"
            kind = kind.value_type
        if pa.types.is_struct(kind):
            yield from _leaves(kind, f"{path}.")
        elif pa.types.is_map(kind):
            yield from _leaves([kind.key_field, kind.item_field], f"{path}.key_value.")
        else:
            yield path, kind


def unify(table: str, parts: list[pa.Table], columns: list[str] | None) -> pa.Table:
    """Joins parts of any schema version by column name. Missing columns are null; columns of newer
    versions come last.
    """
    wanted = _nullable(table)
    if columns is not None:
        fields_to_read = [field for field in wanted if field.name in columns]
        wanted = pa.schema(fields_to_read, metadata=wanted.metadata)
    rows = _joined(parts, wanted) if parts else wanted.empty_table()
    for name in columns or ():
        if name not in rows.column_names:  # no part has the column
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows


@cache
def _nullable(table: str) -> pa.Schema:
    """The schema of a table, whose columns may all be null: older versions did not write all."""
    schema = schema_of(table)
    return pa.schema([field.with_nullable(True) for field in schema], metadata=schema.metadata)


def _joined(parts: Sequence[pa.Table], wanted: pa.Schema) -> pa.Table:
    """The rows of all parts: first the wanted columns, then those of newer versions."""
    plain = [part.replace_schema_metadata(None) for part in parts]
    joined = pa.concat_tables(
        [wanted.remove_metadata().empty_table(), *plain], promote_options="permissive"
    )
    rows = joined.select(wanted.names)
    if wanted.names:
        rows = rows.cast(wanted)
    for name in joined.column_names:
        if name not in wanted.names:
            rows = rows.append_column(joined.schema.field(name), joined[name])
    return rows

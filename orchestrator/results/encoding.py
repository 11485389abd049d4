"""An Arrow table to the bytes of one Parquet file and back to the schemas of schemas.py."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.errors import ResultsError
from orchestrator.results.schemas import TABLES

ZSTD_LEVEL = 3  # level 9 saves 3 % of the gaps for a third of the write speed
ROWS_PER_GROUP = {"token_events": 2_000}  # some 400,000 gaps: a reader's block fits its caches
_DEFAULT_ROWS_PER_GROUP = 100_000


def schema_of(table: str) -> pa.Schema:
    """The schema of a table. Raises ResultsError for a name that is none."""
    if table not in TABLES:
        raise ResultsError(f"there is no table {table!r}; tables: {', '.join(sorted(TABLES))}")
    return TABLES[table]


def conform(table: str, data: pa.Table) -> pa.Table:
    """``data`` in exactly the schema of ``table``: columns ordered and cast, nullable ones it lacks filled with null.

    Raises ResultsError naming every column that is unknown, missing, of a type that does not fit, or null where a
    value is required.
    """
    schema = schema_of(table)
    problems = [f"unknown column {name!r}" for name in data.column_names if name not in schema.names]
    columns = []
    for field in schema:
        column, problem = _column(data, field)
        columns.append(column)
        problems += [problem] if problem else []
    if problems:
        raise ResultsError(f"table {table}: {'; '.join(problems)}")
    return pa.table(columns, schema=schema)


def _column(data: pa.Table, field: pa.Field) -> tuple[pa.ChunkedArray | None, str | None]:
    if field.name not in data.column_names:
        if not field.nullable:
            return None, f"column {field.name!r} is missing"
        return pa.chunked_array([pa.nulls(data.num_rows, field.type)]), None
    column = data[field.name]
    if column.null_count and not field.nullable:
        return None, f"column {field.name!r} has {column.null_count} nulls and must have none"
    try:
        return column.cast(field.type), None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return None, f"column {field.name!r} is {column.type}, not {field.type} ({error})"


def to_parquet(table: str, data: pa.Table) -> pa.Buffer:
    """The whole file in memory.

    Gaps are BYTE_STREAM_SPLIT: 1.4 to 1.8 bytes each where dictionary and delta need 2.1 to 2.4. Nanosecond columns
    too. Strings and tokens per chunk have few values and get a dictionary.
    """
    dictionary, split = _columns_by_encoding(data.schema)
    sink = pa.BufferOutputStream()
    pq.write_table(
        data,
        sink,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=dictionary,
        column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT"),
        row_group_size=ROWS_PER_GROUP.get(table, _DEFAULT_ROWS_PER_GROUP),
    )
    return sink.getvalue()


def _columns_by_encoding(schema: pa.Schema) -> tuple[list[str], list[str]]:
    dictionary, split = [], []
    for field in schema:
        is_list = pa.types.is_list(field.type)
        path = f"{field.name}.list.element" if is_list else field.name
        kind = field.type.value_type if is_list else field.type
        if pa.types.is_string(kind) or pa.types.is_int16(kind):
            dictionary.append(path)
        elif field.name.endswith(("_ns", "_us")):
            split.append(path)
    return dictionary, split


def unify(table: str, parts: list[pa.Table], columns: list[str] | None) -> pa.Table:
    """Parts of any schema version as one table: by name, missing columns null, columns of newer versions kept last."""
    schema = schema_of(table)
    fields = [field.with_nullable(True) for field in schema if columns is None or field.name in columns]
    wanted = pa.schema(fields, metadata=schema.metadata)
    plain = [part.replace_schema_metadata(None) for part in parts]
    joined = pa.concat_tables([wanted.remove_metadata().empty_table(), *plain], promote_options="permissive")
    extra = [name for name in joined.column_names if name not in wanted.names]
    known = joined.select(wanted.names).cast(wanted)
    for name in extra:
        known = known.append_column(joined.schema.field(name), joined[name])
    return known

"""Rows of Parquet files that are read only when they are needed: a run of an hour has millions of
rows, and no figure needs all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.base.errors import DamagedError
from orchestrator.results.columns import AT_ONCE
from orchestrator.results.row_writer import RowFile
from orchestrator.results.schemas import schema_of

TEXT = pa.dictionary(pa.int32(), pa.string())
# rows that take less are read with all columns at once, which is faster than each column by itself
SMALL_BYTES = 1 << 20


@dataclass(slots=True)
class _RowGroup:
    """A row group of a file. ``names``: of its columns. ``start``: the number of rows before it.
    ``small``: all groups together are so small that the rows are kept in ``cached`` once they were
    read.
    """

    file: pq.ParquetFile
    index: int
    names: frozenset[str]
    start: int
    rows: int
    small: bool = False
    cached: pa.Table | None = None

    def read(self, names: Sequence[str]) -> pa.Table:
        """The columns with these names, as far as the group has them; all of its columns if it is
        small. Raises OSError and ValueError.
        """
        if self.cached is not None:
            return self.cached
        if self.small:
            self.cached = self.file.read_row_group(self.index, use_threads=False)
            return self.cached
        present = [name for name in names if name in self.names]
        return self.file.read_row_group(self.index, present, use_threads=False)


@dataclass(frozen=True, slots=True)
class LazyRows:
    """Rows of one table as they were written, in place of an Arrow table: a column, a slice or a
    batch of rows is read when it is asked for.

    Columns of text are dictionary-encoded, because many rows have the same text. Reading raises
    DamagedError when rows cannot be read.
    """

    _schema: pa.Schema
    _groups: Sequence[_RowGroup]
    _start: int
    num_rows: int

    @classmethod
    def of(cls, table: str, parts: Sequence[RowFile]) -> Rows:
        """Rows of several parts of a table."""
        if parts and all(isinstance(part.file, pa.Table) for part in parts):
            return pa.concat_tables([part.file for part in parts])
        rows = sum(part.rows for part in parts)
        return cls.open(table, [part.open() for part in parts], rows)

    @classmethod
    def open(cls, table: str, sources: Sequence[pa.NativeFile], rows: int) -> LazyRows:
        """``sources``: Parquet files of any schema version. ``rows``: how many they must hold.

        Raises OSError or ValueError for files that are not Parquet or hold another number of rows.
        """
        schema = schema_of(table)
        groups: list[_RowGroup] = []
        start = 0
        size_bytes = 0
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        for source in sources:
            # only columns that the file has may be named; an older version lacks some
            metadata = pq.read_metadata(source)
            dictionaries = [name for name in texts if name in metadata.schema.names]
            file = pq.ParquetFile(source, metadata=metadata, read_dictionary=dictionaries)
            names = frozenset(file.schema_arrow.names)
            for index in range(file.num_row_groups):
                group = file.metadata.row_group(index)
                groups.append(_RowGroup(file, index, names, start, group.num_rows))
                start += group.num_rows
                size_bytes += group.total_byte_size
        if start != rows:
            raise ValueError(f"there are {start} rows, and {rows} were written")
        for row_group in groups:
            row_group.small = size_bytes <= SMALL_BYTES
        return cls(schema, groups, 0, rows)

    def __len__(self) -> int:
        return self.num_rows

    def slice(self, offset: int, length: int) -> LazyRows:
        """``length`` of these rows from ``offset`` on, or as many as there are."""
        end = self._start + min(self.num_rows, offset + length)
        start = min(self._start + offset, end)
        groups = [
            group
            for group in self._groups
            if group.start < end and group.start + group.rows > start
        ]
        return replace(self, _groups=groups, _start=start, num_rows=end - start)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        columns = [self._read(group, [name])[name] for group in self._groups]
        if len(columns) == 1 and columns[0].num_chunks <= 1:  # the usual case
            return columns[0]
        chunks: list[pa.Array] = []
        for column in columns:
            chunks += column.chunks
        kind = chunks[0].type if chunks else self._schema.field(name).type
        return pa.chunked_array(chunks, kind).unify_dictionaries()

    def to_batches(self, max_chunksize: int) -> Iterator[pa.RecordBatch]:
        """All columns, at most ``max_chunksize`` rows at a time."""
        for group in self._groups:
            rows = self._read(group, self._schema.names).select(self._schema.names)
            yield from rows.to_batches(max_chunksize=max_chunksize)

    def _read(self, group: _RowGroup, names: Sequence[str]) -> pa.Table:
        """The part of these rows that lies in a group, with at least these columns. A column that
        an older version did not write is null.
        """
        with _reading(names[0] if len(names) == 1 else "rows"):
            rows = group.read(names)
        for name in names:
            if name not in group.names:
                kind = self._schema.field(name).type
                nulls = pa.nulls(group.rows, TEXT if pa.types.is_string(kind) else kind)
                rows = rows.append_column(name, nulls)
        # where these rows begin and end, counted from the start of the group
        begin = max(self._start - group.start, 0)
        end = self._start + self.num_rows - group.start
        is_whole_group = begin == 0 and end >= group.rows
        return rows if is_whole_group else rows.slice(begin, end - begin)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        # the storage failed, or the file has changed since it was opened
        raise DamagedError(f"{what} cannot be read: {error}") from error


Rows: TypeAlias = pa.Table | LazyRows  # in the schema of their table


def slices(rows: Rows) -> Iterator[Rows]:
    """The rows, AT_ONCE at a time. Where there are no rows, one empty slice."""
    if rows.num_rows <= AT_ONCE:  # slicing a table takes ten times as long as reading a column
        yield rows
        return
    for start in range(0, rows.num_rows, AT_ONCE):
        yield rows.slice(start, AT_ONCE)

"""Rows of Parquet files that stay there: a run of an hour has millions, and no figure needs all columns at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchestrator.errors import DamagedError
from orchestrator.results.schemas import schema_of
from orchestrator.results.spool import Part


class LazyRows:
    """Rows of one table, read when they are asked for, like an Arrow table: a column, or some rows after the others.

    ``sources``: Parquet files, of any schema version, which hold so many ``rows``. ``by``: the column that orders them;
    else they come as they were written. Texts of a column are dictionaries: many rows say the same. Raises OSError or
    ValueError for what is not Parquet or holds other rows, and when rows cannot be read later DamagedError.
    """

    def __init__(self, table: str, sources: Sequence[pa.NativeFile], rows: int, by: str | None = None) -> None:
        self._schema = schema_of(table)
        texts = [field.name for field in self._schema if pa.types.is_string(field.type)]
        self._files = [pq.ParquetFile(source, read_dictionary=texts) for source in sources]
        self.num_rows: int = sum(file.metadata.num_rows for file in self._files)
        if self.num_rows != rows:
            raise ValueError(f"there are {self.num_rows} rows, and {rows} were written")
        self._order: pa.Array | None = None
        if by is not None:
            self._order = pc.sort_indices(self[by]).cast(pa.uint32())

    @classmethod
    def of(cls, table: str, parts: Sequence[Part], by: str | None = None) -> LazyRows:
        """Rows of several parts of a table."""
        return cls(table, [pa.BufferReader(one.content) for one in parts], sum(one.rows for one in parts), by)

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        kind = self._schema.field(name).type
        read = [self._read(file, name, kind) for file in self._files]
        chunks = [chunk for one in read for chunk in one.chunks]
        column = pa.chunked_array(chunks, read[0].type if read else kind).unify_dictionaries()
        return column if self._order is None else column.take(self._order)

    def to_batches(self, max_chunksize: int) -> Iterator[pa.RecordBatch]:
        """All columns, as they were written, at most so many rows at a time."""
        for file in self._files:
            absent = [field for field in self._schema if field.name not in file.schema_arrow.names]
            with _reading("rows"):
                for batch in file.iter_batches(max_chunksize, use_threads=False):
                    for field in absent:
                        batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
                    yield batch

    @staticmethod
    def _read(file: pq.ParquetFile, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        if name not in file.schema_arrow.names:  # an older version wrote it
            return pa.chunked_array([pa.nulls(file.metadata.num_rows, kind)])
        with _reading(name):
            return file.read([name], use_threads=False).column(0)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # its storage fails, or it was changed since it was opened
        raise DamagedError(f"{what} cannot be read: {error}") from error


Rows = pa.Table | LazyRows  # in the schema of their table

"""Writes rows to temporary Parquet files on this machine's disk, where they lie until they are
stored. Where that disk is full, the point fails.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.base.errors import ResultsError
from orchestrator.results.schemas import parquet_writer, schema_of, to_parquet, write_rows
from orchestrator.results.temporary_files import (
    buffered_writer,
    disk_errors,
    nameless_file,
    reopened,
)

SMALL_ROWS = 4_096
SMALL_BYTES = 1 << 18  # of an encoded file; its rows take about four times as many in memory


@dataclass(frozen=True, slots=True)
class RowFile:
    """Rows of one table as a finished Parquet file: a nameless file on this machine's disk, or a
    buffer in memory. A few rows from another process are a table in memory instead.
    """

    table: str
    rows: int
    file: pa.NativeFile | pa.Buffer | pa.Table

    def open(self) -> pa.NativeFile:
        """The Parquet file, to read from its start."""
        if isinstance(self.file, pa.NativeFile):
            return reopened(self.file)
        if isinstance(self.file, pa.Buffer):
            return pa.BufferReader(self.file)
        return pa.BufferReader(to_parquet(self.table, self.file))

    @property
    def small(self) -> bool:
        """Whether it is passed on to another process as rows, which need not be decoded there."""
        return self.rows <= SMALL_ROWS and self.open().size() <= SMALL_BYTES

    def read(self) -> pa.Table:
        """The rows in the order they were written, in the table's schema."""
        if isinstance(self.file, pa.Table):
            return self.file
        with pq.ParquetFile(self.open()) as file:
            return pa.table(file.read(use_threads=False).columns, schema=schema_of(self.table))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.small:
            batches = [batch.serialize().to_pybytes() for batch in self.read().to_batches()]
            return _from_batches, (self.table, batches)
        return row_file_from_content, (self.table, self.rows, self.open().read())


def _from_batches(table: str, batches: Sequence[bytes]) -> RowFile:
    """A few rows from another process."""
    schema = schema_of(table)
    decoded = [pa.ipc.read_record_batch(batch, schema) for batch in batches]
    rows = pa.Table.from_batches(decoded, schema)
    return RowFile(table, rows.num_rows, rows)


def row_file_from_content(table: str, rows: int, content: bytes) -> RowFile:
    """A file from another process; it stays in memory where the disk is full."""
    with suppress(OSError, ResultsError), tempfile.TemporaryFile() as temporary:
        file = reopened(temporary, "wb")
        file.write(content)
        return RowFile(table, rows, file)
    return RowFile(table, rows, pa.py_buffer(content))


class RowWriter:
    """Writes one growing file per table. A thread of its own encodes and writes, mostly without the
    GIL.

    ``write`` returns at once; rows that are not written yet stay in memory.
    """

    def __init__(self, *tables: str) -> None:
        self._files = {table: nameless_file() for table in tables}
        self._rows = dict.fromkeys(tables, 0)
        self._queue: SimpleQueue[tuple[str, pa.Table] | None] = SimpleQueue()
        self._error: Exception | None = None
        self._thread = Thread(target=self._work, name="row writer", daemon=True)
        self._thread.start()

    def write(self, table: str, rows: pa.Table) -> None:
        """Adds rows in the table's schema.

        Raises ResultsError when earlier rows could not be written.
        """
        self._raise_any_error()
        self._rows[table] += rows.num_rows
        self._queue.put((table, rows))

    def finish(self) -> list[RowFile]:
        """Waits until all rows are written. Returns one file per table.

        Raises ResultsError when rows could not be written.
        """
        self._queue.put(None)
        self._thread.join()
        self._raise_any_error()
        finished = []
        for table, file in self._files.items():
            row_file = RowFile(table, self._rows[table], file)
            written = pq.read_metadata(row_file.open()).num_rows
            if written != row_file.rows:
                raise ResultsError(f"{written} of {row_file.rows} rows of {table} were written")
            finished.append(row_file)
        return finished

    def close(self) -> None:
        """Ends writing. Drops rows that were not written yet. The space of a file is freed once no
        RowFile uses it.
        """
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(None)

    def _work(self) -> None:
        try:
            with ExitStack() as stack:
                writers = {}
                for table, file in self._files.items():
                    buffered = stack.enter_context(buffered_writer(file))
                    writer = parquet_writer(schema_of(table), buffered)
                    writers[table] = stack.enter_context(writer)
                for table, rows in iter(self._queue.get, None):
                    write_rows(writers[table], table, rows)
        except Exception as error:  # whatever it is, rows are lost
            self._error = error

    def _raise_any_error(self) -> None:
        with disk_errors():
            if isinstance(self._error, OSError):
                raise self._error
        if self._error is not None:
            raise ResultsError(f"rows cannot be written: {self._error!r}") from self._error

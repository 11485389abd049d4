"""Collects rows in temporary Parquet files on this machine's disk until they are stored.

The files have no names, so nothing is left of them when the process ends, however it ends. They are
where temporary files go (``TMPDIR``). Where that disk is full, the point fails.
"""

import io
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.base.errors import ResultsError
from orchestrator.results.schemas import parquet_writer, schema_of, to_parquet, write_rows

SMALL_ROWS, SMALL_BYTES = 4_096, 1 << 18  # encoded: as rows about four times as much

# written at a time: each write takes the GIL for as long as it takes to copy so much
SINK_BYTES = 64 << 10
LEAST_BYTES = 1 << 20  # free before a point begins


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one table as a finished Parquet file in memory, or on this machine's disk without a
    name; few from another process are a table in memory.
    """

    table: str
    rows: int
    file: pa.NativeFile | pa.Buffer | pa.Table

    def open(self) -> pa.NativeFile:
        """The file, to read from its begin."""
        if isinstance(self.file, pa.NativeFile):
            return opened(self.file)
        return pa.BufferReader(
            self.file if isinstance(self.file, pa.Buffer) else to_parquet(self.table, self.file)
        )

    @property
    def small(self) -> bool:
        """Whether it reaches another process as rows, which that one need not decode."""
        return self.rows <= SMALL_ROWS and self.open().size() <= SMALL_BYTES

    def read(self) -> pa.Table:
        """The rows in the order they were written, in the table's schema."""
        if isinstance(self.file, pa.Table):
            return self.file
        with pq.ParquetFile(self.open()) as file:
            return pa.table(file.read(use_threads=False).columns, schema=schema_of(self.table))

    def __reduce__(self) -> tuple[Any, ...]:
        if self.small:
            return _decoded, (
                self.table,
                [one.serialize().to_pybytes() for one in self.read().to_batches()],
            )
        return _received, (self.table, self.rows, self.open().read())


def _decoded(table: str, batches: Sequence[bytes]) -> Part:
    schema = schema_of(table)
    rows = pa.Table.from_batches([pa.ipc.read_record_batch(one, schema) for one in batches], schema)
    return Part(table, rows.num_rows, rows)


def _received(table: str, rows: int, content: bytes) -> Part:
    """A part from another process; it stays in memory where the disk is full."""
    with suppress(OSError, ResultsError), tempfile.TemporaryFile() as made:
        file = opened(made, "wb")
        file.write(content)
        return Part(table, rows, file)
    return Part(table, rows, pa.py_buffer(content))


class Spool:
    """One growing file per table. A thread of its own encodes and writes, mostly without the GIL.

    ``write`` returns at once; rows that are not written yet stay in memory. ``parts`` waits until
    all are written.
    """

    def __init__(self, *tables: str) -> None:
        self._files = {table: nameless_file() for table in tables}
        self._rows = dict.fromkeys(tables, 0)
        self._todo: SimpleQueue[tuple[str, pa.Table] | None] = SimpleQueue()
        self._failed: Exception | None = None
        self._thread = Thread(target=self._work, name="spool", daemon=True)
        self._thread.start()

    def write(self, table: str, rows: pa.Table) -> None:
        """Add rows in the table's schema.

        Raises ResultsError when earlier rows could not be written.
        """
        self._check()
        self._rows[table] += rows.num_rows
        self._todo.put((table, rows))

    def parts(self) -> list[Part]:
        """Finish the files: one part per table.

        Raises ResultsError when rows could not be written.
        """
        self._todo.put(None)
        self._thread.join()
        self._check()
        parts = []
        for table, file in self._files.items():
            parts.append(Part(table, self._rows[table], file))
            if (written := pq.read_metadata(parts[-1].open()).num_rows) != parts[-1].rows:
                raise ResultsError(f"{written} of {parts[-1].rows} rows of {table} were written")
        return parts

    def close(self) -> None:
        """End writing; rows that were not written yet are dropped. The space of a file is freed
        once no part uses it.
        """
        with suppress(Empty):
            while True:
                self._todo.get_nowait()
        self._todo.put(None)

    def _work(self) -> None:
        try:
            with ExitStack() as stack:
                sinks = {
                    table: stack.enter_context(sink(file)) for table, file in self._files.items()
                }
                writers = {
                    table: stack.enter_context(parquet_writer(schema_of(table), one))
                    for table, one in sinks.items()
                }
                for table, rows in iter(self._todo.get, None):
                    write_rows(writers[table], table, rows)
        except Exception as error:  # whatever it is, rows are lost
            self._failed = error

    def _check(self) -> None:
        with room():
            if isinstance(self._failed, OSError):
                raise self._failed
        if self._failed is not None:
            raise ResultsError(f"rows cannot be written: {self._failed!r}") from self._failed


class _KeptOpen(io.RawIOBase):
    """A temporary file to write, which stays open when this is closed."""

    def __init__(self, file: pa.NativeFile) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return os.lseek(self._file.fileno(), 0, os.SEEK_CUR)

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        while left:
            left = left[os.write(self._file.fileno(), left) :]
        return len(data)


def sink(file: pa.NativeFile) -> pa.NativeFile:
    """Where to write large amounts to a temporary file. Closing it writes the rest, and leaves the
    file open.
    """
    return pa.output_stream(_KeptOpen(file), compression=None, buffer_size=SINK_BYTES)


def nameless_file() -> pa.NativeFile:
    """A temporary file to write; what was written is read at ``path_of`` it. It disappears when it
    is closed.

    Raises ResultsError.
    """
    with room(), tempfile.TemporaryFile() as file:
        return opened(file, "wb")


def check_room() -> None:
    """Raises ResultsError where no point should begin because the disk for rows is full."""
    with room(), tempfile.TemporaryFile() as file:
        file.write(bytes(LEAST_BYTES))


def _folder() -> str:
    return tempfile.tempdir or "a temporary folder"


def opened(file: pa.NativeFile | IO[bytes], mode: str = "rb") -> pa.NativeFile:
    """An open file, which has no name, opened once more, from its begin."""
    with room():
        found = pa.OSFile(path_of(file), mode)
        # a program that this process starts would keep it
        os.set_inheritable(found.fileno(), False)
    return found


def path_of(file: pa.NativeFile | IO[bytes]) -> str:
    """Where an open file, which has no name, can be opened once more in this process."""
    return f"/proc/self/fd/{file.fileno()}"


@contextmanager
def room() -> Iterator[None]:
    """Turn errors of temporary files inside the block into a ResultsError that says what to do."""
    try:
        yield
    except OSError as error:
        raise ResultsError(
            f"rows cannot be kept in {_folder()} of {socket.gethostname()} until the point is over: "
            f"{error}; make room there, or set TMPDIR to a folder that has some"
        ) from error

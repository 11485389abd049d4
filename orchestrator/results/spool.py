"""Collects rows in temporary Parquet files on this machine's disk until they are stored.

The files have no names, so nothing is left of them when the process ends, however it ends. They are
where temporary files go (``TMPDIR``). While that disk is full, rows stay in memory and whoever
wants them waits, as long as ROOM says.
"""

import io
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.base.errors import NoRoom, ResultsError
from orchestrator.results.patience import NO_ROOM, Patience, Retry
from orchestrator.results.schemas import parquet_writer, schema_of, to_parquet, write_rows

SMALL_ROWS, SMALL_BYTES = 4_096, 1 << 18  # encoded: as rows about four times as much

# of this process; who only loads waits as long as its driver lets it
ROOM = Patience("disk for temporary files")
# written at a time: each write takes the GIL for as long as it takes to copy so much
SINK_BYTES = 64 << 10
LEAST_BYTES = 1 << 20  # free before a point begins
FOLDERS = (os.environ.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp")  # noqa: S108 - where Python looks for one, too
MOST_WAITING_BYTES = 1 << 30  # in memory while there is no room


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
    """Stays in memory where there is no room: the thread that receives must not wait."""
    with suppress(OSError, ResultsError), tempfile.TemporaryFile() as made:
        file = opened(made, "wb")
        file.write(content)
        return Part(table, rows, file)
    return Part(table, rows, pa.py_buffer(content))


class Spool:
    """One growing file per table. A thread of its own encodes and writes, mostly without the GIL.

    ``write`` returns at once; rows that are not written yet stay in memory. ``parts`` waits until
    all are.
    """

    def __init__(self, *tables: str) -> None:
        self._files = {table: nameless_file() for table in tables}
        self._rows = dict.fromkeys(tables, 0)
        self._given_bytes = self._written_bytes = 0
        self._todo: SimpleQueue[tuple[str, pa.Table] | None] = SimpleQueue()
        self._failed: Exception | None = None
        self._thread = Thread(target=self._work, name="spool", daemon=True)
        self._thread.start()

    @property
    def no_room(self) -> str:
        """Where rows wait in memory until there is room; empty if none do."""
        return (
            f"{_folder()} of {socket.gethostname()}" if self._thread.ident in ROOM.refusing else ""
        )

    def write(self, table: str, rows: pa.Table) -> None:
        """Add rows in the table's schema. Raises ResultsError when others could not be written, or
        too many wait.
        """
        self._check()
        if self.no_room and self._given_bytes - self._written_bytes > MOST_WAITING_BYTES:
            raise ResultsError(
                f"there is no room in {self.no_room}, and {MOST_WAITING_BYTES >> 20} MiB of rows wait"
            )
        self._given_bytes += rows.nbytes
        self._rows[table] += rows.num_rows
        self._todo.put((table, rows))

    def parts(self) -> list[Part]:
        """Finish the files: one part per table. Raises ResultsError when rows could not be written."""
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
        """End writing; rows that still wait for room are dropped. The space of a file is freed once
        no part uses it.
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
                    self._written_bytes += rows.nbytes
        except Exception as error:  # whatever it is, rows are lost
            self._failed = error

    def _check(self) -> None:
        with room():
            if isinstance(self._failed, OSError):
                raise self._failed
        if self._failed is not None:
            raise ResultsError(f"rows cannot be written: {self._failed!r}") from self._failed


class _Waiting(io.RawIOBase):
    """A temporary file to write; a write that finds no room waits for it."""

    def __init__(self, file: pa.NativeFile) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return os.lseek(self._file.fileno(), 0, os.SEEK_CUR)

    def write(self, data: Any) -> int:
        append(self._file, data)
        return len(data)


def sink(file: pa.NativeFile) -> pa.NativeFile:
    """Where to write large amounts to a temporary file. Closing it writes the rest, and leaves the
    file open.
    """
    return pa.output_stream(_Waiting(file), compression=None, buffer_size=SINK_BYTES)


def append(file: pa.NativeFile, data: Any) -> None:
    """Write all of it to a temporary file. Waits for room as long as ROOM says, then raises
    ResultsError.
    """
    left = [memoryview(data).cast("B")]

    def go_on() -> None:
        while left[0]:
            left[0] = left[0][os.write(file.fileno(), left[0]) :]

    _patiently(go_on)


def nameless_file() -> pa.NativeFile:
    """A temporary file to write; what was written is read at ``path_of`` it. It disappears when it
    is closed.

    Waits for room as ``append`` does.
    """
    made = list[pa.NativeFile]()

    def make() -> None:
        with _found(), tempfile.TemporaryFile() as file:
            made.append(opened(file, "wb"))

    _patiently(make)
    return made[0]


def check_room() -> None:
    """Raises NoRoom where no point should begin, because there is no room for rows. Whatever else
    is wrong with the folder, the run will say.
    """
    try:
        with _found(), tempfile.TemporaryFile() as file:
            file.write(bytes(LEAST_BYTES))
    except OSError as error:
        if error.errno in NO_ROOM:
            raise NoRoom(f"{_folder()} of {socket.gethostname()}: {error}") from error


def _patiently(call: Callable[[], None]) -> None:
    with room():
        if ROOM.limit_s:
            Retry(local=True).run(f"keeping rows in {_folder()}", lambda: _only_full(call), ROOM)
        else:
            call()


def _only_full(call: Callable[[], None]) -> None:
    """Call it; errors that more room would not help against are ResultsErrors at once."""
    try:
        call()
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        with room():
            raise


@contextmanager
def _found() -> Iterator[None]:
    """Where every folder for temporary files is full, Python says that there is none."""
    try:
        yield
    except FileNotFoundError:
        if not tempfile.tempdir:
            for folder in FOLDERS:
                _write_to(folder)
        raise


def _write_to(folder: str) -> None:
    """Raises OSError where that finds no room."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        if error.errno in NO_ROOM:
            raise


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
            f"rows cannot be kept in {_folder()} until the point is over: {error}; "
            "make room there, or set TMPDIR to a folder that has some"
        ) from error

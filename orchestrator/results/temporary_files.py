"""Temporary files without a name: nothing is left of them when the process ends, however it ends.

They lie where temporary files go (``TMPDIR``).
"""

import io
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa

from orchestrator.base.errors import ResultsError

# How much is written at a time: each write holds the GIL until its bytes are copied.
SINK_BYTES = 64 << 10
LEAST_FREE_BYTES = 1 << 20  # before a point begins


def nameless_file() -> pa.NativeFile:
    """A new file to write. What was written is read with ``reopened``; the file disappears when the
    last object that has it open is closed.

    Raises ResultsError.
    """
    with disk_errors(), tempfile.TemporaryFile() as file:
        return reopened(file, "wb")


def reopened(file: pa.NativeFile | IO[bytes], mode: str = "rb") -> pa.NativeFile:
    """Opens a nameless file once more, from its start. Raises ResultsError."""
    with disk_errors():
        again = pa.OSFile(path_of(file), mode)
        # otherwise a program that this process starts would keep it open
        os.set_inheritable(again.fileno(), False)
    return again


def path_of(file: pa.NativeFile | IO[bytes]) -> str:
    """The path under which this process can open a nameless file once more."""
    return f"/proc/self/fd/{file.fileno()}"


def buffered_writer(file: pa.NativeFile) -> pa.NativeFile:
    """A writer of large amounts into a file. Closing it writes the rest and keeps the file open."""
    return pa.output_stream(_KeptOpen(file), compression=None, buffer_size=SINK_BYTES)


class _KeptOpen(io.RawIOBase):
    """A file to write, which stays open when this object is closed."""

    def __init__(self, file: pa.NativeFile) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return os.lseek(self._file.fileno(), 0, os.SEEK_CUR)

    def write(self, data: Any) -> int:
        unwritten = memoryview(data).cast("B")
        while unwritten:
            written = os.write(self._file.fileno(), unwritten)
            unwritten = unwritten[written:]
        return len(data)


def check_free_space() -> None:
    """Raises ResultsError where no point should begin because the disk is full."""
    with disk_errors(), tempfile.TemporaryFile() as file:
        file.write(bytes(LEAST_FREE_BYTES))


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turns an OSError inside the block into a ResultsError that says what to do."""
    try:
        yield
    except OSError as error:
        folder = tempfile.tempdir or "a temporary folder"
        raise ResultsError(
            f"rows cannot be kept in {folder} of {socket.gethostname()} until the point is over: "
            f"{error}; make room there, or set TMPDIR to a folder that has some"
        ) from error

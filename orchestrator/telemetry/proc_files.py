"""Reads files below /proc again and again.

A file stays open between two readings, because opening it takes longer than reading it. The kernel
writes its content anew whenever it is read from its beginning. Opening with pathlib would take
twice as long.
"""

import os
from pathlib import Path

MOST_OPEN = 256  # many systems allow a process 1,024 open files
_CHUNK_BYTES = 4096


class ProcFiles:
    """Files below the folder ``proc``, named by their paths in it. Files stay open once they are
    read: of those that ``beginning`` reads only the first ones, up to MOST_OPEN in all.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._descriptors: dict[str, int] = {}  # by name

    def beginning(self, name: str) -> bytes:
        """The first 4,096 bytes of a file: more than /proc/<pid>/stat ever has.

        Raises OSError where there is no such file. A file of a process that has ended while it was
        open raises, too, even if another process has the same pid by now.
        """
        descriptor = self._descriptors.get(name)
        if descriptor is not None:
            return os.pread(descriptor, _CHUNK_BYTES, 0)
        descriptor = os.open(f"{self._proc}/{name}", os.O_RDONLY)
        try:
            return os.pread(descriptor, _CHUNK_BYTES, 0)
        finally:
            if len(self._descriptors) < MOST_OPEN:
                self._descriptors[name] = descriptor
            else:
                os.close(descriptor)

    def whole(self, name: str) -> bytes:
        """All of a file, which stays open. Raises OSError where there is no such file."""
        if name not in self._descriptors:
            self._descriptors[name] = os.open(f"{self._proc}/{name}", os.O_RDONLY)
        descriptor = self._descriptors[name]
        chunks: list[bytes] = []
        length = 0
        while chunk := os.pread(descriptor, _CHUNK_BYTES, length):
            chunks.append(chunk)
            length += len(chunk)
        return b"".join(chunks)

    def forget(self, name: str) -> None:
        """Closes a file that is not read any more."""
        descriptor = self._descriptors.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Closes all files."""
        for name in list(self._descriptors):
            self.forget(name)

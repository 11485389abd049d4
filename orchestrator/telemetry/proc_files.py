"""Reads files below /proc again and again.

The kernel writes such a file anew for each reading from its beginning. So a file stays open: to open
it takes longer than to read it, and pathlib would take as long again.
"""

import os
from pathlib import Path

MOST_OPEN = 256  # files that stay open: often a process may have 1,024 and no more
_CHUNK_BYTES = 4096


class ProcFiles:
    """Files below ``proc``, by their names in it. Those that are read first stay open."""

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._open: dict[str, int] = {}  # name -> descriptor

    def beginning(self, name: str) -> bytes:
        """The first 4,096 bytes of a file, which are all that /proc/<pid>/stat has. Raises OSError
        where there is no such file, and where the process has ended whose file it was, even if a
        later one has its pid.
        """
        descriptor = self._open.get(name)
        if descriptor is not None:
            return os.pread(descriptor, _CHUNK_BYTES, 0)
        descriptor = os.open(f"{self._proc}/{name}", os.O_RDONLY)
        try:
            return os.pread(descriptor, _CHUNK_BYTES, 0)
        finally:
            if len(self._open) < MOST_OPEN:
                self._open[name] = descriptor
            else:
                os.close(descriptor)

    def whole(self, name: str) -> bytes:
        """All of a file, which stays open. Raises OSError where there is no such file."""
        if name not in self._open:
            self._open[name] = os.open(f"{self._proc}/{name}", os.O_RDONLY)
        descriptor = self._open[name]
        chunks: list[bytes] = []
        length = 0
        while chunk := os.pread(descriptor, _CHUNK_BYTES, length):
            chunks.append(chunk)
            length += len(chunk)
        return b"".join(chunks)

    def forget(self, name: str) -> None:
        """Closes a file that is not read any more."""
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Closes all files."""
        for name in list(self._open):
            self.forget(name)

"""Whole objects below one folder or bucket prefix: put, get, list. An object is there whole or not at all.

Storage facts behind the rules: an exception while a stream to S3 is open publishes the truncated object, so a part is
built in memory first and written in one go; a reply that is lost looks like a failure, so what is there is read back.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from orchestrator.errors import ResultsError
from orchestrator.results.ids import new_ulid
from orchestrator.results.location import Location

T = TypeVar("T")
_FINAL = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT_MATCH", "PermissionDenied")


@dataclass(frozen=True, slots=True)
class Retry:
    """Bounded retries: ``tries`` in all, pauses doubling from ``first_s``, each cut by up to half at random."""

    tries: int = 5
    first_s: float = 1.0
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)

    def run(self, what: str, call: Callable[[], T]) -> T:
        """``call()`` until it raises no OSError. Raises ResultsError saying ``what`` failed, how often and why."""
        for attempt in range(self.tries):
            try:
                return call()
            except FileNotFoundError:
                raise
            except OSError as error:
                if attempt + 1 == self.tries or any(word in str(error) for word in _FINAL):
                    raise ResultsError(f"{what} failed (try {attempt + 1} of {self.tries}): {error}") from error
            self.sleep(self.first_s * 2**attempt * self.rng.uniform(0.5, 1.0))
        raise AssertionError("tries is at least 1")


class Blobs:
    """Objects of one location. Keys are relative paths with ``/``."""

    def __init__(self, location: Location, retry: Retry | None = None) -> None:
        self.location = location
        self.filesystem = location.filesystem()
        self.retry = retry or Retry(tries=1 if location.is_local else 5)

    def put(self, key: str, data: bytes | pa.Buffer) -> None:
        """Write one whole object, replacing what is there. Raises ResultsError when it cannot be done."""
        try:
            self.retry.run(f"writing {self.path(key)}", lambda: self._put(key, data))
        except FileNotFoundError as error:
            raise ResultsError(f"writing {self.path(key)} failed: {error}") from error

    def get(self, key: str) -> bytes | None:
        """The whole object, None when there is none."""
        try:
            return self.retry.run(f"reading {self.path(key)}", lambda: self._read(key))
        except FileNotFoundError:
            return None

    def open(self, key: str) -> pa.NativeFile:
        """A file to read from; of an object store the whole object, with its retries. Raises FileNotFoundError."""
        if self.location.is_local:
            return self.filesystem.open_input_file(self.path(key))
        data = self.get(key)
        if data is None:
            raise FileNotFoundError(key)
        return pa.BufferReader(data)

    def delete(self, key: str) -> None:
        """Remove one object; nothing to do when it is not there."""
        with suppress(FileNotFoundError):
            self.retry.run(f"removing {self.path(key)}", lambda: self.filesystem.delete_file(self.path(key)))

    def folders(self) -> list[str]:
        """Names of the folders directly below. Google's listing shows none that nobody made: then all objects tell."""
        direct = [info.base_name for info in self.listing("", recursive=False) if not info.is_file]
        return direct or sorted({self.key(info.path).partition("/")[0] for info in self.listing("") if info.is_file})

    def exist(self, keys: list[str]) -> list[bool]:
        """Whether there is such an object or folder."""
        return [info.type != fs.FileType.NotFound for info in self._look_up(keys)]

    def listing(self, prefix: str, *, recursive: bool = True) -> list[fs.FileInfo]:
        """What lies below a folder, sorted by path; empty when there is no such folder."""
        selector = fs.FileSelector(self.path(prefix), recursive=recursive, allow_not_found=True)
        found = self.retry.run(f"listing {self.path(prefix)}", lambda: self.filesystem.get_file_info(selector))
        return sorted(found, key=lambda info: info.path)

    def keys(self, prefix: str) -> list[str]:
        """Keys of the objects below a folder, in no order."""
        if not self.location.is_local:
            return [self.key(info.path) for info in self.listing(prefix) if info.is_file]
        path = self.path(prefix)
        return [self.key(file) for file in self.retry.run(f"listing {path}", lambda: _files_below(path))]

    def sizes(self, keys: list[str]) -> list[int | None]:
        """Size in bytes of each object, None where there is none."""
        return [info.size if info.is_file else None for info in self._look_up(keys)]

    def path(self, key: str) -> str:
        """A key as the filesystem's own path."""
        return f"{self.location.path}/{key}" if key else self.location.path

    def key(self, path: str) -> str:
        """A path of the filesystem as a key."""
        return path.removeprefix(self.location.path).lstrip("/")

    def _look_up(self, keys: list[str]) -> list[fs.FileInfo]:
        paths = [self.path(key) for key in keys]
        found: list[fs.FileInfo] = self.retry.run(
            f"looking up {', '.join(keys)}", lambda: self.filesystem.get_file_info(paths)
        )
        return found

    def _read(self, key: str) -> bytes:
        with self.filesystem.open_input_stream(self.path(key)) as stream:
            return bytes(stream.read())

    def _put(self, key: str, data: bytes | pa.Buffer) -> None:
        if self.location.is_local:
            return _write_beside_and_rename(Path(self.path(key)), data)
        try:
            with self.filesystem.open_output_stream(self.path(key)) as stream:
                stream.write(data)
        except OSError:
            if not self._holds(key, data):  # else the object is whole and only the reply was lost
                raise

    def _holds(self, key: str, data: bytes | pa.Buffer) -> bool:
        try:
            size = self.filesystem.get_file_info(self.path(key)).size
            same: bool = size == memoryview(data).nbytes and pa.py_buffer(self._read(key)).equals(pa.py_buffer(data))
            return same
        except OSError:
            return False


def _files_below(folder: str) -> list[str]:
    """Paths of all files below a folder, none below one that is not there: pyarrow needs three times as long."""
    found: list[str] = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            found += _files_below(entry.path) if entry.is_dir() else [entry.path]
    return found


def _write_beside_and_rename(path: Path, data: bytes | pa.Buffer) -> None:
    """A reader sees the old file or the whole new one, also after a power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{new_ulid()}.tmp")
    try:
        with beside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

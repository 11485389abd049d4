"""Puts, gets and lists objects below one folder or bucket prefix. An object is there whole or not
at all.

Two facts about S3 shape this. An exception while a stream is open publishes a truncated object, so
an object is made before it is written. A lost reply looks like a failure, so after a failure the
object is read back.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO, TypeVar

import pyarrow as pa
from pyarrow import fs

from orchestrator.base.errors import ResultsError
from orchestrator.results.location import Location
from orchestrator.results.storage_retry import FOLDER, OBJECT_STORE, Patience, Retry

T = TypeVar("T")
UNFINISHED = ".tmp"  # ends the names of files being written, before they get their final name
UNFINISHED_KEPT_S = 86_400.0
# words of answers by which a storage refuses because it is too busy
_REFUSED = ("SLOW_DOWN", "SERVICE_UNAVAILABLE", "HTTP status 5")
COPIED_BYTES = 16 << 20  # of a file at a time


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file to read, and the SHA-256 of its content."""

    source: pa.NativeFile
    sha256: str


class Blobs:
    """Objects of one location. Keys are relative paths with ``/``. ``tell`` gets sentences on calls
    that the storage refuses; None: they are not reported. ``survives_power_loss``: files are forced
    to the disk, which takes longer than writing them.
    """

    def __init__(
        self,
        location: Location,
        retry: Retry | None = None,
        tell: Callable[[str], None] | None = None,
        survives_power_loss: bool = True,
    ) -> None:
        self.location = location
        self._forces_to_disk = survives_power_loss
        self.filesystem = location.filesystem()
        policy = FOLDER if location.is_local else OBJECT_STORE
        self.retry = retry or Retry(policy, is_local=location.is_local)
        self.patience = Patience(tell=tell)

    def _run(self, what: str, call: Callable[[], T]) -> T:
        return self.retry.run(what, call, self.patience)

    def put(self, key: str, data: bytes | pa.NativeFile) -> None:
        """Writes one whole object, in place of what is there. ``data``: its content, or a local
        file with it. Raises ResultsError.
        """
        try:
            self._run(f"writing {self.path(key)}", lambda: self._put(key, data))
        except FileNotFoundError as error:
            raise ResultsError(f"writing {self.path(key)} failed: {error}") from error

    def get(self, key: str) -> bytes | None:
        """The whole object; None when there is none."""
        try:
            return self._run(f"reading {self.path(key)}", lambda: self._read(key))
        except FileNotFoundError:
            return None

    def open(self, key: str) -> pa.NativeFile:
        """A file to read from. Of an object store it is the whole object in memory, read with
        retries. Raises FileNotFoundError.
        """
        if self.location.is_local:
            return self.filesystem.open_input_file(self.path(key))
        data = self.get(key)
        if data is None:
            raise FileNotFoundError(key)
        return pa.BufferReader(data)

    def hashed(self, key: str) -> HashedFile:
        """A file to read from its start, as of ``open``."""

        def read() -> HashedFile:
            source = self.open(key)
            digest = _digest(source)
            source.seek(0)
            return HashedFile(source, digest)

        return self._run(f"reading {self.path(key)}", read)

    def delete(self, key: str) -> None:
        """Remove one object, if it is there."""
        with suppress(FileNotFoundError):
            self._run(
                f"removing {self.path(key)}", lambda: self.filesystem.delete_file(self.path(key))
            )

    def folders(self) -> list[str]:
        """Names of the folders directly below. Google lists none: there they are taken from the
        keys of the objects.
        """
        direct = [info.base_name for info in self.listing("", recursive=False) if not info.is_file]
        if direct:
            return direct
        keys = [self.key(info.path) for info in self.listing("") if info.is_file]
        return sorted({key.partition("/")[0] for key in keys})

    def exist(self, keys: list[str]) -> list[bool]:
        """For each key, whether there is such an object or folder."""
        return [info.type != fs.FileType.NotFound for info in self._look_up(keys)]

    def listing(self, prefix: str, *, recursive: bool = True) -> list[fs.FileInfo]:
        """Everything below a folder, sorted by path; empty when there is no such folder."""
        selector = fs.FileSelector(self.path(prefix), recursive=recursive, allow_not_found=True)
        infos = self._run(
            f"listing {self.path(prefix)}", lambda: self.filesystem.get_file_info(selector)
        )
        return sorted(infos, key=lambda info: info.path)

    def keys(self, prefix: str) -> list[str]:
        """Keys of the objects below a folder, in no order."""
        if not self.location.is_local:
            return [self.key(info.path) for info in self.listing(prefix) if info.is_file]
        folder = self.path(prefix)
        files = self._run(f"listing {folder}", lambda: _files_below(folder))
        return [self.key(file) for file in files]

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
        """What is at each key. All are looked up at once. If that fails they are looked up one by
        one with retries, because among many calls one is easily refused.
        """
        paths = [self.path(key) for key in keys]
        with suppress(OSError):
            return list(self.filesystem.get_file_info(paths))
        return [
            self._run(f"looking up {path}", partial(self.filesystem.get_file_info, path))
            for path in paths
        ]

    def _read(self, key: str) -> bytes:
        with self.filesystem.open_input_stream(self.path(key)) as stream:
            return bytes(stream.read())

    def _put(self, key: str, data: bytes | pa.NativeFile) -> None:
        source = pa.BufferReader(data) if isinstance(data, bytes) else data
        source.seek(0)
        if self.location.is_local:
            if self._forces_to_disk:
                return _write_beside_and_rename(self.path(key), source)
            return _replace_file(self.path(key), source, forces_to_disk=False)
        try:
            with self.filesystem.open_output_stream(self.path(key)) as stream:
                copyfileobj(source, stream, COPIED_BYTES)
        except OSError as error:
            # unless the storage refused, the object may be there and only the reply was lost
            if any(word in str(error) for word in _REFUSED) or not self._holds(key, source):
                raise

    def _holds(self, key: str, source: pa.NativeFile) -> bool:
        try:
            source.seek(0)
            with self.filesystem.open_input_stream(self.path(key)) as there:
                return _digest(there) == _digest(source)
        except OSError:
            return False


def _digest(source: pa.NativeFile) -> str:
    return hashlib.file_digest(source, "sha256").hexdigest()


def drop_unfinished(folder: str, listed: str = "", unfinished: Iterable[str] = ()) -> None:
    """Remove unfinished files of dead writers below a folder, once they are a day old.

    ``listed``: a folder in it that is not listed again, because its ``unfinished`` files are known.
    """
    with suppress(OSError):  # a file that stays only takes space
        others = [file for file in _files_below(folder, listed) if file.endswith(UNFINISHED)]
        for name in (*unfinished, *others):
            path = Path(name)
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > UNFINISHED_KEPT_S:
                    path.unlink()


def _files_below(folder: str, left_out: str = "") -> list[str]:
    """Paths of all files below a folder, except those in the folder ``left_out``; none if it does
    not exist. This takes a third of the time of pyarrow's listing.
    """
    files: list[str] = []
    folders = [folder]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.path == left_out:
                    continue
                if entry.is_dir():
                    folders.append(entry.path)
                else:
                    files.append(entry.path)
    return files


def _write_beside_and_rename(path: str, source: pa.NativeFile) -> None:
    """Replace a file atomically: a reader sees the old one or the whole new one, even after a power
    loss.
    """
    _replace_file(path, source, forces_to_disk=True)


def _replace_file(path: str, source: pa.NativeFile, forces_to_disk: bool) -> None:
    """Replace a file atomically, as long as the machine has power."""
    above, name = os.path.split(path)
    beside = f"{above}/.{name}.{os.urandom(8).hex()}{UNFINISHED}"
    try:
        with _new_file(beside) as stream:
            copyfileobj(source, stream, COPIED_BYTES)
            if forces_to_disk:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise
    if not forces_to_disk:
        return
    folder = os.open(above, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _new_file(path: str) -> BinaryIO:
    """A new file to write. Makes its folder where that is missing."""
    try:
        return open(path, "wb")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb")

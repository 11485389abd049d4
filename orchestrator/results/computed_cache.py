"""A cache of rows that can be computed again, in few Parquet files that anyone may delete.

A file is immutable and named ``<ulid>-<rows>.parquet``. Rows are added in small files, which are
merged into larger ones. No lock is needed. A row may be in several files, because two programs
merged the same ones; it counts once. A file that disappears while it is read was merged, and its
rows are in a new file. A damaged file is ignored.
"""

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from orchestrator.base.errors import ResultsError
from orchestrator.results.blobs import Blobs
from orchestrator.results.ids import new_ulid
from orchestrator.results.schemas import Compression, arrow_schema, parquet_writer, table_of
from orchestrator.results.temporary_files import (
    buffered_writer,
    disk_errors,
    nameless_file,
    reopened,
)

FILES_PER_MERGE = 32
MERGE_BELOW_BYTES = 32 << 20  # merging larger files would save no time
# smaller files are not compressed: they are merged soon, and compressing takes more time than it
# saves until then
SMALL_BYTES = 1 << 20
GROUP_BYTES = 4 << 20  # uncompressed size of a row group, which a reader holds at a time
Key = tuple[str, ...]
_NAME = re.compile(r"[0-9A-Z]{26}-\d+\.parquet")
_log = logging.getLogger(__name__)


class ComputedRows:
    """Records of one class below one folder.

    ``key``: the columns that identify a row. Thread-safe.
    """

    def __init__(self, blobs: Blobs, folder: str, record: type, key: Sequence[str]) -> None:
        self._blobs = blobs
        self._folder = folder
        self._key = tuple(key)
        self._record = record
        self._schema = arrow_schema(record)
        self._merging = threading.Lock()
        self._added = 0  # files
        self._every_s = 0.0
        self._now_s = time.monotonic
        self._stored_s = -math.inf
        self._buffer_lock = threading.Lock()
        self._buffer: list[Any] = []
        self._buffer_bytes = 0
        self._new_name: Callable[[], str] = new_ulid

    def name_files_by(self, new_name: Callable[[], str]) -> None:
        """From now on files are named by these ULIDs, each later than the one before."""
        self._new_name = new_name

    @contextmanager
    def buffered(self, every_s: float, now_s: Callable[[], float]) -> Iterator[None]:
        """Inside the block rows are written at most every ``every_s``, because a file of one row
        costs as much as one of fifty. The last ones are written when the block ends, if that is
        possible. ``now_s``: a monotonic clock.
        """
        self._every_s = every_s
        self._now_s = now_s
        try:
            yield
        finally:
            self._every_s = 0.0
            with suppress(ResultsError):
                self._flush()

    def add(self, rows: Sequence[Any]) -> None:
        """Stores records; inside ``buffered`` they are collected first, because a file of many
        costs as much time as one of a few. Merges small files from time to time. Raises
        ResultsError when nothing can be written.
        """
        if not rows:
            return
        with self._buffer_lock:
            self._buffer += rows
            for row in rows:
                values = [getattr(row, name) for name in self._schema.names]
                self._buffer_bytes += sum(getattr(value, "nbytes", 0) for value in values)
            waits = self._now_s() - self._stored_s < self._every_s
            if waits and self._buffer_bytes < GROUP_BYTES:
                return
        self._flush()

    def _flush(self) -> None:
        with self._buffer_lock:
            records = self._buffer
            self._buffer = []
            self._buffer_bytes = 0
            self._stored_s = self._now_s()
        if not records:
            return
        rows = table_of(records, self._record)
        is_small = rows.get_total_buffer_size() < SMALL_BYTES
        compression = Compression.NONE if is_small else Compression.LZ4
        self._put(rows.num_rows, _groups(rows), compression)
        self._added += 1
        if self._added % FILES_PER_MERGE == 0:
            self.merge()

    def scan(
        self, columns: Sequence[str], keys: Container[Key] | None = None
    ) -> Iterator[pa.Table]:
        """Every row once, in batches, with these columns and those of the key. Of rows with equal
        keys it is the one in the newest file.

        ``columns``: ``point.validity`` is the column ``point`` with that field alone. ``keys``:
        only rows with these keys.
        """
        nested = [name for name in columns if "." in name]  # pyarrow reads dotted names
        wanted = [name for name in self._schema.names if name in columns or name in self._key]
        wanted += nested
        seen: set[Key] = set()
        read: set[str] = set()
        while True:  # again and again, because a merge meanwhile puts rows into new files
            names = {info.base_name for info in self._files()} - read
            if not names:
                return
            for name in sorted(names, reverse=True):
                read.add(name)
                for rows in self._read(name, wanted):
                    yield self._unseen(rows, seen, keys)

    def keys_of(self, rows: pa.Table) -> list[Key]:
        """The key of each row."""
        return list(zip(*(rows[name].to_pylist() for name in self._key), strict=True))

    def merge(self) -> None:
        """Merges files of similar size where there are many small ones."""
        if not self._merging.acquire(blocking=False):
            return
        try:
            names_by_magnitude: dict[int, list[str]] = {}
            for info in self._files():
                if info.size < MERGE_BELOW_BYTES:
                    magnitude = _magnitude(info.base_name)
                    names_by_magnitude.setdefault(magnitude, []).append(info.base_name)
            for names in names_by_magnitude.values():
                if len(names) >= FILES_PER_MERGE:
                    self._merge(names)
        finally:
            self._merging.release()

    def _merge(self, names: Sequence[str]) -> None:
        seen: set[Key] = set()
        parts = [self._schema.empty_table()]
        for name in sorted(names, reverse=True):
            parts += [self._unseen(rows, seen) for rows in self._read(name, None)]
        merged = pa.concat_tables(parts)
        self._put(merged.num_rows, _groups(merged))
        for name in names:  # last, so that a reader always finds the rows
            self._blobs.delete(f"{self._folder}/{name}")

    def _put(
        self,
        count: int,
        groups: Iterator[pa.Table],
        compression: Compression = Compression.LZ4,
    ) -> None:
        with disk_errors(), nameless_file() as file:
            with (
                buffered_writer(file) as end,
                parquet_writer(
                    self._schema, end, checksums=True, compression=compression
                ) as writer,
            ):
                for group in groups:
                    writer.write_table(group, row_group_size=max(group.num_rows, 1))
            with reopened(file) as written:
                self._blobs.put(f"{self._folder}/{self._new_name()}-{count}.parquet", written)

    def _files(self) -> list[fs.FileInfo]:
        infos = self._blobs.listing(self._folder, recursive=False)
        return [info for info in infos if info.is_file and _NAME.fullmatch(info.base_name)]

    def _read(self, name: str, columns: list[str] | None) -> Iterator[pa.Table]:
        """The row groups of one file; none if it is gone, damaged, or of another schema."""
        key = f"{self._folder}/{name}"
        try:
            with (
                self._blobs.open(key) as source,
                pq.ParquetFile(source, page_checksum_verification=True) as file,
            ):
                if not file.schema_arrow.equals(self._schema):
                    return
                for group in range(file.num_row_groups):
                    yield file.read_row_group(group, columns=columns, use_threads=False)
        except FileNotFoundError:
            return  # merged meanwhile
        except (OSError, pa.ArrowInvalid) as error:
            _log.warning(
                "%s is damaged, its rows are computed again: %s", self._blobs.path(key), error
            )

    def _unseen(
        self, rows: pa.Table, seen: set[Key], wanted: Container[Key] | None = None
    ) -> pa.Table:
        """The rows whose keys were not seen yet (and are wanted). Adds their keys to ``seen``."""
        fresh = []
        for key in self.keys_of(rows):
            fresh.append(key not in seen and (wanted is None or key in wanted))
            seen.add(key)
        return rows if all(fresh) else rows.filter(pa.array(fresh))


def _magnitude(name: str) -> int:
    """Logarithm to the base FILES_PER_MERGE of the number of rows in a file's name, rounded down."""
    rows = int(name.removesuffix(".parquet").rpartition("-")[2])
    power = 0
    while rows >= FILES_PER_MERGE:
        rows //= FILES_PER_MERGE
        power += 1
    return power


def _groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Slices of about GROUP_BYTES."""
    step = max(1, rows.num_rows * GROUP_BYTES // max(rows.nbytes, 1))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)

"""One experiment's results: immutable Parquet files, and the manifests that make them count
(docs/reference/data-format.md).
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.base.errors import DamagedError, InputError, ResultsError
from orchestrator.results.blobs import UNFINISHED, Blobs, drop_unfinished
from orchestrator.results.computed_cache import ComputedRows
from orchestrator.results.ids import new_ulid, safe_name
from orchestrator.results.lazy_rows import LazyRows
from orchestrator.results.location import parse_location, uri_inside
from orchestrator.results.manifest import (
    DROPPABLE,
    FOLDERS,
    FilePart,
    Manifest,
    ManifestKind,
    kind_of,
    manifest_key,
)
from orchestrator.results.records import METRICS_VERSION, AttemptData, Committed, PooledFigures
from orchestrator.results.row_writer import RowFile
from orchestrator.results.schemas import (
    TABLES,
    arrow_schema,
    conform,
    rows_of,
    schema_of,
    to_parquet,
    unify,
)
from orchestrator.results.storage_retry import Patience, Retry
from orchestrator.results.validity import SPOILT

__all__ = ["FilePart", "Manifest", "Store", "best_ok", "first_ok"]

A = TypeVar("A")
B = TypeVar("B")
AttemptT = TypeVar("AttemptT", bound=Committed)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _OpenedPart:
    """A part of a table. ``source``: where to read it; None if it is missing. ``problem``: what is
    wrong with it; None if nothing is, or if people may delete such a part.
    """

    source: pa.NativeFile | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _KnownAttempts:
    """Committed attempts: those with computed rows, and the manifests of the others."""

    computed: list[Committed]
    manifests: list[Manifest]


class Store:
    """The folder ``<root>/<experiment>``. Picklable: another process opens it again by its URI.

    Writers need no lock: every file name contains a fresh attempt id, and no file counts until a
    manifest names it.
    """

    def __init__(self, blobs: Blobs, uri: str, experiment: str) -> None:
        self.uri = uri
        self.experiment = experiment
        self._blobs = blobs
        self._known: dict[str, Manifest] = {}  # manifests never change, so each is read once
        # unfinished files in the folder commits/; None: it was not listed yet
        self._unfinished: list[str] | None = None
        # attempts with a damaged file, which do not count: ids -> what is wrong
        self.damage: dict[tuple[str, str], str] = {}
        # attempts that lost files and still count, because their figures were computed before
        self.lost: dict[tuple[str, str], str] = {}
        self.torn: set[str] = set()  # keys of manifests that cannot be read
        cache = f"{experiment}/computed/v={METRICS_VERSION}"
        attempt_key = ("measurement_id", "attempt_id")
        self.computed = ComputedRows(blobs, f"{cache}/attempts", AttemptData, attempt_key)
        self.pooled = ComputedRows(blobs, f"{cache}/pooled", PooledFigures, ("attempt_ids",))

    @classmethod
    def open(
        cls,
        uri: str,
        experiment: str,
        *,
        retry: Retry | None = None,
        tell: Callable[[str], None] | None = None,
        survives_power_loss: bool = True,
    ) -> Store:
        """The store of ``experiment`` below ``uri`` (see ``parse_location``). Reads and writes
        nothing yet. ``survives_power_loss``: see ``Blobs``.

        ``retry``: how refused calls are tried again; None: as suits the location. ``tell`` gets
        sentences on refused calls, until a sweep attaches itself (``Patience.attach``). Raises
        InputError for a URI or name that cannot be used.
        """
        location = parse_location(uri)
        blobs = Blobs(location, retry, tell, survives_power_loss)
        return cls(blobs, location.uri, safe_name("experiment name", experiment))

    def __reduce__(self) -> tuple[Callable[[str, str], Store], tuple[str, str]]:
        return Store.open, (self.uri, self.experiment)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder, which other machines may not see."""
        return self._blobs.location.is_local

    @property
    def patience(self) -> Patience:
        """How long this process retries while the storage refuses; every process that opens the
        store has its own.
        """
        return self._blobs.patience

    # --- writing ---

    def check_writable(self) -> None:
        """Writes a small object and removes it again. To be called before anything expensive
        starts.

        Raises InputError with the storage's own words.
        """
        key = self._key(f".writable-{new_ulid()}")
        try:
            self._blobs.put(key, b"")
            self._blobs.delete(key)
        except ResultsError as error:
            raise InputError(f"results cannot be written to {self.uri}: {error}") from error

    def write_part(
        self, table: str, data: pa.Table, *, measurement_id: str, attempt_id: str, writer: str
    ) -> FilePart:
        """Stores ``data`` as one immutable file, which counts once a manifest names it.

        ``writer``: ``driver``, ``client0003``, … Raises ResultsError when ``data`` does not fit the
        table or the storage refuses it.
        """
        encoded = pa.BufferReader(to_parquet(table, conform(table, data)))
        return self._put(table, data.num_rows, encoded, (measurement_id, attempt_id, writer))

    def put_part(
        self, part: RowFile, *, measurement_id: str, attempt_id: str, writer: str
    ) -> FilePart:
        """``write_part`` for rows that are encoded already."""
        return self._put(part.table, part.rows, part.open(), (measurement_id, attempt_id, writer))

    def commit(self, manifest: Manifest) -> Manifest:
        """Writes an attempt's manifest, which makes its parts count. Returns it with ``earlier``
        filled in.

        Committing the same again changes nothing. Raises ResultsError when a part is missing or
        incomplete, or when the attempt was committed with other content before.
        """
        safe_name("measurement id", manifest.measurement_id)
        safe_name("attempt id", manifest.attempt_id)
        torn = self._torn_parts(manifest.files)
        if torn:
            raise ResultsError(
                f"cannot commit {manifest.key}: missing or cut off: {', '.join(torn)}"
            )
        committed = self._commit_keys(manifest.key.rpartition("/")[0])
        if manifest.key not in committed:
            manifest = replace(manifest, earlier=len(committed))
            self._blobs.put(self._key(manifest.key), manifest.to_json().encode())
            return manifest
        before = self._read_manifest(manifest.key)
        if before is None or replace(manifest, earlier=before.earlier) != before:
            raise ResultsError(
                f"{manifest.key} exists with other content; an attempt is committed only once"
            )
        return before

    def write_log(self, name: str, data: bytes) -> str:
        """Stores a log as ``logs/<name>`` (``<launch>/rank0.log``). Returns its path below the
        results root.
        """
        key = self.log_uri(name)
        self._blobs.put(key, data)
        return key

    def log_uri(self, name: str) -> str:
        """Where ``write_log`` puts a log of this name."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or not name.isprintable():
            raise InputError(
                f"{name!r} is not a name for a log; give a relative path like <attempt>/rank0.log"
            )
        return self._key(f"logs/{path}")

    def read_log(self, uri: str) -> bytes | None:
        """A log of this experiment, by the path that ``write_log`` returned; None when there is
        none.
        """
        try:
            return self._blobs.get(self.log_uri(uri.partition("/logs/")[2]))
        except InputError:
            return None

    def write_plan(self, text: str) -> None:
        """Stores the frozen plan as plan.json, in place of an earlier one. Also removes old files
        of dead writers.
        """
        self._blobs.put(self._key("plan.json"), text.encode())
        if self.is_local:
            folder = self._blobs.path(self.experiment)
            if self._unfinished is None:
                drop_unfinished(folder)
            else:
                commits = self._blobs.path(self._key("commits"))
                drop_unfinished(folder, commits, self._unfinished)

    def write_page(self, html: bytes) -> str:
        """Stores the experiment's page beside its results, in place of an earlier one.

        Returns where.
        """
        self._blobs.put(self._key("report.html"), html)
        return uri_inside(self.uri, f"{self.experiment}/report.html")

    def plan(self) -> str | None:
        """The text of plan.json, even if damaged; None when there is none."""
        data = self._blobs.get(self._key("plan.json"))
        return None if data is None else data.decode(errors="replace")

    # --- reading ---

    def manifests(self, *kinds: ManifestKind) -> list[Manifest]:
        """Every committed attempt and launch (or only these kinds), oldest first.

        A damaged manifest is no commit: it is skipped, logged and added to ``torn``.
        """
        folder = FOLDERS[kinds[0]] if len(kinds) == 1 else "commits"
        keys = [key for key in self._commit_keys(folder) if not kinds or kind_of(key) in kinds]
        return sorted(
            self._manifests(keys),
            key=lambda manifest: (manifest.created_unix_ns, manifest.attempt_id),
        )

    def attempts(self) -> set[tuple[str, str]]:
        """(measurement id, attempt id) of every committed attempt at a measurement, without opening
        manifests.
        """
        return {_ids(key) for key in self._commit_keys() if kind_of(key) == "point"}

    def simulated(self) -> bool | None:
        """Whether its results were simulated; None if there are none. An experiment has no others
        beside them.
        """
        kinds: tuple[ManifestKind, ...] = ("launch", "point")
        for kind in kinds:
            for key in self._commit_keys(FOLDERS[kind]):
                manifest = self._read_manifest(key) if kind_of(key) == kind else None
                if manifest is not None:
                    return manifest.simulated
        return None

    def check_not_simulated(self) -> None:
        """Raises InputError if its results were simulated, so that nothing may be measured here."""
        if self.simulated():
            raise InputError(
                f"{self.uri} has simulated results of {self.experiment!r}, and measured ones do "
                "not stand beside them; give another --results URI"
            )

    def manifest(self, measurement_id: str, attempt_id: str) -> Manifest | None:
        """The manifest of an attempt at a measurement; None when it is missing or damaged."""
        return next(iter(self._manifests([manifest_key(measurement_id, attempt_id)])), None)

    def launches(self, launch_ids: Iterable[str]) -> list[Manifest]:
        """The manifests of these launches, as far as they are committed."""
        return self._manifests(
            [manifest_key(launch_id, launch_id, "launch") for launch_id in launch_ids]
        )

    def commits(self, *, checked: bool = False) -> list[Committed]:
        """Every committed attempt; those at one measurement in the order of their commits.

        Computed rows are read where they exist, which is much faster; the manifests of other
        attempts are opened.

        Attempts that lost files are left out. Unless ``checked``, there is an exception: an attempt
        with computed rows still counts where its measurement has no other ok attempt, and is noted
        in ``lost``. An attempt that is left out is logged only where its measurement has no whole
        ok attempt.
        """
        known = self._known_attempts()
        attempts = [*known.computed, *known.manifests]
        torn = self._torn([*known.manifests, *known.computed])
        ok = [attempt for attempt in attempts if attempt.status == "ok"]
        ok_tries = Counter(attempt.measurement_id for attempt in ok)
        has_figures = {attempt.ids for attempt in known.computed}
        self.lost = {}
        if not checked:
            for ids, reason in torn.items():
                measurement_id, _ = ids
                if ids in has_figures and ok_tries[measurement_id] < 2:
                    self.lost[ids] = reason
        left_out = torn.keys() - self.lost.keys()
        whole = {attempt.measurement_id for attempt in ok if attempt.ids not in torn}
        for ids in left_out:
            measurement_id, _ = ids
            if measurement_id not in whole:  # otherwise it has been measured again
                self.leave_out(ids, torn[ids])
        remaining = [attempt for attempt in attempts if attempt.ids not in left_out]
        return sorted(remaining, key=lambda attempt: attempt.age)

    def _known_attempts(self) -> _KnownAttempts:
        """The committed attempts that are not known to be damaged."""
        columns = arrow_schema(Committed).names
        computed: dict[tuple[str, str], Committed] = {}
        for rows in self.computed.scan(columns):
            computed |= {attempt.ids: attempt for attempt in rows_of(rows, Committed)}
        committed = self.attempts() - self.damage.keys()
        not_computed = committed - computed.keys()
        manifests = self._manifests([manifest_key(*ids) for ids in not_computed])
        return _KnownAttempts([computed[ids] for ids in committed - not_computed], manifests)

    def winners(self) -> dict[str, Committed]:
        """Measurement id -> the attempt that counts (``best_ok``), among those with all their
        files.
        """
        return self.counting(self.commits(checked=True))

    def counting(self, commits: Sequence[Committed]) -> dict[str, Committed]:
        """Measurement id -> the attempt that counts. ``commits``: from ``commits``."""
        ok = [attempt for attempt in commits if attempt.status == "ok"]
        tries = Counter(attempt.measurement_id for attempt in ok)
        # a single ok attempt counts whatever its verdict
        several = [attempt for attempt in ok if tries[attempt.measurement_id] > 1]
        return best_ok(ok, self.spoilt(several) if several else {})

    def spoilt(self, commits: Iterable[Committed]) -> dict[tuple[str, str], str]:
        """The ok attempts that something beside the engine spoilt: ids -> verdict.

        Verdicts are read from the computed rows where they exist, else from the attempts' own
        files.
        """
        verdicts = self._computed_verdicts()
        ok = [attempt.ids for attempt in commits if attempt.status == "ok"]
        verdicts |= self._map(self._verdict, [ids for ids in ok if ids not in verdicts])
        return {ids: verdicts[ids] for ids in ok if verdicts[ids] in SPOILT}

    def _computed_verdicts(self) -> dict[tuple[str, str], str]:
        """The validity of attempts by their computed rows, by ids."""
        verdicts: dict[tuple[str, str], str] = {}
        for rows in self.computed.scan(["point.validity"]):
            ids = zip(
                rows["measurement_id"].to_pylist(), rows["attempt_id"].to_pylist(), strict=True
            )
            validities = [point["validity"] for point in rows["point"].to_pylist()]
            verdicts |= zip(ids, validities, strict=True)
        return verdicts

    def _verdict(self, ids: tuple[str, str]) -> str:
        """The validity of an attempt without computed rows; empty where its row cannot be read."""
        manifest = self.manifest(*ids)
        if manifest is None:
            return ""
        rows = self.read_manifests("points", [manifest], ["validity"], skip_damaged=True)
        return str(rows["validity"][0].as_py()) if rows.num_rows else ""

    def read(
        self, table: str, columns: Sequence[str] | None = None, *, include_failed: bool = False
    ) -> pa.Table:
        """Committed rows of one table, in its schema but with every column nullable.

        Of tables keyed by measurement (requests, token_events, points) these are the rows of the
        attempts that count, or with ``include_failed`` of every committed attempt. Of other tables
        they are the rows of every commit, with each deployment once. ``columns``: only these, in
        this order. Damaged files are left out and logged.
        """
        schema = schema_of(table)
        is_keyed = "measurement_id" in schema.names and not schema.field("measurement_id").nullable
        manifests = self.manifests()
        if is_keyed and not include_failed:
            counting = {attempt.ids for attempt in self.counting(self.commits()).values()}
            manifests = [manifest for manifest in manifests if manifest.ids in counting]
        return self.read_manifests(table, manifests, columns, skip_damaged=True)

    def read_manifests(
        self,
        table: str,
        manifests: Iterable[Manifest],
        columns: Sequence[str] | None = None,
        *,
        skip_damaged: bool = False,
    ) -> pa.Table:
        """Rows of one table that the given manifests name, without token_events that were deleted
        to save space.

        Raises DamagedError for a part that cannot be read, or with ``skip_damaged`` skips it. Files
        are read one by one, because a scan of pyarrow.dataset fails as a whole, cannot try a
        refused call again, and takes a third more CPU time for many small files.
        """
        needed = None if columns is None else list(columns)
        if table == "deployments" and needed and "deployment_id" not in needed:
            needed.append("deployment_id")  # each deployment is returned once

        def read_part(owned: tuple[Manifest, FilePart]) -> pa.Table | None:
            manifest, part = owned
            try:
                return self._read_part(part, needed)
            except DamagedError as error:
                if not skip_damaged:
                    raise
                self.leave_out(manifest.ids, str(error))
                return None

        owned_parts: list[tuple[Manifest, FilePart]] = []
        for manifest in manifests:
            owned_parts += [(manifest, part) for part in manifest.files if part.table == table]
        tables = [rows for _, rows in self._map(read_part, owned_parts) if rows is not None]
        rows = unify(table, tables, needed)
        if table == "deployments":
            rows = _once(rows, "deployment_id")
        return rows if columns is None else rows.select(list(columns))

    def lazy_rows(self, table: str, manifest: Manifest) -> LazyRows:
        """Rows of an attempt that are read only when they are asked for, without deleted
        token_events. Raises DamagedError.
        """
        parts = [part for part in manifest.files if part.table == table]
        sources: list[pa.NativeFile] = []
        count = 0
        for part, source in self._map(self._sound, parts):
            if source is not None:
                sources.append(source)
                count += part.rows
        try:
            return LazyRows.open(table, sources, count)
        except (OSError, ValueError) as error:  # they were written like that
            raise DamagedError(f"{table} of {manifest.key} cannot be read: {error}") from error

    def verify(self) -> Iterator[tuple[str, str | None]]:
        """Every committed file and manifest, each with what is wrong with it; None where nothing
        is, or where token_events were deleted.
        """
        for key in self._commit_keys():
            manifest = self._read_manifest(key)
            if manifest is None:
                yield key, "no whole manifest"
                continue
            yield key, None
            for part, opened in self._map(self._opened, manifest.files):
                yield part.path, opened.problem

    def leave_out(self, ids: tuple[str, str], why: str) -> None:
        """Notes and logs that a file of this attempt is damaged.

        The attempt no longer counts here.
        """
        if ids not in self.damage:
            self.damage[ids] = why
            _log.warning("measurement %s is left out: %s", ids[0], why)

    # --- inside ---

    def _put(
        self, table: str, rows: int, content: pa.NativeFile, names: tuple[str, str, str]
    ) -> FilePart:
        """Stores a whole file. ``names``: measurement id, attempt id and writer."""
        safe = map(safe_name, ("measurement id", "attempt id", "writer"), names)
        path = f"data/{table}/v=1/{'-'.join(safe)}.parquet"
        self._blobs.put(self._key(path), content)
        content.seek(0)
        digest = hashlib.file_digest(content, "sha256").hexdigest()
        return FilePart(table, path, rows, content.size(), digest)

    def _key(self, path: str) -> str:
        return f"{self.experiment}/{path}"

    def _map(self, call: Callable[[A], B], items: Sequence[A]) -> list[tuple[A, B]]:
        """Calls ``call`` on every item, on several in parallel, because each call takes a few round
        trips to an object store.
        """
        if len(items) < 2:
            return [(item, call(item)) for item in items]
        with ThreadPoolExecutor(2 if self._blobs.location.is_local else 16) as pool:
            return list(zip(items, pool.map(call, items), strict=True))

    def _commit_keys(self, folder: str = "commits") -> list[str]:
        keys = self._blobs.keys(self._key(folder))
        if folder == "commits":
            self._unfinished = [self._blobs.path(key) for key in keys if key.endswith(UNFINISHED)]
        own_folder = self._key("")
        return [key.removeprefix(own_folder) for key in keys if _is_manifest(key)]

    def _manifests(self, keys: Sequence[str]) -> list[Manifest]:
        unknown = [key for key in keys if key not in self._known]
        for key, manifest in self._map(self._read_manifest, unknown):
            if manifest is not None:
                self._known[key] = manifest
        return [self._known[key] for key in keys if key in self._known]

    def _read_manifest(self, key: str) -> Manifest | None:
        data = self._blobs.get(self._key(key))
        if data is None:
            return None
        try:
            manifest = Manifest.from_json(data)
            if manifest.key != key:
                raise ValueError(f"it is that of {manifest.key}")
            return manifest
        except ValueError as error:
            self.torn.add(key)
            _log.warning("%s is ignored: %s", self._blobs.path(self._key(key)), error)
            return None

    def _torn(self, attempts: Sequence[Committed]) -> dict[tuple[str, str], str]:
        """The attempts that lost files: ids -> which files.

        One listing per table shows which attempts have too few bytes. Only their manifests are
        opened.
        """
        if not attempts:
            return {}
        sizes: list[tuple[str, int]] = []
        for table in TABLES:
            if table in DROPPABLE:
                continue
            for info in self._blobs.listing(self._key(f"data/{table}")):
                if info.is_file:
                    sizes.append((info.base_name, info.size))
        files = sorted(sizes)
        names = [name for name, _ in files]
        torn: dict[tuple[str, str], str] = {}
        for attempt in attempts:
            prefix = f"{attempt.measurement_id}-{attempt.attempt_id}-"
            first = bisect_left(names, prefix)
            last = bisect_left(names, prefix + "\U0010ffff")
            if sum(size for _, size in files[first:last]) >= attempt.data_bytes:
                continue
            manifest = attempt if isinstance(attempt, Manifest) else self.manifest(*attempt.ids)
            if manifest is None:
                torn[attempt.ids] = "missing or cut off: its manifest"
                continue
            parts = [part for part in manifest.files if part.table not in DROPPABLE]
            missing = self._torn_parts(parts)
            if missing:
                torn[attempt.ids] = f"missing or cut off: {', '.join(missing)}"
        return torn

    def _torn_parts(self, parts: Sequence[FilePart]) -> list[str]:
        """Paths of the parts that are missing or not of the size that the manifest says."""
        sizes = self._blobs.sizes([self._key(part.path) for part in parts]) if parts else []
        return [part.path for part, size in zip(parts, sizes, strict=True) if size != part.bytes]

    def _opened(self, part: FilePart) -> _OpenedPart:
        try:
            file = self._blobs.hashed(self._key(part.path))
        except FileNotFoundError:
            return _OpenedPart(None, None if part.table in DROPPABLE else "gone")
        except ResultsError as error:
            if not self.is_local:  # the storage does not answer, which says nothing about the file
                raise
            return _OpenedPart(None, str(error))
        size = file.source.size()
        if size != part.bytes:
            return _OpenedPart(file.source, f"{size} bytes; its manifest says {part.bytes}")
        if file.sha256 != part.sha256:
            return _OpenedPart(file.source, "its content has changed (SHA-256)")
        return _OpenedPart(file.source)

    def _sound(self, part: FilePart) -> pa.NativeFile | None:
        """A part to read from; None where it was deleted to save space. Raises DamagedError."""
        opened = self._opened(part)
        if opened.problem is not None:
            raise self._damaged(part, opened.problem)
        return opened.source

    def _damaged(self, part: FilePart, problem: object) -> DamagedError:
        return DamagedError(
            f"{self._blobs.path(self._key(part.path))} is committed but cannot be read: {problem}"
        )

    def _read_part(self, part: FilePart, columns: list[str] | None) -> pa.Table | None:
        source = self._sound(part)
        if source is None:
            return None
        try:
            with pq.ParquetFile(source) as file:
                names = file.schema_arrow.names
                present = [name for name in names if columns is None or name in columns]
                rows = file.read(columns=present, use_threads=False)
            if rows.num_rows != part.rows:
                raise ValueError(f"it holds {rows.num_rows} rows; its manifest says {part.rows}")
        except (OSError, ValueError) as error:  # its checksum is right: it was written like that
            raise self._damaged(part, error) from error
        return rows


def first_ok(attempts: Iterable[AttemptT]) -> dict[str, AttemptT]:
    """Measurement id -> its oldest ok attempt (``Committed.age``), whatever order they come in."""
    oldest: dict[str, AttemptT] = {}
    for attempt in sorted(attempts, key=lambda attempt: attempt.age):
        if attempt.status == "ok":
            oldest.setdefault(attempt.measurement_id, attempt)
    return oldest


def best_ok(
    attempts: Sequence[AttemptT], spoilt: Container[tuple[str, str]]
) -> dict[str, AttemptT]:
    """Measurement id -> the attempt that counts: its oldest ok one that is not spoilt, or where all
    are spoilt, its oldest ok one. An attempt that is not spoilt counts forever, whatever follows.
    ``spoilt``: ids of attempts.
    """
    sound = (attempt for attempt in attempts if attempt.ids not in spoilt)
    return first_ok(attempts) | first_ok(sound)


def _is_manifest(key: str) -> bool:
    name = key.rpartition("/")[2]
    return name.endswith(".json") and not name.startswith(".")


def _ids(key: str) -> tuple[str, str]:
    """Measurement id and attempt id of a manifest."""
    folder, _, name = key.rpartition("/")
    return folder.rpartition("/")[2], name.removesuffix(".json")


def _once(rows: pa.Table, key: str) -> pa.Table:
    """The first row of each value of the column ``key``, in order."""
    _, first = np.unique(rows[key].to_numpy(zero_copy_only=False), return_index=True)
    return rows.take(pa.array(np.sort(first)))

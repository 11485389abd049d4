"""Summaries of attempts: all that answers need, computed once and stored beside the requests.

The requests stay the truth (docs/reference/data-format.md). A summary is written when its attempt
is committed, and again by any reader that finds it missing, damaged or of another version. The same
function makes it each time, so it is the same to the last digit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from orchestrator.analysis.counters import TimeWindow
from orchestrator.analysis.energy import device_side
from orchestrator.analysis.engine_side import engine_side
from orchestrator.analysis.metrics import (
    Observed,
    ObservedParts,
    figures,
    merge,
    observe_arrays,
    part_figures,
)
from orchestrator.analysis.part_facts import PartFactCounts
from orchestrator.analysis.requests import RequestArrays, request_arrays
from orchestrator.analysis.slo import LimitColumns
from orchestrator.analysis.throughput import Batches
from orchestrator.base.errors import DamagedError, ResultsError
from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import counted
from orchestrator.results.computed_cache import ComputedRows, Key
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.manifest import Manifest
from orchestrator.results.records import (
    METRICS_VERSION,
    AttemptData,
    Committed,
    DeploymentRow,
    DeviceSide,
    Figures,
    ImportedRow,
    PointHead,
    PooledFigures,
)
from orchestrator.results.schemas import arrow_schema, rows_of, table_of
from orchestrator.results.store import Store
from orchestrator.results.window import MeasuredWindow

WORKERS = 4  # threads: most of the time goes into reading
AT_ONCE = 64  # rows that are computed before they are written together
CPU = "cpu"  # the accelerator whose devices are cores
AttemptIds = tuple[str, str]  # measurement and attempt
Source = TypeVar("Source")
Record = TypeVar("Record", AttemptData, PooledFigures)


@dataclass(frozen=True, slots=True)
class AttemptObserved:
    """What the figures of an attempt are computed from: of all requests, and of each part of a
    mix.
    """

    whole: Observed
    by_part: Mapping[str, Observed]


@dataclass(frozen=True, slots=True)
class CommittedAttempt:
    """One committed attempt as it was measured. Each table has the schema of the same name."""

    manifest: Manifest
    point: PointHead
    deployment: DeploymentRow | None
    requests: Rows
    token_events: Rows | None  # None: not stored, or not for the whole attempt
    engine_metrics: pa.Table
    telemetry: pa.Table
    imported: ImportedRow | None = None  # what another tool's file says of it

    @property
    def unix_window(self) -> TimeWindow:
        """The steady window by the driver's clock."""
        window = self.point.window
        began_ns = self.point.started_unix_ns
        return TimeWindow((began_ns + window.start_ns) / 1e9, (began_ns + window.end_ns) / 1e9)

    def data(self) -> AttemptData:
        """Returns the summary of the attempt. Raises ValueError where rows of several
        attempts are mixed.
        """
        limit_columns = LimitColumns(self.point.window)
        parts_of_mix = ObservedParts(self.point.window)
        part_facts = PartFactCounts(self.point.window)

        def blocks() -> Iterator[RequestArrays]:
            """Yields the blocks. Each is decoded once, for both the figures and the limits."""
            for columns in request_arrays(self.requests, self.token_events):
                limit_columns.add(columns)
                parts_of_mix.add(columns)
                part_facts.add(columns)
                yield columns

        observed = observe_arrays(blocks(), self.point.window)
        limits = limit_columns.values()
        (batches,) = observed.token_batches
        if self.imported is not None:
            batches = _as_stated(batches, self.imported.figures)
        return AttemptData(
            measurement_id=self.manifest.measurement_id,
            attempt_id=self.manifest.attempt_id,
            earlier=self.manifest.earlier,
            created_unix_ns=self.manifest.created_unix_ns,
            status=self.manifest.status,
            failure_class=self.point.failure_class,
            deployment_id=self.point.deployment_id,
            data_bytes=self.manifest.data_bytes,
            metrics_version=METRICS_VERSION,
            point=self.point,
            deployment=self.deployment,
            figures=self.imported.figures if self.imported is not None else figures(observed),
            engine_side=engine_side(self.engine_metrics, self.unix_window),
            device_side=self._device_side(),
            batch_tokens=batches.amounts,
            batch_s=batches.sizes,
            request_ok=limits.ok,
            request_ttft_s=limits.seconds["ttft"],
            request_tpot_s=limits.seconds["tpot"],
            request_e2e_s=limits.seconds["e2e"],
            request_normalized_ttft_s=limits.seconds["normalized_ttft"],
            request_itl_p99_s=limits.seconds.get("itl_p99"),
            request_part=None if limits.parts is None else limits.parts.codes.astype(np.int16),
            part_names=() if limits.parts is None else limits.parts.names,
            part_figures=part_figures(parts_of_mix.by_part, part_facts.facts()),
        )

    def _device_side(self) -> DeviceSide | None:
        devices = 0
        if self.deployment is not None and self.deployment.accelerator != CPU:
            devices = self.deployment.devices
        return device_side(self.telemetry, self.unix_window, devices)


def observe_attempt(
    requests: Rows, token_events: Rows | None, window: MeasuredWindow
) -> AttemptObserved:
    """What the figures of an attempt are computed from. ``token_events``: None: not stored, or not
    for the whole attempt. Raises ValueError where rows of several attempts are mixed.
    """
    parts = ObservedParts(window)

    def blocks() -> Iterator[RequestArrays]:
        for columns in request_arrays(requests, token_events):
            parts.add(columns)
            yield columns

    whole = observe_arrays(blocks(), window)
    return AttemptObserved(whole, parts.by_part)


def read_attempt(store: Store, manifest: Manifest) -> CommittedAttempt | None:
    """Reads a committed attempt; None where its commit holds no row of ``points``.

    Raises DamagedError where a file cannot be read.
    """
    points = rows_of(store.read_manifests("points", [manifest]), PointHead)
    if not points:
        return None
    deployments = rows_of(store.read_manifests("deployments", [manifest]), DeploymentRow)
    attempt = attempt_of_rows(
        store,
        manifest,
        point=points[0],
        deployment=deployments[0] if deployments else None,
        requests=store.lazy_rows("requests", manifest),
        engine_metrics=store.read_manifests("engine_metrics", [manifest]),
    )
    return replace(attempt, imported=_imported(store, manifest))


def _imported(store: Store, manifest: Manifest) -> ImportedRow | None:
    """What another tool's file says of an attempt; None where this program measured it."""
    if not any(part.table == "imported" for part in manifest.files):
        return None
    rows = rows_of(store.read_manifests("imported", [manifest]), ImportedRow)
    return rows[0] if rows else None


def _as_stated(batches: Batches, stated: Figures) -> Batches:
    """The batches of an imported attempt, so that they add up to the throughput that its file states.

    A tool may take another part of the run for its throughput than the one that its requests show.
    Where no times of tokens are known, the whole is one batch.
    """
    if stated.output_token_throughput is None:
        return batches
    counted = batches.amounts.sum()
    if counted <= 0:
        tokens = stated.output_token_throughput * stated.window_s
        return Batches(np.array([tokens]), np.array([stated.window_s]))
    tokens = stated.output_token_throughput * batches.sizes.sum()
    return Batches(batches.amounts * (tokens / counted), batches.sizes)


def attempt_of_rows(
    store: Store,
    manifest: Manifest,
    point: PointHead,
    deployment: DeploymentRow | None,
    requests: Rows,
    engine_metrics: pa.Table,
    token_events: Rows | None = None,
) -> CommittedAttempt:
    """Makes a committed attempt of rows that are at hand.

    ``token_events``: None: they are read from the store.
    """
    if token_events is None:
        token_events = store.lazy_rows("token_events", manifest)
    has_all = _has_all_token_events(manifest, requests, token_events)
    return CommittedAttempt(
        manifest=manifest,
        point=point,
        deployment=deployment,
        requests=requests,
        token_events=token_events if has_all else None,
        engine_metrics=engine_metrics,
        telemetry=store.read_manifests("telemetry", [manifest]),
    )


def _has_all_token_events(manifest: Manifest, requests: Rows, token_events: Rows) -> bool:
    """Whether no row of ``token_events`` is missing, since those of some requests would mislead.

    Where none was committed, none is missing only if no request got a token.
    """
    committed = sum(part.rows for part in manifest.files if part.table == "token_events")
    if token_events.num_rows != committed:
        return False
    if committed:
        return True
    return bool(requests["first_token_ns"].null_count == requests.num_rows)


def store_computed(computed_rows: ComputedRows, rows: Sequence[Record]) -> None:
    """Stores computed rows where that is allowed.

    Results that are read-only give the same answers, only slower.
    """
    with suppress(ResultsError):
        computed_rows.add(rows)


def computed(
    store: Store, attempts: Iterable[AttemptIds], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yields these columns of AttemptData, some attempts at a time; damaged ones are left out."""

    def data_of(ids: AttemptIds) -> AttemptData | None:
        attempt = _undamaged(store, ids)
        try:
            return attempt.data() if attempt else None
        except ValueError as error:  # rows of another attempt
            store.leave_out(ids, str(error))
            return None

    keys: dict[Key, AttemptIds] = {ids: ids for ids in attempts}
    return _stored_or_computed(store.computed, keys, columns, AttemptData, data_of)


def attempt_data(store: Store, attempts: Iterable[Committed]) -> Iterator[AttemptData]:
    """Yields the summaries of attempts; damaged ones are left out."""
    ids = [attempt.ids for attempt in attempts]
    for rows in computed(store, ids, arrow_schema(AttemptData).names):
        yield from rows_of(rows, AttemptData)


def pool_key(attempt_ids: Iterable[str]) -> str:
    """The key under which PooledFigures stores the figures of these attempts."""
    return "+".join(sorted(attempt_ids))


def pooled(store: Store, groups: Iterable[Sequence[PointHead]]) -> Iterator[pa.Table]:
    """Yields the pooled figures of groups of attempts, each given by its row of ``points``, as
    columns ``attempt_ids``, ``figures`` and ``part_figures``. Of an attempt its requests alone are
    read.

    Raises DamagedError where attempts cannot be read. The store leaves these attempts out from then
    on, so a second call succeeds.
    """

    def pooled_figures(group: Sequence[PointHead]) -> PooledFigures | None:
        observed: list[AttemptObserved] = []
        for point in group:
            requests = _undamaged_requests(store, point)
            if requests is not None:
                observed.append(observe_attempt(requests.rows, requests.token_events, point.window))
        if len(observed) < len(group):
            return None
        by_part = values_by_key(
            (name, of_part) for attempt in observed for name, of_part in attempt.by_part.items()
        )
        whole = merge(attempt.whole for attempt in observed)
        # a part has the windows of all attempts, also of those without a request of it
        merged = {
            name: replace(merge(by_part[name]), window_s=whole.window_s) for name in sorted(by_part)
        }
        return PooledFigures(
            attempt_ids=pool_key(point.attempt_id for point in group),
            metrics_version=METRICS_VERSION,
            figures=figures(whole),
            part_figures=part_figures(merged),
        )

    keys: dict[Key, Sequence[PointHead]] = {}
    for group in groups:
        keys[(pool_key(point.attempt_id for point in group),)] = group
    columns = ["attempt_ids", "figures", "part_figures"]
    groups_read = 0
    for rows in _stored_or_computed(store.pooled, keys, columns, PooledFigures, pooled_figures):
        groups_read += rows.num_rows
        yield rows
    unread = len(keys) - groups_read
    if unread:
        raise DamagedError(f"repeats of {counted(unread, 'point')} cannot be read")


@dataclass(frozen=True, slots=True)
class _AttemptRequests:
    """The requests of an attempt. ``token_events``: None: not stored, or not for all of them."""

    rows: Rows
    token_events: Rows | None


def _undamaged_requests(store: Store, point: PointHead) -> _AttemptRequests | None:
    """Reads the requests of an attempt; None where that fails, and the store leaves the attempt out
    from then on.
    """
    ids = (point.measurement_id, point.attempt_id)
    manifest = store.manifest(*ids)
    if manifest is None:
        store.leave_out(ids, "its commit is gone")
        return None
    try:
        requests = store.lazy_rows("requests", manifest)
        token_events = store.lazy_rows("token_events", manifest)
    except DamagedError as error:
        store.leave_out(ids, str(error))
        return None
    has_all = _has_all_token_events(manifest, requests, token_events)
    return _AttemptRequests(requests, token_events if has_all else None)


def _undamaged(store: Store, ids: AttemptIds) -> CommittedAttempt | None:
    """Reads an attempt; None where its files cannot be read.

    The store leaves an attempt that cannot be read out from then on.
    """
    manifest = store.manifest(*ids)
    if manifest is None:
        store.leave_out(ids, "its commit is gone")
        return None
    try:
        attempt = read_attempt(store, manifest)
    except DamagedError as error:
        store.leave_out(ids, str(error))
        return None
    if attempt is None:
        store.leave_out(ids, "its commit holds no row of points")
    return attempt


def _stored_or_computed(
    stored: ComputedRows,
    sources: Mapping[Key, Source],
    columns: Sequence[str],
    record: type[Record],
    compute: Callable[[Source], Record | None],
) -> Iterator[pa.Table]:
    """Yields the rows of these keys, some at a time, the stored ones first.

    Missing rows are computed, stored and then yielded. ``sources``: what each row is computed from,
    by its key. ``compute``: returns None where the source cannot be read.
    """
    missing = dict(sources)
    if sources:
        for rows in stored.scan(columns, sources):
            for key in stored.keys_of(rows):
                del missing[key]
            yield rows.select(columns)
    sources_left = list(missing.values())
    with ThreadPoolExecutor(WORKERS) as pool:
        for begin in range(0, len(sources_left), AT_ONCE):
            computed_rows = pool.map(compute, sources_left[begin : begin + AT_ONCE])
            readable = [row for row in computed_rows if row is not None]
            store_computed(stored, readable)
            yield table_of(readable, record).select(columns)

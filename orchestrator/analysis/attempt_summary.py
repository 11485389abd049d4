"""What answers need of an attempt, computed once from its requests and kept beside them
(docs/data-format.md).

The requests stay the truth. The computed data is written when an attempt is committed, and again by
any reader that finds it missing, damaged or of another version. The same function makes it each
time, so it is the same to the last digit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from orchestrator.analysis.engine_side import engine_side
from orchestrator.analysis.metrics import Observed, figures, merge, observe, observe_arrays
from orchestrator.analysis.requests import RequestArrays, request_arrays
from orchestrator.analysis.slo import LimitColumns
from orchestrator.base.errors import DamagedError, ResultsError
from orchestrator.results.computed_cache import ComputedRows, Key
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.manifest import Manifest
from orchestrator.results.records import (
    METRICS_VERSION,
    AttemptData,
    Committed,
    DeploymentRow,
    PointHead,
    PooledFigures,
)
from orchestrator.results.schemas import arrow_schema, rows_of, table_of
from orchestrator.results.store import Store
from orchestrator.spec.load import counted

WORKERS = 4  # most of the time goes into reading
AT_ONCE = 64  # attempts computed before they are written
Source = TypeVar("Source")
Record = TypeVar("Record", AttemptData, PooledFigures)


@dataclass(frozen=True, slots=True)
class CommittedAttempt:
    """One committed attempt as it was measured. Each table has the schema of its name."""

    manifest: Manifest
    point: PointHead
    deployment: DeploymentRow | None
    requests: Rows
    token_events: Rows | None  # None: none were stored, or they were deleted
    engine_metrics: pa.Table

    def observed(self) -> Observed:
        """What its figures are computed from. Raises ValueError where rows of several attempts are
        mixed.
        """
        return observe(self.requests, self.token_events, self.point.window_ns)

    def data(self) -> AttemptData:
        """All that answers need of it. Raises ValueError as ``observed`` does."""
        gathered = LimitColumns(self.point.window_ns)

        def read() -> Iterator[RequestArrays]:
            """Each part is decoded once for the figures and the limits."""
            for columns in request_arrays(self.requests, self.token_events):
                gathered.add(columns)
                yield columns

        observed = observe_arrays(read(), self.point.window_ns)
        limits, (batches,) = gathered.values(), observed.token_batches
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
            figures=figures(observed),
            engine_side=engine_side(self.engine_metrics),
            batch_tokens=batches.amounts,
            batch_s=batches.sizes,
            request_ok=limits.ok,
            request_ttft_s=limits.seconds["ttft"],
            request_tpot_s=limits.seconds["tpot"],
            request_e2e_s=limits.seconds["e2e"],
            request_normalized_ttft_s=limits.seconds["normalized_ttft"],
            request_itl_p99_s=limits.seconds.get("itl_p99"),
        )


def read_attempt(store: Store, manifest: Manifest) -> CommittedAttempt | None:
    """A committed attempt from its files; None where its commit holds no row of ``points``."""
    points = rows_of(store.read_manifests("points", [manifest]), PointHead)
    if not points:
        return None
    deployments = rows_of(store.read_manifests("deployments", [manifest]), DeploymentRow)
    requests = store.lazy_rows("requests", manifest)
    engine_metrics = store.read_manifests("engine_metrics", [manifest])
    return with_parts(
        store,
        manifest,
        points[0],
        deployments[0] if deployments else None,
        requests,
        engine_metrics,
    )


def with_parts(
    store: Store,
    manifest: Manifest,
    point: PointHead,
    deployment: DeploymentRow | None,
    requests: Rows,
    engine_metrics: pa.Table,
    token_events: Rows | None = None,
) -> CommittedAttempt:
    """A committed attempt of which these rows are at hand; without ``token_events`` those are read."""
    token_events = (
        store.lazy_rows("token_events", manifest) if token_events is None else token_events
    )
    committed = sum(part.rows for part in manifest.files if part.table == "token_events")
    whole = token_events.num_rows == committed  # a part of them would mislead
    whole = whole and (committed > 0 or requests["first_token_ns"].null_count == requests.num_rows)
    return CommittedAttempt(
        manifest=manifest,
        point=point,
        deployment=deployment,
        requests=requests,
        token_events=token_events if whole else None,
        engine_metrics=engine_metrics,
    )


def keep(kept: ComputedRows, rows: Sequence[Record]) -> None:
    """Store computed rows where that is allowed. Read-only results give the same answers, only
    slower.
    """
    with suppress(ResultsError):
        kept.add(rows)


def computed(
    store: Store, attempts: Iterable[tuple[str, str]], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """The given columns of AttemptData. ``attempts``: ids; damaged ones are left out."""

    def one(ids: tuple[str, str]) -> AttemptData | None:
        attempt = _whole(store, ids)
        try:
            return attempt.data() if attempt else None
        except ValueError as error:  # rows of another attempt
            store.leave_out(ids, str(error))
            return None

    return _kept_or_made(store.computed, {ids: ids for ids in attempts}, columns, AttemptData, one)


def attempt_data(store: Store, attempts: Iterable[Committed]) -> Iterator[AttemptData]:
    """All that answers need of some attempts; damaged ones are left out."""
    for rows in computed(store, [one.ids for one in attempts], arrow_schema(AttemptData).names):
        yield from rows_of(rows, AttemptData)


def pool_key(attempt_ids: Iterable[str]) -> str:
    """The key under which PooledFigures stores the figures of these attempts."""
    return "+".join(sorted(attempt_ids))


def pooled(store: Store, groups: Iterable[Sequence[tuple[str, str]]]) -> Iterator[pa.Table]:
    """The pooled figures of groups of attempts, as ``attempt_ids`` and ``figures``. ``groups``: the
    ids of each.

    Raises DamagedError where attempts cannot be read. The store leaves those out from then on:
    asking again succeeds.
    """

    def one(group: Sequence[tuple[str, str]]) -> PooledFigures | None:
        found = [_whole(store, ids) for ids in group]
        whole = [attempt.observed() for attempt in found if attempt is not None]
        if len(whole) < len(group):
            return None
        key = pool_key(attempt_id for _, attempt_id in group)
        return PooledFigures(
            attempt_ids=key, metrics_version=METRICS_VERSION, figures=figures(merge(whole))
        )

    wanted: dict[Key, Sequence[tuple[str, str]]] = {
        (pool_key(attempt_id for _, attempt_id in group),): group for group in groups
    }
    found = 0
    for rows in _kept_or_made(store.pooled, wanted, ["attempt_ids", "figures"], PooledFigures, one):
        found += rows.num_rows
        yield rows
    if found < len(wanted):
        raise DamagedError(f"repeats of {counted(len(wanted) - found, 'point')} cannot be read")


def _whole(store: Store, ids: tuple[str, str]) -> CommittedAttempt | None:
    """An attempt from its files; where they cannot be read None, and the store leaves it out from
    then on.
    """
    manifest = store.manifest(*ids)
    try:
        attempt = read_attempt(store, manifest) if manifest else None
        if attempt is None:
            raise DamagedError(
                "its commit holds no row of points" if manifest else "its commit is gone"
            )
    except DamagedError as error:
        store.leave_out(ids, str(error))
        return None
    return attempt


def _kept_or_made(
    kept: ComputedRows,
    wanted: Mapping[Key, Source],
    columns: Sequence[str],
    record: type[Record],
    make: Callable[[Source], Record | None],
) -> Iterator[pa.Table]:
    """The rows of the wanted keys, some at a time: first the stored ones, then those that are made,
    and stored, now.
    """
    missing = dict(wanted)
    for rows in kept.scan(columns, wanted) if wanted else ():
        for key in kept.keys_of(rows):
            del missing[key]
        yield rows.select(columns)
    left = iter(missing.values())
    with ThreadPoolExecutor(WORKERS) as pool:
        while some := list(islice(left, AT_ONCE)):
            made = [one for one in pool.map(make, some) if one is not None]
            keep(kept, made)
            yield table_of(made, record).select(columns)

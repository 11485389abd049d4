"""Commits attempts and launches: writes their rows, then the manifest by which these count."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any

import pyarrow as pa

from orchestrator import __version__
from orchestrator.analysis.attempt_summary import attempt_of_rows, store_computed
from orchestrator.analysis.metrics import steady_window_ns
from orchestrator.base.errors import Failure, ResultsError
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.model import Deployment, Measurement, Point
from orchestrator.results.events import Event
from orchestrator.results.ids import new_ulid
from orchestrator.results.manifest import ManifestKind
from orchestrator.results.records import AnswerRow, Committed, DeploymentRow, LaunchRow, PointRow
from orchestrator.results.row_writer import RowFile
from orchestrator.results.schemas import (
    ENGINE_METRICS,
    RECORDS,
    REQUESTS,
    conform,
    table_of,
    to_parquet,
)
from orchestrator.results.store import FilePart, Manifest, Store
from orchestrator.spec.settings import EngineSettings
from orchestrator.sweep.measure import Attempt, Loaded
from orchestrator.telemetry.engine_metrics import Sample

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt and what it was an attempt at. ``measurement``: with the seed that this attempt
    used.

    ``launch``: None if the attempt got no launch.
    """

    deployment: Deployment
    point: Point
    measurement: Measurement
    attempt: Attempt
    attempt_id: str = field(default_factory=new_ulid)
    launch: LaunchRow | None = None

    def row(self, experiment: str) -> PointRow:
        """Its row in ``points``."""
        point, loaded, verdict = self.point, self.attempt.loaded, self.attempt.verdict
        requests, stats = (
            (loaded.requests, loaded.stats) if loaded else (REQUESTS.empty_table(), ())
        )
        warmup_s, duration_s = point.load.warmup_s, point.load.duration_s
        lasted_s = loaded.lasted_s(warmup_s, duration_s) if loaded else duration_s
        window_start_ns, window_end_ns = steady_window_ns(warmup_s, lasted_s, requests)
        return PointRow(
            **asdict(self.measurement),
            attempt_id=self.attempt_id,
            launch_id=self.launch.launch_id if self.launch else "",
            experiment=experiment,
            workload=point.workload.name,
            workload_json=point.workload.model_dump_json(exclude_defaults=True),
            load_json=json.dumps(point.load.rules(point.level)),
            control=point.level.control,
            level=point.level.value,
            arrivals=point.load.arrivals.at(point.level),
            validity=verdict.validity,
            validity_reasons=tuple(verdict.reasons),
            evidence_json=json.dumps(verdict.evidence),
            clients=len(stats),
            clients_json=json.dumps([asdict(one) for one in stats]),
            window_start_ns=window_start_ns,
            window_end_ns=window_end_ns,
            steady=window_start_ns > 0
            if point.load.warmup_s is None and point.load.duration_s is not None
            else None,
            started_unix_ns=loaded.span_unix_ns[0] if loaded else time.time_ns(),
            requests_scheduled=requests.num_rows,
            cache_state=loaded.cache if loaded else None,
            capped_share=verdict.evidence.get("capped_share")
            if point.load.max_in_flight is not None
            else None,
            ended_early=loaded.early.outcome if loaded and loaded.early else None,
            ended_for=loaded.early.limits if loaded and loaded.early else None,
            emulated=self.launch.emulated
            if self.launch
            else ENGINES[self.deployment.settings.engine].emulated,
            client_version=__version__,
            **how_it_ended(self.attempt.failure),
        )


def how_it_ended(failure: Failure | None) -> dict[str, Any]:
    """The columns of ``points`` and ``launches`` that say how it ended."""
    if failure is None:
        return {"status": "ok"}
    return {
        "status": "failed",
        "reason": failure.sentence,
        "failure_class": str(failure.failure_class),
        "failure_kind": str(failure.kind),
        "log_tail": failure.log_tail or None,
    }


def launch_row(deployment: Deployment, experiment: str, started_unix_ns: int) -> LaunchRow:
    """The row of a launch that begins."""
    return LaunchRow(
        launch_id=new_ulid(),
        deployment_id=deployment.id,
        experiment=experiment,
        status="ok",
        argv_json="[]",
        placement_json="[]",
        engine_reported_json="{}",
        started_unix_ns=started_unix_ns,
        emulated=ENGINES[deployment.settings.engine].emulated,
    )


def deployment_row(deployment: Deployment, experiment: str) -> DeploymentRow:
    """The deployment's row; columns named like a setting hold that setting. Settings contain no
    secrets.
    """
    settings, hardware = deployment.settings, deployment.hardware
    devices = deployment.devices
    price = hardware.usd_per_gpu_hour
    columns = {column.name for column in fields(DeploymentRow)} & EngineSettings.model_fields.keys()
    columns -= {"roles", "router", "replicas"}
    return DeploymentRow(
        **{name: getattr(settings, name) for name in columns},
        deployment_id=deployment.id,
        experiment=experiment,
        label=deployment.label,
        hardware=hardware.name,
        accelerator=hardware.accelerator,
        devices=devices,
        replicas=sum(part.replicas for part in settings.engines.values()),
        roles=", ".join(settings.roles) if settings.roles else None,
        router=settings.router.engine if settings.router else None,
        nodes=max(part.nnodes for part in settings.engines.values()),
        usd_per_hour=price * devices if price is not None else None,
        settings_json=json.dumps(settings.given(), sort_keys=True),
        predicted_json=json.dumps(deployment.predicted) if deployment.predicted else None,
    )


def commit_attempt(store: Store, record: AttemptRecord) -> Committed:
    """Write the attempt's row beside those of its clients and replicas, then the manifest.

    Returns the AttemptData that answers are computed from, and stores it. If computing it fails,
    returns the manifest; whoever reads the results computes it again.
    """
    point, loaded = record.row(store.experiment), record.attempt.loaded
    # the deployment's row, too: a driver that dies before the launch is committed must not leave it
    # unknown
    deployment, described = _described(record.deployment, store.experiment)
    keys = {"measurement_id": point.measurement_id, "attempt_id": point.attempt_id}
    ours = [
        _part(store, "points", [point], keys),
        store.put_part(described, writer="driver", **keys),
    ]
    theirs = _rows(store, loaded, keys) if loaded else []
    metrics = engine_metrics(loaded.samples if loaded else {}, **keys)
    sampled = _engine_metrics_part(store, metrics, keys)
    manifest = _commit(store, "point", point, keys, [*theirs, *sampled, *ours])
    requests, known = (
        loaded.requests if loaded else REQUESTS.empty_table(),
        metrics if sampled else metrics[:0],
    )
    try:
        gaps = loaded.token_events if loaded else None
        data = attempt_of_rows(store, manifest, point, deployment, requests, known, gaps).data()
        store_computed(store.computed, [data])
    except Exception as error:
        # the attempt is committed: no error may cause it to be measured again
        _log.warning("no figures of attempt %s: %s", point.attempt_id, error)
        return manifest
    return data


def _rows(store: Store, loaded: Loaded, keys: Mapping[str, str]) -> list[FilePart]:
    """The files of its clients."""
    parts: list[FilePart] = []
    for index, one in loaded.reports.items():
        ours = (one.requests, one.token_events) if not one.stored else ()
        parts += [
            *one.stored,
            *(store.put_part(part, writer=f"client{index:04d}", **keys) for part in ours if part),
        ]
    for index, part in loaded.lost.items():
        parts.append(store.put_part(part, writer=f"client{index:04d}-lost", **keys))
    return parts


def commit_launch(
    store: Store,
    deployment: Deployment,
    launch: LaunchRow,
    events: Sequence[Event] = (),
    answers: Sequence[AnswerRow] = (),
) -> None:
    """Write a launch's row, its deployment's, its answers and the events since the last commit;
    then the manifest.
    """
    keys = {"measurement_id": launch.launch_id, "attempt_id": launch.launch_id}
    _, described = _described(deployment, store.experiment)
    parts = [
        _part(store, "launches", [launch], keys),
        store.put_part(described, writer="driver", **keys),
        _part(store, "events", [event.row() for event in events], keys),
        *([_part(store, "answers", answers, keys)] if answers else []),
    ]
    _commit(store, "launch", launch, keys, parts)


def engine_metrics(
    samples: Mapping[int, Sequence[Sample]], *, measurement_id: str, attempt_id: str
) -> pa.Table:
    """The samples of the replicas' /metrics as rows; none if no replica has any.

    A replica without samples beside others with some gets a row of nulls, so that no sum is taken
    for the whole.
    """
    keys = {"measurement_id": measurement_id, "attempt_id": attempt_id}
    silent = Sample(time.time_ns(), {})
    rows = [
        {
            **keys,
            "replica": replica,
            "role": sample.role,
            "unix_ns": sample.unix_ns,
            **sample.values,
        }
        for replica, taken in samples.items()
        for sample in taken or [silent]
    ]
    return pa.Table.from_pylist(rows if any(samples.values()) else [], schema=ENGINE_METRICS)


def _engine_metrics_part(store: Store, rows: pa.Table, keys: Mapping[str, str]) -> list[FilePart]:
    """The file with these rows, if there are any; an attempt does without it if it cannot be
    stored.
    """
    try:
        return (
            [store.write_part("engine_metrics", rows, writer="driver", **keys)]
            if rows.num_rows
            else []
        )
    except ResultsError as error:
        _log.warning("no engine metrics of attempt %s: %s", keys["attempt_id"], error)
        return []


@lru_cache(64)  # as many as a sweep's launches. What a plan says of a deployment never changes
def _described(deployment: Deployment, experiment: str) -> tuple[DeploymentRow, RowFile]:
    """A deployment's row, and the file with it, which each of its attempts stores."""
    row = deployment_row(deployment, experiment)
    rows = conform("deployments", table_of([row], DeploymentRow))
    return row, RowFile("deployments", 1, to_parquet("deployments", rows))


def _part(store: Store, table: str, rows: Sequence[object], keys: Mapping[str, str]) -> FilePart:
    return store.write_part(table, table_of(rows, RECORDS[table]), writer="driver", **keys)


def _commit(
    store: Store,
    kind: ManifestKind,
    row: PointRow | LaunchRow,
    keys: Mapping[str, str],
    parts: Sequence[FilePart],
) -> Manifest:
    manifest = Manifest(
        kind=kind,
        measurement_id=keys["measurement_id"],
        attempt_id=keys["attempt_id"],
        status=row.status,
        created_unix_ns=time.time_ns(),
        files=tuple(parts),
        reason=row.reason,
        failure_class=row.failure_class,
        deployment_id=row.deployment_id,
        point_id=row.point_id if isinstance(row, PointRow) else "",
        launch_id=row.launch_id,
        client_version=__version__,
        emulated=row.emulated,
    )
    return store.commit(manifest)

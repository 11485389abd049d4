"""Commits attempts and launches: writes their rows, then the manifest that makes the rows count."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from math import isfinite
from typing import Any

import pyarrow as pa

from orchestrator import __version__
from orchestrator.analysis.adapter_cost import adapter_cost_of
from orchestrator.analysis.attempt_summary import CPU, attempt_of_rows, store_computed
from orchestrator.analysis.guidance import guidance_of
from orchestrator.analysis.metrics import steady_window
from orchestrator.analysis.token_work import work_json
from orchestrator.base.errors import Failure, ResultsError
from orchestrator.engines.registry import ENGINES
from orchestrator.load.point import ClientStats
from orchestrator.plan.model import Deployment, Measurement, Point
from orchestrator.results.events import Event
from orchestrator.results.ids import new_ulid
from orchestrator.results.manifest import ManifestKind
from orchestrator.results.records import AnswerRow, Committed, DeploymentRow, LaunchRow, PointRow
from orchestrator.results.row_writer import RowFile
from orchestrator.results.schemas import (
    RECORDS,
    REQUESTS,
    conform,
    table_of,
    to_parquet,
)
from orchestrator.results.store import FilePart, Manifest, Store
from orchestrator.spec.settings import EngineSettings
from orchestrator.sweep.attempt import Attempt, Loaded
from orchestrator.sweep.early_end import EarlyStop
from orchestrator.sweep.sample_rows import engine_metrics, telemetry_rows
from orchestrator.telemetry.node_sampler import NodeTelemetry

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt and the measurement that it was an attempt at.

    ``measurement`` has the seed that this attempt used. ``launch``: None if the attempt got no
    launch. ``began_unix_ns``: when the attempt began, in Unix nanoseconds; None: now. It counts
    only for an attempt that loaded nothing: the others know when their load began.
    """

    deployment: Deployment
    point: Point
    measurement: Measurement
    attempt: Attempt
    attempt_id: str = field(default_factory=new_ulid)
    launch: LaunchRow | None = None
    began_unix_ns: int | None = None

    def row(self, experiment: str) -> PointRow:
        """The attempt's row in ``points``."""
        point = self.point
        load = point.load
        loaded = self.attempt.loaded
        verdict = self.attempt.verdict
        requests = REQUESTS.empty_table()
        lasted_s = load.duration_s
        stats: Sequence[ClientStats] = ()
        early: EarlyStop | None = None
        if loaded is not None:
            requests = loaded.requests
            lasted_s = loaded.lasted_s(load.warmup_s, load.duration_s)
            stats = loaded.stats
            early = loaded.early
        window = steady_window(load.warmup_s, lasted_s, requests)
        looks_for_steady_window = load.warmup_s is None and load.duration_s is not None
        adapter_cost = adapter_cost_of(requests, window)
        guidance = guidance_of(requests, window)
        is_capped = load.max_in_flight is not None
        has_rate = point.level.control == "request_rate" and isfinite(point.level.value)
        return PointRow(
            **asdict(self.measurement),
            attempt_id=self.attempt_id,
            launch_id=self.launch.launch_id if self.launch else "",
            experiment=experiment,
            workload=point.workload.name,
            workload_json=point.workload.model_dump_json(exclude_defaults=True),
            load_json=json.dumps(load.rules(point.level)),
            control=point.level.control,
            level=point.level.value,
            arrivals=load.arrivals.at(point.level),
            validity=verdict.validity,
            validity_reasons=tuple(verdict.reasons),
            evidence_json=json.dumps(verdict.evidence),
            clients=len(stats),
            clients_json=json.dumps([asdict(client) for client in stats]),
            window_start_ns=window.start_ns,
            window_end_ns=window.end_ns,
            steady=window.start_ns > 0 if looks_for_steady_window else None,
            started_unix_ns=self._started_unix_ns(),
            requests_scheduled=requests.num_rows,
            cache_state=loaded.cache if loaded else None,
            offered_rate=verdict.evidence.get("offered_rate") if has_rate else None,
            later_turns_share=verdict.evidence.get("later_turns_share"),
            cached_share=verdict.evidence.get("cached_share"),
            expected_cached_share=verdict.evidence.get("expected_cached_share"),
            content=point.workload.content_source(),
            recorded_rate=verdict.evidence.get("recorded_rate"),
            rate_factor=verdict.evidence.get("rate_factor"),
            thinned_share=verdict.evidence.get("thinned_share"),
            distinct_times_share=verdict.evidence.get("distinct_times_share"),
            capped_share=verdict.evidence.get("capped_share") if is_capped else None,
            ended_early=early.outcome if early is not None else None,
            ended_for=early.limits if early is not None else None,
            emulated=self._is_emulated(),
            simulated=self.launch.simulated if self.launch is not None else False,
            client_version=__version__,
            **({} if adapter_cost is None else asdict(adapter_cost)),
            **({} if guidance is None else asdict(guidance)),
            **how_it_ended(self.attempt.failure),
        )

    def _started_unix_ns(self) -> int:
        if self.attempt.loaded is not None:
            return self.attempt.loaded.span.start_ns
        return time.time_ns() if self.began_unix_ns is None else self.began_unix_ns

    def _is_emulated(self) -> bool:
        """As the launch says; where there was none, as the engine is."""
        if self.launch is not None:
            return self.launch.emulated
        return ENGINES[self.deployment.settings.engine].emulated


def how_it_ended(failure: Failure | None) -> dict[str, Any]:
    """The columns of ``points`` and ``launches`` that say how an attempt or a launch ended."""
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
    """The deployment's row. Settings contain no secrets."""
    settings = deployment.settings
    hardware = deployment.hardware
    devices = deployment.devices
    price = hardware.usd_per_gpu_hour
    # columns that are named like a setting have its value, but for those that are filled below
    columns = {column.name for column in fields(DeploymentRow)} & EngineSettings.model_fields.keys()
    columns -= {"roles", "router", "replicas"}
    predicted = deployment.predicted.document()
    return DeploymentRow(
        **{name: getattr(settings, name) for name in columns},
        deployment_id=deployment.id,
        experiment=experiment,
        label=deployment.label,
        hardware=hardware.name,
        # a simulation leaves an emulator without hardware as it is; a run has put it on cores
        accelerator=CPU if deployment.on_cpus else hardware.accelerator,
        devices=devices,
        replicas=sum(part.replicas for part in settings.engines.values()),
        roles=", ".join(settings.roles) if settings.roles else None,
        router=settings.router.engine if settings.router else None,
        nodes=max(part.nnodes for part in settings.engines.values()),
        usd_per_hour=price * devices if price is not None else None,
        settings_json=json.dumps(settings.without_defaults(), sort_keys=True),
        predicted_json=json.dumps(predicted) if predicted else None,
        work_json=work_json(settings, hardware),
    )


def commit_attempt(
    store: Store, record: AttemptRecord, created_unix_ns: int | None = None
) -> Committed:
    """Write the attempt's row beside those of its clients and replicas, then the manifest.

    ``created_unix_ns``: the time of the commit in Unix nanoseconds; None means now. A simulation
    passes the time of its own clock.

    Also computes the AttemptData that answers are computed from, stores it and returns it. If that
    fails, the manifest is returned instead, and readers of the results compute the data themselves.
    """
    point = record.row(store.experiment)
    loaded = record.attempt.loaded
    # the deployment's row is written, too: a driver that dies before the launch is committed must
    # not leave the deployment unknown
    described = _described(record.deployment, store.experiment)
    keys = {"measurement_id": point.measurement_id, "attempt_id": point.attempt_id}
    driver_files = [
        _part(store, "points", [point], keys),
        store.put_part(described.file, writer="driver", **keys),
    ]
    client_files = _client_files(store, loaded, keys) if loaded else []
    metrics = engine_metrics(loaded.samples if loaded else {}, **keys)
    metrics_files = _files_of_samples(store, "engine_metrics", metrics, keys)
    telemetry_files = _telemetry_files(store, loaded.telemetry, keys) if loaded else []
    files = [*client_files, *metrics_files, *telemetry_files, *driver_files]
    manifest = _commit(store, "point", point, keys, files, created_unix_ns)
    requests = loaded.requests if loaded else REQUESTS.empty_table()
    # what readers of the results will find: no rows if their file could not be stored
    stored_metrics = metrics if metrics_files else metrics.slice(0, 0)
    try:
        token_events = loaded.token_events if loaded else None
        attempt = attempt_of_rows(
            store, manifest, point, described.row, requests, stored_metrics, token_events
        )
        data = attempt.data()
        store_computed(store.computed, [data])
    except Exception as error:
        # the attempt is committed: no error may cause it to be measured again
        _log.warning("no figures of attempt %s: %s", point.attempt_id, error)
        return manifest
    return data


def _client_files(store: Store, loaded: Loaded, keys: Mapping[str, str]) -> list[FilePart]:
    """The files with the rows of all clients. Stores the rows that clients did not store
    themselves, and those that were made up for lost clients.
    """
    files: list[FilePart] = []
    for index, report in loaded.reports.items():
        if report.stored:
            files += report.stored
            continue
        for rows in (report.requests, report.token_events):
            if rows is not None:
                files.append(store.put_part(rows, writer=f"client{index:04d}", **keys))
    for index, rows in loaded.lost.items():
        files.append(store.put_part(rows, writer=f"client{index:04d}-lost", **keys))
    return files


def commit_launch(
    store: Store,
    deployment: Deployment,
    launch: LaunchRow,
    events: Sequence[Event] = (),
    answers: Sequence[AnswerRow] = (),
    created_unix_ns: int | None = None,
) -> None:
    """Write a launch's row, its deployment's, its answers and the events since the last commit;
    then the manifest. ``created_unix_ns``: see ``commit_attempt``.
    """
    keys = {"measurement_id": launch.launch_id, "attempt_id": launch.launch_id}
    described = _described(deployment, store.experiment)
    files = [
        _part(store, "launches", [launch], keys),
        store.put_part(described.file, writer="driver", **keys),
        _part(store, "events", [event.row() for event in events], keys),
    ]
    if answers:
        files.append(_part(store, "answers", answers, keys))
    _commit(store, "launch", launch, keys, files, created_unix_ns)


def _telemetry_files(
    store: Store, telemetry: Sequence[NodeTelemetry], keys: Mapping[str, str]
) -> list[FilePart]:
    if not telemetry:
        return []
    files: list[FilePart] = []
    for table, rows in telemetry_rows(telemetry, keys).items():
        files += _files_of_samples(store, table, rows, keys)
    return files


def _files_of_samples(
    store: Store, table: str, rows: pa.Table, keys: Mapping[str, str]
) -> list[FilePart]:
    """Store these rows, if there are any, and return their file. If it cannot be stored, the
    attempt counts without it.
    """
    if not rows.num_rows:
        return []
    try:
        return [store.write_part(table, rows, writer="driver", **keys)]
    except ResultsError as error:
        _log.warning("no rows in %s of attempt %s: %s", table, keys["attempt_id"], error)
        return []


@dataclass(frozen=True, slots=True)
class _DescribedDeployment:
    """A deployment's row, and the file with that row, which each of its attempts stores."""

    row: DeploymentRow
    file: RowFile


@lru_cache(64)  # about as many as run at a time; what a plan says of a deployment never changes
def _described(deployment: Deployment, experiment: str) -> _DescribedDeployment:
    row = deployment_row(deployment, experiment)
    rows = conform("deployments", table_of([row], DeploymentRow))
    return _DescribedDeployment(row, RowFile("deployments", 1, to_parquet("deployments", rows)))


def _part(store: Store, table: str, rows: Sequence[object], keys: Mapping[str, str]) -> FilePart:
    return store.write_part(table, table_of(rows, RECORDS[table]), writer="driver", **keys)


def _commit(
    store: Store,
    kind: ManifestKind,
    row: PointRow | LaunchRow,
    keys: Mapping[str, str],
    parts: Sequence[FilePart],
    created_unix_ns: int | None,
) -> Manifest:
    manifest = Manifest(
        kind=kind,
        measurement_id=keys["measurement_id"],
        attempt_id=keys["attempt_id"],
        status=row.status,
        created_unix_ns=time.time_ns() if created_unix_ns is None else created_unix_ns,
        files=tuple(parts),
        reason=row.reason,
        failure_class=row.failure_class,
        deployment_id=row.deployment_id,
        point_id=row.point_id if isinstance(row, PointRow) else "",
        launch_id=row.launch_id,
        client_version=__version__,
        emulated=row.emulated,
        simulated=row.simulated,
    )
    return store.commit(manifest)

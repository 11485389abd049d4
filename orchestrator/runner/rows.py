"""Rows of ``deployments``, ``launches`` and ``points``, and their commits."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from orchestrator import __version__
from orchestrator.engines import ENGINES
from orchestrator.errors import Failure
from orchestrator.load.point import ClientStats
from orchestrator.load.validity import Verdict
from orchestrator.plan.model import Deployment, Measurement, Plan, Point
from orchestrator.results.manifest import Kind
from orchestrator.results.schemas import DEPLOYMENTS, ENGINE_METRICS, LAUNCHES, POINTS, SELFCHECKS
from orchestrator.results.store import FilePart, Manifest, Store
from orchestrator.telemetry.engine_metrics import Sample

UNMEASURED = Verdict("unmeasured", [], {})


def deployment_row(plan: Plan, deployment: Deployment) -> pa.Table:
    """The deployment's row; its settings never hold a secret (keys live in the environment)."""
    settings, hardware = deployment.settings, deployment.hardware
    devices = settings.world_size * settings.replicas if ENGINES[settings.engine].launches else 0
    price = hardware.usd_per_gpu_hour
    row = {
        "deployment_id": deployment.id,
        "experiment": plan.name,
        "label": deployment.label,
        "hardware": hardware.name,
        "accelerator": hardware.accelerator,
        "devices": devices,
        "nodes": settings.nnodes,
        "usd_per_hour": price * devices if price is not None else None,
        "settings_json": json.dumps(settings.given(), sort_keys=True),
        "predicted_json": json.dumps(deployment.predicted) if deployment.predicted else None,
    }
    promoted = {name: getattr(settings, name) for name in DEPLOYMENTS.names if hasattr(settings, name)}
    return pa.Table.from_pylist([promoted | row], schema=DEPLOYMENTS)


def commit_launch(store: Store, plan: Plan, deployment: Deployment, launch: dict[str, Any], events: pa.Table) -> None:
    """Write a launch's row with its deployment's and the events since the last commit; then the manifest."""
    launch_id = str(launch["launch_id"])
    row = {
        "deployment_id": deployment.id,
        "experiment": plan.name,
        "emulated": ENGINES[deployment.settings.engine].emulated,
    } | launch
    parts = [
        store.write_part(table, data, measurement_id=launch_id, attempt_id=launch_id, writer="driver")
        for table, data in (
            ("launches", pa.Table.from_pylist([row], schema=LAUNCHES)),
            ("deployments", deployment_row(plan, deployment)),
            ("events", events),
        )
    ]
    _commit(store, "launch", launch_id, launch_id, parts, row)


def commit_selfcheck(store: Store, row: dict[str, Any]) -> None:
    """Write what a client host can do; ``row`` is one of ``selfchecks``."""
    key = str(row["selfcheck_id"])
    table = pa.Table.from_pylist([row], schema=SELFCHECKS)
    part = store.write_part("selfchecks", table, measurement_id=key, attempt_id=key, writer="driver")
    _commit(store, "selfcheck", key, key, [part], row)


def write_engine_metrics(
    store: Store, samples: Mapping[int, Sequence[Sample]], *, measurement_id: str, attempt_id: str
) -> list[FilePart]:
    """What the engines said of themselves during an attempt, by replica; no part when none said anything.

    A replica that said nothing beside others that did has a row of nulls: sums over the others are not the whole.
    """
    keys = {"measurement_id": measurement_id, "attempt_id": attempt_id}
    silent = Sample(time.time_ns(), {})
    rows = [
        {**keys, "replica": replica, "unix_ns": sample.unix_ns, **sample.values}
        for replica, taken in samples.items()
        for sample in taken or [silent]
    ]
    if not any(samples.values()):
        return []
    table = pa.Table.from_pylist(rows, schema=ENGINE_METRICS)
    return [store.write_part("engine_metrics", table, writer="driver", **keys)]


def commit_point(
    store: Store,
    plan: Plan,
    deployment: Deployment,
    point: Point,
    measurement: Measurement,
    *,
    attempt_id: str,
    launch_id: str = "",
    parts: Sequence[FilePart] = (),
    stats: Sequence[ClientStats] = (),
    verdict: Verdict = UNMEASURED,
    failure: Failure | None = None,
    requests: int = 0,
    started_unix_ns: int | None = None,
) -> None:
    """Write the point's row beside the rows its clients wrote, then the manifest that makes them true."""
    window_end_s = point.warmup_s + point.duration_s if point.duration_s else None
    row = {
        "measurement_id": measurement.measurement_id,
        "attempt_id": attempt_id,
        "point_id": point.point_id,
        "deployment_id": deployment.id,
        "launch_id": launch_id,
        "experiment": plan.name,
        "workload": point.workload.name,
        "workload_json": point.workload.model_dump_json(exclude_defaults=True),
        "control": point.level.control,
        "level": point.level.value,
        "arrivals": point.arrivals.process if point.level.control == "request_rate" else "closed",
        "repeat": measurement.repeat,
        "seed": measurement.seed,
        "status": "failed" if failure else "ok",
        "reason": failure.sentence if failure else None,
        "failure_class": str(failure.failure_class) if failure else None,
        "validity": verdict.validity,
        "validity_reasons": list(verdict.reasons),
        "evidence_json": json.dumps(verdict.evidence),
        "clients": len(stats),
        "clients_json": json.dumps([asdict(one) for one in stats]),
        "window_start_ns": int(point.warmup_s * 1e9),
        "window_end_ns": int((window_end_s if window_end_s is not None else _last_s(stats)) * 1e9),
        "started_unix_ns": started_unix_ns or time.time_ns(),
        "requests_scheduled": requests,
        "emulated": ENGINES[deployment.settings.engine].emulated,
        "client_version": __version__,
    }
    table = pa.Table.from_pylist([row], schema=POINTS)
    keys = {"measurement_id": measurement.measurement_id, "attempt_id": attempt_id}
    mine = store.write_part("points", table, writer="driver", **keys)
    # with every point: a driver killed before its launch is committed would leave points of an unknown deployment
    its = store.write_part("deployments", deployment_row(plan, deployment), writer="driver", **keys)
    _commit(store, "point", measurement.measurement_id, attempt_id, [*parts, mine, its], row)


def _last_s(stats: Sequence[ClientStats]) -> float:
    return max((one.wall_s for one in stats), default=0.0)


def _commit(
    store: Store,
    kind: Kind,
    key: str,
    attempt_id: str,
    parts: Sequence[FilePart],
    row: dict[str, Any],
) -> None:
    store.commit(
        Manifest(
            kind=kind,
            measurement_id=key,
            attempt_id=attempt_id,
            status="failed" if row["status"] == "failed" else "ok",
            created_unix_ns=time.time_ns(),
            files=tuple(parts),
            reason=row.get("reason"),
            failure_class=row.get("failure_class"),
            deployment_id=row.get("deployment_id", ""),
            point_id=row.get("point_id", ""),
            launch_id=row.get("launch_id", ""),
            client_version=__version__,
            emulated=row.get("emulated", False),
        )
    )

"""Rows and stores for tests, in the schemas of results/schemas.py. Times in ms where the name says
so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from orchestrator.results.row_writer import RowFile, RowWriter
from orchestrator.results.schemas import TABLES
from orchestrator.results.store import Manifest, Store

KEYS = {"measurement_id": "m0", "attempt_id": "a0"}


def table(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=TABLES[name])


def part_of(name: str, data: pa.Table) -> RowFile:
    """``data``, which is in the table's schema, as a client hands it on."""
    with closing(RowWriter(name)) as writer:
        writer.write(name, data)
        return writer.finish()[0]


def request(index: int, scheduled_ms: float = 0.0, **given: Any) -> dict[str, Any]:
    """One request that was answered. ``sent_ms``, ``first_ms``, ``last_ms``; ``tokens`` (N),
    ``prompt``.
    """
    sent = given.pop("sent_ms", scheduled_ms)
    first = given.pop("first_ms", scheduled_ms + 100)
    last = given.pop("last_ms", first)
    tokens, prompt = given.pop("tokens", 1), given.pop("prompt", 10)
    times = {
        "scheduled_ns": scheduled_ms,
        "sent_ns": sent,
        "first_token_ns": first,
        "last_token_ns": last,
    }
    found = {name: None if value is None else round(value * 1e6) for name, value in times.items()}
    done = next(
        value
        for value in (found["last_token_ns"], found["sent_ns"], found["scheduled_ns"])
        if value is not None
    )
    return {
        **KEYS, "request_index": index, "client": 0, "replica": 0, "phase": "measure", **found, "done_ns": done,
        "input_tokens_asked": prompt, "input_tokens": prompt, "output_tokens_asked": tokens or 1,
        "output_tokens": tokens, "chunks": tokens or 0, "coalesced_chunks": 0, "status": "ok", "itl_kind": "token",
    } | given  # fmt: skip


def failed_request(
    index: int, scheduled_ms: float = 0.0, error_class: str = "http_5xx", **given: Any
) -> dict[str, Any]:
    """One request without an answer."""
    nothing = {"first_ms": None, "last_ms": None, "tokens": None, "itl_kind": None}
    return request(index, scheduled_ms, status="error", error_class=error_class, **nothing | given)


def requests(*rows: Mapping[str, Any]) -> pa.Table:
    return table("requests", rows)


def events(
    gaps_ms: Mapping[int, Sequence[float]], tokens: Mapping[int, Sequence[int]] | None = None
) -> pa.Table:
    """``token_events`` by request index."""
    rows = [
        {
            **KEYS,
            "request_index": index,
            "gaps_us": [round(gap * 1e3) for gap in gaps],
            "tokens_per_chunk": (tokens or {}).get(index),
        }
        for index, gaps in gaps_ms.items()
    ]
    return table("token_events", rows)


def point_row(measurement_id: str, attempt_id: str, **given: Any) -> dict[str, Any]:
    return {
        "measurement_id": measurement_id, "attempt_id": attempt_id, "point_id": "p0", "deployment_id": "d0",
        "launch_id": "L0", "experiment": "exp", "workload": "chat", "workload_json": "{}", "control": "request_rate",
        "level": 1.0, "arrivals": "poisson", "repeat": 0, "start": 0, "seed": 0,
        "status": "ok",
        "validity": "valid", "validity_reasons": [],
        "evidence_json": "{}", "clients": 1, "clients_json": "[]", "window_start_ns": 0, "window_end_ns": 10**10,
        "started_unix_ns": 10**18, "requests_scheduled": 0, "emulated": False, "simulated": False, "client_version": "0",
    } | given  # fmt: skip


def deployment_row(deployment_id: str = "d0", **given: Any) -> dict[str, Any]:
    return {
        "deployment_id": deployment_id, "experiment": "exp", "label": f"label-{deployment_id}", "engine": "vllm",
        "model": "m", "hardware": "h100", "accelerator": "H100-80GB", "devices": 1, "nodes": 1, "replicas": 1,
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1, "usd_per_hour": 3.6,
        "settings_json": json.dumps({"engine": "vllm", "model": "m"}),
    } | given  # fmt: skip


def commit_measurement(
    store: Store,
    measurement_id: str,
    rows: Sequence[Mapping[str, Any]] = (),
    *,
    attempt_id: str = "a0",
    created_unix_ns: int = 1,
    token_events: pa.Table | None = None,
    deployment: Mapping[str, Any] | None = None,
    telemetry: Sequence[Mapping[str, Any]] = (),
    **point: Any,
) -> Manifest:
    """One attempt with its parts and its manifest; ``point``: fields of the points row that differ.
    ``telemetry``: readings of GPUs.
    """
    keys = {"measurement_id": measurement_id, "attempt_id": attempt_id}
    row = point_row(measurement_id, attempt_id, requests_scheduled=len(rows), **point)
    tables = {
        "points": table("points", [row]),
        "requests": table("requests", [{**one, **keys} for one in rows]),
    }
    if deployment is not None:
        tables["deployments"] = table("deployments", [deployment])
    if telemetry:
        tables["telemetry"] = table("telemetry", [{**one, **keys} for one in telemetry])
    if token_events is not None:
        named = [{**one, **keys} for one in token_events.to_pylist()]
        tables["token_events"] = table("token_events", named)
    manifest = Manifest(
        kind="point",
        status=row["status"],
        created_unix_ns=created_unix_ns,
        files=tuple(
            store.write_part(name, data, writer="driver", **keys) for name, data in tables.items()
        ),
        reason=row.get("reason"),
        failure_class=row.get("failure_class"),
        deployment_id=row["deployment_id"],
        point_id=row["point_id"],
        launch_id=row["launch_id"],
        emulated=row["emulated"],
        simulated=row["simulated"],
        **keys,
    )
    return store.commit(manifest)


def gpu_readings(
    power_w: float, seconds: float, uuid: str = "GPU-0", began_ns: int = 10**18, **columns: Any
) -> list[dict[str, Any]]:
    """Readings of one GPU twice a second, whose counter agrees with its power."""
    rows = []
    for step in range(int(2 * seconds) + 1):
        at_s = step / 2
        rows.append(
            {
                **KEYS,
                "host": "h",
                "gpu_uuid": uuid,
                "unix_ns": began_ns + round(at_s * 1e9),
                "power_w": power_w,
                "energy_mj": 7_000_000 + round(power_w * at_s * 1e3),
            }
            | columns
        )
    return rows


def commit_launch(
    store: Store, launch_id: str, *deployments: Mapping[str, Any], status: str = "ok"
) -> Manifest:
    """One launch with the rows of its deployments."""
    keys = {"measurement_id": launch_id, "attempt_id": launch_id}
    part = store.write_part(
        "deployments", table("deployments", deployments), writer="driver", **keys
    )
    manifest = Manifest(
        kind="launch", status=status, created_unix_ns=1, files=(part,), launch_id=launch_id, **keys
    )  # type: ignore[arg-type]
    store.commit(manifest)
    return manifest

"""What was sampled beside the load, as rows: of engines, GPUs and hosts."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from orchestrator.results.schemas import ENGINE_METRICS, TABLES
from orchestrator.telemetry.clock_offset import ClockOffset
from orchestrator.telemetry.engine_metrics import Sample
from orchestrator.telemetry.node_sampler import NodeTelemetry


def engine_metrics(
    samples: Mapping[int, Sequence[Sample]], *, measurement_id: str, attempt_id: str
) -> pa.Table:
    """The samples of the replicas' /metrics as rows; none if no replica has any.

    If only some replicas have samples, each of the others gets a row of nulls, so that a sum over
    some replicas is not mistaken for the sum over all.
    """
    if not any(samples.values()):
        return ENGINE_METRICS.empty_table()
    rows: list[dict[str, Any]] = []
    silent = Sample(time.time_ns(), {})
    for replica, taken in samples.items():
        for sample in taken or [silent]:
            row = {
                "measurement_id": measurement_id,
                "attempt_id": attempt_id,
                "replica": replica,
                "role": sample.role,
                "host": sample.host,
                "unix_ns": sample.unix_ns,
            }
            rows.append({**row, **_clock_columns(sample.clock), **sample.values})
    return pa.Table.from_pylist(rows, schema=ENGINE_METRICS)


def _clock_columns(clock: ClockOffset | None) -> dict[str, int]:
    if clock is None:
        return {}
    return {"clock_offset_ns": clock.ns, "clock_error_ns": clock.error_ns}


def telemetry_rows(
    telemetry: Sequence[NodeTelemetry], keys: Mapping[str, str]
) -> dict[str, pa.Table]:
    """What agents sampled as rows of the tables ``telemetry`` and ``hosts``."""
    gpu_rows: list[dict[str, Any]] = []
    host_rows: list[dict[str, Any]] = []
    for node in telemetry:
        common = {**keys, "host": node.host, **_clock_columns(node.clock)}
        for gpu in node.gpu_samples:
            row = {**common, "gpu_uuid": gpu.gpu_uuid, "unix_ns": gpu.unix_ns, **gpu.values}
            gpu_rows.append(row)
        for host in node.host_samples:
            host_rows.append({**common, "unix_ns": host.unix_ns, **host.values})
    return {
        "telemetry": pa.Table.from_pylist(gpu_rows, schema=TABLES["telemetry"]),
        "hosts": pa.Table.from_pylist(host_rows, schema=TABLES["hosts"]),
    }

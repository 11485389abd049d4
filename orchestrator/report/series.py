"""The readings of engines, GPUs and hosts while a point ran, one row each."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from orchestrator.analysis.driver_clock import driver_unix_ns
from orchestrator.analysis.points import Repeat
from orchestrator.base.errors import InputError
from orchestrator.plan.current import StoredExperiment
from orchestrator.results.root import open_results
from orchestrator.results.schemas import RECORDS, arrow_schema
from orchestrator.results.store import Store

# The table that is read, and the columns that tell its rows of one instant apart.
ReadingsTable = Literal["engine_metrics", "telemetry", "hosts"]
SOURCES: dict[ReadingsTable, tuple[str, ...]] = {
    "engine_metrics": ("replica",),
    "telemetry": ("host", "gpu_uuid"),
    "hosts": ("host",),
}
_KEYS = ("measurement_id", "attempt_id")
# The unit of a column, by the end of its name; the first that fits counts.
_UNITS = {
    "_tokens_total": "tokens",
    "_flops_per_gpu_total": "FLOP",
    "_bytes_per_gpu_total": "bytes",
    "_bytes": "bytes",
    "_s_sum": "s",
    "_cpu_s": "s",
    "_ns": "ns",
    "_us": "us",
    "_mj": "mJ",
    "_mhz": "MHz",
    "temperature_c": "C",
    "_w": "W",
    "throttled_ns_power": "ns",
    "throttled_ns_thermal": "ns",
    "throttled_ns_hw": "ns",
}


def series_table(
    results: str | Store, point_id: str, table: ReadingsTable = "engine_metrics"
) -> pa.Table:
    """The readings of every repeat of a point, in order of time. ``results``: a URI, or a store.

    ``seconds`` count from the beginning of the steady window, by the driver's clock, and are below
    0 in the warm-up. Raises InputError for an unknown point or table.
    """
    if table not in SOURCES:
        raise InputError(f"no readings {table!r}: there are {', '.join(SOURCES)}")
    for store in _stores(results):
        repeats = _repeats_of(store, point_id)
        if repeats:
            tables = [_readings(store, repeat, table) for repeat in repeats]
            return pa.concat_tables([_schema(table).empty_table(), *tables])
    raise InputError(f"no point {point_id!r} is stored; orchestrator.points(uri) has their ids")


def _stores(results: str | Store) -> list[Store]:
    if isinstance(results, Store):
        return [results]
    root = open_results(results)
    return [root.store(name) for name in root.experiments]


def _repeats_of(store: Store, point_id: str) -> tuple[Repeat, ...]:
    points = StoredExperiment(store).points()
    for point in (*points.current, *points.superseded):
        if point.head.point_id == point_id:
            return point.repeats
    return ()


def _readings(store: Store, repeat: Repeat, table: ReadingsTable) -> pa.Table:
    schema = _schema(table)
    manifest = store.manifest(*repeat.head.ids)
    if manifest is None:
        return schema.empty_table()
    stored = store.read_manifests(table, [manifest], skip_damaged=True)
    stored = stored.select(arrow_schema(RECORDS[table]).names)
    window_begin_ns = repeat.head.started_unix_ns + repeat.head.window_start_ns
    since_ns = driver_unix_ns(stored) - window_begin_ns
    columns = {
        "point_id": pa.array([repeat.head.point_id] * stored.num_rows, pa.string()),
        "repeat": pa.array([repeat.head.repeat] * stored.num_rows, pa.int64()),
        "seconds": pa.array(since_ns / 1e9, pa.float64()),
    }
    for name in stored.column_names:
        if name not in _KEYS:
            columns[name] = stored[name]
    readings = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    order = [(name, "ascending") for name in ("seconds", *SOURCES[table])]
    return readings.sort_by(order)


def _schema(table: ReadingsTable) -> pa.Schema:
    fields = [
        _field("point_id", pa.string(), "id of the point"),
        _field("repeat", pa.int64(), "number of the repeat, from 0"),
        _field("seconds", pa.float64(), "since the steady window began", "s"),
    ]
    for field in arrow_schema(RECORDS[table]):
        if field.name not in _KEYS:
            description = (field.metadata or {}).get(b"description", b"").decode()
            fields.append(_field(field.name, field.type, description, _unit_of(field.name)))
    return pa.schema(fields)


def _unit_of(column: str) -> str:
    """Empty for counts, shares and texts."""
    for end, unit in _UNITS.items():
        if column.endswith(end):
            return unit
    return ""


def _field(name: str, kind: pa.DataType, description: str, unit: str = "") -> pa.Field:
    return pa.field(name, kind, metadata={"unit": unit, "description": description})

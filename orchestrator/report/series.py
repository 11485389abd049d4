"""The readings of the engines' own metrics while a point ran, one row each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from orchestrator.analysis.points import Repeat
from orchestrator.base.errors import InputError
from orchestrator.plan.current import StoredExperiment
from orchestrator.results.records import EngineMetricsRow
from orchestrator.results.root import open_results
from orchestrator.results.schemas import arrow_schema
from orchestrator.results.store import Store

TABLE = "engine_metrics"
_KEYS = ("measurement_id", "attempt_id")
_UNITS = {
    "unix_ns": "ns",
    "queue_time_s_sum": "s",
    "ttft_s_sum": "s",
    "prefix_query_tokens_total": "tokens",
    "prefix_hit_tokens_total": "tokens",
    "spec_draft_tokens_total": "tokens",
    "spec_accepted_tokens_total": "tokens",
    "prompt_tokens_total": "tokens",
    "generation_tokens_total": "tokens",
}


def series_table(results: str | Store, point_id: str) -> pa.Table:
    """The readings of every repeat of a point, in order of time. ``results``: a URI, or a store.

    ``seconds`` count from the beginning of the steady window and are below 0 in the warm-up. They
    are the time of the replica's node minus that of the driver, so they are off by as much as the
    clocks differ. Raises InputError for an unknown point.
    """
    for store in _stores(results):
        repeats = _repeats_of(store, point_id)
        if repeats:
            tables = [_readings(store, repeat) for repeat in repeats]
            return pa.concat_tables([_empty(), *tables])
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


def _readings(store: Store, repeat: Repeat) -> pa.Table:
    manifest = store.manifest(*repeat.head.ids)
    if manifest is None:
        return _empty()
    stored = store.read_manifests(TABLE, [manifest], leave_out=True)
    stored = stored.select(arrow_schema(EngineMetricsRow).names)
    window_begin_ns = repeat.head.started_unix_ns + repeat.head.window_start_ns
    since_ns = np.asarray(stored["unix_ns"].to_numpy(), np.int64) - window_begin_ns
    columns = {
        "point_id": pa.array([repeat.head.point_id] * stored.num_rows, pa.string()),
        "repeat": pa.array([repeat.head.repeat] * stored.num_rows, pa.int64()),
        "seconds": pa.array(since_ns / 1e9, pa.float64()),
    }
    for name in stored.column_names:
        if name not in _KEYS:
            columns[name] = stored[name]
    schema = _schema()
    table = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    return table.sort_by([("seconds", "ascending"), ("replica", "ascending")])


def _schema() -> pa.Schema:
    fields = [
        _field("point_id", pa.string(), "id of the point"),
        _field("repeat", pa.int64(), "number of the repeat, from 0"),
        _field("seconds", pa.float64(), "since the begin of the steady window", "s"),
    ]
    for field in arrow_schema(EngineMetricsRow):
        if field.name not in _KEYS:
            description = (field.metadata or {}).get(b"description", b"").decode()
            unit = _UNITS.get(field.name, "")
            fields.append(_field(field.name, field.type, description, unit))
    return pa.schema(fields)


def _field(name: str, kind: pa.DataType, description: str, unit: str = "") -> pa.Field:
    return pa.field(name, kind, metadata={"unit": unit, "description": description})


def _empty() -> pa.Table:
    return _schema().empty_table()

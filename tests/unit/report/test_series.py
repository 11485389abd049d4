"""What engines reported of themselves while a point ran, on the clock of its steady window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.base.errors import InputError
from orchestrator.report.series import series_table
from orchestrator.results.manifest import Manifest
from orchestrator.results.store import Store
from tests.unit.results.builders import commit_measurement, point_row, request, table

STARTED_NS = 10**18
WINDOW_NS = 2 * 10**9


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def commit(
    store: Store,
    measurement_id: str,
    readings: list[dict[str, Any]],
    telemetry: Sequence[dict[str, Any]] = (),
    hosts: Sequence[dict[str, Any]] = (),
    **point: Any,
) -> None:
    keys = {"measurement_id": measurement_id, "attempt_id": "a0"}
    window = {"window_start_ns": WINDOW_NS, "window_end_ns": 10**10, "started_unix_ns": STARTED_NS}
    row = point_row(measurement_id, "a0", **window, **point)
    tables = {
        "points": table("points", [row]),
        "requests": table("requests", [{**request(0), **keys}]),
    }
    of_tables = {"engine_metrics": readings, "telemetry": telemetry, "hosts": hosts}
    for name, rows in of_tables.items():
        tables[name] = table(name, [{**keys, **reading} for reading in rows])
    files = [store.write_part(name, rows, writer="driver", **keys) for name, rows in tables.items()]
    named = {name: row[name] for name in ("status", "deployment_id", "point_id", "launch_id")}
    store.commit(Manifest(kind="point", created_unix_ns=1, files=tuple(files), **named, **keys))


def reading(seconds: float, replica: int = 0, **gauges: float) -> dict[str, Any]:
    """``seconds``: since the point's start."""
    return {"replica": replica, "unix_ns": STARTED_NS + round(seconds * 1e9), **gauges}


def test_seconds_count_from_the_begin_of_the_window(store: Store) -> None:
    first = [reading(5.0, 1, running=4), reading(1.5, running=1), reading(5.0, running=3)]
    commit(store, "m0", first, repeat=0)
    commit(store, "m1", [reading(2.0, waiting=7)], repeat=1)
    rows = series_table(store.uri, "p0").to_pylist()
    assert [(row["repeat"], row["seconds"], row["replica"]) for row in rows] == [
        (0, -0.5, 0),
        (0, 3.0, 0),
        (0, 3.0, 1),
        (1, 0.0, 0),
    ]
    assert [row["running"] for row in rows] == [1, 3, 4, None]
    assert rows[3]["waiting"] == 7
    assert {row["point_id"] for row in rows} == {"p0"}


def test_readings_of_two_hosts_lie_on_the_drivers_clock(store: Store) -> None:
    behind, ahead = -3 * 10**9, 2 * 10**9
    readings = [
        {**reading(4.0 - 3.0, running=1), "host": "a", "clock_offset_ns": behind},
        {**reading(5.0 + 2.0, 1, running=2), "host": "b", "clock_offset_ns": ahead},
    ]
    commit(store, "m0", readings)
    rows = series_table(store, "p0").to_pylist()
    assert [(row["host"], row["seconds"]) for row in rows] == [("a", 2.0), ("b", 3.0)]


def test_gpus_and_hosts_have_series_too(store: Store) -> None:
    gpu = {"host": "a", "gpu_uuid": "GPU-a", "unix_ns": STARTED_NS, "power_w": 300.0}
    host = {"host": "a", "unix_ns": STARTED_NS, "cpu_share": 0.5}
    commit(store, "m0", [], telemetry=[gpu], hosts=[host])
    (gpu_row,) = series_table(store, "p0", "telemetry").to_pylist()
    assert (gpu_row["seconds"], gpu_row["power_w"]) == (-2.0, 300.0)
    frame = orchestrator.series(store.uri, "p0", table="hosts")
    assert frame["cpu_share"].tolist() == [0.5]
    assert frame.attrs["units"]["engine_rss_bytes"] == "bytes"
    assert frame.attrs["units"]["sampler_cpu_s"] == "s"


def test_an_unknown_table_is_refused(store: Store) -> None:
    with pytest.raises(InputError, match="there are engine_metrics, telemetry, hosts"):
        series_table(store, "p0", "points")  # type: ignore[arg-type]


def test_a_store_is_read_like_its_uri(store: Store) -> None:
    commit(store, "m0", [reading(3.0, running=2)])
    assert series_table(store, "p0").equals(series_table(store.uri, "p0"))


@pytest.mark.parametrize("library", ["pandas", "polars", "arrow"])
def test_a_point_without_readings_has_the_columns(library: Any, store: Store) -> None:
    commit_measurement(store, "m0", [request(0)])
    frame = orchestrator.series(store.uri, "p0", library=library)
    names = list(getattr(frame, "column_names", None) or frame.columns)
    assert len(frame) == 0
    assert names[:5] == ["point_id", "repeat", "seconds", "replica", "role"]
    assert {"running", "waiting", "kv_usage"} <= set(names)


def test_columns_say_what_they_are(store: Store) -> None:
    commit(store, "m0", [reading(3.0, running=2)])
    frame = orchestrator.series(store.uri, "p0")
    assert frame.attrs["units"]["seconds"] == "s"
    names_of_tokens = [name for name in frame.columns if name.endswith("_tokens_total")]
    assert len(names_of_tokens) == 6
    assert {frame.attrs["units"][name] for name in names_of_tokens} == {"tokens"}
    assert frame.attrs["descriptions"]["kv_usage"] == "share of the KV cache in use now, 0 to 1"


def test_an_unknown_point_is_refused(store: Store) -> None:
    commit(store, "m0", [])
    with pytest.raises(InputError, match=r"no point 'p1' is stored; orchestrator.points\(uri\)"):
        series_table(store.uri, "p1")

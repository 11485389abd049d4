import base64
import json
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.plan.current import StoredExperiment
from orchestrator.report.page import timelines as module
from orchestrator.report.page.timelines import STEPS, gpu_readings_of, readings_of, timelines_of
from orchestrator.report.selection import with_limits
from orchestrator.results.records import EngineMetricsRow, TelemetryRow
from orchestrator.results.schemas import arrow_schema
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep

BEGAN_NS = 10**18


def reading(second: float, replica: int = 0, **gauges: float | None) -> EngineMetricsRow:
    return EngineMetricsRow(
        measurement_id="m0",
        attempt_id="a0",
        replica=replica,
        unix_ns=BEGAN_NS + round(second * 1e9),
        **gauges,
    )


def samples(*rows: EngineMetricsRow) -> pa.Table:
    columns = [{name: getattr(row, name) for name in row.__dataclass_fields__} for row in rows]
    return pa.Table.from_pylist(columns, schema=arrow_schema(EngineMetricsRow))


def test_a_reading_is_the_sum_of_the_latest_of_each_replica():
    table = samples(
        reading(0, 0, running=1, waiting=0, kv_usage=0.1),
        reading(1, 1, running=2, waiting=3, kv_usage=0.5),
        reading(5, 0, running=4, waiting=0, kv_usage=0.2),
        reading(6, 1, running=8, waiting=1, kv_usage=0.3),
    )
    readings = readings_of(table, BEGAN_NS)
    assert readings is not None
    assert readings.seconds == [1, 5, 6]  # before that the second replica is not known
    assert readings.running == [3, 6, 12]
    assert readings.waiting == [3, 3, 1]
    assert readings.kv_usage == [0.5, 0.5, 0.3]


def test_what_one_replica_does_not_report_is_not_summed():
    table = samples(reading(0, 0, running=1, waiting=2), reading(1, 1, running=2))
    readings = readings_of(table, BEGAN_NS)
    assert readings is not None
    assert readings.running == [3]
    assert readings.waiting == []


def test_many_readings_are_thinned():
    readings = readings_of(samples(*(reading(n, running=n) for n in range(1_000))), BEGAN_NS)
    assert readings is not None
    assert len(readings.seconds) == STEPS
    assert (readings.running[0], readings.running[-1]) == (0, 999)


def test_without_readings_there_are_none():
    assert readings_of(samples(), BEGAN_NS) is None


def gpu_samples(*rows: dict[str, object]) -> pa.Table:
    keys = {"measurement_id": "m0", "attempt_id": "a0", "host": "h"}
    return pa.Table.from_pylist([keys | row for row in rows], schema=arrow_schema(TelemetryRow))


def gpu(second: float, uuid: str, power_w: float | None, **more: float) -> dict[str, object]:
    unix_ns = BEGAN_NS + round(second * 1e9)
    return {"gpu_uuid": uuid, "unix_ns": unix_ns, "power_w": power_w, **more}


def test_power_is_of_all_gpus_and_the_temperature_of_the_hottest():
    table = gpu_samples(
        gpu(0, "GPU-a", 100.0, temperature_c=40),
        gpu(0.1, "GPU-b", 200.0, temperature_c=60),
        gpu(0.5, "GPU-a", 300.0, temperature_c=70),
    )
    readings = gpu_readings_of(table, BEGAN_NS)
    assert readings is not None
    assert readings.seconds == [0.1, 0.5]
    assert readings.power_w == [300, 500]
    assert readings.temperature_c == [60, 70]


def test_gpus_without_a_figure_have_no_line_of_it():
    table = gpu_samples(gpu(0, "GPU-a", 100.0, temperature_c=40), gpu(0, "GPU-b", None))
    readings = gpu_readings_of(table, BEGAN_NS)
    assert readings is not None
    assert (readings.power_w, readings.temperature_c) == ([], [])
    assert gpu_readings_of(gpu_samples(), BEGAN_NS) is None


def test_gpus_of_two_hosts_are_laid_over_each_other_by_the_drivers_clock():
    table = gpu_samples(
        gpu(1, "GPU-a", 100.0), gpu(8, "GPU-b", 200.0, clock_offset_ns=7_000_000_000)
    )
    readings = gpu_readings_of(table, BEGAN_NS)
    assert readings is not None
    assert (readings.seconds, readings.power_w) == ([1], [300])


@pytest.fixture
def judged(tmp_path):
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned())
    return list(with_limits(None, [StoredExperiment(store)]))


def test_throughput_adds_up_to_all_tokens(judged):
    first, second = timelines_of(judged, ()).timelines
    assert sum(first.throughput) * first.step_s == pytest.approx(100 * 8, rel=1e-2)
    assert first.is_interpolated
    assert first.window_s == (0, 10)
    assert {first.point_id, second.point_id} == {
        point.head.point_id for point in judged[0].points.current
    }


def test_in_flight_counts_requests_that_were_sent_and_are_not_done(judged):
    (first, _) = timelines_of(judged, ()).timelines
    # one every 100 ms, each takes 190 ms: two are under way for nine tenths of the time
    assert np.mean(first.in_flight[5:-5]) == pytest.approx(1.9, abs=0.1)


def test_what_has_no_room_is_counted(judged, monkeypatch):
    monkeypatch.setattr(module, "MOST_TIMELINES", 1)
    kept = timelines_of(judged, ())
    assert (len(kept.timelines), kept.left_out) == (1, 1)


def test_ranked_deployments_come_first(judged, monkeypatch):
    monkeypatch.setattr(module, "MOST_TIMELINES", 1)
    monkeypatch.setattr(module, "SHOWN_DEPLOYMENTS", 1)
    points = judged[0].points.current
    (winner,) = judged[0].experiment.comparisons(judged[0].points, judged[0].slos[0])
    last = next(
        ranked
        for ranked in winner.ranking
        if ranked.point.head.deployment_id == points[-1].head.deployment_id
    )
    (kept,) = timelines_of(judged, [replace(winner, ranking=(last,))]).timelines
    assert kept.point_id == points[-1].head.point_id


def test_the_page_reads_what_was_packed(judged):
    encoded = timelines_of(judged, ()).encoded()
    unpacked = json.loads(zlib.decompress(base64.b64decode(str(encoded["timelines"]))))
    assert [len(each["throughput"]) for each in unpacked] == [STEPS, STEPS]

"""What was sampled beside the load, as rows of engines, GPUs and hosts."""

from __future__ import annotations

from orchestrator.sweep.sample_rows import engine_metrics, telemetry_rows
from orchestrator.telemetry.clock_offset import ClockOffset
from orchestrator.telemetry.engine_metrics import Sample
from orchestrator.telemetry.gpu_sample import GpuSample
from orchestrator.telemetry.host import HostSample
from orchestrator.telemetry.node_sampler import NodeTelemetry

KEYS = {"measurement_id": "m" * 16, "attempt_id": "a" * 26}


def test_a_silent_replica_beside_others_has_a_row_of_nulls() -> None:
    rows = engine_metrics(
        {0: [Sample(1, {"running": 3.0}), Sample(2, {"running": 4.0})], 1: []}, **KEYS
    )
    assert rows["running"].to_pylist() == [3.0, 4.0, None]
    assert rows["replica"].to_pylist() == [0, 0, 1]


def test_when_no_replica_says_anything_there_are_no_rows() -> None:
    assert engine_metrics({0: [], 1: []}, **KEYS).num_rows == 0
    assert engine_metrics({}, **KEYS).num_rows == 0


def test_a_sample_has_the_role_of_its_replica_and_the_clock_of_its_host() -> None:
    sample = Sample(1, {}, role="prefill", host="h", clock=ClockOffset(40, 3))
    (row,) = engine_metrics({0: [sample]}, **KEYS).to_pylist()
    assert (row["role"], row["host"]) == ("prefill", "h")
    assert (row["clock_offset_ns"], row["clock_error_ns"]) == (40, 3)


def test_each_reading_of_a_gpu_is_a_row_with_its_host() -> None:
    readings = [GpuSample("GPU-a", 6, {"power_w": 300.0}), GpuSample("GPU-a", 7, {})]
    rows = telemetry_rows([NodeTelemetry(gpu_samples=readings, host="h")], KEYS)["telemetry"]
    assert rows["power_w"].to_pylist() == [300.0, None]
    assert rows["unix_ns"].to_pylist() == [6, 7]
    assert rows["host"].to_pylist() == ["h", "h"]


def test_samples_of_a_host_whose_clock_is_unknown_have_no_offset() -> None:
    rows = telemetry_rows([NodeTelemetry(host_samples=[HostSample(5, {})], host="h")], KEYS)
    assert rows["hosts"]["clock_offset_ns"].to_pylist() == [None]
    assert rows["telemetry"].num_rows == 0

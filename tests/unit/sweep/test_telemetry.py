"""What a sweep does with what its agents sample: rows, an event of a lost GPU, and the verdict."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.results.store import Store
from orchestrator.telemetry.gpu_sample import GpuSample, LostGpu
from orchestrator.telemetry.host import HostSample
from orchestrator.telemetry.node_sampler import NodeTelemetry
from tests.unit.sweep.simulation import node, plan_of, sweep, world_of

SAMPLED = NodeTelemetry([HostSample(5, {"cpu_share": 0.5})], [GpuSample("GPU-a", 6, {})])


def test_readings_are_stored_with_the_attempt_during_which_they_were_taken(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    sweep(world_of([node("a")], telemetry=SAMPLED), plan_of(levels="8, 16"), store)
    points = {row["attempt_id"] for row in store.read("points").to_pylist()}
    for table in ("hosts", "telemetry"):
        rows = store.read(table).to_pylist()
        assert {row["attempt_id"] for row in rows} == points
        assert {row["host"] for row in rows} == {"a"}
        assert {row["clock_offset_ns"] for row in rows} == {0}


def test_a_lost_gpu_is_an_event_and_its_point_is_disturbed(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    lost = NodeTelemetry(lost_gpus=[LostGpu("GPU-a", 6, "GPU is lost")])
    sweep(world_of([node("a")], telemetry=lost), plan_of(), store)
    events = [row for row in store.read("events").to_pylist() if row["kind"] == "gpu_lost"]
    assert events[0]["text"] == "GPU-a of a does not answer any more: GPU is lost"
    assert json.loads(events[0]["data_json"])["gpu_uuid"] == "GPU-a"
    (point,) = store.read("points", include_failed=True).to_pylist()
    assert point["validity"] == "disturbed"
    assert point["validity_reasons"][0] == "GPUs that stopped answering while the point ran: 1"


def test_what_hosts_are_is_stored_with_the_launch(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    sweep(world_of([node("a")]), plan_of(), store)
    (launch,) = store.read("launches").to_pylist()
    assert json.loads(launch["environment_json"]) == {
        "a": {"kernel": "6.8", "gpus": [{"uuid": "GPU-a"}]}
    }


def test_doctors_facts_of_a_host_are_stored_once_in_a_run(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    plan = plan_of("{tensor_parallel_size: 1}, {tensor_parallel_size: 2}")
    sweep(world_of([node("a")]), plan, store)
    events = [row for row in store.read("events").to_pylist() if row["kind"] == "host_facts"]
    assert [json.loads(event["data_json"]) for event in events] == [{"hostname": "a", "cores": 8}]
    assert store.read("launches").num_rows == 2

"""What a sweep commits: the rows of an attempt, and of what engines said meanwhile."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.attempt_summary import read_attempt
from orchestrator.analysis.requests import request_arrays
from orchestrator.analysis.token_work import work_of_row
from orchestrator.base.clock import UnixSpan
from orchestrator.base.errors import Failure, FailureKind
from orchestrator.catalog.work import StepWork
from orchestrator.cluster.base import ClientReport
from orchestrator.cluster.client_host import ClientHost
from orchestrator.load.client import LoadClient
from orchestrator.plan.make import make_plan
from orchestrator.results.lazy_rows import LazyRows
from orchestrator.results.records import AttemptData, DeploymentRow, PointRow
from orchestrator.results.row_writer import RowFile
from orchestrator.results.schemas import REQUESTS, rows_of, table_of
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep.attempt import Attempt, Loaded
from orchestrator.sweep.commit import (
    AttemptRecord,
    commit_attempt,
    commit_launch,
    launch_row,
)
from orchestrator.telemetry.clock_offset import ClockOffset
from orchestrator.telemetry.engine_metrics import Sample
from orchestrator.telemetry.gpu_sample import GpuSample
from orchestrator.telemetry.host import HostSample
from orchestrator.telemetry.node_sampler import NodeTelemetry
from tests.unit.load.test_schedule import point
from tests.unit.load.test_validity import CALM
from tests.unit.plan.files import H100, measurements, planned
from tests.unit.results.builders import events, part_of, request, requests

KEYS = {"measurement_id": "m" * 16, "attempt_id": "a" * 26}
EXPERIMENT = """
version: 1
name: x
model: some-org/some-model
deployments: {engine: emulator, max_num_seqs: 8}
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [8]}, %s}
"""
WARM_5_S = "duration: 5s, warmup: 2s"
SECOND_NS = 10**9


def record_of(load: str, *rows: Mapping[str, Any], failure: Failure | None = None) -> AttemptRecord:
    """An attempt with these rows of requests; without rows it loaded nothing. ``load``: the fields of
    the file's load that say how long it is.
    """
    plan = make_plan(parse_experiment(EXPERIMENT % load, "x.yaml"))
    (deployment,) = plan.deployments
    (point,) = plan.points
    (measurement,) = measurements(plan)
    loaded = Loaded(span=UnixSpan(1, 2), requests=requests(*rows)) if rows else None
    launch = replace(launch_row(deployment, "x", 1), launch_id="L" * 26)
    attempt = Attempt(failure=failure, loaded=loaded)
    return AttemptRecord(deployment, point, measurement, attempt, "a" * 26, launch)


def with_loaded(record: AttemptRecord, loaded: Loaded) -> AttemptRecord:
    return replace(record, attempt=replace(record.attempt, loaded=loaded))


def test_an_attempt_is_committed_with_its_deployment_and_why_it_failed(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    failure = Failure(FailureKind.OOM_KV, "It died.")
    commit_attempt(store, record_of(WARM_5_S, failure=failure))
    (row,) = rows_of(store.read("points", include_failed=True), PointRow)
    assert (row.status, row.failure_class, row.failure_kind) == ("failed", "bad_config", "oom_kv")
    assert (row.reason, row.requests_scheduled) == ("It died.", 0)
    (deployment,) = rows_of(store.read("deployments"), DeploymentRow)
    assert (deployment.deployment_id, deployment.experiment, deployment.max_num_seqs) == (
        row.deployment_id,
        "x",
        8,
    )
    (manifest,) = store.manifests()
    assert (manifest.status, manifest.point_id, manifest.launch_id) == (
        "failed",
        row.point_id,
        "L" * 26,
    )


def committed_work(folder: Path, simulated: bool, **settings: object) -> StepWork:
    """The work that is committed with a launch of a model with experts."""
    described = {"engine": "sglang", "hardware": "h100", "tensor_parallel_size": 2} | settings
    plan = planned(model={"id": "openai/gpt-oss-120b"}, deployments=described, hardware=H100)
    (deployment,) = plan.deployments
    store = Store.open(str(folder), "x")
    launch = replace(launch_row(deployment, "x", 1), launch_id="L" * 26, simulated=simulated)
    commit_launch(store, deployment, launch)
    (row,) = rows_of(store.read("deployments"), DeploymentRow)
    work = work_of_row(row.work_json, "{}", "", "")
    assert isinstance(work, StepWork)
    return work


def test_whole_replicas_have_all_experts_whether_measured_or_simulated(tmp_path: Path) -> None:
    of_one = committed_work(tmp_path / "one", False)
    measured = committed_work(tmp_path / "measured", False, data_parallel_size=2)
    simulated = committed_work(tmp_path / "simulated", True, data_parallel_size=2)
    assert measured.step == of_one.step
    assert simulated == measured


def test_the_window_ends_after_the_duration_or_with_the_last_request(tmp_path: Path) -> None:
    rows = (request(0, 2000.0, last_ms=9000.0), request(1, 3000.0))
    begin_ns = 2 * SECOND_NS
    assert window(WARM_5_S, *rows) == (begin_ns, 7 * SECOND_NS)
    # the end is not a part of the window, but the last request is
    assert window("requests: 2, warmup: 2s", *rows) == (begin_ns, 9 * SECOND_NS + 1)
    assert window("requests: 2, warmup: 2s") == (begin_ns, begin_ns)


def window(load: str, *rows: Mapping[str, Any]) -> tuple[int, int]:
    return record_of(load, *rows).row("x").window


def test_a_row_says_whether_a_steady_part_was_found() -> None:
    """Without a warm-up, the steady part begins one end-to-end time after the load; there is none if
    that is more than half of the load.
    """
    ends_early = request(0, 0.0, last_ms=1000.0)
    ends_late = request(0, 0.0, last_ms=4000.0)
    assert record_of("duration: 5s", ends_early).row("x").steady is True
    assert record_of("duration: 5s", ends_late).row("x").steady is False
    # it is not looked for after a warm-up, or where the load has no duration
    assert record_of(WARM_5_S, ends_late).row("x").steady is None
    assert record_of("requests: 1", ends_late).row("x").steady is None


def test_a_row_says_how_it_was_loaded() -> None:
    row = record_of(f"{WARM_5_S}, request_timeout: 7s").row("x")
    rules = json.loads(row.load_json or "")
    assert (rules["duration_s"], rules["warmup_s"], rules["request_timeout_s"]) == (5.0, 2.0, 7.0)


def test_what_was_sampled_of_gpus_and_hosts_is_committed_with_the_attempt(tmp_path: Path) -> None:
    node = NodeTelemetry(
        host_samples=[HostSample(5, {"cpu_share": 0.5})],
        gpu_samples=[GpuSample("GPU-a", 6, {"power_w": 300.0}), GpuSample("GPU-a", 7, {})],
        host="h",
        clock=ClockOffset(40, 3),
    )
    store = Store.open(str(tmp_path), "x")
    loaded = Loaded(span=UnixSpan(1, 2), requests=REQUESTS.empty_table(), telemetry=[node])
    record = record_of(WARM_5_S)
    commit_attempt(store, with_loaded(record, loaded))
    gpus = store.read("telemetry", include_failed=True).to_pylist()
    assert [(row["host"], row["gpu_uuid"], row["unix_ns"], row["power_w"]) for row in gpus] == [
        ("h", "GPU-a", 6, 300.0),
        ("h", "GPU-a", 7, None),
    ]
    (host,) = store.read("hosts", include_failed=True).to_pylist()
    assert (host["cpu_share"], host["clock_offset_ns"], host["clock_error_ns"]) == (0.5, 40, 3)
    assert host["attempt_id"] == gpus[0]["attempt_id"] == record.attempt_id


def test_figures_at_the_commit_are_those_of_its_files(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    rows = part_of("requests", requests(request(0, 2500.0, last_ms=2640.0, tokens=3)))
    gaps = part_of("token_events", events({0: [10.0, 30.0]}))
    sent_gaps = pickle.loads(pickle.dumps(gaps))  # as from a client on another host
    samples = {
        0: [
            Sample(1, {"running": 3.0, "preemptions_total": 1.0}),
            Sample(2, {"preemptions_total": 5.0}),
        ]
    }
    reports = {0: ClientReport(CALM, (), rows, sent_gaps)}
    loaded = Loaded(
        span=UnixSpan(1, 2),
        requests=LazyRows.of("requests", [rows]),
        reports=reports,
        samples=samples,
    )
    committed = commit_attempt(store, with_loaded(record_of(WARM_5_S), loaded))
    (manifest,) = store.manifests()
    read = read_attempt(store, manifest)
    assert isinstance(committed, AttemptData)
    assert read is not None
    engine_side = committed.engine_side
    figures = committed.figures
    assert engine_side is not None and figures.itl_ms is not None
    assert (figures.itl_ms.min, figures.itl_ms.max) == (10.0, 30.0)
    assert (engine_side.running_max, engine_side.preemptions) == (3.0, 4.0)
    assert figures.requests.ok == 1
    assert table_of([committed], AttemptData).equals(table_of([read.data()], AttemptData))


def test_requests_and_token_events_of_many_clients_are_read_in_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 12 clients with one request each are read three at a time. If requests and token events
    came in different orders, all would be read at once.
    """
    monkeypatch.setattr("orchestrator.analysis.requests.AT_ONCE", 3)
    store = Store.open(str(tmp_path), "x")
    requests_of_clients: list[RowFile] = []
    reports: dict[int, ClientReport] = {}
    for client in range(12):
        rows = part_of("requests", requests(request(client)))
        gaps = part_of("token_events", events({client: [20.0]}))
        requests_of_clients.append(rows)
        reports[client] = ClientReport(CALM, (), rows, gaps)
    loaded = Loaded(
        span=UnixSpan(1, 2),
        requests=LazyRows.of("requests", requests_of_clients),
        reports=reports,
    )
    commit_attempt(store, with_loaded(record_of(WARM_5_S), loaded))
    (manifest,) = store.manifests()
    stored_gaps = store.lazy_rows("token_events", manifest)
    for all_rows in (loaded.requests, store.lazy_rows("requests", manifest)):
        batches = request_arrays(all_rows, stored_gaps)
        assert [batch.index.size for batch in batches] == [3, 3, 3, 3]


def test_files_that_clients_store_sort_in_the_order_of_the_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers in their names have leading zeros."""
    monkeypatch.setattr(LoadClient, "prepare", lambda *_: 0)
    store = Store.open(str(tmp_path), "x")
    paths: list[str] = []
    for client in (2, 10):
        host = ClientHost()
        host.prepare(point(measurement_id="m", attempt_id="a"), client, 12)
        rows = part_of("requests", requests(request(client)))
        (file,) = host._store_rows(store, [rows])
        paths.append(file.path)
    assert paths == sorted(paths)

"""What a sweep commits: the rows of an attempt, and of what engines said meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import Failure, FailureKind
from orchestrator.plan.make import make_plan
from orchestrator.results.records import DeploymentRow, PointRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store
from orchestrator.runner.commit import AttemptRecord, commit_attempt, launch_row, write_engine_metrics
from orchestrator.runner.measure import Attempt, Loaded
from orchestrator.spec.experiment import parse_experiment
from orchestrator.telemetry.engine_metrics import Sample
from tests.unit.plan.files import measurements
from tests.unit.results.builders import request, requests

KEYS = {"measurement_id": "m" * 16, "attempt_id": "a" * 26}
EXPERIMENT = """
version: 1
name: x
model: some-org/some-model
deployments: {engine: emulator, max_num_seqs: 8}
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [8]}, %s}
"""


def attempt(length: str, failure: Failure | None = None, *rows: object, warmup: str = ", warmup: 2s") -> AttemptRecord:
    plan = make_plan(parse_experiment(EXPERIMENT % (length + warmup), "x.yaml"))
    table = requests(*rows) if rows else None  # type: ignore[arg-type]
    (measurement,) = measurements(plan)
    loaded = Loaded(span_unix_ns=(1, 2), requests=table) if rows else None
    tried = Attempt(failure=failure, loaded=loaded)
    launch = replace(launch_row(plan.deployments[0], "x", 1), launch_id="L" * 26)
    return AttemptRecord(plan.deployments[0], plan.points[0], measurement, tried, "a" * 26, launch)


def test_an_attempt_is_committed_with_its_deployment_and_why_it_failed(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    failure = Failure(FailureKind.OOM_KV, "It died.")
    commit_attempt(store, attempt("duration: 5s", failure))
    (row,) = rows_of(store.read("points", include_failed=True), PointRow)
    assert (row.status, row.failure_class, row.failure_kind) == ("failed", "bad_config", "oom_kv")
    assert (row.reason, row.requests_scheduled) == ("It died.", 0)
    (deployment,) = rows_of(store.read("deployments"), DeploymentRow)
    assert (deployment.deployment_id, deployment.experiment, deployment.max_num_seqs) == (row.deployment_id, "x", 8)
    (manifest,) = store.manifests()
    assert (manifest.status, manifest.point_id, manifest.launch_id) == ("failed", row.point_id, "L" * 26)


def test_the_window_ends_after_the_duration_or_with_the_last_request(tmp_path: Path) -> None:
    rows = (request(0, 2000.0, last_ms=9000.0), request(1, 3000.0))
    assert attempt("duration: 5s", None, *rows).row("x").window_ns == (2 * 10**9, 7 * 10**9)
    assert attempt("requests: 2", None, *rows).row("x").window_ns == (2 * 10**9, 9 * 10**9 + 1)
    assert attempt("requests: 2").row("x").window_ns == (2 * 10**9, 2 * 10**9)


def test_a_row_says_whether_a_steady_part_was_found_where_it_was_looked_for() -> None:
    short, long = (request(0, 0.0, last_ms=last_ms) for last_ms in (1000.0, 4000.0))
    found = [attempt("duration: 5s", None, row, warmup="").row("x").steady for row in (short, long)]
    assert found == [True, False]
    assert attempt("duration: 5s", None, long).row("x").steady is None
    assert attempt("requests: 1", None, long, warmup="").row("x").steady is None


def test_a_row_says_how_it_was_loaded() -> None:
    said = json.loads(attempt("duration: 5s, request_timeout: 7s").row("x").load_json or "")
    assert (said["duration_s"], said["warmup_s"], said["request_timeout_s"]) == (5.0, 2.0, 7.0)


def test_a_silent_replica_beside_others_has_a_row_of_nulls(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    (part,) = write_engine_metrics(
        store, {0: [Sample(1, {"running": 3.0}), Sample(2, {"running": 4.0})], 1: []}, **KEYS
    )
    assert part.rows == 3


def test_when_no_replica_says_anything_there_is_no_part(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    assert write_engine_metrics(store, {0: [], 1: []}, **KEYS) == []
    assert write_engine_metrics(store, {}, **KEYS) == []

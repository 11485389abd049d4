"""A sweep on a two-node Ray cluster, engines emulated: placement, rows, resume, failures as rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.ray_on_this_machine import RayOnThisMachine
from tests.harness import (
    MODEL,
    assert_nothing_left,
    assert_rows_equal_schedule,
    manifests,
    orchestrator,
    rows,
    write_experiment,
)

pytestmark = pytest.mark.cluster

GRID = f"""
version: 1
name: grid
model: {{id: {MODEL}}}
deployments:
  engine: emulator
  vary:
    - cases:
        - {{tensor_parallel_size: 1}}
        - {{tensor_parallel_size: 2}}
        - {{tensor_parallel_size: 2, nnodes: 2}}
        - {{replicas: 2}}
workloads:
  - {{name: short, input_tokens: 32, output_tokens: 16}}
  - {{name: chatty, input_tokens: 32, output_tokens: 16, api: chat}}
load: {{levels: {{concurrency: [4], request_rate: [10]}}, arrivals: poisson, duration: 1s, warmup: 500ms}}
slos:
  fast: {{ttft: 1s, tpot: 200ms}}
"""


@pytest.fixture(scope="module")
def swept(
    two_nodes: RayOnThisMachine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("grid")
    experiment = write_experiment(folder, GRID)
    done = orchestrator(
        "run", str(experiment), "--results", str(folder / "results"), "--address", two_nodes.address
    )
    assert done.returncode == 0, done.stderr
    assert "overhead" in done.stderr
    return experiment, folder / "results"


def test_every_measurement_is_committed_once_with_a_row_for_every_scheduled_request(
    swept: tuple[Path, Path],
) -> None:
    _, results = swept
    ok = [one for one in manifests(results) if one["status"] == "ok"]
    assert len({one["measurement_id"] for one in ok}) == len(ok) == 4 * 2 * 2
    # this machine may be busy
    others = [one for one in manifests(results) if one["status"] != "ok"]
    assert {one["failure_class"] for one in others} <= {"client_bound"}
    assert sum(assert_rows_equal_schedule(results).values()) > 300


def test_replicas_share_the_load_and_two_nodes_hold_a_spread_replica(
    swept: tuple[Path, Path],
) -> None:
    _, results = swept
    deployments = {row["deployment_id"]: row for row in rows(results, "deployments")}
    two = [
        row for row in rows(results, "points") if deployments[row["deployment_id"]]["replicas"] == 2
    ]
    assert two
    for point in two:
        used = [
            row["replica"]
            for row in rows(results, "requests")
            if row["attempt_id"] == point["attempt_id"]
        ]
        assert min(used.count(0), used.count(1)) > 0.3 * len(used)
    spread = [
        row for row in rows(results, "launches") if deployments[row["deployment_id"]]["nodes"] == 2
    ]
    assert len({seat["node_id"] for seat in json.loads(spread[0]["placement_json"])}) == 2


def test_each_point_has_readings_of_its_host_while_it_ran(swept: tuple[Path, Path]) -> None:
    _, results = swept
    readings = rows(results, "hosts")
    for point in rows(results, "points"):
        of_point = [row for row in readings if row["attempt_id"] == point["attempt_id"]]
        since_s = []
        for row in of_point:
            driver_ns = row["unix_ns"] - row["clock_offset_ns"]
            since_s.append((driver_ns - point["started_unix_ns"]) / 1e9)
        # the load lasts for 1.5 s; its last request may end a little before
        assert since_s[0] <= 0.25 and since_s[-1] >= 1.3, "from before the load to its end"
        assert of_point[-1]["engine_rss_bytes"] > 2**20
    assert all(row["host"] for row in rows(results, "engine_metrics"))
    facts = [row for row in rows(results, "events") if row["kind"] == "host_facts"]
    assert len(facts) == 1, "both nodes are one host"
    assert all(json.loads(row["environment_json"]) for row in rows(results, "launches"))


def test_everything_that_came_from_the_emulator_says_so(swept: tuple[Path, Path]) -> None:
    _, results = swept
    assert all(row["emulated"] for table in ("points", "launches") for row in rows(results, table))
    assert "emulated" in orchestrator("results", str(results)).stdout.lower()


def test_results_and_best_print_one_json_document(swept: tuple[Path, Path]) -> None:
    _, results = swept
    points = json.loads(orchestrator("results", str(results), "--format", "json").stdout)
    assert len(points) == 16
    assert all(point["requests"]["failed"] == 0 and point["ttft_ms"]["p99"] > 0 for point in points)
    assert all(
        repeat["engine_side"]["generation_tokens"] > 0
        for point in points
        for repeat in point["repeats"]
    )
    best = orchestrator(
        "best", str(results), "--slo", "ttft<=1s,tpot<=200ms,attainment>=0.9", "--format", "json"
    )
    assert json.loads(best.stdout)
    assert best.returncode == 0


def test_running_again_measures_nothing_twice(
    swept: tuple[Path, Path], two_nodes: RayOnThisMachine
) -> None:
    experiment, results = swept
    before = len(manifests(results))
    again = orchestrator(
        "run", str(experiment), "--results", str(results), "--address", two_nodes.address
    )
    assert again.returncode == 0, again.stderr
    assert "16 already done" in again.stderr
    assert len(manifests(results)) == before


def test_no_secret_reaches_the_results(swept: tuple[Path, Path]) -> None:
    _, results = swept
    for row in rows(results, "launches"):
        argv = [word for rank in json.loads(row["argv_json"]) for word in rank]
        assert not any("api-key" in word or "api_key" in word for word in argv)


def test_nothing_is_left_after_a_sweep(swept: tuple[Path, Path]) -> None:
    assert_nothing_left()

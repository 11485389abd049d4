"""Failures of real processes are rows: class, one plain sentence, log tail, whole log; status 3.
Engine: emulated.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.sweep.fixed_prompts import PROMPTS
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

FAULTS = {
    "dies": "{start: die}",
    "oom": "{start: oom}",
    "midload": f"{{die_at_request: {PROMPTS + 8}}}",
    "orphan": "{orphan: true}",
}
EXPERIMENT = """
version: 1
name: failures
model: {{id: {model}}}
deployments:
  engine: emulator
  vary:
    - cases: [{cases}]
workloads:
  - {{name: short, input_tokens: 16, output_tokens: 8}}
load: {{levels: {{concurrency: [2]}}, duration: 1s, warmup: 0s}}
"""


@pytest.fixture(scope="module")
def failed(two_nodes: RayOnThisMachine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failures")
    for name, faults in FAULTS.items():
        (folder / f"{name}.yaml").write_text(f"faults: {faults}\n")
    cases = ", ".join(f"{{profile: {name}.yaml}}" for name in FAULTS)
    cases += ", {tensor_parallel_size: 1}"
    experiment = write_experiment(folder, EXPERIMENT.format(model=MODEL, cases=cases))
    done = orchestrator(
        "run", str(experiment), "--results", str(folder / "results"), "--address", two_nodes.address
    )
    assert done.returncode == 3, done.stderr
    return folder / "results"


def last_point(results: Path, name: str) -> dict[str, object]:
    """The last attempt's points row of the deployment with this profile."""
    deployment = next(
        row for row in rows(results, "deployments") if f"{name}.yaml" in row["settings_json"]
    )
    found = [
        row
        for row in rows(results, "points")
        if row["deployment_id"] == deployment["deployment_id"]
    ]
    return max(found, key=lambda row: row["attempt_id"])


@pytest.mark.parametrize(
    ("name", "failure_class"),
    [
        ("dies", "engine_crash"),
        ("oom", "bad_config"),
        ("midload", "engine_crash"),
    ],
)
def test_each_failure_is_a_row_with_its_class_and_a_sentence(
    failed: Path, name: str, failure_class: str
) -> None:
    point = last_point(failed, name)
    assert point["status"] == "failed"
    assert point["failure_class"] == failure_class
    assert len(str(point["reason"])) > 20


@pytest.mark.parametrize(("name", "launches"), [("oom", 1), ("dies", 2), ("midload", 2)])
def test_the_class_decides_how_often_it_is_tried(failed: Path, name: str, launches: int) -> None:
    deployment = next(
        row for row in rows(failed, "deployments") if f"{name}.yaml" in row["settings_json"]
    )
    found = [
        row
        for row in rows(failed, "launches")
        if row["deployment_id"] == deployment["deployment_id"]
    ]
    assert [row["status"] for row in found] == ["failed"] * launches
    assert all(row["log_tail"] for row in found)


def test_the_sweep_goes_on_and_measures_what_works(failed: Path) -> None:
    ok = [one for one in manifests(failed) if one["status"] == "ok"]
    assert len(ok) == 2  # the plain one, and the one whose orphan child is only a nuisance


def test_requests_open_when_the_engine_died_are_rows(failed: Path) -> None:
    assert_rows_equal_schedule(failed)
    point = last_point(failed, "midload")
    mine = [row for row in rows(failed, "requests") if row["attempt_id"] == point["attempt_id"]]
    assert {row["status"] for row in mine} >= {"ok", "error"}


def test_the_whole_log_of_every_launch_is_kept(failed: Path) -> None:
    for row in rows(failed, "launches"):
        assert row["log_uri"], row
        assert (failed / "failures" / "logs" / row["launch_id"] / "rank0.log").is_file()


def test_nothing_is_left_not_even_an_orphan_that_ignores_sigterm(failed: Path) -> None:
    assert_nothing_left()


def test_bad_input_is_refused_before_anything_starts(tmp_path: Path) -> None:
    experiment = write_experiment(
        tmp_path, "version: 1\nname: bad\nmodle: {id: x}\nworkloads: []\n"
    )
    refused = orchestrator(
        "run", str(experiment), "--results", str(tmp_path / "results"), "--address", "127.0.0.1:1"
    )
    assert refused.returncode == 2
    assert "experiment.yaml:3" in refused.stderr
    assert "model" in refused.stderr
    assert not (tmp_path / "results").exists()

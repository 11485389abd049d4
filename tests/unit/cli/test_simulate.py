"""What ``orchestrator simulate`` says of a plan before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.simulate import ProgressLine
from orchestrator.plan.shortlist import shortlisted
from orchestrator.results.events import Event
from tests.unit.cli.commands import invoke
from tests.unit.simulation.builders import EXPERIMENT, planned

LONG = EXPERIMENT.replace("max_model_len: 8192", "max_model_len: 2048").replace(
    "input_tokens: 256", "input_tokens: {uniform: {min: 1000, max: 4000}}"
)
SERVER = """
version: 1
name: x
model: meta-llama/Llama-3.1-8B-Instruct
deployments: {engine: endpoint, url: "http://127.0.0.1:9"}
workloads: [{name: w, input_tokens: 256, output_tokens: 16}]
load: {levels: {request_rate: [2, 8]}, duration: 20s}
"""
LEVELS = "levels: {request_rate: [2, 8]}"
SEARCH = "search: capacity, control: request_rate"


def test_a_shortlist_that_is_frozen_in_a_plan_is_said(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(shortlisted(planned(), 1).to_json())
    done = invoke("simulate", str(path), "--results", str(tmp_path / "results"), "--no-report")
    assert done.status == 0
    assert "shortlist: 1 of 2 deployments by plan --predict; left out: 1 " in done.stderr
    assert "2 simulated, 0 already done" in done.stderr


@pytest.mark.parametrize("load", [LEVELS, SEARCH])
def test_requests_that_are_too_long_are_said_and_no_lower_load_is_advised(
    load: str, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text(LONG.replace(LEVELS, load))
    done = invoke("simulate", str(tmp_path / "x.yaml"), "--results", str(tmp_path / "results"))
    risk = (
        "note: risky: workload 'w' has requests of up to 4,064 tokens, max_model_len is 2,048: "
        "those will fail (vllm tp=1, vllm tp=2)"
    )
    assert risk in done.stderr.splitlines()
    advice = [line for line in done.stderr.splitlines() if "to decide" in line]
    assert advice == [
        "to decide: raise max_model_len if refused requests (http_4xx) are too long"
        " (vllm tp=1, vllm tp=2)"
    ]


def test_where_nothing_can_be_simulated_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(SERVER)
    results = tmp_path / "results"
    done = invoke("simulate", str(tmp_path / "x.yaml"), "--results", str(results))
    reason = "endpoint cannot be simulated: it runs already, and its hardware is not known"
    assert done.status == 3
    assert reason in done.stderr
    assert f"measure it: orchestrator run {tmp_path}/x.yaml\n" in done.stderr
    assert not results.exists()


def test_a_limit_on_wall_time_is_said_not_to_be_applied(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(EXPERIMENT + "budget: {wall: 30m}\n")
    done = invoke("simulate", str(tmp_path / "x.yaml"), "--results", str(tmp_path / "results"))
    assert "note: budget.wall (30 min) is not applied: how long a run takes" in done.stderr


def test_each_step_after_the_last_point_is_said_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(EXPERIMENT)
    done = invoke("simulate", str(tmp_path / "x.yaml"), "--results", str(tmp_path / "results"))
    lines = done.stderr.splitlines()
    steps = ["storing what answers need", "computing the answer", "writing the page"]
    places = [lines.index(step) for step in steps]
    assert places == sorted(places)
    (page,) = [place for place, line in enumerate(lines) if line.startswith("page: ")]
    assert places[-1] < page


def test_no_time_is_said_to_be_left_once_all_expected_points_are_simulated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cli.simulate.LOG_S", 0.0)
    progress = ProgressLine()
    progress(Event("sweep", "", data={"total": 2}))
    progress(Event("measured", ""))
    progress(Event("measured", ""))
    _, one, both = capsys.readouterr().err.splitlines()
    assert one == "simulated 1 of 2 points in 0 s, about 1 s left"
    assert both == "simulated 2 of 2 points in 0 s"

"""``orchestrator plan``: its forms, options and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.plan.make import load_plan
from orchestrator.results.store import Store
from orchestrator.spec.load import Level
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import EXPERIMENT, SEARCH, VALUES, store_attempt, store_sweep

IMPOSSIBLE = "{engine: emulator, extra_args: {--no: true}}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(EXPERIMENT.format(**VALUES))
    return path


@pytest.fixture
def impossible(tmp_path: Path) -> Path:
    """A file of one deployment, which is impossible."""
    path = tmp_path / "impossible.yaml"
    text = EXPERIMENT.format(**VALUES)
    begin = text.index("deployments: ")
    end = text.index("\n", begin)
    path.write_text(f"{text[:begin]}deployments: {IMPOSSIBLE}{text[end:]}")
    return path


def test_a_table_has_a_row_for_each_deployment(file: Path) -> None:
    done = invoke("plan", str(file))
    assert done.status == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:3] for row in rows[1:3]] == [
        ["emulator", "seqs=8", "planned"],
        ["emulator", "seqs=16", "planned"],
    ]


def test_json_has_settings_counts_and_estimates(file: Path) -> None:
    document = json.loads(invoke("plan", str(file), "--format", "json").stdout)
    first, second = document["deployments"]
    assert (first["settings"]["max_num_seqs"], second["settings"]["max_num_seqs"]) == (8, 16)
    assert first["points"] == 1
    assert (document["planned"], document["measurements"]) == (2, 2)


def test_a_written_plan_is_the_same_plan(file: Path, tmp_path: Path) -> None:
    frozen = tmp_path / "plan.json"
    done = invoke("plan", str(file), "--output", str(frozen))
    assert done.stderr == f"wrote {frozen}\n"
    assert load_plan(frozen) == load_plan(file)


def test_a_file_with_problems_has_them_all_at_once(file: Path) -> None:
    file.write_text(file.read_text().replace("duration: 10s", "duration: soon, seeed: 1"))
    with pytest.raises(ProblemsError) as error:
        invoke("plan", str(file))
    assert len(error.value.problems) == 2


@pytest.mark.parametrize("form", ["table", "json"])
def test_where_nothing_can_run_the_status_is_3(form: str, impossible: Path) -> None:
    done = invoke("plan", str(impossible), "--format", form)
    assert done.status == 3
    printed = done.stderr if form == "json" else done.stdout
    assert "nothing in this file can run" in printed


def test_deployments_too_large_for_their_gpus_are_planned_on_request(impossible: Path) -> None:
    text = impossible.read_text().replace("some-org/m", "meta-llama/Llama-3.1-70B-Instruct")
    hardware = "hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 8}}"
    deployment = "{engine: vllm, hardware: h100}"
    impossible.write_text(f"{text.replace(IMPOSSIBLE, deployment)}{hardware}\n")
    assert invoke("plan", str(impossible)).status == 3
    done = invoke("plan", str(impossible), "--allow-impossible", "--format", "json")
    assert done.status == 0
    (deployment,) = json.loads(done.stdout)["deployments"]
    assert deployment["status"] == "risky"


def test_predictions_stand_above_the_table(file: Path) -> None:
    text = invoke("plan", str(file), "--predict").stdout
    assert "predicted" in text.splitlines()[0]


def test_what_is_measured_already_is_counted(file: Path, tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    store = Store.open(results, "exp")
    plan = load_plan(file)
    assert "0 measurements already there" in invoke("plan", str(file), "--results", results).stdout
    store_attempt(store, plan, plan.points[0], validity="disturbed")
    store_attempt(store, plan, plan.points[1])
    text = invoke("plan", str(file), "--results", results).stdout
    assert f"1 measurement already there at {store.uri}; open again: 1 disturbed" in text


def test_probes_that_are_open_again_are_not_counted_as_there(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text().replace("levels: {concurrency: [2]}", SEARCH))
    plan = load_plan(file)
    results = str(tmp_path / "results")
    store = Store.open(results, "exp")
    # no search is known beforehand to ask for these levels
    for concurrency, validity in ((33, "valid"), (35, "disturbed")):
        level = Level(control="concurrency", value=concurrency)
        point = plan.point(plan.deployments[0].id, plan.loads[0], level)
        assert point not in plan.points
        store_attempt(store, plan, point, validity=validity)
    text = invoke("plan", str(file), "--results", results).stdout
    assert f"1 probe of its searches already there at {store.uri}; open again: 1 disturbed" in text


def test_start_times_of_earlier_runs_are_used(file: Path, tmp_path: Path) -> None:
    results = str(tmp_path / "results")
    store_sweep(Store.open(results, "exp"), load_plan(file))
    options = ("--format", "json", "--results", results)
    cost = json.loads(invoke("plan", str(file), *options).stdout)["deployments"][0]["cost"]
    assert cost["start_s"] == 5.0  # no launch is stored, so it is estimated


PREDICTED = """
version: 1
name: x
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {h100: {accelerator: H100-80GB, gpus_per_node: 8}}
deployments: {engine: vllm, hardware: h100, max_model_len: 8192, vary: [{grid: {max_num_seqs: [1, 2, 64, 65]}}]}
workloads: [{name: chat, input_tokens: 600, output_tokens: 200}]
load: {levels: {request_rate: [1, 4]}}
slos: {fast: {ttft: 2s, tpot: 100ms}}
"""


@pytest.fixture
def predicted_file(tmp_path: Path) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(PREDICTED)
    return path


def test_a_shortlist_says_what_it_leaves_out_and_why(predicted_file: Path) -> None:
    done = invoke("plan", str(predicted_file), "--shortlist", "1")
    assert done.status == 0
    statuses = [line.split()[2:4] for line in done.stdout.splitlines() if line.startswith("vllm")]
    assert sorted(status[0] for status in statuses) == ["left", "left", "left", "planned"]
    assert "left out: may hold as much as" in done.stdout
    assert "left out: predicted to hold less than" in done.stdout
    assert "4 deployments: 1 planned, 3 left out by the shortlist" in done.stdout
    assert (
        "shortlist: 1 of 4 deployments by plan --predict; left out: 2 predicted behind, "
        "1 may be as good" in done.stdout
    )
    assert "2 may be the best within the error: --shortlist 2 runs them all" in done.stdout


def test_json_has_the_reason_of_each_deployment_that_a_shortlist_leaves_out(
    predicted_file: Path,
) -> None:
    argv = ["plan", str(predicted_file), "--shortlist", "2", "--format", "json"]
    document = json.loads(invoke(*argv).stdout)
    reasons = [each["left_out"] for each in document["deployments"]]
    assert [each["why"] for each in reasons if each] == ["behind", "behind"]
    assert all("predicted to hold at most" in each["text"] for each in reasons if each)
    assert (document["left_out"], document["shortlist"]["of"]) == (2, 4)


def test_a_frozen_plan_keeps_its_shortlist(predicted_file: Path, tmp_path: Path) -> None:
    frozen = tmp_path / "plan.json"
    invoke("plan", str(predicted_file), "--shortlist", "1", "--output", str(frozen))
    assert len(load_plan(frozen).runnable()) == 1
    assert "3 left out" in invoke("plan", str(frozen)).stdout
    assert "2 left out" in invoke("plan", str(frozen), "--shortlist", "2").stdout

"""``orchestrator status``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.results.runs import Runs, RunState
from orchestrator.results.store import Store
from tests.unit.cli.commands import invoke
from tests.unit.results.builders import commit_measurement, request
from tests.unit.results.test_runs import written


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(str(tmp_path), "x")


def test_each_run_is_shown_as_text(runs: Runs) -> None:
    written(runs, measured=3, total=8)
    text = invoke("status", runs.uri).stdout
    assert text.startswith(f"x: running, pid {os.getpid()} of ")
    assert "3 of 8 measured" in text


def test_a_run_that_joins_its_cluster_is_shown_instead_of_the_one_before_it(runs: Runs) -> None:
    written(runs, state=RunState.ENDED, measured=8, total=8)
    written(runs, state=RunState.STARTING)
    text = invoke("status", runs.uri).stdout
    assert text.startswith(f"x: starting, pid {os.getpid()} of ")
    assert "8 of 8" not in text


def test_json_has_the_runs_of_each_experiment_with_their_state(runs: Runs) -> None:
    written(runs)
    (experiment,) = json.loads(invoke("status", runs.uri, "--format", "json").stdout)
    assert experiment["experiment"] == "x"
    (run,) = experiment["runs"]
    assert (run["state"], run["pid"]) == ("running", os.getpid())
    assert run["heartbeat_age_s"] < 60


@pytest.mark.parametrize("form", ["table", "json"])
def test_no_form_shows_secrets_or_sequences_for_terminals(form: str, runs: Runs) -> None:
    event = {"unix_ns": 10**18, "kind": "failed", "deployment": "", "text": "\x1b[2Jhf_" + "a" * 30}
    written(runs, events=[event])
    text = invoke("status", runs.uri, "--format", form).stdout
    assert "\x1b" not in text
    assert "hf_a" not in text


def test_experiments_without_a_run_are_named(runs: Runs) -> None:
    commit_measurement(Store.open(runs.uri, "loaded"), "m0", [request(0)])
    written(runs)
    text = invoke("status", runs.uri).stdout
    assert "no run on record: loaded" in text
    assert "x: running" in text


def test_a_place_without_results_is_refused(runs: Runs) -> None:
    written(runs)
    with pytest.raises(InputError, match="no results"):
        invoke("status", f"{runs.uri}/nowhere")


def test_a_damaged_record_is_shown_as_that_of_an_unknown_run(runs: Runs) -> None:
    runs.put("01X", b'{"pid": "x"}')
    assert "pid 0 of ? on ?" in invoke("status", runs.uri).stdout


def test_what_was_simulated_says_so(runs: Runs) -> None:
    commit_measurement(Store.open(runs.uri, "made"), "m0", [request(0)], simulated=True)
    assert invoke("status", runs.uri).stdout == "simulated, nothing was measured: made\n"
    (experiment,) = json.loads(invoke("status", runs.uri, "--format", "json").stdout)
    assert experiment["simulated"] is True

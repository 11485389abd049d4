"""``orchestrator best``: its forms, notes and exit statuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from orchestrator.base.errors import InputError
from orchestrator.results.events import Event
from orchestrator.results.runs import RunRecord, Runs, RunState
from orchestrator.results.store import Store
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.results.builders import commit_measurement, request


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned())
    return store


def test_each_limit_of_the_file_has_a_ranking(store: Store) -> None:
    done = invoke("best", store.uri)
    assert done.status == 0
    assert "under interactive (ttft<=150ms,attainment>=0.9)" in done.stdout
    assert "under tight (ttft<=1ms,attainment>=0.9)" in done.stdout


def test_json_has_the_comparisons(store: Store) -> None:
    done = invoke("best", store.uri, "--slo", "interactive", "--format", "json")
    (comparison,) = json.loads(done.stdout)["comparisons"]
    assert comparison["slo_name"] == "interactive"
    assert [ranked["starts"] for ranked in comparison["ranking"]] == [1, 1]


def test_top_is_how_many_rows_of_each_ranking_are_shown(store: Store) -> None:
    done = invoke("best", store.uri, "--slo", "interactive", "--top", "1")
    rows = [line for line in done.stdout.splitlines() if line.startswith(" emulator seqs=")]
    assert len(rows) == 1
    assert " and 1 more: --top 2" in done.stdout.splitlines()


def printed_at(width: int, store: Store, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    return invoke("best", store.uri, "--top", "9").stdout


def test_no_number_is_cut_however_narrow_the_terminal_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = set(re.findall(r"[\d.,]*\d", printed_at(500, store, monkeypatch)))
    for width in range(40, 161, 24):
        narrow = printed_at(width, store, monkeypatch)
        assert set(re.findall(r"[\d.,]*\d", narrow.split("not shown:")[0])) <= whole
        assert max(map(len, narrow.splitlines())) <= width


def test_markdown_is_a_table_for_a_pull_request(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # its rows are longer, and stay lines
    done = invoke("best", store.uri, "--slo", "interactive", "--format", "md")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("**chat of exp: some-org/m on cpu")
    (titles,) = [at for at, line in enumerate(lines) if line.startswith("| deployment |")]
    assert lines[titles - 1] == ""
    assert set(lines[titles + 1]) <= set("|:- ")
    assert lines[titles + 2].startswith("| emulator seqs=")
    assert lines[titles + 2].endswith(" |")


def test_a_price_is_used_for_a_ranking_per_dollar(store: Store) -> None:
    done = invoke("best", store.uri, "--slo", "interactive", "--per", "usd", "--price", "cpu=1.8")
    assert "output tokens/USD" in done.stdout


def test_a_price_of_hardware_that_no_experiment_uses_is_refused(store: Store) -> None:
    with pytest.raises(InputError, match="--price: unknown hardware 'h100'"):
        invoke("best", store.uri, "--price", "h100=2")


def test_limits_that_no_file_names_are_refused(store: Store) -> None:
    with pytest.raises(InputError, match="--slo: unknown limit of the file 'interactif'"):
        invoke("best", store.uri, "--slo", "interactif")


def test_limits_of_a_part_that_no_mix_has_are_refused(store: Store) -> None:
    with pytest.raises(InputError, match="--slo: unknown part of a mix 'chatt'. Known: none"):
        invoke("best", store.uri, "--slo", "chatt:ttft<=1s")


def test_without_any_limits_they_are_asked_for(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "bare")
    commit_measurement(store, "m0", [request(0)])
    with pytest.raises(click.UsageError, match="no experiment there names limits"):
        invoke("best", store.uri)


def test_an_experiment_without_limits_beside_one_with_some_is_named(store: Store) -> None:
    commit_measurement(Store.open(store.uri, "bare"), "m0", [request(0)])
    done = invoke("best", store.uri)
    assert "note: bare is left out: its file names no limits: give --slo" in done.stderr


def test_a_ranking_of_nothing_that_was_measured_is_status_3(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    store.write_plan(planned().to_json())
    done = invoke("best", store.uri)
    assert done.status == 3
    assert "nothing that the plan asks for here is measured yet" in done.stdout


def test_what_a_run_left_out_because_it_was_decided_is_noted(store: Store) -> None:
    record = RunRecord.of_this_process()
    record.note(Event("decided", "decided within 5 %: 2 deployments not measured to the end"))
    record.state = RunState.ENDED
    Runs(store.uri, "exp").put(record.run_id, record.to_json())
    said = "decided within 5 %: 2 deployments not measured to the end; run it without --until"
    assert said in invoke("best", store.uri).stderr
    later = RunRecord.of_this_process()
    Runs(store.uri, "exp").put(later.run_id, later.to_json())
    assert said not in invoke("best", store.uri).stderr

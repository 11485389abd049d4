"""What is read again of a watched folder, and when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.results.runs import RunRecord, RunState, process_start
from orchestrator.results.store import Store
from orchestrator.web.watched import LOCAL_PAUSE_S, REMOTE_PAUSE_S, WatchedResults
from tests.unit.plan.stored_sweeps import planned, store_sweep


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "results"), "exp")


@pytest.fixture
def watched(store: Store) -> WatchedResults:
    return WatchedResults(store.uri)


def test_nothing_stored_is_an_empty_page(watched: WatchedResults) -> None:
    watched.look()
    assert watched.now.content.document.experiments == ()
    assert watched.now.attempts == 0


def test_what_was_measured_is_seen_at_the_next_look(store: Store, watched: WatchedResults) -> None:
    watched.look()
    store_sweep(store, planned())
    assert watched.look()
    (section,) = watched.now.content.document.experiments
    assert section.name == "exp"
    assert watched.now.attempts == len(store.attempts())


def test_an_unchanged_folder_is_not_read_again(store: Store, watched: WatchedResults) -> None:
    store_sweep(store, planned())
    watched.look()
    before = watched.now
    assert not watched.look()
    assert watched.now.content is before.content


def test_a_run_whose_process_is_gone_is_seen_although_no_file_changes(
    store: Store, watched: WatchedResults
) -> None:
    store_sweep(store, planned())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as driver:
        record = RunRecord.of_this_process()
        record.state = RunState.RUNNING
        record.pid = driver.pid
        record.pid_started = process_start(driver.pid) or 0
        file = Path(store.uri, "exp", "runs", f"{record.run_id}.json")
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(record.to_json())
        watched.look()
        assert [each.state for each in watched.now.runs] == ["running"]
        driver.communicate(b"\n")
    assert watched.look()
    assert [each.state for each in watched.now.runs] == ["dead"]


def test_a_heartbeat_reads_no_requests_again(store: Store, watched: WatchedResults) -> None:
    store_sweep(store, planned())
    watched.look()
    before = watched.now
    record = Path(store.uri, "exp", "runs", "01JDZ7Z5N8Q4T2V6X8Y0A1B2C3.json")
    record.parent.mkdir(exist_ok=True)
    record.write_text("{}")
    assert watched.look()
    assert watched.now.content is before.content
    assert [each.experiment for each in watched.now.runs] == ["exp"]


def test_attempts_that_come_later_stand_behind_the_others(
    store: Store, watched: WatchedResults
) -> None:
    store_sweep(store, planned(levels=[1, 2, 3]))
    watched.look()
    first = watched.now
    store_sweep(store, planned(levels=[1, 2, 3, 4]))
    watched.look()
    assert watched.now.edition == first.edition
    assert watched.now.attempts > first.attempts
    before = first.content.payload.bins.encoded()
    after = watched.now.content.payload.bins.encoded()
    requests = len(before) // 3
    assert after[:requests] == before[:requests]


def test_stops_are_chosen_anew_when_the_requests_doubled(
    store: Store, watched: WatchedResults
) -> None:
    store_sweep(store, planned(levels=[1]))
    watched.look()
    first = watched.now
    store_sweep(store, planned(levels=[1, 2, 3, 4]))
    watched.look()
    assert watched.now.edition == first.edition + 1


def test_a_limit_that_was_added_to_the_file_becomes_a_stop(
    store: Store, watched: WatchedResults
) -> None:
    store_sweep(store, planned())
    watched.look()
    first = watched.now
    plan = planned()
    added = plan.slos[0].model_copy(update={"name": "added", "ttft": 0.1234567})
    store.write_plan(plan.model_copy(update={"slos": (*plan.slos, added)}).to_json())
    watched.look()
    assert watched.now.edition == first.edition + 1
    assert 0.1234567 in watched.now.content.payload.bins.stops["ttft"]


def test_an_experiment_that_is_not_there_is_named_with_those_that_are(store: Store) -> None:
    assert WatchedResults(store.uri, "other").absence() is None
    store_sweep(store, planned())
    absence = WatchedResults(store.uri, "other").absence()
    assert absence == f"no experiment 'other' at {store.uri} yet; there: exp"
    assert WatchedResults(store.uri, "exp").absence() is None


def test_only_the_experiment_that_was_named_is_shown(store: Store) -> None:
    store_sweep(store, planned())
    watched = WatchedResults(store.uri, "other")
    watched.look()
    assert watched.now.content.document.experiments == ()


def test_an_object_store_is_listed_less_often() -> None:
    assert WatchedResults("results").pause_s == LOCAL_PAUSE_S
    assert WatchedResults("s3://bucket/sweeps").pause_s == REMOTE_PAUSE_S

"""One active run per experiment: the second is refused, a dead one's place is taken, a race has one
winner.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import InputError, ResultsError
from orchestrator.results import runs as module
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase, PhaseName
from orchestrator.results.runs import (
    EVERY_S,
    MOST_DEPLOYMENTS,
    SILENT_S,
    ActiveRun,
    Liveness,
    RunRecord,
    Runs,
    RunState,
    StoredRun,
)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(str(tmp_path), "x")


class Time:
    """A clock that goes on as somebody sleeps; ``then`` happens at each step."""

    def __init__(self, then=lambda: None) -> None:
        self.now_s, self.then = 0.0, then

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.then()

    def watch(self) -> Liveness:
        return Liveness(lambda: self.now_s)


def written(runs: Runs, **changes: object) -> RunRecord:
    """The record of a running run, in place."""
    record = replace(RunRecord.of_this_process(), **{"state": "running", **changes})
    runs.put(record.run_id, record.to_json())
    return record


def take(runs: Runs, time: Time | None = None) -> RunRecord:
    time, record = time or Time(), RunRecord.of_this_process()
    runs.take(record, time.watch(), time.sleep)
    return record


def ids(runs: Runs) -> list[str]:
    return [record.run_id for record in runs.records()]


def test_a_second_run_is_refused_with_the_name_of_the_first(runs: Runs) -> None:
    first = written(runs, measured=3, total=8, user="ann", host="node7")
    with pytest.raises(InputError) as refused:
        take(runs)
    message = str(refused.value)
    assert f"pid {os.getpid()} of ann on node7, since" in message
    assert "3 of 8 measured" in message
    assert f"orchestrator stop {runs.uri}" in message
    assert ids(runs) == [first.run_id]


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_place_of_a_run_killed_here_is_taken_at_once(runs: Runs) -> None:
    written(runs, pid=dead_pid())
    written(runs, pid_started=1)  # its pid was given to somebody else since
    time = Time()
    assert take(runs, time).state == "starting"
    assert time.now_s == 0.0


def test_a_process_that_ended_and_was_not_waited_for_is_dead(runs: Runs) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = written(runs, pid=process.pid, pid_started=module.process_start(process.pid))
    assert record.lives() is True
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert record.lives() is False
    process.wait()


def test_runs_that_ended_or_died_hinder_nobody_and_their_records_are_replaced(runs: Runs) -> None:
    earlier = [written(runs, state=RunState.ENDED), written(runs, pid_started=1)]
    active, _ = entered(runs)
    with active:
        active.begin()
        (ours,) = ids(runs)
        assert ours not in {record.run_id for record in earlier}


def test_a_simulation_leaves_no_record_of_an_earlier_one(runs: Runs) -> None:
    written(runs, pid_started=1)
    with ActiveRun(runs, threading.Event(), [].append, keeps=False):
        pass
    assert ids(runs) == []


def test_a_refused_run_leaves_the_record_of_the_run_before_it(runs: Runs) -> None:
    before = written(runs, state=RunState.ENDED, options=["--address", "local"])
    with pytest.raises(InputError), entered(runs)[0]:
        raise InputError("no Ray cluster at auto")
    assert [record.options for record in runs.records()] == [before.options]


def test_a_run_that_began_keeps_its_record_though_its_input_turns_out_wrong(runs: Runs) -> None:
    written(runs, state=RunState.ENDED, says="the run before it")
    active, _ = entered(runs)

    def measure() -> None:
        with active:
            active.begin()
            raise InputError("a search asks for a level that its `ahead` does not name")

    with pytest.raises(InputError):
        measure()
    (record,) = runs.records()
    assert record.state == "ended"
    assert "its `ahead` does not name" in record.says


def test_a_run_of_another_host_that_beats_is_refused_for(runs: Runs) -> None:
    other = written(runs, place="elsewhere")

    def beat() -> None:
        other.beats += time.now_s % EVERY_S == 0
        runs.put(other.run_id, other.to_json())

    time = Time(beat)
    with pytest.raises(InputError, match="another run"):
        take(runs, time)
    assert time.now_s == EVERY_S


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_elsewhere_is_dead_after_a_minute_without_change(runs: Runs, damaged: bool) -> None:
    other = written(runs, place="elsewhere", began_unix_ns=2**62)  # its clock says nothing
    if damaged:
        runs.put(other.run_id, b'{"pid": "x"')
    time = Time()
    taken = take(runs, time)
    assert time.now_s == SILENT_S
    assert ids(runs) == sorted([other.run_id, taken.run_id])


@pytest.mark.parametrize(
    "damaged",
    [
        *(
            {"deployments": {"a": 5}},
            {"deployments": {"a": {"left": "x"}}},
            {"events": [1]},
            {"events": [{"text": 1}]},
        ),
        *(
            {"began_unix_ns": 10**30},
            {"began_unix_ns": -1},
            {"left_s": "abc"},
            {"pid": "x"},
            {"pid": 1.5},
            [],
            "x",
            7,
        ),
    ],
)
def test_a_damaged_record_is_that_of_an_unknown_run(runs: Runs, damaged: Any) -> None:
    runs.put("01X", json.dumps(damaged).encode())
    (record,) = runs.records()
    assert record == RunRecord(run_id="01X")


class Interleaved(Runs):
    """Each look at the storage waits for its turn, and a seeded throw of dice says whose it is."""

    def __init__(self, runs: Runs) -> None:
        super().__init__(runs.uri, runs.experiment)
        self.waiting: dict[str, threading.Event] = {}
        self.changed = threading.Condition()

    def turn(self, _: float = 0.0) -> None:
        mine = threading.Event()
        with self.changed:
            self.waiting[threading.current_thread().name] = mine
            self.changed.notify()
        assert mine.wait(20)

    def put(self, run_id: str, text: bytes) -> None:
        self.turn()
        super().put(run_id, text)

    def read(self, run_id: str) -> StoredRun | None:
        self.turn()
        return super().read(run_id)

    def file_ages_s(self) -> dict[str, float]:
        self.turn()
        return super().file_ages_s()

    def remove(self, run_id: str) -> None:
        self.turn()
        super().remove(run_id)


@pytest.mark.parametrize("seed", range(24))
def test_of_several_that_start_at_the_same_time_exactly_one_runs(runs: Runs, seed: int) -> None:
    dice, won, refused = random.Random(seed), list[str](), list[str]()
    dead: list[str] = []
    if seed % 2:
        dead.append(written(runs, pid_started=1).run_id)  # it was there before
    own = Interleaved(runs)

    def claim(run_id: str) -> None:
        record = replace(RunRecord.of_this_process(), run_id=run_id)  # whatever their clocks say
        try:
            own.take(record, Liveness(), own.turn)
            won.append(run_id)
        except InputError:
            refused.append(run_id)
        with own.changed:
            own.changed.notify()

    for run_id in map(str, dice.sample(range(100, 1000), 3)):
        threading.Thread(target=claim, args=(run_id,), name=run_id, daemon=True).start()
    while len(won) + len(refused) < 3:
        with own.changed:
            assert own.changed.wait_for(lambda: len(own.waiting) + len(won) + len(refused) == 3, 20)
            if own.waiting:
                own.waiting.pop(dice.choice(sorted(own.waiting))).set()
    assert len(won) == 1
    assert ids(runs) == sorted([*dead, *won])


def entered(
    runs: Runs, stop: threading.Event | None = None
) -> tuple[ActiveRun, list[Event | Phase]]:
    events: list[Event | Phase] = []
    return ActiveRun(runs, stop or threading.Event(), events.append), events


def test_a_heartbeat_changes_the_record_and_says_how_far_it_is(runs: Runs) -> None:
    active, events = entered(runs)
    with active:
        active.begin()
        (before,) = runs.all()
        active(Event("sweep", "2 to do", data={"total": 2, "skipped": 1}))
        active(Phase("tp=2", PhaseName.MEASURE, "chat 4 req/s"))
        active(Event("measured", "measured chat 4 req/s", "tp=2", data={"left": 1, "left_s": 60}))
        active(Event("failed", "no kernel", "tp=2", data={"left": 0, "left_s": 0}))
        active.beat()
        (after,) = runs.all()
        record = after.record
        assert after.text != before.text
        assert (record.state, record.total, record.skipped, record.measured, record.failed) == (
            "running",
            2,
            1,
            1,
            1,
        )
        deployment = record.deployments["tp=2"]
        assert (deployment.doing, deployment.left, deployment.why) == (
            "measure chat 4 req/s",
            0,
            "no kernel",
        )
    assert len(events) == 4
    (ended,) = runs.records()
    assert (ended.state, ended.says) == ("ended", "")


def test_a_record_stays_small_and_keeps_who_is_at_work(runs: Runs) -> None:
    record = RunRecord.of_this_process()
    record.note(Phase("at work", PhaseName.MEASURE))
    for number in range(1000):
        record.note(Phase(f"d{number}", PhaseName.START))
        record.note(Event("measured", "x" * 100, f"d{number}"))
        record.note(Phase(f"d{number}", PhaseName.ENDED))
    assert len(record.deployments) == MOST_DEPLOYMENTS
    assert {"at work", "d999"} <= record.deployments.keys()
    assert record.measured == 1000
    assert len(record.to_json()) < 20_000


def test_a_search_that_asks_for_more_raises_the_total() -> None:
    record = RunRecord.of_this_process()
    record.note(Event("sweep", "2 to do", data={"total": 2, "skipped": 0}))
    for left in (9, 8, 7):
        record.note(Event("measured", "chat 4 req/s", "tp=2", data={"left": left}))
    assert (record.measured, record.total) == (3, 10)


def test_a_deployment_that_is_given_up_asks_for_no_more() -> None:
    record = RunRecord.of_this_process()
    record.note(Event("sweep", "12 to do", data={"total": 12, "skipped": 0}))
    for label in ("tp=2", "tp=4"):
        record.note(Event("gave_up", "no room", label, data={"left": 6}))
        record.note(Event("failed", "no room", label, data={"left": 0}))
    assert (record.measured, record.failed, record.total) == (0, 2, 2)


def test_a_search_that_needs_less_or_is_beaten_lowers_the_total() -> None:
    record = RunRecord.of_this_process()
    record.note(Event("sweep", "12 to do", data={"total": 12, "skipped": 0}))
    record.note(Event("launch", "6 to do", "tp=2", data={"left": 6}))
    record.note(Event("measured", "chat 4 req/s", "tp=2", data={"left": 2}))
    assert record.total == 9
    record.note(Event("launch", "6 to do", "tp=4", data={"left": 6}))
    record.note(Event("measured", "chat 4 req/s", "tp=4", data={"left": 5}))
    assert record.total == 9
    record.note(Event("outraced", "others hold more", "tp=4", data={"left": 0}))
    assert record.total == 4


def test_what_was_left_of_a_deployment_is_known_when_it_comes_back_after_many_others() -> None:
    record = RunRecord.of_this_process()
    others = [f"d{number}" for number in range(MOST_DEPLOYMENTS + 1)]
    record.note(Event("sweep", "to do", data={"total": 6 * (len(others) + 1), "skipped": 0}))
    for label in ("first", *others):
        record.note(Event("launch", "6 to do", label, data={"left": 6}))
    assert "first" not in record.deployments
    record.note(Event("outraced", "others hold more", "first", data={"left": 0}))
    assert record.total == 6 * len(others)


def test_nodes_that_left_are_no_measurements_that_are_left() -> None:
    record = RunRecord.of_this_process()
    record.note(Event("sweep", "2 to do", data={"total": 2, "skipped": 0}))
    record.note(Event("nodes_changed", "1 left", data={"joined": [], "left": ["n1"]}))
    assert record.total == 2


def test_a_stored_record_lists_no_deployment_that_was_dropped() -> None:
    record = RunRecord.of_this_process()
    record.note(Event("launch", "6 to do", "tp=2", data={"left": 6}))
    assert "left_by_label" not in json.loads(record.to_json())


def test_what_the_budget_left_out_was_asked_for_all_the_same() -> None:
    record = RunRecord.of_this_process()
    record.note(Event("sweep", "6 to do", data={"total": 6, "skipped": 0}))
    record.note(Event("budget", "the budget is used up", "tp=2"))
    assert record.total == 6


def test_a_run_that_is_asked_to_stop_stops_in_order(runs: Runs) -> None:
    stop = threading.Event()
    active, events = entered(runs, stop)
    with active:
        (record,) = runs.records()
        runs.ask_to_stop(record.run_id)
        active.beat()
        active.beat()
        assert stop.is_set()
        assert [event.kind for event in events] == ["stop_asked"]
        assert "asks this run to stop" in events[0].text
        assert runs.records()[0].state == "stopping"
    assert [(record.state, record.says) for record in runs.records()] == [("ended", "stopped")]


def test_a_run_whose_place_was_taken_stops_without_touching_the_other(runs: Runs) -> None:
    stop = threading.Event()
    active, events = entered(runs, stop)
    with active:
        (ours,) = runs.records()
        runs.remove(ours.run_id)
        other = written(runs, place="elsewhere")
        active.beat()
        assert stop.is_set()
        assert "took its place" in events[0].text
    assert ids(runs) == [other.run_id]


@pytest.mark.parametrize("error", [ResultsError("no answer"), ValueError("not what was expected")])
def test_storage_that_does_not_answer_ends_no_run(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stop, beats, through = threading.Event(), [], threading.Event()

    def fails(self: Runs) -> dict[str, float]:
        beats.append(1)
        if len(beats) > 2:
            through.set()
        raise error

    active, _ = entered(runs, stop)
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    with active, monkeypatch.context() as patch:
        patch.setattr(Runs, "file_ages_s", fails)
        assert through.wait(10)
    assert not stop.is_set()
    assert [record.state for record in runs.records()] == ["ended"]


def test_a_run_is_starting_until_it_has_begun(runs: Runs) -> None:
    active, _ = entered(runs)
    with active:
        assert [record.state for record in runs.records()] == ["starting"]
        active.begin()
        assert [record.state for record in runs.records()] == ["running"]


def test_a_run_whose_place_was_taken_by_one_that_is_starting_stops(runs: Runs) -> None:
    stop = threading.Event()
    active, _ = entered(runs, stop)
    with active:
        written(runs, place="elsewhere", state=RunState.STARTING)
        active.beat()
        assert stop.is_set()


def test_a_refused_run_leaves_no_record_and_a_failed_one_its_error(
    runs: Runs,
) -> None:
    with pytest.raises(InputError), entered(runs)[0]:
        raise InputError("a node cannot")
    assert ids(runs) == []
    with pytest.raises(ZeroDivisionError), entered(runs)[0]:
        raise ZeroDivisionError("by zero")
    assert [(record.state, record.says) for record in runs.records()] == [
        ("ended", "ZeroDivisionError: by zero")
    ]

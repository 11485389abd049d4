"""The state of a run, from its record and the age of its last heartbeat."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.report.documents.run import ExperimentRuns, RunDocument
from orchestrator.results.runs import SILENT_S, RunRecord, RunState


def run(age_s: float = 1.0, **changes: object) -> RunDocument:
    """A run of this process whose record differs in these fields."""
    record = replace(RunRecord.of_this_process(), **{"state": "running", **changes})
    return RunDocument("exp", record, age_s)


def state(age_s: float = 1.0, **changes: object) -> str:
    """The state of such a run."""
    return run(age_s, **changes).state


def test_a_run_whose_process_lives_is_what_its_record_says_however_old_that_is() -> None:
    assert state(age_s=1e9) == "running"
    assert state(age_s=1e9, state=RunState.STOPPING) == "stopping"


def test_a_run_whose_process_is_gone_is_dead_at_once() -> None:
    assert state(pid_started=1) == "dead"


@pytest.mark.parametrize(("age_s", "expected"), [(SILENT_S - 1, "running"), (SILENT_S, "silent")])
def test_a_run_on_another_host_is_silent_after_a_while(age_s: float, expected: str) -> None:
    assert state(age_s, place="elsewhere") == expected


def test_a_run_that_ended_has_ended_for_ever() -> None:
    assert state(age_s=1e9, state=RunState.ENDED, place="elsewhere") == "ended"


@pytest.mark.parametrize("starting", ["claiming", "starting"])
def test_while_a_run_starts_those_before_it_tell_nothing_of_now(starting: str) -> None:
    ended, dead, elsewhere = run(state=RunState.ENDED), run(pid_started=1), run(place="elsewhere")
    new = run(state=starting)
    assert ExperimentRuns("exp", (ended, dead, elsewhere, new)).of_now == (elsewhere, new)


def test_a_run_that_died_as_it_started_hides_no_other() -> None:
    runs = (run(state=RunState.ENDED), run(state=RunState.STARTING, pid_started=1))
    assert ExperimentRuns("exp", runs).of_now == runs

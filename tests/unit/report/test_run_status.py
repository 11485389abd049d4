"""What ``status`` says of a run."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.report.documents.run import RunDocument
from orchestrator.report.run_status import run_text
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase, PhaseName
from orchestrator.results.runs import RunRecord, RunState


def running(*items: Event | Phase, **changes: object) -> RunDocument:
    """A run of this process after these events and phases."""
    record = RunRecord.of_this_process()
    for item in items:
        record.note(item)
    return RunDocument("exp", replace(record, **{"state": RunState.RUNNING, **changes}), 3.0)


def test_the_progress_of_the_run_and_of_each_deployment_is_shown() -> None:
    document = running(
        Event("sweep", "2 to do", data={"total": 2, "skipped": 1}),
        Phase("tp=2", PhaseName.MEASURE, "chat 4 req/s"),
        Event("measured", "measured chat 4 req/s", "tp=2", data={"left": 1, "left_s": 600}),
        Event("failed", "no kernel", "tp=2", data={"left": 0}),
    )
    text = run_text(document)
    assert "its last heartbeat was 3 s ago" in text
    assert "\n  1 of 2 measured, 1 failed, 1 done before, ~10 min left\n" in text
    assert "\n  tp=2: 1 measured, 1 failed, 0 left; measure chat 4 req/s\n    no kernel\n" in text


def test_the_last_events_are_shown_with_their_deployments() -> None:
    lines = run_text(running(Event("paused", "nothing is started"), Event("retry", "again", "a")))
    assert [line.split(maxsplit=1)[1] for line in lines.splitlines()[-2:]] == [
        "paused: nothing is started",
        "retry: a: again",
    ]


def test_events_leave_room_for_the_progress_on_a_small_terminal() -> None:
    lines = run_text(running(*(Event("retry", f"try {n}") for n in range(20)))).splitlines()
    assert len(lines) < 20
    assert lines[-1].endswith("retry: try 19")
    assert not any(line.endswith("try 11") for line in lines)


def test_a_run_that_ended_does_nothing_and_has_no_time_left() -> None:
    text = run_text(
        running(
            Phase("tp=2", PhaseName.MEASURE, "chat"),
            state=RunState.ENDED,
            left_s=60.0,
            says="ended",
        )
    )
    assert "it ended 3 s ago" in text
    assert "  tp=2: 0 measured, 0 failed" in text.splitlines()
    assert "left" not in text


def test_how_a_run_ended_is_said() -> None:
    assert "done before; it was stopped" in run_text(
        running(state=RunState.ENDED, says="it was stopped")
    )


def test_a_dead_run_says_how_to_go_on() -> None:
    text = run_text(running(pid_started=1))
    assert text.startswith("exp: dead, pid ")
    assert "running the same command again takes its place and continues" in text
    # what it measured after its last heartbeat is stored, but not counted there
    assert "\n  at its last heartbeat: 0 of 0 measured" in text


def test_a_run_that_joins_its_cluster_is_starting_and_has_no_progress_yet() -> None:
    lines = run_text(running(state=RunState.STARTING, began_unix_ns=10**18)).splitlines()
    assert lines[0].startswith("exp: starting, pid ")
    assert ", since 2001-09-" in lines[0]
    assert lines[1:] == ["  it joins its cluster"]


def test_a_run_that_looks_for_others_is_starting() -> None:
    text = run_text(running(state=RunState.CLAIMING))
    assert text.startswith("exp: starting, pid ")
    assert "whether an earlier run is over" in text


def test_secrets_and_terminal_sequences_of_events_are_not_shown() -> None:
    text = run_text(running(Event("failed", "\x1b[2Jhf_" + "a" * 30)))
    assert "\x1b" not in text
    assert "hf_a" not in text


def test_what_is_known_of_the_answer_is_shown_once() -> None:
    data = {"workload": "chat", "slo": "fast"}
    document = running(
        Event("standing", "a leads: 4 tok/s", data=data),
        Event("standing", "b leads: 8 tok/s", data=data),
        Event("standing", "batch: a leads: 2 tok/s", data={**data, "workload": "batch"}),
        Event("decided", "decided within 5 %: 2 deployments not measured to the end"),
    )
    lines = run_text(document).splitlines()
    assert lines[2:5] == [
        "  b leads: 8 tok/s",
        "  batch: a leads: 2 tok/s",
        "  decided within 5 %: 2 deployments not measured to the end",
    ]
    assert not any(event.kind == "standing" for event in document.record.events)

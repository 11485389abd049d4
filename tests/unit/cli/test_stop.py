"""``orchestrator stop``: it asks, waits, and says what became of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from orchestrator.results import runs as module
from orchestrator.results.runs import Runs, RunState
from tests.unit.cli.commands import invoke
from tests.unit.results.test_runs import Time, written

LEFT_OVER = {"kind": "left_over", "text": "2 processes outlived their launch"}
REMOVED = None


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(str(tmp_path), "x")


@pytest.mark.parametrize(
    ("becomes", "status", "sentence"),
    [
        ({"state": "ended", "measured": 3, "total": 8}, 0, "x: ended: 3 of 8 measured"),
        (REMOVED, 0, "ended before it measured anything"),
        ({"state": "ended", "events": [LEFT_OVER]}, 3, "2 processes outlived their launch"),
        ({"pid_started": 1}, 3, "its process is gone"),
        ({}, 3, "does not answer"),
    ],
)
def test_what_became_of_the_run_is_said_and_is_the_exit_status(
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    becomes: dict[str, Any] | None,
    status: int,
    sentence: str,
) -> None:
    record, time = written(runs), Time()
    was_asked: list[bool] = []

    def change() -> None:
        was_asked.append(f"{record.run_id}.stop" in runs.file_ages_s())
        if becomes is REMOVED:
            runs.remove(record.run_id)
        elif becomes:
            changed = replace(record, **becomes)
            runs.put(changed.run_id, changed.to_json())

    time.then = change
    monkeypatch.setattr("orchestrator.cli.stop.time.sleep", time.sleep)
    monkeypatch.setattr("orchestrator.cli.stop.time.monotonic", lambda: time.now_s)
    monkeypatch.setattr(module, "Liveness", time.watch)
    done = invoke("stop", runs.uri)
    assert was_asked[0]
    assert sentence in done.stdout
    assert done.status == status


def test_where_nothing_runs_it_says_so(runs: Runs) -> None:
    written(runs, state=RunState.ENDED)
    done = invoke("stop", runs.uri)
    assert (done.status, done.stdout) == (0, f"no run is active at {runs.uri}\n")


def test_it_gives_up_when_its_time_is_over(runs: Runs) -> None:
    written(runs)
    done = invoke("stop", runs.uri, "--timeout", "0s")
    assert done.status == 3
    assert "it has not ended yet" in done.stdout


def test_a_timeout_without_a_unit_is_refused(runs: Runs) -> None:
    written(runs)
    with pytest.raises(click.BadParameter):
        invoke("stop", runs.uri, "--timeout", "soon")

"""Runs of ``load`` in one folder: their records, in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.report.documents import load_run
from orchestrator.report.documents.load_run import load_run_documents


def judged(name: str, *began_unix_ns: int) -> Any:
    """A run whose points began at these times."""
    points = [
        SimpleNamespace(head=SimpleNamespace(started_unix_ns=began)) for began in began_unix_ns
    ]
    return SimpleNamespace(
        experiment=SimpleNamespace(name=name), slos=[], points=SimpleNamespace(current=points)
    )


@pytest.fixture(autouse=True)
def only_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs differ in their model and their levels."""
    monkeypatch.setattr(load_run, "differences", lambda first, second: ["model", "levels"])
    monkeypatch.setattr(load_run, "knees", lambda points: ())
    monkeypatch.setattr(load_run, "point_document", lambda point, slos, knees: point)


def test_runs_stand_in_the_order_in_which_they_began() -> None:
    documents = load_run_documents([judged("after", 9, 5), judged("before", 3, 7)])
    assert [document.name for document in documents] == ["before", "after"]


def test_differences_are_those_to_the_first_run_without_levels() -> None:
    before, after = load_run_documents([judged("before", 1), judged("after", 2)])
    assert (before.differences, after.differences) == ((), ("model",))


def test_runs_without_points_are_left_out() -> None:
    assert load_run_documents([judged("empty")]) == []

"""Events after the last launch are stored when the sweep ends."""

from __future__ import annotations

from pathlib import Path

from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.sweep.last_events import commit_events

BEGAN = Event("sweep", "3 measurements to do, 0 already done")


def test_last_events_are_stored_under_a_manifest_of_their_own(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    commit_events(store, [BEGAN, Event("stopping", "stopping: engines are ended")])
    assert [row["kind"] for row in store.read("events").to_pylist()] == ["sweep", "stopping"]
    (manifest,) = store.manifests("sweep")
    assert manifest.status == "ok"


def test_a_sweep_that_only_began_leaves_no_manifest(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    commit_events(store, [BEGAN])
    commit_events(store, [])
    assert store.manifests("sweep") == []

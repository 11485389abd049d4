"""The served page, and what a page lacks that was loaded earlier."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest

from orchestrator.report.documents.run import RunDocument
from orchestrator.results.runs import DeploymentProgress, RunRecord, RunState
from orchestrator.results.store import Store
from orchestrator.web.page import WAITING, Seen, change_since, live_page, runs_text
from orchestrator.web.texts import KeptTexts
from orchestrator.web.watched import WatchedResults
from tests.unit.plan.stored_sweeps import planned, store_sweep


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> WatchedResults:
    store = Store.open(str(tmp_path_factory.mktemp("results")), "exp")
    store_sweep(store, planned())
    watched = WatchedResults(store.uri)
    watched.look()
    return watched


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def test_a_served_page_may_ask_its_own_server_alone(watched: WatchedResults) -> None:
    assert "connect-src 'self'" in live_page(watched.now, KeptTexts())


def test_a_page_that_has_all_is_told_what_runs_alone(watched: WatchedResults) -> None:
    now = watched.now
    change = change_since(now, KeptTexts(), Seen(now.edition, now.serial, now.attempts))
    assert change.texts == ""
    assert change.bins == ""


def test_a_page_that_lacks_an_attempt_gets_its_requests_alone(watched: WatchedResults) -> None:
    now = watched.now
    change = change_since(now, KeptTexts(), Seen(now.edition, now.serial - 1, now.attempts - 1))
    bins = now.content.payload.bins
    assert unpacked(change.bins) == bins.encoded(now.attempts - 1)
    assert 0 < len(unpacked(change.bins)) < len(bins.encoded())


def test_a_page_of_another_edition_is_told_to_load_again(watched: WatchedResults) -> None:
    change = change_since(watched.now, KeptTexts(), Seen(watched.now.edition + 1, 0, 0))
    assert change.edition == watched.now.edition
    assert change.texts == ""


def test_of_the_texts_a_page_gets_the_lines_that_changed(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned(levels=list(range(1, 21))))
    watched, texts = WatchedResults(store.uri), KeptTexts()
    watched.look()
    before = watched.now
    live_page(before, texts)  # a browser opens it
    store_sweep(store, planned(levels=list(range(1, 22))))
    watched.look()
    change = change_since(watched.now, texts, Seen(before.edition, before.serial, before.attempts))
    changes = json.loads(unpacked(change.texts))
    (described,) = [
        [edit for edit in changes["described"] if isinstance(edit, str) and '"point":{' in edit]
    ]
    assert len(described) == 2  # one of each deployment
    assert len([edit for edit in changes["timelines"] if isinstance(edit, str)]) == 3
    whole = change_since(
        watched.now, KeptTexts(), Seen(before.edition, before.serial, before.attempts)
    )
    assert len(change.texts) < len(whole.texts) / 4


def record(**given: object) -> RunDocument:
    return RunDocument("exp", RunRecord(run_id="a", **given), age_s=1.0)


def test_the_line_says_what_the_latest_run_does() -> None:
    earlier = record(state=RunState.ENDED, total=9, measured=1)
    latest = record(
        state=RunState.ENDED,
        total=9,
        measured=4,
        failed=1,
        deployments={"vllm": DeploymentProgress()},
    )
    assert runs_text((earlier, latest)) == "exp: ended, 4 of 9 measured, 1 failed"


def test_of_a_run_that_joins_its_cluster_the_line_says_since_when() -> None:
    text = runs_text((record(state=RunState.STARTING, began_unix_ns=10**18),))
    assert text.startswith("exp: starting since 2001-09-")


def test_without_a_run_the_line_says_so() -> None:
    assert runs_text(()) == WAITING

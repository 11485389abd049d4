"""The served page, and what a page lacks that was loaded earlier."""

from __future__ import annotations

import base64
import zlib

import pytest

from orchestrator.report.documents.run import RunDocument
from orchestrator.results.runs import DeploymentProgress, RunRecord
from orchestrator.results.store import Store
from orchestrator.web.page import WAITING, change_since, live_page, runs_text, static_page
from orchestrator.web.watched import WatchedResults
from tests.unit.plan.test_current import planned, run


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> WatchedResults:
    store = Store.open(str(tmp_path_factory.mktemp("results")), "exp")
    run(store, planned())
    watched = WatchedResults(store.uri)
    watched.look()
    return watched


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def test_a_served_page_may_ask_its_own_server_alone(watched: WatchedResults) -> None:
    assert "connect-src 'self'" in live_page(watched.now)
    assert "connect-src" not in static_page(watched.now)


def test_the_static_page_holds_the_answer_and_no_script(watched: WatchedResults) -> None:
    html = static_page(watched.now)
    assert 'class="answer"' in html
    assert "echarts" not in html
    assert len(html) < len(live_page(watched.now)) / 10


def test_a_page_that_has_all_is_told_what_runs_alone(watched: WatchedResults) -> None:
    now = watched.now
    change = change_since(now, now.edition, now.serial, now.attempts)
    assert change.described == ""
    assert change.bins == ""


def test_a_page_that_lacks_an_attempt_gets_its_requests_alone(watched: WatchedResults) -> None:
    now = watched.now
    change = change_since(now, now.edition, now.serial - 1, now.attempts - 1)
    bins = now.content.payload.bins
    assert unpacked(change.bins) == bins.encoded(now.attempts - 1)
    assert 0 < len(unpacked(change.bins)) < len(bins.encoded())
    assert b'"groups"' in unpacked(change.described)


def test_content_that_changed_without_new_requests_is_sent(watched: WatchedResults) -> None:
    now = watched.now
    change = change_since(now, now.edition, now.serial - 1, now.attempts)
    assert b'"groups"' in unpacked(change.described)
    assert unpacked(change.bins) == b""


def test_a_page_of_another_edition_is_told_to_load_again(watched: WatchedResults) -> None:
    change = change_since(watched.now, watched.now.edition + 1, 0, 0)
    assert change.edition == watched.now.edition
    assert change.described == ""


def record(**given: object) -> RunDocument:
    return RunDocument("exp", RunRecord(run_id="a", **given), age_s=1.0)


def test_the_line_says_what_the_latest_run_does() -> None:
    earlier = record(state="ended", total=9, measured=1)
    latest = record(
        state="ended", total=9, measured=4, failed=1, deployments={"vllm": DeploymentProgress()}
    )
    assert runs_text((earlier, latest)) == "exp: ended, 4 of 9 measured, 1 failed"


def test_without_a_run_the_line_says_so() -> None:
    assert runs_text(()) == WAITING

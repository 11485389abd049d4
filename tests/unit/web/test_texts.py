"""What a page lacks of its texts, from lines that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.results.store import Store
from orchestrator.web.texts import MOST_SERIALS, Edit, Kept, KeptTexts, line_edits, texts_of
from orchestrator.web.watched import WatchedResults
from tests.unit.plan.stored_sweeps import planned, store_sweep

lines = st.lists(st.sampled_from(["a", "b", "", "<tr>"]), max_size=12)


def edited(before: Sequence[str], changes: Sequence[Edit]) -> list[str]:
    """As live.js does it."""
    after: list[str] = []
    for edit in changes:
        if isinstance(edit, Kept):
            after += before[edit.first : edit.end]
        else:
            after.append(edit)
    return after


@given(lines, lines)
def test_edits_lead_from_one_text_to_the_other(before: list[str], after: list[str]) -> None:
    assert edited(before, list(line_edits(before, after))) == after


def test_a_line_that_is_put_in_is_sent_alone() -> None:
    before = [f"row {number}" for number in range(1000)]
    after = [*before[:500], "new", *before[500:]]
    assert list(line_edits(before, after)) == [Kept(0, 500), "new", Kept(500, 1000)]


@pytest.fixture
def watched(tmp_path) -> WatchedResults:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned())
    watched = WatchedResults(store.uri)
    watched.look()
    return watched


def test_the_static_text_holds_the_answer_and_no_script(watched: WatchedResults) -> None:
    texts = texts_of(watched.now.content)
    html = "\n".join(texts.html)
    assert 'class="answer"' in html
    assert "echarts" not in html
    assert "<script" not in html


def test_a_serial_that_is_not_kept_gets_all_lines(watched: WatchedResults) -> None:
    changes = KeptTexts().since(watched.now.serial - 1, watched.now)
    assert changes.described == list(texts_of(watched.now.content).described)


def test_few_serials_are_kept(watched: WatchedResults) -> None:
    texts = KeptTexts()
    for serial in range(MOST_SERIALS + 3):
        texts.at(replace(watched.now, serial=serial))
    assert len(texts._by_serial) == MOST_SERIALS

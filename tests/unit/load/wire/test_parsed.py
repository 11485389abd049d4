"""What a stream said: running counts, finish reasons, errors."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.load.wire.parsed import UNKNOWN, Parsed, RunningCount, whole_number
from orchestrator.results.outcomes import ErrorClass

# -- running counts


def running(*events: tuple[int, bool]) -> RunningCount:
    """Totals of events, and whether each has text."""
    running_count = RunningCount()
    for index, (total, has_text) in enumerate(events):
        running_count.add(index, total, has_text, may_hold_back=True)
    return running_count


def test_an_event_holds_what_the_total_grew_by() -> None:
    assert running((1, True), (3, True), (4, True)).tokens(False) == {0: 1, 1: 2, 2: 1}


@pytest.mark.parametrize(
    "events",
    [[(1, True), (1, True)], [(3, True), (2, True)], [(0, True)]],
    ids=["repeated", "falling", "zero"],
)
def test_a_total_that_does_not_grow_with_text_is_void(events: list[tuple[int, bool]]) -> None:
    assert running(*events).is_void


def test_growth_of_a_character_before_the_first_text_is_content() -> None:
    assert running((1, False), (2, False), (3, True)).tokens(False) == {0: 1, 1: 1, 2: 1}


def test_growth_of_more_than_a_character_before_the_first_text_is_none() -> None:
    assert running((4, False), (5, True)).tokens(False) == {1: 1}


def test_growth_before_the_first_text_is_none_where_reasoning_is_hidden() -> None:
    assert running((1, False), (2, True)).tokens(True) == {1: 1}


# -- the whole stream


def test_a_running_count_replaces_unknown_tokens() -> None:
    parsed = Parsed(tokens=[UNKNOWN, UNKNOWN], running=running((2, True), (3, True)))
    parsed.settle("native")
    assert (parsed.tokens, parsed.source) == ([2, 1], "native")


def test_a_running_count_is_not_used_where_an_event_had_no_total() -> None:
    parsed = Parsed(tokens=[UNKNOWN, UNKNOWN], running=running((2, True)))
    parsed.settle("native")
    assert (parsed.tokens, parsed.source) == ([UNKNOWN, UNKNOWN], None)


def test_a_source_that_some_events_lack_is_none() -> None:
    parsed = Parsed(tokens=[1, UNKNOWN], source="token_ids")
    parsed.settle("continuous_usage")
    assert parsed.source is None


def test_tokens_before_the_first_text_are_counted_as_unseen() -> None:
    parsed = Parsed(tokens=[0, UNKNOWN], running=running((100, False), (101, True)))
    parsed.settle("continuous_usage")
    assert (parsed.tokens, parsed.unseen_tokens) == ([0, 1], 100)


def test_the_first_error_counts() -> None:
    parsed = Parsed()
    parsed.fail("first", ErrorClass.HTTP_429)
    parsed.fail("second")
    assert (parsed.error, parsed.error_class) == ("first", ErrorClass.HTTP_429)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (["length", None, ""], "length"),
        (["length", "abort"], "abort"),
        (["abort", "stop"], "abort"),
        ([{"type": "stop"}], "stop"),
        ([{"reason": "length"}], "length"),
        ([{"x": 1}], '{"x": 1}'),
    ],
)
def test_a_finish_reason_of_failure_stays(reasons: list[Any], expected: str) -> None:
    parsed = Parsed()
    for reason in reasons:
        parsed.finish(reason)
    assert parsed.finish_reason == expected


@pytest.mark.parametrize("value", [True, -1, 2**31, 1.0, "1", None])
def test_what_no_column_can_hold_is_no_count(value: Any) -> None:
    assert whole_number(value) is None


@pytest.mark.parametrize(
    ("ids", "expected"), [(None, None), ([], ()), ([5, 6], (5, 6)), ([5, "6"], None)]
)
def test_token_ids_are_none_if_one_of_them_cannot_be_an_id(
    ids: Any, expected: tuple[int, ...] | None
) -> None:
    assert Parsed(token_ids=ids).ids == expected


def test_tokens_of_reasoning_are_those_of_its_events_unless_reported() -> None:
    assert Parsed(tokens=[2, UNKNOWN, 1], thoughts=[0, 1]).thought_tokens == 3
    assert Parsed(tokens=[2, 1], thoughts=[0], reasoning_tokens=7).thought_tokens == 7

"""Rows of ``requests`` and ``token_events`` as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.analysis.metrics import observe
from orchestrator.analysis.requests import (
    ROWS_PER_BLOCK,
    RequestArrays,
    TokenEventBlock,
    equals,
    request_arrays,
    within,
)
from orchestrator.results.window import MeasuredWindow
from tests.unit.analysis.test_metrics import FIVE, GAPS, WINDOW, summarize
from tests.unit.results.builders import events, failed_request, request, requests


def arrays_of(*rows: dict[str, Any], token_events: pa.Table | None = None) -> RequestArrays:
    (arrays,) = request_arrays(requests(*rows), token_events)
    return arrays


def block_of(row: dict[str, Any], token_events: pa.Table) -> TokenEventBlock:
    (block,) = arrays_of(row, token_events=token_events).blocks()
    return block


def test_unknown_times_are_not_a_number() -> None:
    arrays = arrays_of(request(0, 0, first_ms=100), failed_request(1, 5))
    assert arrays.ok.tolist() == [True, False]
    assert arrays.first_ns[0] == 100e6
    assert np.isnan(arrays.first_ns[1])


def test_a_request_without_content_is_finished_when_it_is_done() -> None:
    arrays = arrays_of(request(0, 0, last_ms=300), failed_request(1, 5, done_ns=7_000_000))
    assert arrays.finished_ns.tolist() == [300e6, 7e6]


def test_prompt_tokens_are_as_reported_else_as_asked_else_unknown() -> None:
    arrays = arrays_of(
        request(0, input_tokens=12, input_tokens_asked=10),
        request(1, input_tokens=None, input_tokens_asked=10),
        request(2, input_tokens=None, input_tokens_asked=0),
    )
    assert arrays.input_tokens[:2].tolist() == [12, 10]
    assert np.isnan(arrays.input_tokens[2])


def test_intervals_are_between_tokens_that_were_streamed() -> None:
    arrays = arrays_of(
        request(0, tokens=9, first_chunk_tokens=2), request(1, tokens=9, hidden_tokens=4)
    )
    assert arrays.intervals.tolist() == [9 - 2, 9 - 4 - 1]


def test_an_answer_in_one_event_has_no_intervals() -> None:
    whole = request(0, tokens=9, chunks=1)
    arrays = arrays_of(whole, *(request(index, tokens=9) for index in range(1, 9)))
    assert arrays.in_lumps.tolist() == [True, *[False] * 8]
    assert np.isnan(arrays.intervals[0])
    assert arrays.has_token_times.tolist() == [False, *[True] * 8]


def test_a_stream_whose_chunks_came_together_is_buffered() -> None:
    arrays = arrays_of(request(0, tokens=9, chunks=9, coalesced_chunks=8))
    assert arrays.buffered
    assert np.isnan(arrays.intervals).all()
    assert not arrays.has_token_times.any()
    assert not arrays_of(request(0, tokens=9, chunks=9, coalesced_chunks=1)).buffered


def test_warm_up_requests_say_nothing_of_a_buffered_stream() -> None:
    warm_up = request(0, tokens=9, chunks=9, coalesced_chunks=8, phase="warmup")
    assert not arrays_of(warm_up, request(1, tokens=9)).buffered


def test_measured_requests_that_were_due_in_the_window_are_scheduled_in_it() -> None:
    arrays = arrays_of(request(0, 0), request(1, 5), request(2, 5, phase="warmup"), request(3, 10))
    assert arrays.scheduled_in(MeasuredWindow(5_000_000, 10_000_000)).tolist() == [
        False,
        True,
        False,
        False,
    ]


def test_a_window_holds_its_start_and_not_its_end() -> None:
    assert within(np.array([4.0, 5.0, 9.0, 10.0, np.nan]), MeasuredWindow(5, 10)).tolist() == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_a_null_equals_no_text() -> None:
    rows = requests(request(0, error_class=None), request(1, error_class="reset"))
    assert equals(rows, "error_class", "reset").tolist() == [False, True]


def test_a_block_without_counts_has_one_token_for_each_gap() -> None:
    block = block_of(request(0, tokens=3), events({0: [1, 2]}))
    assert block.gaps_us.tolist() == [1000, 2000]
    assert block.tokens is None
    assert block.first_tokens.tolist() == [1]
    assert block.lengths.tolist() == [2]


def test_a_block_takes_the_stored_counts_of_its_chunks() -> None:
    block = block_of(request(0, tokens=7), events({0: [1, 2]}, {0: [4, 1, 2]}))
    assert block.first_tokens.tolist() == [4]
    assert block.tokens is not None
    assert block.tokens.tolist() == [1, 2]


@pytest.mark.parametrize("counts", [{}, {0: []}])
def test_tokens_that_were_not_counted_by_chunk_are_spread_over_the_gaps(
    counts: dict[int, list[int]],
) -> None:
    block = block_of(request(0, tokens=8, chunks=4), events({0: [1, 1, 1]}, counts))
    assert block.first_tokens.tolist() == [1]
    assert block.tokens is not None
    assert block.tokens.tolist() == [2, 2, 3]


def test_all_tokens_of_an_answer_in_one_chunk_are_in_the_first() -> None:
    block = block_of(request(0, tokens=8, chunks=1), events({0: []}))
    assert block.first_tokens.tolist() == [8]


def test_rows_of_two_attempts_are_refused() -> None:
    with pytest.raises(ValueError, match="more than one attempt"):
        list(request_arrays(pa.concat_tables([FIVE, FIVE]), None))


def test_token_events_without_their_request_are_refused() -> None:
    with pytest.raises(ValueError, match="a request_index that requests does not"):
        list(request_arrays(FIVE, events({7: []})))
    with pytest.raises(ValueError, match="a request_index that requests does not"):
        list(request_arrays(requests(), events({0: []})))


def test_more_counts_than_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="3 tokens_per_chunk for 1 gaps"):
        block_of(request(0, tokens=3), events({0: [1]}, {0: [1, 1, 1]}))


def test_rows_in_any_order_in_any_pieces_give_the_same() -> None:
    order = pa.array([3, 1, 4, 0, 2])
    pieces = pa.concat_tables([GAPS.take(order).slice(0, 2), GAPS.take(order).slice(2)])
    assert summarize(FIVE.take(order), pieces, WINDOW) == summarize(FIVE, GAPS, WINDOW)


def test_more_rows_than_a_block_are_all_counted() -> None:
    count = 2 * ROWS_PER_BLOCK + 3
    rows = requests(*(request(index, 0, first_ms=1, last_ms=3, tokens=3) for index in range(count)))
    gaps = observe(rows, events({index: [1, 1] for index in range(count)}), WINDOW).gaps
    assert gaps.us.tolist() == [1000]
    assert gaps.counts.tolist() == [2 * count]

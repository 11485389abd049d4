"""Output tokens that had come by an instant, and in each part of a window."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.analysis.intervals import rate_interval
from orchestrator.analysis.metrics import observe
from orchestrator.analysis.requests import RequestArrays, request_arrays
from orchestrator.analysis.throughput import (
    BATCHES,
    Batches,
    basis,
    output_tokens_by,
    token_batches,
)
from orchestrator.results.window import MeasuredWindow
from tests.unit.results.builders import events, failed_request, request, requests


def arrays_of(rows: pa.Table, token_events: pa.Table | None = None) -> RequestArrays:
    (arrays,) = request_arrays(rows, token_events)
    return arrays


def tokens_by(arrays: RequestArrays, *edges_ms: float) -> list[float]:
    return output_tokens_by(arrays, [edge * 1e6 for edge in edges_ms]).tolist()


THREE_TOKENS = requests(request(0, 0, first_ms=100, last_ms=1100, tokens=3))


def test_without_token_events_tokens_are_spread_evenly() -> None:
    arrays = arrays_of(THREE_TOKENS)
    assert tokens_by(arrays, 100, 101, 600, 601, 1100, 1101) == [0, 1, 1, 2, 2, 3]
    assert basis(arrays) == {"interpolated"}


def test_with_token_events_tokens_come_with_their_chunks() -> None:
    arrays = arrays_of(THREE_TOKENS, events({0: [950, 50]}))
    assert tokens_by(arrays, 100, 101, 1050, 1051, 1101) == [0, 1, 1, 2, 3]
    assert basis(arrays) == {"chunk_times"}


def test_requests_without_a_row_of_token_events_are_spread_beside_the_others() -> None:
    rows = requests(
        request(0, 0, first_ms=100, last_ms=1100, tokens=3),
        request(1, 0, first_ms=100, last_ms=1100, tokens=3),
    )
    arrays = arrays_of(rows, events({0: [950, 50]}))
    assert tokens_by(arrays, 1000) == [1 + 2]  # of request 1 also the token at 600 ms
    assert basis(arrays) == {"chunk_times", "interpolated"}


def test_a_request_of_one_token_tells_nothing_of_the_basis() -> None:
    assert basis(arrays_of(requests(request(0, tokens=1)))) == frozenset()


def test_tokens_add_up_to_the_engines_count_not_to_the_chunks() -> None:
    rows = requests(request(0, 0, first_ms=500, last_ms=1500, tokens=10))
    arrays = arrays_of(rows, events({0: [500, 500]}, {0: [2, 2, 1]}))
    assert tokens_by(arrays, 1001, 2000) == pytest.approx([10 * 4 / 5, 10])


def test_failed_requests_bring_no_tokens() -> None:
    arrays = arrays_of(requests(failed_request(0, first_ms=10, last_ms=20, tokens=5)))
    assert tokens_by(arrays, 1000) == [0]


def test_a_window_is_cut_into_batches_of_equal_length() -> None:
    batches = token_batches(arrays_of(THREE_TOKENS), MeasuredWindow(0, 2 * 10**9))
    assert batches.sizes.tolist() == pytest.approx([0.2] * BATCHES)
    assert batches.amounts.tolist() == [1, 0, 0, 1, 0, 1, 0, 0, 0, 0]


@st.composite
def traffic(draw: st.DrawFn) -> tuple[pa.Table, pa.Table, list[float]]:
    """Requests with gaps, and every token's instant in ms."""
    rows, gaps, tokens, instants = [], {}, {}, []
    for index in range(draw(st.integers(0, 6))):
        first = draw(st.integers(0, 900))
        between = draw(st.lists(st.integers(0, 300), max_size=6))
        chunks = draw(
            st.lists(st.integers(1, 4), min_size=len(between) + 1, max_size=len(between) + 1)
        )
        times = np.cumsum([first, *between])
        rows.append(request(index, 0, first_ms=first, last_ms=int(times[-1]), tokens=sum(chunks)))
        gaps[index], tokens[index] = between, chunks
        instants += np.repeat(times, chunks).tolist()
    return requests(*rows), events(gaps, tokens), instants


@settings(max_examples=60, deadline=None)
@given(traffic(), st.lists(st.integers(0, 3000), min_size=2, max_size=5))
def test_tokens_before_an_edge_are_those_whose_chunk_came_before_it(
    made: tuple[pa.Table, pa.Table, list[float]], edges_ms: list[int]
) -> None:
    rows, token_events, instants = made
    expected = [sum(instant < edge for instant in instants) for edge in edges_ms]
    assert tokens_by(arrays_of(rows, token_events), *edges_ms) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(traffic(), st.lists(st.integers(0, 3000), min_size=1, max_size=4), st.booleans())
def test_windows_side_by_side_add_up_to_the_whole(
    made: tuple[pa.Table, pa.Table, list[float]], cuts: list[int], with_events: bool
) -> None:
    rows, token_events, instants = made
    edges = [edge * 10**6 for edge in (0, *sorted(cuts), 10_000)]
    stored_events = token_events if with_events else None
    windows = [MeasuredWindow(*bounds) for bounds in itertools.pairwise(edges)]
    parts = [observe(rows, stored_events, window).delivered for window in windows]
    assert all(part.output_tokens >= -1e-9 for part in parts)
    assert sum(part.requests for part in parts) == rows.num_rows
    assert sum(part.input_tokens for part in parts) == sum(rows["input_tokens"].to_pylist())
    assert sum(part.output_tokens for part in parts) == pytest.approx(len(instants))


def test_a_run_as_one_batch_says_nothing_of_its_spread() -> None:
    batches = Batches(np.array([0.0, 30.0, 70.0]), np.array([1.0, 1.0, 2.0]))
    whole = rate_interval([batches.as_one()])
    assert whole is not None
    assert whole.estimate == 25.0
    assert np.isnan([whole.lower, whole.upper]).all()
    again = rate_interval([batches.as_one(), Batches(np.array([116.0]), np.array([4.0]))])
    assert again is not None
    assert again.lower < 27.0 < again.upper

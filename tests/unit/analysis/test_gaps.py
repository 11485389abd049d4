"""Gaps between tokens, counted by whole microseconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.analysis.gaps import NO_GAPS, GapCounts, count_gaps, merge_gaps, token_gaps
from orchestrator.analysis.requests import request_arrays
from tests.unit.results.builders import events, request, requests


def counted(rows: pa.Table, token_events: pa.Table, chosen: list[bool] | None = None) -> GapCounts:
    """The gaps of the chosen requests, or of all."""
    (arrays,) = request_arrays(rows, token_events)
    mask = np.ones(arrays.ok.size, np.bool_) if chosen is None else np.array(chosen)
    return count_gaps(arrays.blocks(), mask)


def as_dict(gaps: GapCounts) -> dict[int, int]:
    return dict(zip(gaps.us.tolist(), gaps.counts.tolist(), strict=True))


def one_request(gaps_us: list[int]) -> tuple[pa.Table, pa.Table]:
    tokens = len(gaps_us) + 1
    rows = requests(request(0, 0, first_ms=0, last_ms=sum(gaps_us) / 1e3, tokens=tokens))
    return rows, events({0: [gap / 1e3 for gap in gaps_us]})


def test_a_gap_before_a_chunk_of_several_tokens_is_spread_over_them() -> None:
    rows = requests(request(0, 0, first_ms=0, last_ms=0.1, tokens=8, itl_kind="chunk"))
    token_events = events({0: [0.02, 0.08]}, {0: [1, 2, 5]})
    assert as_dict(counted(rows, token_events)) == {10: 2, 16: 5}


def test_microseconds_that_do_not_divide_are_carried_not_lost() -> None:
    rows = requests(request(0, 0, first_ms=0, last_ms=0.01, tokens=4, itl_kind="chunk"))
    assert as_dict(counted(rows, events({0: [0.01]}, {0: [1, 3]}))) == {3: 2, 4: 1}


def test_only_the_chosen_requests_count() -> None:
    rows = requests(request(0, tokens=2), request(1, tokens=2))
    token_events = events({0: [1], 1: [2]})
    assert as_dict(counted(rows, token_events, [False, True])) == {2000: 1}


def test_gaps_of_seconds_are_counted_beside_short_ones() -> None:
    gaps_us = [3_000_000, 5, 3_000_000, 2_000_000]
    assert as_dict(counted(*one_request(gaps_us))) == {5: 1, 2_000_000: 1, 3_000_000: 2}


def test_a_long_gap_before_a_chunk_is_spread_over_its_tokens() -> None:
    rows = requests(request(0, tokens=4))
    assert as_dict(counted(rows, events({0: [6000]}, {0: [1, 3]}))) == {2_000_000: 3}


def test_single_gaps_have_the_row_of_their_request() -> None:
    rows = requests(request(0, tokens=3), request(1, tokens=4))
    token_events = events({0: [0.005, 0.006], 1: [0.007]}, {0: [1, 1, 1], 1: [1, 3]})
    (arrays,) = request_arrays(rows, token_events)
    (block,) = arrays.blocks()
    gaps = token_gaps(block)
    assert gaps.us.tolist() == [5, 6, 3, 2, 2]
    assert gaps.row.tolist() == [0, 0, 1, 1, 1]


def test_mean_and_deviation_are_those_of_the_single_gaps() -> None:
    gaps = GapCounts(np.array([10, 40]), np.array([2, 1]))
    assert gaps.total == 3
    assert gaps.mean_us() == 20
    assert gaps.std_us() == pytest.approx(np.std([10, 10, 40]))


def test_no_gaps_merge_with_gaps() -> None:
    gaps = GapCounts(np.array([5]), np.array([2]))
    assert as_dict(merge_gaps([NO_GAPS, gaps, NO_GAPS])) == {5: 2}
    assert merge_gaps([NO_GAPS]).total == 0


GAP_LISTS = st.lists(st.integers(0, 5) | st.integers(0, 2**31 - 1), min_size=1, max_size=40)


@settings(deadline=None)
@given(GAP_LISTS, GAP_LISTS, st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_quantiles_from_counts_are_numpys_of_the_values(
    left: list[int], right: list[int], probabilities: list[float]
) -> None:
    merged = merge_gaps([counted(*one_request(gaps)) for gaps in (left, right)])
    values = np.array(left + right, float)
    assert merged.total == values.size
    assert merged.mean_us() == pytest.approx(values.mean())
    assert merged.quantiles_us(probabilities) == pytest.approx(np.quantile(values, probabilities))

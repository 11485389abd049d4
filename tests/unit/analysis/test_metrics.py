"""Every metric against figures worked out by hand, and its properties.

FIVE, over a window of [0, 1 s), times in ms:

| request | scheduled | sent | first | last | N | prompt | gaps            |
| 0       | 0         | 10   | 100   | 300  | 5 | 10     | 4 x 50          |
| 1       | 100       | 100  | 250   | 250  | 1 | 20     |                 |
| 2       | 200       | 210  | 400   | 1200 | 9 | 40     | 8 x 100         |
| 3       | 300       | failed: http_5xx                                    |
| 4       | 0, warm-up| 0    | 50    | 150  | 3 | 30     | 2 x 50          |
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.analysis.gaps import NO_GAPS, GapCounts, merge_gaps
from orchestrator.analysis.metrics import QUANTILES, distribution, figures, merge, observe
from orchestrator.analysis.requests import ROWS_PER_BLOCK, request_arrays
from orchestrator.analysis.throughput import output_tokens_by
from orchestrator.results.columns import quantiles
from tests.unit.results.builders import events, failed_request, request, requests

WINDOW = (0, 10**9)
FIVE = requests(
    request(0, 0, sent_ms=10, first_ms=100, last_ms=300, tokens=5, prompt=10),
    request(1, 100, sent_ms=100, first_ms=250, tokens=1, prompt=20),
    request(2, 200, sent_ms=210, first_ms=400, last_ms=1200, tokens=9, prompt=40),
    failed_request(3, 300),
    request(4, 0, sent_ms=0, first_ms=50, last_ms=150, tokens=3, prompt=30, phase="warmup"),
)
GAPS = events({0: [50] * 4, 1: [], 2: [100] * 8, 3: [], 4: [50, 50]})


def summarize(
    rows: pa.Table, token_events: pa.Table | None, window_ns: tuple[int, int]
) -> dict[str, Any]:
    return asdict(figures(observe(rows, token_events, window_ns)))


@pytest.fixture(scope="module")
def five() -> dict[str, Any]:
    return summarize(FIVE, GAPS, WINDOW)


def test_requests_are_those_due_in_the_window_and_errors_are_counted(five: dict[str, Any]) -> None:
    assert five["requests"] == {"scheduled": 4, "ok": 3, "failed": 1}
    assert five["errors"] == {"http_5xx": 1}


def test_ttft_counts_from_scheduled_and_from_sent(five: dict[str, Any]) -> None:
    assert five["ttft_ms"] == pytest.approx(
        {
            "mean": 150,
            "std": np.std([100, 150, 200]),
            "min": 100,
            "max": 200,
            "p50": 150,
            "p90": 190,
            "p95": 195,
            "p99": 199,
        }
    )
    assert five["ttft_from_sent_ms"] == pytest.approx(
        {
            "mean": (90 + 150 + 190) / 3,
            "std": np.std([90, 150, 190]),
            "min": 90,
            "max": 190,
            "p50": 150,
            "p90": 182,
            "p95": 186,
            "p99": 189.2,
        }
    )


def test_e2e_ends_with_the_last_content_token(five: dict[str, Any]) -> None:
    assert five["e2e_ms"] == pytest.approx(
        {
            "mean": 1450 / 3,
            "std": np.std([150, 300, 1000]),
            "min": 150,
            "max": 1000,
            "p50": 300,
            "p90": 860,
            "p95": 930,
            "p99": 986,
        }
    )
    assert five["e2e_from_sent_ms"]["mean"] == pytest.approx((290 + 150 + 990) / 3)


def test_tpot_is_the_mean_gap_of_requests_with_more_than_one_token(five: dict[str, Any]) -> None:
    assert five["tpot_ms"] == pytest.approx(
        {
            "mean": 75,
            "std": 25,
            "min": 50,
            "max": 100,
            "p50": 75,
            "p90": 95,
            "p95": 97.5,
            "p99": 99.5,
        }
    )


def test_itl_is_over_all_gaps_of_all_requests(five: dict[str, Any]) -> None:
    assert five["itl_ms"] == pytest.approx(
        {
            "mean": 1000 / 12,
            "std": np.std([50] * 4 + [100] * 8),
            "min": 50,
            "max": 100,
            "p50": 100,
            "p90": 100,
            "p95": 100,
            "p99": 100,
        }
    )
    assert five["itl_kind"] == "token"


def test_throughput_counts_what_was_completed_in_the_window_whoever_it_belonged_to(
    five: dict[str, Any],
) -> None:
    assert five["request_throughput"] == 3  # 0, 1 and the warm-up request; 2 ends after the window
    assert five["requests_per_minute"] == 180
    # of request 2 the tokens at 400, 500, … 900 ms
    assert five["output_token_throughput"] == 5 + 1 + 6 + 3
    assert five["input_token_throughput"] == 10 + 20 + 40 + 30
    assert five["total_token_throughput"] == 115
    assert (five["window_s"], five["throughput_basis"]) == (1.0, "chunk_times")


def test_prefill_decode_and_normalized_ttft_are_per_request(five: dict[str, Any]) -> None:
    assert five["prefill_throughput"]["mean"] == pytest.approx(
        (10 / 0.09 + 20 / 0.15 + 40 / 0.19) / 3
    )
    assert five["decode_throughput"]["mean"] == pytest.approx((4 / 0.2 + 8 / 0.8) / 2)
    assert five["normalized_ttft_ms"]["mean"] == pytest.approx((100 / 10 + 150 / 20 + 200 / 40) / 3)


def test_the_object_is_json_and_has_every_latency(five: dict[str, Any]) -> None:
    names = ("ttft_ms", "e2e_ms", "ttft_from_sent_ms", "e2e_from_sent_ms", "itl_ms", "tpot_ms")
    assert all(
        set(json.loads(json.dumps(five))[name])
        == {"mean", "std", "min", "max", "p50", "p90", "p95", "p99"}
        for name in names
    )


def test_nothing_to_compute_is_null() -> None:
    empty = summarize(requests(failed_request(0, 10, sent_ms=None)), None, WINDOW)
    assert empty["requests"] == {"scheduled": 1, "ok": 0, "failed": 1}
    assert all(
        empty[name] is None
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "decode_throughput", "itl_kind")
    )
    assert empty["output_token_throughput"] == 0
    none = summarize(requests(), events({}), (5, 5))
    assert none["request_throughput"] is none["total_token_throughput"] is None


def test_prompts_that_nobody_counted_have_no_throughput_instead_of_none_at_all() -> None:
    counted = request(0, 0, prompt=10)
    unknown = request(1, 0, input_tokens=None, input_tokens_asked=0)
    found = summarize(requests(counted, unknown), None, WINDOW)
    assert found["input_token_throughput"] is found["total_token_throughput"] is None
    assert found["output_token_throughput"] == 2
    assert found["input_tokens"]["mean"] == 10
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    later = summarize(
        requests(counted, request(1, 2000, input_tokens=None, input_tokens_asked=0)), None, WINDOW
    )
    assert later["input_token_throughput"] == 10, (
        "an unknown one outside the window takes nothing away"
    )
    asked = summarize(requests(request(0, 0, input_tokens=None)), None, WINDOW)
    assert asked["input_token_throughput"] == 10, "else as asked"


def test_without_token_events_tokens_are_spread_evenly_and_the_basis_says_so() -> None:
    found = summarize(FIVE, None, WINDOW)
    assert found["output_token_throughput"] == 15
    assert found["throughput_basis"] == "interpolated"
    assert found["itl_ms"] is None


def test_token_events_of_some_requests_only_are_used_and_the_basis_says_so() -> None:
    uneven = requests(
        request(0, 0, first_ms=100, last_ms=1100, tokens=3),
        request(1, 0, first_ms=100, last_ms=1100, tokens=3),
    )
    found = summarize(uneven, events({0: [950, 50]}), WINDOW)
    assert found["output_token_throughput"] == 1 + 2  # of request 1 also the token at 600 ms
    assert found["throughput_basis"] == "mixed"


def test_a_gap_before_a_chunk_of_several_tokens_is_spread_over_them() -> None:
    rows = requests(request(0, 0, first_ms=0, last_ms=0.1, tokens=8, itl_kind="chunk"))
    found = summarize(rows, events({0: [0.02, 0.08]}, {0: [1, 2, 5]}), WINDOW)
    gaps = [10, 10, 16, 16, 16, 16, 16]  # us
    assert found["itl_ms"]["mean"] == pytest.approx(np.mean(gaps) / 1e3)
    assert found["itl_ms"]["p50"] == pytest.approx(0.016)
    assert found["itl_kind"] == "chunk"


def test_microseconds_that_do_not_divide_are_carried_not_lost() -> None:
    rows = requests(request(0, 0, first_ms=0, last_ms=0.01, tokens=4, itl_kind="chunk"))
    found = observe(rows, events({0: [0.01]}, {0: [1, 3]}), WINDOW).gaps
    assert dict(zip(found.us.tolist(), found.counts.tolist(), strict=True)) == {3: 2, 4: 1}


def test_where_nobody_says_which_chunk_held_how_many_tokens_mean_itl_is_tpot() -> None:
    rows = requests(request(0, 0, first_ms=0, last_ms=700, tokens=8, chunks=4, itl_kind="chunk"))
    found = summarize(rows, events({0: [300, 300, 100]}), WINDOW)
    assert found["itl_ms"]["mean"] == pytest.approx(found["tpot_ms"]["mean"]) == pytest.approx(100)
    assert found["output_token_throughput"] == 8


def test_tokens_in_the_window_add_up_to_the_engines_count_not_to_the_chunks() -> None:
    rows = requests(request(0, 0, first_ms=500, last_ms=1500, tokens=10))
    found = summarize(rows, events({0: [500, 500]}, {0: [2, 2, 1]}), (0, 1_000_000_001))
    assert found["output_token_throughput"] == pytest.approx(10 * 4 / 5, rel=1e-6)


def test_the_window_holds_its_start_and_not_its_end() -> None:
    rows = requests(
        request(0, 0, first_ms=0, last_ms=10, tokens=2), request(1, 10, first_ms=10, tokens=1)
    )
    assert (
        summarize(rows, events({0: [10], 1: []}), (0, 10_000_000))["output_token_throughput"] == 100
    )
    assert (
        summarize(rows, events({0: [10], 1: []}), (10_000_000, 20_000_000))[
            "output_token_throughput"
        ]
        == 200
    )


def test_rows_of_two_attempts_are_refused() -> None:
    with pytest.raises(ValueError, match="more than one attempt"):
        summarize(pa.concat_tables([FIVE, FIVE]), None, WINDOW)
    with pytest.raises(ValueError, match="a request_index that requests does not"):
        summarize(FIVE, events({7: []}), WINDOW)
    with pytest.raises(ValueError, match="3 tokens_per_chunk for 1 gaps"):
        summarize(FIVE, events({0: [1]}, {0: [1, 1, 1]}), WINDOW)


def test_rows_in_any_order_in_any_pieces_give_the_same() -> None:
    order = pa.array([3, 1, 4, 0, 2])
    pieces = pa.concat_tables([GAPS.take(order).slice(0, 2), GAPS.take(order).slice(2)])
    assert summarize(FIVE.take(order), pieces, WINDOW) == summarize(FIVE, GAPS, WINDOW)


def test_more_rows_than_a_block_are_all_counted() -> None:
    count = 2 * ROWS_PER_BLOCK + 3
    rows = requests(*(request(index, 0, first_ms=1, last_ms=3, tokens=3) for index in range(count)))
    gaps = observe(rows, events({index: [1, 1] for index in range(count)}), WINDOW).gaps
    assert (gaps.us.tolist(), gaps.counts.tolist()) == ([1000], [2 * count])


def test_merged_repeats_are_pooled_not_averaged() -> None:
    first = observe(requests(request(0, 0, first_ms=100)), events({0: []}), WINDOW)
    rows = [request(index, 0, first_ms=200, last_ms=300, tokens=2) for index in range(3)]
    second = observe(requests(*rows), events({index: [100] for index in range(3)}), (0, 3 * 10**9))
    both = asdict(figures(merge([first, second])))
    assert both["ttft_ms"]["mean"] == 175
    assert both["ttft_ms"]["p50"] == 200
    assert both["request_throughput"] == 4 / 4
    assert both["requests"] == {"scheduled": 4, "ok": 4, "failed": 0}
    assert both["itl_ms"]["mean"] == 100


GAP_LISTS = st.lists(st.integers(0, 5) | st.integers(0, 2**31 - 1), min_size=1, max_size=40)


@settings(deadline=None)
@given(GAP_LISTS, GAP_LISTS, st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_quantiles_from_counts_are_numpys_of_the_values(
    left: list[int], right: list[int], wanted: list[float]
) -> None:
    parts = [observe(*_one_request(gaps), WINDOW).gaps for gaps in (left, right)]
    merged = merge_gaps(parts)
    values = np.array(left + right, float)
    assert merged.total == values.size
    assert merged.mean_us() == pytest.approx(values.mean())
    assert merged.quantiles_us(wanted) == pytest.approx(np.quantile(values, wanted))


def _one_request(gaps_us: list[int]) -> tuple[pa.Table, pa.Table]:
    tokens = len(gaps_us) + 1
    rows = requests(request(0, 0, first_ms=0, last_ms=sum(gaps_us) / 1e3, tokens=tokens))
    return rows, events({0: [gap / 1e3 for gap in gaps_us]})


def test_no_gaps_merge_with_some() -> None:
    some = GapCounts(np.array([5]), np.array([2]))
    assert merge_gaps([NO_GAPS, some, NO_GAPS]).counts.tolist() == [2]
    assert merge_gaps([NO_GAPS]).total == 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_percentiles_are_ordered_and_within_the_values(values: list[float]) -> None:
    found = distribution(np.array(values))
    assert found is not None
    ordered = [found.p50, found.p90, found.p95, found.p99]
    assert ordered == sorted(ordered) == np.quantile(values, QUANTILES).tolist(), (
        "to the last digit"
    )
    assert min(values) <= ordered[0] <= ordered[-1] <= max(values)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
)
def test_quantiles_of_values_in_any_order_are_numpys(
    values: list[float], wanted: list[float]
) -> None:
    assert quantiles(np.array(values), wanted).tolist() == np.quantile(values, wanted).tolist(), (
        "to the last digit"
    )


@st.composite
def traffic(draw: st.DrawFn) -> tuple[pa.Table, pa.Table | None, list[float]]:
    """Requests with gaps (some without a row of their own), and every token's instant in ms."""
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
def test_tokens_in_a_window_are_those_whose_chunk_came_in_it(
    made: tuple[pa.Table, pa.Table, list[float]], edges: list[int]
) -> None:
    rows, token_events, instants = made
    (arrays,) = request_arrays(rows, token_events)
    found = output_tokens_by(arrays, [edge * 1e6 for edge in edges])
    assert found == pytest.approx([sum(at < edge for at in instants) for edge in edges])


@settings(max_examples=60, deadline=None)
@given(traffic(), st.lists(st.integers(0, 3000), min_size=1, max_size=4), st.booleans())
def test_windows_side_by_side_add_up_to_the_whole(
    made: tuple[pa.Table, pa.Table, list[float]], cuts: list[int], with_events: bool
) -> None:
    rows, token_events, instants = made
    edges = [edge * 10**6 for edge in (0, *sorted(cuts), 10_000)]
    events_given = token_events if with_events else None
    parts = [observe(rows, events_given, window).delivered for window in itertools.pairwise(edges)]
    assert all(part.output_tokens >= -1e-9 for part in parts)
    assert sum(part.requests for part in parts) == rows.num_rows
    assert sum(part.input_tokens for part in parts) == sum(rows["input_tokens"].to_pylist())
    assert sum(part.output_tokens for part in parts) == pytest.approx(len(instants))


def test_importing_the_metrics_brings_neither_pandas_nor_scipy() -> None:
    code = (
        "import sys, orchestrator.analysis.metrics;"
        "assert not {'pandas', 'scipy', 'pydantic', 'ray'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_sweep_that_searches_nothing_starts_without_scipy() -> None:
    """It takes a tenth of the time that finding nothing left to do in 30,000 attempts takes."""
    code = "import sys, orchestrator.sweep.sweep; assert not {'pandas', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

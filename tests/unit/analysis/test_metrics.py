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

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.metrics import QUANTILES, distribution, figures, merge, observe
from orchestrator.results.columns import quantiles
from orchestrator.results.window import MeasuredWindow
from tests.unit.results.builders import events, failed_request, request, requests

WINDOW = MeasuredWindow(0, 10**9)
FIVE = requests(
    request(0, 0, sent_ms=10, first_ms=100, last_ms=300, tokens=5, prompt=10),
    request(1, 100, sent_ms=100, first_ms=250, tokens=1, prompt=20),
    request(2, 200, sent_ms=210, first_ms=400, last_ms=1200, tokens=9, prompt=40),
    failed_request(3, 300),
    request(4, 0, sent_ms=0, first_ms=50, last_ms=150, tokens=3, prompt=30, phase="warmup"),
)
GAPS = events({0: [50] * 4, 1: [], 2: [100] * 8, 3: [], 4: [50, 50]})


def summarize(
    rows: pa.Table, token_events: pa.Table | None, window: MeasuredWindow
) -> dict[str, Any]:
    return asdict(figures(observe(rows, token_events, window)))


@pytest.fixture(scope="module")
def five() -> dict[str, Any]:
    return summarize(FIVE, GAPS, WINDOW)


def test_requests_are_those_due_in_the_window_and_errors_are_counted(five: dict[str, Any]) -> None:
    assert five["requests"] == {"scheduled": 4, "ok": 3, "failed": 1}
    assert five["errors"] == {"http_5xx": 1}


def test_the_context_of_decoded_tokens_is_the_mean_over_tokens(five: dict[str, Any]) -> None:
    # 4 tokens after 10 + 2.5 others, none of request 1, 8 tokens after 40 + 4.5 others
    assert five["decode_context"] == pytest.approx((4 * 12.5 + 8 * 44.5) / 12)


def test_a_prompt_that_was_not_counted_leaves_no_context() -> None:
    uncounted = request(1, prompt=0, tokens=5, input_tokens=None)
    rows = requests(request(0, tokens=5), uncounted)
    assert summarize(rows, None, WINDOW)["decode_context"] is None


def test_the_context_of_several_attempts_is_that_of_all_their_tokens() -> None:
    first = observe(requests(request(0, tokens=3, prompt=10)), None, WINDOW)
    second = observe(requests(request(0, tokens=7, prompt=100)), None, WINDOW)
    # 2 tokens after 11.5 and 6 after 103.5
    assert figures(merge([first, second])).decode_context == pytest.approx(
        (2 * 11.5 + 6 * 103.5) / 8
    )


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
    none = summarize(requests(), events({}), MeasuredWindow(5, 5))
    assert none["request_throughput"] is none["total_token_throughput"] is None


def test_prompts_that_nobody_counted_have_no_throughput_instead_of_none_at_all() -> None:
    counted = request(0, 0, prompt=10)
    unknown = request(1, 0, input_tokens=None, input_tokens_asked=0)
    metrics = summarize(requests(counted, unknown), None, WINDOW)
    assert metrics["input_token_throughput"] is metrics["total_token_throughput"] is None
    assert metrics["output_token_throughput"] == 2
    assert metrics["input_tokens"]["mean"] == 10
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
    later = summarize(
        requests(counted, request(1, 2000, input_tokens=None, input_tokens_asked=0)), None, WINDOW
    )
    assert later["input_token_throughput"] == 10, (
        "an unknown one outside the window takes nothing away"
    )
    asked = summarize(requests(request(0, 0, input_tokens=None)), None, WINDOW)
    assert asked["input_token_throughput"] == 10, "else as asked"


def test_without_counts_of_chunks_mean_itl_is_tpot() -> None:
    rows = requests(request(0, 0, first_ms=0, last_ms=700, tokens=8, chunks=4, itl_kind="chunk"))
    metrics = summarize(rows, events({0: [300, 300, 100]}), WINDOW)
    assert (
        metrics["itl_ms"]["mean"] == pytest.approx(metrics["tpot_ms"]["mean"]) == pytest.approx(100)
    )
    assert metrics["output_token_throughput"] == 8


def test_the_window_holds_its_start_and_not_its_end() -> None:
    rows = requests(
        request(0, 0, first_ms=0, last_ms=10, tokens=2), request(1, 10, first_ms=10, tokens=1)
    )
    assert (
        summarize(rows, events({0: [10], 1: []}), MeasuredWindow(0, 10_000_000))[
            "output_token_throughput"
        ]
        == 100
    )
    assert (
        summarize(rows, events({0: [10], 1: []}), MeasuredWindow(10_000_000, 20_000_000))[
            "output_token_throughput"
        ]
        == 200
    )


def test_merged_repeats_are_pooled_not_averaged() -> None:
    first = observe(requests(request(0, 0, first_ms=100)), events({0: []}), WINDOW)
    rows = [request(index, 0, first_ms=200, last_ms=300, tokens=2) for index in range(3)]
    second = observe(
        requests(*rows), events({index: [100] for index in range(3)}), MeasuredWindow(0, 3 * 10**9)
    )
    both = asdict(figures(merge([first, second])))
    assert both["ttft_ms"]["mean"] == 175
    assert both["ttft_ms"]["p50"] == 200
    assert both["request_throughput"] == 4 / 4
    assert both["requests"] == {"scheduled": 4, "ok": 4, "failed": 0}
    assert both["itl_ms"]["mean"] == 100


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_percentiles_are_ordered_and_within_the_values(values: list[float]) -> None:
    summary = distribution(np.array(values))
    assert summary is not None
    ordered = [summary.p50, summary.p90, summary.p95, summary.p99]
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


def test_importing_the_metrics_brings_neither_pandas_nor_scipy() -> None:
    code = (
        "import sys, orchestrator.analysis.metrics;"
        "assert not {'pandas', 'scipy', 'pydantic', 'ray'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_sweep_that_searches_nothing_starts_without_scipy() -> None:
    """Importing scipy takes a tenth of the time in which nothing is found left to do in 30,000
    attempts.
    """
    code = "import sys, orchestrator.sweep.sweep; assert not {'pandas', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Results of ``vllm bench serve``: its own figures, recomputed by DuckDB from the stored requests."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.exchange.importing import read_files
from tests.unit.exchange.recorded import (
    VLLM,
    VLLM_DETAILED,
    VLLM_FAILED,
    changed,
    document,
    imported,
    points_of,
    queried,
    queried_distribution,
    queried_gaps,
)

TTFT = "(first_token_ns - sent_ns) / 1e6"
TPOT = "(last_token_ns - first_token_ns) / (output_tokens - 1) / 1e6"


def refused(path: Path) -> str:
    with pytest.raises(ProblemsError) as caught:
        read_files([path])
    (problem,) = caught.value.problems
    return problem.message


def test_its_aggregates_follow_from_the_stored_requests(tmp_path: Path) -> None:
    store = imported(tmp_path, VLLM_DETAILED)
    result = document(VLLM_DETAILED)
    for name, expression in {"ttft": TTFT, "tpot": TPOT}.items():
        computed = queried_distribution(store, expression)
        for statistic, prefix in {
            "mean": "mean",
            "std": "std",
            "p50": "median",
            "p99": "p99",
        }.items():
            stated = result[f"{prefix}_{name}_ms"]
            assert computed[statistic] == pytest.approx(stated, rel=1e-3), (name, statistic)
    counts = {
        "request_throughput": "count(*)",
        "output_throughput": "sum(output_tokens)",
        "total_token_throughput": "sum(input_tokens + output_tokens)",
    }
    for name, expression in counts.items():
        ((count,),) = queried(store, f"SELECT {expression} FROM {{requests}}")
        assert count / result["duration"] == pytest.approx(result[name], rel=1e-3), name
    gaps = queried_gaps(store)
    # gaps are stored to the microsecond, and half of these are shorter than 0.1 ms
    assert gaps["p50"] == pytest.approx(result["median_itl_ms"], abs=1e-3)
    for statistic in ("mean", "std", "p99"):
        assert gaps[statistic] == pytest.approx(result[f"{statistic}_itl_ms"], rel=1e-3), statistic


def test_the_point_has_its_figures(tmp_path: Path) -> None:
    (point,) = points_of(imported(tmp_path, VLLM_DETAILED))
    result, figures = document(VLLM_DETAILED), point.figures
    assert figures.ttft_ms is not None and figures.tpot_ms is not None
    assert figures.ttft_ms.p99 == result["p99_ttft_ms"]
    assert figures.ttft_from_sent_ms == figures.ttft_ms
    assert figures.tpot_ms.p50 == result["median_tpot_ms"]
    assert figures.output_token_throughput == result["output_throughput"]
    assert figures.requests.ok == result["completed"]
    throughput = point.output_token_throughput()
    assert throughput is not None
    assert throughput.estimate == pytest.approx(result["output_throughput"], rel=1e-3)


def test_percentiles_that_were_not_asked_for_come_from_the_requests(tmp_path: Path) -> None:
    (detailed,) = points_of(imported(tmp_path / "a", VLLM_DETAILED))
    (only_figures,) = points_of(imported(tmp_path / "b", VLLM))
    assert detailed.figures.ttft_ms is not None and only_figures.figures.ttft_ms is not None
    assert detailed.figures.ttft_ms.p50 <= detailed.figures.ttft_ms.p90
    assert math.isnan(only_figures.figures.ttft_ms.p90)


def test_a_closed_loop_and_a_rate_are_told_apart(tmp_path: Path) -> None:
    closed, rate = points_of(imported(tmp_path, VLLM, VLLM_DETAILED))
    assert (closed.head.control, closed.head.level, closed.head.arrivals) == (
        "concurrency",
        4,
        "closed",
    )
    assert (rate.head.control, rate.head.level, rate.head.arrivals) == (
        "request_rate",
        8,
        "poisson",
    )


def test_without_requests_no_interval_is_made_up(tmp_path: Path) -> None:
    (point,) = points_of(imported(tmp_path, VLLM))
    throughput = point.output_token_throughput()
    assert throughput is not None
    assert throughput.estimate == pytest.approx(document(VLLM)["output_throughput"])
    assert math.isnan(throughput.lower)


def test_failed_requests_are_rows_with_their_errors(tmp_path: Path) -> None:
    store = imported(tmp_path, VLLM_FAILED)
    result = document(VLLM_FAILED)
    ((failed, without_reason),) = queried(
        store,
        "SELECT count(*), count(*) - count(error) FROM {requests} WHERE status = 'error'",
    )
    assert failed == result["failed"] > 0
    assert without_reason == 0
    (point,) = points_of(store)
    assert point.figures.errors == {"error": result["failed"]}


def test_several_results_in_one_file_are_points(tmp_path: Path) -> None:
    first = document(VLLM)
    second = {**first, "max_concurrency": 8, "date": "20260101-000000"}
    appended = tmp_path / "appended.json"
    appended.write_text(json.dumps(first) + "\n" + json.dumps(second))
    points = points_of(imported(tmp_path, appended))
    assert sorted(point.head.level for point in points) == [4, 8]


def test_a_ramp_up_is_no_level(tmp_path: Path) -> None:
    assert "no one load level" in refused(changed(VLLM, tmp_path, ramp_up_strategy="linear"))


def test_a_trace_that_was_sent_at_its_own_times_is_no_level(tmp_path: Path) -> None:
    trace = changed(VLLM_DETAILED, tmp_path, request_rate="inf")
    assert "sent over 2.49 of 2.69 s" in refused(trace)


def test_requests_that_were_all_sent_at_the_begin_were_due_at_once(tmp_path: Path) -> None:
    starts = [10 + number / 1e3 for number in range(document(VLLM_DETAILED)["num_prompts"])]
    at_once = changed(VLLM_DETAILED, tmp_path, request_rate="inf", start_times=starts)
    (point,) = points_of(imported(tmp_path, at_once))
    assert (point.head.level, point.head.arrivals) == (math.inf, "at_once")


def test_lists_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    ttfts = document(VLLM_DETAILED)["ttfts"][:-1]
    refusal = refused(changed(VLLM_DETAILED, tmp_path, ttfts=ttfts))
    assert refusal.startswith("its lists have different lengths: ")


@pytest.mark.parametrize(
    ("field", "value", "refusal"),
    [
        ("mean_ttft_ms", 1.0, "the mean of ttft_ms is not that of its own requests"),
        ("p99_ttft_ms", 1.0, "p99 of ttft_ms is not that of its own requests"),
        ("median_itl_ms", 90.0, "p50 of itl_ms is not that of its own requests"),
        (
            "output_throughput",
            99_999.0,
            "output_throughput is 99999/s, and its own requests give 118.946/s",
        ),
        (
            "total_output_tokens",
            10**9,
            "the mean of total_output_tokens is not that of its own requests",
        ),
        (
            "completed",
            19,
            "it states 19 answered and 0 failed requests, and lists 20 and 0",
        ),
        ("duration", 0.001, "its requests took 2.67864 s, and its run 0.001 s"),
    ],
)
def test_a_file_that_contradicts_its_requests_is_refused(
    tmp_path: Path, field: str, value: float, refusal: str
) -> None:
    path = changed(VLLM_DETAILED, tmp_path, **{field: value})
    with pytest.raises(ProblemsError) as caught:
        read_files([path])
    assert refusal in [problem.message for problem in caught.value.problems]


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    assert refused(changed(VLLM, tmp_path, completed=None)) == "completed is missing"


def test_a_secret_in_its_metadata_is_not_stored(tmp_path: Path) -> None:
    path = changed(VLLM, tmp_path, note="hf_abcdefghijklmnopqrstuvwx")
    ((aggregates,),) = queried(imported(tmp_path, path), "SELECT aggregates_json FROM {imported}")
    assert "hf_abcdefghijklmnopqrstuvwx" not in aggregates
    assert json.loads(aggregates)["model_id"] == document(VLLM)["model_id"]

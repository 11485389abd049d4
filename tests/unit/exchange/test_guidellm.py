"""GuideLLM's report: its own figures, recomputed by DuckDB from the stored requests."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.exchange.importing import read_files
from tests.unit.exchange.recorded import (
    GUIDELLM,
    document,
    imported,
    points_of,
    queried,
    queried_distribution,
)

BENCHMARKS = document(GUIDELLM)["benchmarks"]


def rewritten(folder: Path, benchmark: dict[str, Any]) -> Path:
    """The report with this benchmark alone."""
    path = folder / "report.json"
    path.write_text(json.dumps({**document(GUIDELLM), "benchmarks": [benchmark]}))
    return path


def reasons(path: Path) -> list[str]:
    with pytest.raises(ProblemsError) as caught:
        read_files([path])
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize("number", range(len(BENCHMARKS)))
def test_its_aggregates_follow_from_the_stored_requests(tmp_path: Path, number: int) -> None:
    benchmark = BENCHMARKS[number]
    store = imported(tmp_path / "store", rewritten(tmp_path, benchmark))
    expressions = {
        "time_to_first_token_ms": ("(first_token_ns - sent_ns) / 1e6", 1.0),
        "request_latency": ("(done_ns - sent_ns) / 1e9", 1.0),
        "prompt_token_count": ("input_tokens", 1.0),
        "output_token_count": ("output_tokens", 1.0),
        "time_per_output_token_ms": ("(last_token_ns - sent_ns) / output_tokens / 1e6", 1.0),
    }
    for name, (expression, factor) in expressions.items():
        summary = benchmark["metrics"][name]["successful"]
        computed = queried_distribution(store, expression)
        assert computed["mean"] == pytest.approx(factor * summary["mean"], rel=1e-3), name
        assert computed["std"] == pytest.approx(factor * summary["std_dev"], rel=1e-3), name
        values = [
            value
            for (value,) in queried(
                store, f"SELECT {expression} FROM {{requests}} WHERE status = 'ok' ORDER BY 1"
            )
        ]
        for share, percentile in (
            (0.1, "p10"),
            (0.5, "p50"),
            (0.9, "p90"),
            (0.95, "p95"),
            (0.99, "p99"),
        ):
            # a value of the sample, not interpolated; rounding decides between two at a whole rank
            rank = round(share * len(values), 6)
            allowed = {values[math.ceil(rank) - 1], values[min(math.floor(rank), len(values) - 1)]}
            stated_value = pytest.approx(summary["percentiles"][percentile], rel=1e-3)
            assert any(value == stated_value for value in allowed), (name, percentile)
    # weighted by the tokens after the first
    ((itl_ms,),) = queried(
        store,
        "SELECT sum(last_token_ns - first_token_ns) / sum(output_tokens - 1) / 1e6 "
        "FROM {requests} WHERE status = 'ok'",
    )
    summary = benchmark["metrics"]["inter_token_latency_ms"]["successful"]
    assert itl_ms == pytest.approx(summary["mean"], rel=1e-3)
    counts = {
        "requests_per_second": "count(*)",
        "output_tokens_per_second": "sum(output_tokens)",
        "prompt_tokens_per_second": "sum(input_tokens)",
        "tokens_per_second": "sum(input_tokens + output_tokens)",
    }
    for name, expression in counts.items():
        ((count,),) = queried(store, f"SELECT {expression} FROM {{requests}} WHERE status = 'ok'")
        rate = benchmark["metrics"][name]["successful"]["mean"]
        assert count / benchmark["duration"] == pytest.approx(rate, rel=1e-3), name


def test_its_tpot_with_the_first_token_is_not_taken_for_ours(tmp_path: Path) -> None:
    (benchmark, *_) = BENCHMARKS
    (point,) = points_of(imported(tmp_path / "store", rewritten(tmp_path, benchmark)))
    metrics = benchmark["metrics"]
    assert point.figures.tpot_ms is not None
    assert point.figures.tpot_ms.mean == metrics["inter_token_latency_ms"]["successful"]["mean"]
    assert point.figures.tpot_ms.mean < metrics["time_per_output_token_ms"]["successful"]["mean"]
    assert point.figures.itl_ms is None


def test_each_benchmark_is_a_point_at_its_load(tmp_path: Path) -> None:
    points = points_of(imported(tmp_path, GUIDELLM))
    assert [(point.head.control, point.head.level, point.head.arrivals) for point in points] == [
        ("concurrency", 2, "closed"),
        ("concurrency", 4, "closed"),
    ]


def test_rates_and_all_at_once_are_read_too(tmp_path: Path) -> None:
    (benchmark, *_) = BENCHMARKS
    strategies: dict[tuple[str, float, str], dict[str, Any]] = {
        ("request_rate", 2.5, "poisson"): {"type_": "poisson", "rate": 2.5},
        ("request_rate", 3.0, "constant"): {"type_": "constant", "rate": 3.0},
        ("request_rate", float("inf"), "at_once"): {"type_": "throughput"},
        ("concurrency", 16, "closed"): {"type_": "throughput", "max_concurrency": 16},
        ("concurrency", 1, "closed"): {"type_": "synchronous"},
    }
    for number, (expected, strategy) in enumerate(strategies.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = {**benchmark["config"], "strategy": strategy}
        path = rewritten(folder, {**benchmark, "config": config})
        (point,) = points_of(imported(folder / "store", path))
        assert (point.head.control, point.head.level, point.head.arrivals) == expected


def test_of_a_sample_of_requests_only_the_figures_are_kept(tmp_path: Path) -> None:
    (benchmark, *_) = BENCHMARKS
    requests = benchmark["requests"]
    sample = {**requests, "successful": requests["successful"][:3]}
    path = rewritten(tmp_path, {**benchmark, "requests": sample})
    (file,) = read_files([path])
    (point,) = file.points
    assert point.requests == ()
    assert point.left_out["requests of a sample"] == 3
    assert point.figures.requests.ok == benchmark["metrics"]["request_totals"]["successful"]


@pytest.mark.parametrize(
    ("place", "value", "refusal"),
    [
        (
            ("time_to_first_token_ms", "successful", "mean"),
            0.001,
            "the mean of time_to_first_token_ms is not that of its own requests",
        ),
        (
            ("time_to_first_token_ms", "successful", "percentiles", "p99"),
            0.001,
            "p99 of time_to_first_token_ms is not that of its own requests",
        ),
        (
            ("tokens_per_second", "successful", "mean"),
            1e6,
            "tokens_per_second is 1e+06/s, and its own requests give 490.452/s",
        ),
        (
            ("request_totals", "successful"),
            10,
            "it states 10 answered and 0 failed requests, and lists 20 and 0",
        ),
    ],
)
def test_a_report_that_contradicts_its_requests_is_refused(
    tmp_path: Path, place: tuple[str, ...], value: float, refusal: str
) -> None:
    benchmark = document(GUIDELLM)["benchmarks"][0]
    inner = benchmark["metrics"]
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    assert reasons(rewritten(tmp_path, benchmark)) == [f"benchmark 1: {refusal}"]


def test_rates_may_leave_out_what_was_not_within_the_measured_time(tmp_path: Path) -> None:
    benchmark = document(GUIDELLM)["benchmarks"][0]
    scheduler = benchmark["scheduler_metrics"]
    warmup_s = 0.1  # 2 requests began before, of 20
    whole_s = scheduler["measure_end_time"] - scheduler["measure_start_time"]
    scheduler["measure_start_time"] += warmup_s
    for name in ("requests", "output_tokens", "prompt_tokens", "tokens"):
        rate = benchmark["metrics"][f"{name}_per_second"]["successful"]
        rate["mean"] *= 0.95 * whole_s / (whole_s - warmup_s)
    (file,) = read_files([rewritten(tmp_path, benchmark)])
    assert len(file.points[0].requests) == 20
    benchmark["metrics"]["requests_per_second"]["successful"]["mean"] = 10.0
    (refusal,) = reasons(rewritten(tmp_path, benchmark))
    assert "its own requests give 11.9306 to 13.2563/s" in refusal


def test_a_trace_is_no_level(tmp_path: Path) -> None:
    (benchmark, *_) = BENCHMARKS
    config = {**benchmark["config"], "strategy": {"type_": "trace", "time_scale": 1.0}}
    (refusal,) = reasons(rewritten(tmp_path, {**benchmark, "config": config}))
    assert refusal.startswith("benchmarks.0.config.strategy.type_ is 'trace'")


def test_another_version_is_refused_with_what_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    content = document(GUIDELLM)
    path.write_text(
        json.dumps({**content, "metadata": {**content["metadata"], "guidellm_version": "0.9.0"}})
    )
    assert reasons(path) == [
        "it is report version 2 of GuideLLM '0.9.0': what is read is version 2 of GuideLLM 0.8"
    ]


def test_fields_that_are_missing_are_named_together(tmp_path: Path) -> None:
    (benchmark, *_) = BENCHMARKS
    metrics = {**benchmark["metrics"]}
    del metrics["request_latency"], metrics["request_totals"]
    assert reasons(rewritten(tmp_path, {**benchmark, "metrics": metrics})) == [
        "benchmarks.0.metrics.request_totals is missing",
        "benchmarks.0.metrics.request_latency is missing",
    ]

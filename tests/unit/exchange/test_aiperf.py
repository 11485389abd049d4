"""AIPerf's files: its own figures, recomputed by DuckDB from the stored requests."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import ProblemsError
from orchestrator.exchange.importing import read_files
from tests.unit.exchange.recorded import (
    AIPERF,
    AIPERF_RECORDS,
    changed,
    document,
    imported,
    points_of,
    queried,
    queried_distribution,
    queried_gaps,
)

SUMMARY = document(AIPERF)


def reasons(*paths: Path) -> list[str]:
    with pytest.raises(ProblemsError) as caught:
        read_files(paths)
    return [problem.message for problem in caught.value.problems]


def test_its_aggregates_follow_from_the_stored_requests(tmp_path: Path) -> None:
    store = imported(tmp_path, AIPERF, AIPERF_RECORDS)
    expressions = {
        "time_to_first_token": "(first_token_ns - sent_ns) / 1e6",
        "request_latency": "(last_token_ns - sent_ns) / 1e6",
        "inter_token_latency": "(last_token_ns - first_token_ns) / (output_tokens - 1) / 1e6",
        "input_sequence_length": "input_tokens",
        "output_sequence_length": "output_tokens",
    }
    for name, expression in expressions.items():
        computed = queried_distribution(store, expression)
        statistics = {"mean": "avg", "std": "std", "p50": "p50", "p90": "p90", "p99": "p99"}
        for statistic, field in statistics.items():
            stated = SUMMARY[name][field]
            assert computed[statistic] == pytest.approx(stated, rel=1e-3, abs=1e-9), name
    gaps = queried_gaps(store)
    for statistic, field in statistics.items():
        stated = SUMMARY["inter_chunk_latency"][field]
        assert gaps[statistic] == pytest.approx(stated, rel=1e-3), statistic


def test_its_rates_are_counts_over_its_own_time(tmp_path: Path) -> None:
    store = imported(tmp_path, AIPERF, AIPERF_RECORDS)
    began, ended = (datetime.fromisoformat(SUMMARY[end]) for end in ("start_time", "end_time"))
    seconds = (ended - began).total_seconds()
    counts = {
        "request_throughput": "count(*)",
        "input_token_throughput": "sum(input_tokens)",
        "output_token_throughput": "sum(output_tokens)",
        "total_token_throughput": "sum(input_tokens + output_tokens)",
    }
    for name, expression in counts.items():
        ((count,),) = queried(store, f"SELECT {expression} FROM {{requests}}")
        assert count / seconds == pytest.approx(SUMMARY[name]["avg"], rel=1e-3), name


def test_the_point_has_its_figures(tmp_path: Path) -> None:
    (point,) = points_of(imported(tmp_path, AIPERF, AIPERF_RECORDS))
    figures = point.figures
    assert figures.ttft_ms is not None and figures.tpot_ms is not None
    assert figures.ttft_ms.p99 == SUMMARY["time_to_first_token"]["p99"]
    assert figures.tpot_ms.mean == SUMMARY["inter_token_latency"]["avg"]
    assert figures.output_token_throughput == SUMMARY["output_token_throughput"]["avg"]
    assert figures.requests.ok == SUMMARY["request_count"]["avg"]
    assert (point.head.control, point.head.level) == ("concurrency", 4)


def test_the_summary_alone_has_the_figures(tmp_path: Path) -> None:
    (file,) = read_files([AIPERF])
    assert file.points[0].requests == ()
    assert file.points[0].figures.ttft_ms is not None


def test_records_without_their_summary_are_refused(tmp_path: Path) -> None:
    (refusal,) = reasons(AIPERF_RECORDS)
    assert "give the profile_export_aiperf.json of the same run, too" in refusal


def test_records_of_another_run_are_not_taken_for_its_own(tmp_path: Path) -> None:
    latency = {**SUMMARY["request_latency"], "avg": 2 * SUMMARY["request_latency"]["avg"]}
    other = changed(AIPERF, tmp_path, request_latency=latency)
    (refusal,) = reasons(other, AIPERF_RECORDS)
    assert refusal.startswith("it holds AIPerf's records")


@pytest.mark.parametrize(
    ("metric", "statistic", "refusal"),
    [
        ("time_to_first_token", "avg", "the mean of time_to_first_token is not that of its own"),
        ("inter_chunk_latency", "p99", "p99 of inter_chunk_latency is not that of its own"),
        ("output_token_throughput", "avg", "output_token_throughput is 0.001/s, and its own"),
        ("benchmark_duration", "avg", "its requests took 0.78875 s, and its run 0.001 s"),
    ],
)
def test_a_summary_that_contradicts_its_records_is_refused(
    tmp_path: Path, metric: str, statistic: str, refusal: str
) -> None:
    path = changed(AIPERF, tmp_path, **{metric: {**SUMMARY[metric], statistic: 0.001}})
    assert [reason for reason in reasons(path, AIPERF_RECORDS) if reason.startswith(refusal)]


def test_warm_up_requests_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = AIPERF_RECORDS.read_text().splitlines()
    warmup = json.loads(lines[0])
    warmup["metadata"]["benchmark_phase"] = "warmup"
    records = tmp_path / "records.jsonl"
    records.write_text("\n".join([json.dumps(warmup), *lines]))
    summary, _ = read_files([AIPERF, records])
    (point,) = summary.points
    assert len(point.requests) == len(lines)
    assert point.left_out["requests of the warm-up"] == 1


def test_a_failed_request_is_a_row_with_its_status(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in AIPERF_RECORDS.read_text().splitlines()]
    failed = {**lines[0], "metrics": {}, "error": {"code": 503, "message": "overloaded"}}
    records = tmp_path / "records.jsonl"
    records.write_text("\n".join(map(json.dumps, [*lines, failed])))
    count: dict[str, Any] = {"unit": "requests", "avg": 1.0}
    store = imported(
        tmp_path / "store", changed(AIPERF, tmp_path, error_request_count=count), records
    )
    assert queried(store, "SELECT error, http_status FROM {requests} WHERE status = 'error'") == [
        ("overloaded", 503)
    ]
    (point,) = points_of(store)
    assert point.figures.requests.failed == 1


def test_a_rate_is_read_with_its_cap(tmp_path: Path) -> None:
    config = {**SUMMARY["input_config"]}
    (phase,) = [each for each in config["phases"] if each.get("kind") != "warmup"]
    config["phases"] = [{**phase, "type": "poisson", "rate": 2.5, "concurrency": 9}]
    (file,) = read_files([changed(AIPERF, tmp_path, input_config=config)])
    load = file.points[0].load
    assert (load.control, load.level, load.arrivals, load.max_in_flight) == (
        "request_rate",
        2.5,
        "poisson",
        9,
    )


def test_a_run_that_did_not_finish_is_refused(tmp_path: Path) -> None:
    path = changed(AIPERF, tmp_path, is_complete=False, incomplete_reason="stalled")
    assert reasons(path) == ["its run is not complete: stalled"]


def test_a_run_that_was_cancelled_is_refused(tmp_path: Path) -> None:
    path = changed(AIPERF, tmp_path, was_cancelled=True)
    assert reasons(path) == ["its run is not complete: it was cancelled"]
    path = changed(AIPERF, tmp_path, is_complete=False)
    assert reasons(path) == ["its run is not complete: no reason given"]


def test_another_version_is_refused_with_what_was_seen(tmp_path: Path) -> None:
    path = changed(AIPERF, tmp_path, aiperf_version="0.14.1")
    assert reasons(path) == ["it is of AIPerf '0.14.1': what is read is AIPerf 0.13"]


def test_a_unit_that_is_not_known_is_refused(tmp_path: Path) -> None:
    latency = {**SUMMARY["time_to_first_token"], "unit": "fortnights"}
    assert reasons(changed(AIPERF, tmp_path, time_to_first_token=latency)) == [
        "the unit of time_to_first_token is 'fortnights'"
    ]

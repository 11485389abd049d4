"""Rows of simulated requests: what they say of each end."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.load.point import LoadPoint, Target
from orchestrator.load.schedule import PlannedRequest
from orchestrator.simulation.requests import RequestEnd, VirtualRequest
from orchestrator.simulation.rows import RequestOutcomes, record_of
from orchestrator.spec.dialect import openai
from orchestrator.spec.load import Level
from orchestrator.workloads.drawn import RandomWorkload

POINT = LoadPoint(
    (Target("", "m"),),
    openai()["completions"],
    RandomWorkload(name="w", input_tokens=8, output_tokens=4),
    Level(control="request_rate", value=1.0),
    warmup_s=2.0,
    request_timeout_s=30.0,
    measurement_id="m",
    attempt_id="a",
)


def request(
    index: int, end: RequestEnd = RequestEnd.OK, due_s: float = 3.0, **more: Any
) -> VirtualRequest:
    planned = PlannedRequest(index, index, 0, round(due_s * 1e9))
    times = {
        "sent_s": due_s,
        "first_token_s": due_s + 0.1,
        "last_token_s": due_s + 0.4,
        "done_s": due_s + 0.4,
    }
    return VirtualRequest(planned, 0, 8, 4, end=end, **times | more)


def rows(*requests: VirtualRequest, reports_cached: bool = False) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = (
        RequestOutcomes.of(requests, False).table(POINT, reports_cached).to_pylist()
    )
    return made


def test_an_answered_request_has_all_times_and_tokens() -> None:
    (row,) = rows(request(0, cached_tokens=3), reports_cached=True)
    assert row["scheduled_ns"] == row["sent_ns"] == 3_000_000_000
    assert row["first_token_ns"] == row["first_byte_ns"] == 3_100_000_000
    assert row["done_ns"] == row["last_token_ns"] == 3_400_000_000
    assert (row["input_tokens"], row["output_tokens"], row["chunks"]) == (8, 4, 4)
    assert (row["status"], row["http_status"], row["finish_reason"]) == ("ok", 200, "length")
    assert (row["phase"], row["cached_tokens"], row["error"]) == ("measure", 3, None)


def test_rows_are_sorted_and_the_warm_up_is_told_apart() -> None:
    made = rows(request(1), request(0, due_s=1.0))
    assert [row["request_index"] for row in made] == [0, 1]
    assert [row["phase"] for row in made] == ["warmup", "measure"]
    assert made[0]["cached_tokens"] is None


@pytest.mark.parametrize(
    ("end", "status", "error_class", "words"),
    [
        (RequestEnd.REFUSED, "error", "http_4xx", "too long"),
        (RequestEnd.QUEUE_FULL, "error", "http_5xx", "too long"),
        (RequestEnd.TIMEOUT, "timeout", "timeout", "no end within 30 s"),
        (RequestEnd.NOT_DRAINED, "timeout", "timeout", "still open 30 s after"),
        (RequestEnd.NEVER_SENT, "timeout", "timeout", "never sent"),
        (RequestEnd.ABORTED, "aborted", "aborted", "the run was aborted"),
    ],
)
def test_a_request_that_failed_says_how(
    end: RequestEnd, status: str, error_class: str, words: str
) -> None:
    refusal = "too long" if error_class.startswith("http") else ""
    failed = request(1, end, refusal=refusal, last_token_s=math.nan)
    ok, row = rows(request(0), failed)
    assert ok["status"] == "ok"
    assert (row["status"], row["error_class"]) == (status, error_class)
    assert words in row["error"]
    assert row["output_tokens"] is None and row["last_token_ns"] is None
    record = record_of(failed, POINT)
    assert (record.status, record.error_class) == (status, error_class)
    assert record.error == row["error"]

"""What one try at a point left behind, and the verdict on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.base.clock import UnixSpan
from orchestrator.base.errors import Failure, FailureKind
from orchestrator.sweep.attempt import (
    OF_THE_POINT,
    Attempt,
    Loaded,
    judged,
    nothing_ok,
    was_redirected,
)
from orchestrator.sweep.early_end import EarlyStop
from tests.unit.load.test_schedule import point
from tests.unit.results.builders import failed_request, request, requests


@pytest.mark.parametrize("kind", FailureKind)
def test_a_launch_goes_on_after_failures_of_a_point_alone(kind: FailureKind) -> None:
    attempt = Attempt(failure=Failure(kind, "It failed."))
    assert attempt.launch_over is (kind not in OF_THE_POINT)


def test_without_a_failure_the_launch_goes_on() -> None:
    assert not Attempt().launch_over


def test_one_request_that_succeeded_is_enough() -> None:
    assert nothing_ok(requests(request(0), failed_request(1))) is None


def test_the_commonest_error_says_why_no_request_succeeded() -> None:
    rows = [failed_request(index, error_class="http_5xx") for index in range(2)]
    failure = nothing_ok(requests(*rows, failed_request(2, error_class="timeout")))
    assert failure is not None
    assert failure.kind is FailureKind.NO_REQUEST_OK
    assert failure.sentence.startswith("None of 3 requests succeeded (http_5xx)")


@pytest.mark.parametrize(("status", "redirected"), [(302, True), (404, False), (None, False)])
def test_an_endpoint_redirects_only_if_every_request_was_redirected(
    status: int | None, redirected: bool
) -> None:
    first = failed_request(0) | {"http_status": 301}
    second = failed_request(1) | {"http_status": status}
    assert was_redirected(requests(first, second)) is redirected


@pytest.mark.parametrize(
    ("told", "kind"), [("aborted", None), ("http_5xx", FailureKind.NO_REQUEST_OK)]
)
def test_a_probe_that_was_ended_before_any_answer_is_measured(
    told: str, kind: FailureKind | None
) -> None:
    rows = [
        failed_request(index, error_class=name)
        for index, name in enumerate(("aborted", told, told))
    ]
    rows = [row | {"status": "aborted"} if row["error_class"] == "aborted" else row for row in rows]
    early = EarlyStop(3.0, "fails", "ended after 3.0 s: fast fails", "ttft<=1s")
    loaded = Loaded(span=UnixSpan(0, 3 * 10**9), requests=requests(*rows), early=early)
    attempt = judged(replace(point(), warmup_s=None), loaded)
    assert (attempt.failure and attempt.failure.kind) == kind
    assert attempt.verdict.reasons[0] == early.sentence
    assert loaded.lasted_s(None, 60.0) == 3.0

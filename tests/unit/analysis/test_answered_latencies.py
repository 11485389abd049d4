"""Latencies of the requests that were answered, and the parts of a mix that can be compared."""

from __future__ import annotations

import numpy as np

from orchestrator.analysis.answered_latencies import LEAST_REQUESTS, AnsweredLatencies, median_of
from orchestrator.results.window import MeasuredWindow
from tests.unit.results.builders import failed_request, request, requests

WINDOW = MeasuredWindow(0, 10**9)


def latencies_of_parts(*parts: str | None) -> AnsweredLatencies:
    """One request of each of these parts of a mix."""
    rows = [request(index, part=part) for index, part in enumerate(parts)]
    return AnsweredLatencies.of(requests(*rows), WINDOW, [])


def test_latencies_are_those_of_answers_that_were_due_in_the_window() -> None:
    answered = request(0, 10, sent_ms=15, first_ms=50, last_ms=90, tokens=5)
    warm_up = request(1, phase="warmup")
    too_late = request(2, 1000)
    latencies = AnsweredLatencies.of(
        requests(answered, warm_up, too_late, failed_request(3)), WINDOW, ["adapter"]
    )
    assert latencies.ttft_ms.tolist() == [40]  # 50 - 10: since it was due, not since it was sent
    assert latencies.tpot_ms.tolist() == [10]  # (90 - 50) / 4 gaps
    assert {name: len(column) for name, column in latencies.columns.items()} == {
        "adapter": 1,
        "part": 1,
    }


def test_the_time_per_token_of_a_single_token_is_unknown() -> None:
    latencies = AnsweredLatencies.of(requests(request(0, tokens=1)), WINDOW, [])
    assert np.isnan(latencies.tpot_ms).tolist() == [True]


def test_only_parts_with_chosen_requests_and_others_are_comparable() -> None:
    latencies = latencies_of_parts("chat", "chat", "rag", "code")
    chosen = np.array([True, False, True, False])
    assert latencies.comparable(chosen).tolist() == [True, True, False, False]


def test_without_parts_all_requests_are_comparable() -> None:
    latencies = latencies_of_parts(None, None)
    assert latencies.comparable(np.array([True, False])).tolist() == [True, True]


def test_a_median_is_of_the_chosen_values_that_are_known() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0, np.nan, 100.0])
    chosen = np.array([True] * 6 + [False])
    assert median_of(values, chosen) == 3


def test_too_few_values_have_no_median() -> None:
    few = np.ones(LEAST_REQUESTS - 1)
    assert median_of(few, few > 0) is None

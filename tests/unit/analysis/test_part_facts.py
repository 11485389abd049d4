"""Facts beside speed of the parts of a mix."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.analysis.part_facts import PartFactCounts
from orchestrator.analysis.requests import request_arrays
from orchestrator.results.records import PartFacts
from orchestrator.results.window import MeasuredWindow
from tests.unit.results.builders import failed_request, request, requests

WINDOW = MeasuredWindow(0, 10**9)


def facts_of(*rows: dict[str, Any]) -> dict[str, PartFacts]:
    counts = PartFactCounts(WINDOW)
    for columns in request_arrays(requests(*rows), None):
        counts.add(columns)
    return counts.facts()


def answer(index: int, part: str | None, due_ms: float = 1.0, **columns: Any) -> dict[str, Any]:
    row = request(index, due_ms, first_ms=due_ms + 10, part=part)
    return row | {"input_tokens": 100} | columns


def test_hits_are_those_of_the_part_alone() -> None:
    facts = facts_of(
        answer(0, "chat", cached_tokens=80, expected_cached_tokens=90),
        answer(1, "chat", cached_tokens=40, expected_cached_tokens=50),
        answer(2, "rag", cached_tokens=10, expected_cached_tokens=0),
    )
    chat, rag = facts["chat"], facts["rag"]
    assert (chat.cached_share, chat.expected_cached_share) == pytest.approx((0.6, 0.7))
    assert (rag.cached_share, rag.expected_cached_share) == pytest.approx((0.1, 0.0))


def test_a_part_without_hits_has_a_share_of_0_if_the_engine_reports_those_of_others() -> None:
    reported = facts_of(answer(0, "chat", cached_tokens=80), answer(1, "rag"))
    assert reported["rag"].cached_share == 0.0
    assert facts_of(answer(0, "chat"), answer(1, "rag"))["rag"].cached_share is None


def test_a_part_with_an_answer_of_unknown_hits_has_no_expected_share() -> None:
    facts = facts_of(
        answer(0, "chat", expected_cached_tokens=50),
        answer(1, "rag", expected_cached_tokens=50),
        answer(2, "rag"),
    )
    assert facts["chat"].expected_cached_share == 0.5
    assert facts["rag"].expected_cached_share is None


def test_violations_are_those_of_answers_of_the_window_by_part() -> None:
    violated = {"constraint": "regex", "constraint_met": False}
    facts = facts_of(
        answer(0, "forms", **violated),
        answer(1, "forms", **violated),
        answer(2, "forms", constraint="regex", constraint_met=True),
        answer(3, "tools", constraint="regex", constraint_met=True),
        answer(4, "chat"),
        answer(5, "forms", due_ms=2000.0, **violated),
        failed_request(6, 1, part="forms") | {"constraint": "regex"},
    )
    violations = {name: part.constraint_violations for name, part in facts.items()}
    assert violations == {"forms": 2, "tools": 0, "chat": None}


def test_requests_of_no_part_have_no_facts() -> None:
    assert facts_of(answer(0, None, cached_tokens=5)) == {}

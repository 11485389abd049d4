"""The record of one part of a mix: its shares, and its results under the limits on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.report.as_json import point_json
from orchestrator.report.documents.part import part_documents, results_of_part, share_of
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.part_columns import part_columns
from orchestrator.results.records import PartFacts
from orchestrator.results.store import Store
from tests.unit.report.mixes import SLO, store_of_mix
from tests.unit.results.builders import commit_measurement, request


@pytest.fixture
def document(tmp_path: Path) -> PointDocument:
    (point,) = load_points(store_of_mix(tmp_path), SLO)
    return point_document(point, [SLO])


def test_shares_of_parts_add_up_and_limits_are_those_of_the_part(document: PointDocument) -> None:
    chat, rag = part_documents(document)
    assert (chat.share_of_requests, rag.share_of_requests) == pytest.approx((2 / 3, 1 / 3))
    assert (chat.share_of_output_tokens or 0) + (rag.share_of_output_tokens or 0) == 1.0
    (of_chat,), (of_rag,) = chat.slo_results, rag.slo_results
    assert [test.name for test in of_chat.tests] == ["chat:attainment"]
    assert of_chat.attainment is not None
    assert of_chat.attainment.estimate == 1.0
    assert of_rag.attainment is not None
    assert of_rag.attainment.estimate == 0.75
    assert of_rag.is_met
    assert of_rag.share_by_limit == {"rag:ttft": 0.75}
    assert of_rag.goodput == pytest.approx(3.0)


def test_facts_of_a_part_are_the_mean_over_repeats(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    for repeat, violated in enumerate([1, 2]):
        forms = [
            request(
                index,
                50 * index,
                first_ms=50 * index + 20,
                part="forms",
                input_tokens=100,
                cached_tokens=40 * violated,
                constraint="regex",
                constraint_met=index >= violated,
            )
            for index in range(4)
        ]
        chat = request(9, 90, first_ms=120, part="chat", input_tokens=100)
        commit_measurement(
            store, f"m{repeat}", [*forms, chat], attempt_id=f"a{repeat}", repeat=repeat
        )
    (point,) = load_points(store)
    document = point_document(point, [])
    in_chat, in_forms = part_documents(document)
    assert in_forms.facts.constraint_violations == 1.5
    assert in_forms.facts.cached_share == pytest.approx(0.6)
    assert in_forms.facts.expected_cached_share is None
    assert in_chat.facts == PartFacts(
        cached_share=0.0, expected_cached_share=None, constraint_violations=None
    )
    of_point: Any = point_json(document)
    assert of_point["parts"][1]["constraint_violations"] == 1.5
    assert of_point["repeats"][0]["parts"][1]["constraint_violations"] == 1.0
    assert part_columns()["cached_share"].value(in_forms) == pytest.approx(0.6)


def test_a_part_that_no_limit_is_for_has_no_results(document: PointDocument) -> None:
    assert results_of_part(document.slo_results, "code") == []


def test_of_nothing_there_is_no_share() -> None:
    assert share_of(1.0, 4.0) == 0.25
    assert share_of(0.0, 0.0) is None
    assert share_of(None, 4.0) is None

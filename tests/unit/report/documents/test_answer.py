"""The records of an answer: facts of the comparison, and their sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.plan.current import StoredExperiment
from orchestrator.report.documents.answer import ComparisonDocument, answer_document
from orchestrator.report.selection import answers, limits
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned())
    return store


def comparison(store: Store, slo: str) -> ComparisonDocument:
    (document,) = answer_document(
        answers(limits(slo, [StoredExperiment(store)])).comparisons
    ).comparisons
    return document


def test_what_is_ranked_has_its_notes(store: Store) -> None:
    document = comparison(store, "interactive")
    assert document.unit == "output tokens/s per core"
    assert [ranked.deployment for ranked in document.ranking] == list(document.comparison.ranking)
    assert all(
        "no higher level was seen to fail: its capacity may be higher" in ranked.notes
        for ranked in document.ranking
    )
    assert document.excluded == ()


def test_an_uncertain_answer_says_what_would_settle_it(store: Store) -> None:
    document = comparison(store, "interactive")
    assert document.verdict.startswith("not certain: ")
    assert any(remedy.endswith("at least twice (starts: 2)") for remedy in document.remedies)


def test_what_is_left_out_has_its_reason(store: Store) -> None:
    document = comparison(store, "tight")
    assert document.ranking == ()
    assert document.verdict.startswith("no deployment holds ttft<=1ms")
    assert len(document.excluded) == 2
    assert all(
        excluded.reason.endswith("ttft p90 there: 100 ms, limit 1ms")
        for excluded in document.excluded
    )


def test_each_limit_of_the_file_is_a_comparison(store: Store) -> None:
    document = answer_document(answers(limits(None, [StoredExperiment(store)])).comparisons)
    names = [comparison.comparison.slo.name for comparison in document.comparisons]
    assert names == ["interactive", "tight"]

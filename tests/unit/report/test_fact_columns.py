"""What was sent at a point, as columns: means over its repeats, and costs beside free requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.fact_columns import fact_columns, fact_fields
from orchestrator.results.store import Store
from tests.unit.results.builders import commit_measurement, request


def document_of(folder: Path, *repeats: dict[str, Any]) -> PointDocument:
    """One point with these fields in each of its repeats."""
    store = Store.open(str(folder), "exp")
    for repeat, fields in enumerate(repeats):
        commit_measurement(store, f"m{repeat}", [request(0)], repeat=repeat, **fields)
    (point,) = load_points(store)
    return point_document(point, [])


def test_a_fact_is_the_mean_of_the_repeats(tmp_path: Path) -> None:
    document = document_of(tmp_path, {"cached_share": 0.25}, {"cached_share": 0.75})
    assert fact_fields(document)["cached_share"] == 0.5


def test_a_fact_that_one_repeat_lacks_is_unknown(tmp_path: Path) -> None:
    document = document_of(tmp_path, {"cached_share": 0.25}, {})
    assert fact_fields(document)["cached_share"] is None


def test_a_cost_is_the_share_by_which_constrained_requests_take_longer(tmp_path: Path) -> None:
    first = {"constrained_ttft_ms": 120.0, "free_ttft_ms": 100.0}
    second = {"constrained_ttft_ms": 140.0, "free_ttft_ms": 100.0}
    fields = fact_fields(document_of(tmp_path, first, second))
    assert fields["guidance_ttft_cost"] == pytest.approx(130 / 100 - 1)
    assert fields["guidance_tpot_cost"] is None


def test_columns_and_fields_have_the_same_names_and_values(tmp_path: Path) -> None:
    facts = {"content": "words", "adapter_share": 0.5, "adapter_ttft_ms": 80.0}
    document = document_of(tmp_path, facts)
    values = {column.name: column.value(document) for column in fact_columns()}
    assert values == fact_fields(document)
    assert facts.items() <= values.items()

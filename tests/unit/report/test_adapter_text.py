"""What LoRA adapters cost, in sentences."""

from __future__ import annotations

from pathlib import Path

from orchestrator.report.adapter_text import adapter_notes
from tests.unit.report.test_fact_columns import document_of

COSTS = {
    "adapter_share": 0.25,
    "adapters_asked": 3,
    "adapter_ttft_ms": 120.0,
    "base_ttft_ms": 100.0,
    "adapter_tpot_ms": 9.0,
    "base_tpot_ms": 10.0,
}
ANSWERED = "d0 at 1 req/s: 3 adapters answered 25.0% of requests"


def test_costs_are_shares_of_the_latencies_of_the_model_itself(tmp_path: Path) -> None:
    (note,) = adapter_notes([document_of(tmp_path, COSTS, COSTS)])
    costs = "TTFT +20.0%, TPOT -10.0%"  # 120 and 9 ms beside 100 and 10 ms
    assert note == f"{ANSWERED}; beside the model itself, by medians: {costs}"


def test_without_plain_requests_no_cost_is_told(tmp_path: Path) -> None:
    alone = COSTS | {"base_ttft_ms": None, "base_tpot_ms": None}
    assert list(adapter_notes([document_of(tmp_path, alone)])) == [ANSWERED]


def test_points_without_adapters_have_no_note(tmp_path: Path) -> None:
    assert list(adapter_notes([document_of(tmp_path, {})])) == []

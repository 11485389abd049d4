"""What constraints on answers came to and what they cost, in sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.analysis.guidance import Guidance
from orchestrator.report.guidance_text import guidance_notes, guidance_text
from tests.unit.report.test_fact_columns import document_of

GUIDANCE = Guidance(
    constrained_share=0.25,
    constraint_violations=2,
    constraint_cut_share=0.1,
    constraint_unchecked_share=0.0,
    constrained_ttft_ms=120.0,
    free_ttft_ms=100.0,
    constrained_tpot_ms=9.0,
    free_tpot_ms=10.0,
)
OUTCOME = "constrained: 25.0% of requests, 2 violations, 10.0% cut too early to tell"


def test_costs_are_shares_of_the_latencies_of_free_requests() -> None:
    costs = "TTFT +20.0%, TPOT -10.0%"  # 120 and 9 ms beside 100 and 10 ms
    assert guidance_text(GUIDANCE) == f"{OUTCOME}; beside the free ones, by medians: {costs}"


def test_without_free_requests_no_cost_is_told() -> None:
    alone = replace(GUIDANCE, free_ttft_ms=None, free_tpot_ms=None)
    assert guidance_text(alone) == OUTCOME


def test_answers_that_were_not_checked_are_told() -> None:
    text = guidance_text(replace(GUIDANCE, constraint_unchecked_share=0.05))
    assert ", 5.0% unchecked (" in text


def test_violations_of_all_repeats_are_counted_together(tmp_path: Path) -> None:
    fields = {"constrained_share": 1.0, "constraint_violations": 2}
    (note,) = guidance_notes([document_of(tmp_path, fields, fields)])
    assert note.startswith("d0 at 1 req/s: ")
    assert "100.0% of requests, 4 violations" in note


def test_points_without_constraints_have_no_note(tmp_path: Path) -> None:
    assert list(guidance_notes([document_of(tmp_path, {})])) == []

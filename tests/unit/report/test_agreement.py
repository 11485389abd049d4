"""How far answers equal those of the reference: a column, a line below the table, JSON."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.output_agreement import Agreement, AgreementNote
from orchestrator.report.agreement import agreement_column, agreement_fields, agreement_notes
from orchestrator.results.store import Store
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.stores import commit_answers, points_of


def point(agreement: Agreement) -> Any:
    return SimpleNamespace(agreement=agreement)


REFERENCE = point(Agreement(note=AgreementNote.IS_REFERENCE))
HALF = point(Agreement(0.5, 4, "tokens", "ref"))


def lines(*points: Any) -> list[str]:
    return list(agreement_notes(points))


def test_a_share_has_its_number_of_tokens_beside_it_and_the_reference_a_word() -> None:
    extra = agreement_column([REFERENCE, HALF, point(Agreement())])
    assert extra is not None
    assert extra.column.title == "agree-\nment"
    assert extra.cells == ["ref.", "0.500 n=4", "-"]


def test_without_a_share_there_is_no_column_and_no_line() -> None:
    assert agreement_column([REFERENCE, REFERENCE]) is None
    assert lines(REFERENCE) == []


def test_a_line_names_the_reference_and_the_unit() -> None:
    assert lines(HALF, HALF, REFERENCE) == [
        "agreement: share of tokens equal to those of ref, fixed prompts (no measure of quality)"
    ]


def test_an_engine_without_token_ids_is_compared_by_characters() -> None:
    (line,) = lines(HALF, point(Agreement(0.9, 80, "characters", "ref")))
    assert "share of tokens or characters equal to" in line


def test_a_superseded_reference_is_marked() -> None:
    superseded = Agreement(0.5, 4, "tokens", "ref", AgreementNote.SUPERSEDED)
    (line,) = lines(point(superseded))
    assert "those of ref (superseded), fixed prompts" in line


def test_json_has_the_note_as_a_sentence() -> None:
    assert agreement_fields(REFERENCE) == {
        "agreement": None,
        "agreement_n": 0,
        "agreement_unit": None,
        "agreement_reference": None,
        "agreement_note": "it is the reference",
    }


@pytest.mark.parametrize("command", ["results", "best"])
def test_tables_of_results_and_best_show_it(command: str, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned())
    assert "agree" not in invoke(command, store.uri).stdout
    commit_answers(store, (1, 2, 3, 4), (1, 2, 9, 4))
    text = invoke(command, store.uri).stdout
    reference = planned().deployments[0].label
    for part in ("ref.", "0.500", "n=4", f"of {reference}, fixed prompts"):
        assert part in text
    notes = {point.deployment.label: point.agreement.note for point in points_of(store)}
    assert notes[reference] is AgreementNote.IS_REFERENCE

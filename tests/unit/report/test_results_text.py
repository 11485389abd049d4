"""What ``results`` shows of some experiments: all tables, and what is said once of them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from orchestrator.plan.current import StoredExperiment
from orchestrator.report.documents.capacity import CapacityDocument
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.point_selection import PointSelection, parse_query
from orchestrator.report.point_table import USUAL, PointView
from orchestrator.report.results_text import result_rows, results_text, shown_results
from orchestrator.report.selection import JudgedExperiment, with_limits
from orchestrator.report.written_form import TextForm
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.test_capacity_table import store_search

EVERYTHING = PointSelection()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def judged(*stores: Store) -> list[JudgedExperiment]:
    return list(with_limits(None, [StoredExperiment(store) for store in stores]))


def lines_of(
    *stores: Store,
    view: PointView = USUAL,
    width: int = 160,
    with_superseded: bool = False,
    selection: PointSelection = EVERYTHING,
) -> list[str]:
    shown = shown_results(judged(*stores), with_superseded).selected(selection)
    return [click.unstyle(line) for line in results_text(shown, TextForm("x", width), view)]


def test_capacities_have_tables_below_the_points(store: Store) -> None:
    store_search(store)
    lines = lines_of(store)
    titles = [line for line in lines if line.startswith(("chat of", "capacity"))]
    assert titles[-2:] == [
        "capacity for chat of exp under interactive",
        "capacity for chat of exp under tight",
    ]


def test_counts_and_columns_that_are_left_out_are_said_once(tmp_path: Path) -> None:
    stores = [Store.open(str(tmp_path), name) for name in ("first", "second")]
    for store in stores:
        store_sweep(store, planned())
    lines = lines_of(*stores, width=80)
    assert len([line for line in lines if line.startswith("chat of")]) == 2
    assert len([line for line in lines if line.startswith("not shown: ")]) == 1
    assert lines[-1] == "4 points measured, 0 failed"


def test_older_points_have_a_table_of_their_own(store: Store) -> None:
    store_sweep(store, planned(tokens=64), tokens=64)
    store_sweep(store, planned(tokens=8), tokens=8)
    assert not any(", superseded: " in line for line in lines_of(store))
    assert any(", superseded: " in line for line in lines_of(store, with_superseded=True))


def test_a_profile_has_columns_for_prefill_and_decode(store: Store) -> None:
    store_sweep(store, planned())
    assert "prefill" in "\n".join(lines_of(store, view=PointView(is_profile=True)))
    assert "prefill" not in "\n".join(lines_of(store))


def test_without_points_only_their_number_is_said(store: Store) -> None:
    store.write_plan(planned().to_json())
    assert lines_of(store) == ["0 points measured, 0 failed"]


def test_rows_are_points_and_then_capacities(store: Store) -> None:
    store_search(store)
    assert kinds_of(store, PointSelection()) == [PointDocument] * 2 + [CapacityDocument] * 2


def kinds_of(store: Store, selection: PointSelection) -> list[type]:
    rows = result_rows(judged(store), with_superseded=False, selection=selection)
    return [type(row) for row in rows]


def test_capacities_stay_with_the_points_that_are_selected(store: Store) -> None:
    store_search(store)
    none = parse_query("level < 0", None, None, None).selection
    highest = parse_query(None, "-level", 1, None).selection
    assert kinds_of(store, none) == []
    assert kinds_of(store, highest) == [PointDocument, CapacityDocument, CapacityDocument]
    assert lines_of(store, selection=none) == ["0 of 2 points: 0 measured, 0 failed"]
    lines = lines_of(store, selection=highest)
    assert [line for line in lines if line.startswith("capacity")]
    assert lines[-1] == "1 of 2 points: 1 measured, 0 failed"


def test_the_points_of_several_tables_are_selected_together(tmp_path: Path) -> None:
    stores = [Store.open(str(tmp_path), name) for name in ("first", "second")]
    for store in stores:
        store_sweep(store, planned())
    lines = lines_of(*stores, selection=parse_query("max_num_seqs == 8", None, 1, None).selection)
    assert len([line for line in lines if line.startswith(" emulator seqs=8 ")]) == 1
    assert lines[-1] == "1 of 4 points: 1 measured, 0 failed"

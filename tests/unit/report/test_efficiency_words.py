"""The words about efficiency and energy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.analysis.efficiency import Bounds, Efficiency, EfficiencyNote, MissingFigures
from orchestrator.analysis.energy import EnergyNote
from orchestrator.analysis.points import StoredPoint, load_points
from orchestrator.catalog.work import MissingWork, Peaks
from orchestrator.report.efficiency_words import (
    NO_GPU_READ,
    OF_IMITATED,
    OF_MODEL,
    efficiency_note_text,
    energy_note_text,
    mbu_text,
)
from tests.unit.capacity.stored_levels import SLO, StoredLevels
from tests.unit.results.builders import gpu_readings

HALF = Bounds(0.5, 0.5, 0.5)
EFFICIENCY = Efficiency(
    running=1.0,
    step_s=0.01,
    tokens_per_step=1.0,
    bytes_s=HALF.scaled(4e12),
    flops_s=1e14,
    mbu=HALF,
    mfu=0.1,
    peaks=Peaks("X", 4e12, 1e15, "bfloat16", "a data sheet", None),
)


@pytest.fixture
def stored(tmp_path: Path) -> StoredLevels:
    levels = StoredLevels(tmp_path)
    levels.deployment("d0", model="meta-llama/Llama-3.1-8B-Instruct")
    return levels


def point_of(stored: StoredLevels, **given: object) -> StoredPoint:
    stored.level("d0", 10, **given)
    (point,) = load_points(stored.store, SLO)
    return point


@pytest.mark.parametrize("missing", list(MissingWork))
def test_every_reason_without_work_has_words(stored: StoredLevels, missing: MissingWork) -> None:
    point = point_of(stored)
    unknown = replace(point, deployment=replace(point.deployment, work=missing))
    assert efficiency_note_text(unknown)


@pytest.mark.parametrize("missing", list(MissingFigures))
def test_every_missing_figure_has_words(stored: StoredLevels, missing: MissingFigures) -> None:
    point = point_of(stored)
    point.__dict__["efficiency"] = missing  # where a cached property keeps its value
    assert efficiency_note_text(point)


def test_energy_that_was_not_read_says_so_and_one_with_a_note_gives_it(
    stored: StoredLevels,
) -> None:
    assert energy_note_text(point_of(stored)) == NO_GPU_READ
    simulated = point_of(stored, simulated=True)
    assert energy_note_text(simulated) == "simulated: no energy is modelled"


def test_foreign_programs_are_named(stored: StoredLevels) -> None:
    point = point_of(stored, telemetry=gpu_readings(500, 21, foreign_bytes=1 << 30))
    assert point.energy is not None
    assert point.energy.notes == (EnergyNote.FOREIGN,)
    assert energy_note_text(point) == "other programs used a GPU"


@pytest.mark.parametrize(
    ("given", "note"),
    [({}, None), ({"emulated": True}, OF_IMITATED), ({"simulated": True}, OF_MODEL)],
)
def test_what_was_emulated_or_simulated_says_whose_figure_it_is(
    stored: StoredLevels, given: dict[str, bool], note: str | None
) -> None:
    point = point_of(stored, **given)
    point.__dict__["efficiency"] = EFFICIENCY
    assert efficiency_note_text(point) == note


@pytest.mark.parametrize("note", list(EfficiencyNote))
def test_every_note_has_words(stored: StoredLevels, note: EfficiencyNote) -> None:
    point = point_of(stored)
    point.__dict__["efficiency"] = replace(EFFICIENCY, notes=(note,))
    assert efficiency_note_text(point)


def test_a_range_stands_beside_mbu_where_experts_are_chosen() -> None:
    assert mbu_text(EFFICIENCY) == "0.50"
    assert mbu_text(replace(EFFICIENCY, mbu=Bounds(0.1, 0.5, 0.654))) == "0.50 (0.10 to 0.65)"

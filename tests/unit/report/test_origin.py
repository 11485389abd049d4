"""What is said of what was not measured, and of how far off a model is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.analysis.prediction import ErrorFactors
from orchestrator.report.origin import (
    badge_of,
    common_badge,
    model_error_lines,
    model_error_sentence,
    origin_texts,
)
from orchestrator.report.text import EMULATED, SIMULATED
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.stores import SOURCE, commit_simulation, points_of


@dataclass(frozen=True)
class Made:
    emulated: bool = False
    simulated: bool = False
    source: str | None = None


MODEL_ERROR_FACTORS = ErrorFactors(2.0, 1.25, SOURCE)
MEASURED, EMULATOR, MODEL = Made(), Made(emulated=True), Made(simulated=True)
BOTH = Made(emulated=True, simulated=True)
OTHER_TOOL = Made(source="GuideLLM 0.8.1")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


@pytest.mark.parametrize(
    ("origin", "badge"),
    [
        (MEASURED, ""),
        (EMULATOR, " (emulated)"),
        (MODEL, " (simulated)"),
        (BOTH, " (simulated)"),
        (OTHER_TOOL, " (GuideLLM 0.8.1)"),
    ],
)
def test_a_badge_says_what_was_not_measured(origin: Made, badge: str) -> None:
    assert badge_of(origin) == badge


def test_a_badge_of_all_is_none_where_they_differ() -> None:
    assert common_badge([MODEL, BOTH]) == " (simulated)"
    assert common_badge([MODEL, MEASURED]) == common_badge([]) == ""


def test_each_origin_is_said_once() -> None:
    assert origin_texts([MODEL, MEASURED, EMULATOR, BOTH]) == [SIMULATED, EMULATED]
    assert origin_texts([MEASURED]) == []
    (text,) = origin_texts([OTHER_TOOL, MEASURED, OTHER_TOOL, Made(source="AIPerf 0.13.0")])
    assert text.startswith("imported from GuideLLM 0.8.1, AIPerf 0.13.0: figures as defined there")


def test_the_error_of_the_model_is_said_once_with_its_source(store: Store) -> None:
    commit_simulation(store)
    assert model_error_lines(points_of(store)) == [
        "intervals: 9 in 10 measurements within 2.00x (TTFT), 1.25x (all else)",
        f"  model's error by {SOURCE}",
    ]


def test_errors_of_several_sources_are_a_range_and_the_page_has_each(store: Store) -> None:
    commit_simulation(store)
    first, *others = points_of(store)
    wider = replace(MODEL_ERROR_FACTORS, ttft=3.0, source="another source")
    prediction = first.deployment.prediction
    assert prediction.error is not None
    prediction = replace(prediction, error=replace(prediction.error, within=wider))
    points = [
        replace(first, deployment=replace(first.deployment, prediction=prediction)),
        *others,
    ]
    assert model_error_lines(points) == [
        "intervals: 9 in 10 measurements within 2.00-3.00x (TTFT), 1.25x (all else)",
        f"  model's error by 2 sources: {SOURCE}",
    ]
    text = model_error_sentence(points)
    assert f"within 2.00x (TTFT) and 1.25x (all else) by {SOURCE}; within 3.00x" in text
    assert text.endswith("by another source.")


def test_an_error_that_is_not_known_is_said_to_be(store: Store) -> None:
    commit_simulation(store, error=None)
    (text,) = model_error_lines(points_of(store))
    assert text.startswith("intervals: not known")
    assert model_error_sentence(points_of(store)).startswith("Intervals: not known")


def test_of_measurements_no_error_of_a_model_is_said(store: Store) -> None:
    store_sweep(store, planned())
    assert model_error_lines(points_of(store)) == []
    assert model_error_sentence(points_of(store)) == ""

"""What is said of what was not measured, and of how far off a model is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.report.origin import badge_of, common_badge, model_error_texts, origin_texts
from orchestrator.report.text import EMULATED, SIMULATED
from orchestrator.results.store import Store
from tests.unit.report.stores import SOURCE, commit_simulation, points_of


@dataclass(frozen=True)
class Made:
    emulated: bool = False
    simulated: bool = False


MEASURED, EMULATOR, MODEL = Made(), Made(emulated=True), Made(simulated=True)
BOTH = Made(emulated=True, simulated=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


@pytest.mark.parametrize(
    ("origin", "badge"),
    [(MEASURED, ""), (EMULATOR, " (emulated)"), (MODEL, " (simulated)"), (BOTH, " (simulated)")],
)
def test_a_badge_says_what_was_not_measured(origin: Made, badge: str) -> None:
    assert badge_of(origin) == badge


def test_a_badge_of_all_is_none_where_they_differ() -> None:
    assert common_badge([MODEL, BOTH]) == " (simulated)"
    assert common_badge([MODEL, MEASURED]) == common_badge([]) == ""


def test_each_origin_is_said_once() -> None:
    assert origin_texts([MODEL, MEASURED, EMULATOR, BOTH]) == [SIMULATED, EMULATED]
    assert origin_texts([MEASURED]) == []


def test_the_error_of_the_model_is_said_once_with_its_source(store: Store) -> None:
    commit_simulation(store)
    assert model_error_texts(points_of(store)) == [
        "intervals: 9 in 10 measurements within 2.00x (TTFT), 1.25x (all else)",
        f"  model's error by {SOURCE}",
    ]


def test_an_error_that_is_not_known_is_said_to_be(store: Store) -> None:
    commit_simulation(store, error=None)
    (text,) = model_error_texts(points_of(store))
    assert text.startswith("intervals: not known")

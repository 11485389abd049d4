"""A search whose next level depends on what the last one gave, in a sweep that is killed and goes
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.capacity.registry import STRATEGIES
from orchestrator.capacity.strategy import SearchQuestion
from orchestrator.plan.model import Plan
from orchestrator.results.records import AttemptData, Committed
from orchestrator.results.store import Store
from orchestrator.spec.load import Level
from tests.unit.sweep.simulation import plan_of, sweep, world_of

MOST = 8


class Doubling:
    """Doubles the level as long as every request was ok, as its figures say."""

    needs_figures = True

    def __init__(self, question: SearchQuestion) -> None:
        self._next: float | None = 1

    @staticmethod
    def problem(question: SearchQuestion) -> str | None:
        return None

    def ask(self) -> Level | None:
        return None if self._next is None else Level(control="concurrency", value=self._next)

    def tell(self, level: Level, attempt: Committed) -> None:
        assert isinstance(attempt, AttemptData), "without figures it cannot know"
        assert attempt.point.level == level.value
        self._next = (
            level.value * 2 if attempt.figures.requests.failed == 0 and level.value < MOST else None
        )

    def ahead(self) -> Sequence[Level]:
        level = self.ask()
        return () if level is None else (level,)


class Silent(Doubling):
    def ahead(self) -> Sequence[Level]:
        return ()


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    for found in (Doubling, Silent):
        monkeypatch.setitem(
            STRATEGIES._builtin, found.__name__.lower(), f"{__name__}:{found.__name__}"
        )
    return searching("doubling")


def searching(name: str) -> Plan:
    made = plan_of()
    loads = tuple(
        load.model_copy(update={"search": name, "levels": (), "control": "concurrency"})
        for load in made.loads
    )
    return made.model_copy(update={"loads": loads})


def levels(store: Store) -> list[float]:
    return [row["level"] for row in store.read("points").sort_by("level").to_pylist()]


def test_it_is_told_figures_and_asks_until_it_knows(plan: Plan, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    assert sweep(world_of(), plan, store).counts.measured == 4
    assert levels(store) == [1, 2, 4, 8]


def test_a_sweep_that_ended_early_goes_on_where_it_was(plan: Plan, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "x")
    sweep(world_of(), plan, store, interrupt_s=130.0)
    assert levels(store) == [1]
    again = sweep(world_of(), plan, store)
    assert (again.counts.skipped, again.counts.measured) == (1, 3)
    assert levels(store) == [1, 2, 4, 8]
    assert sweep(world_of(), plan, store).counts.measured == 0


def test_a_search_that_does_not_say_what_it_asks_for_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="'silent' asks for a level that its `ahead` does not name"
    ):
        sweep(world_of(), searching("silent"), Store.open(str(tmp_path), "x"))

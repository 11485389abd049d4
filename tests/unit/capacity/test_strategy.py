"""The simplest strategy: the levels of a list, in order."""

from __future__ import annotations

import pytest

from orchestrator.capacity.strategy import LevelsInOrder, SearchQuestion
from orchestrator.spec.load import Level
from tests.unit.capacity.builders import attempt

LOW, HIGH = (Level(control="request_rate", value=value) for value in (2, 8))
ENDED = attempt(2.0, [0.1])


def test_levels_are_asked_for_in_order_and_again_for_each_repeat() -> None:
    strategy = LevelsInOrder(SearchQuestion((LOW, HIGH), repeats=2))
    asked = []
    while True:
        level = strategy.ask()
        if level is None:
            break
        asked.append(level)
        strategy.tell(level, ENDED)
    assert asked == [LOW, HIGH, LOW, HIGH]


def test_it_asks_for_the_same_level_until_it_is_told() -> None:
    strategy = LevelsInOrder(SearchQuestion((LOW, HIGH)))
    assert strategy.ask() == LOW
    assert strategy.ask() == LOW


def test_what_was_measured_in_another_order_is_left_out() -> None:
    strategy = LevelsInOrder(SearchQuestion((LOW, HIGH), repeats=2))
    strategy.tell(HIGH, ENDED)
    assert list(strategy.ahead()) == [LOW, LOW, HIGH]


def test_a_failed_attempt_counts_as_an_answer() -> None:
    strategy = LevelsInOrder(SearchQuestion((LOW,)))
    strategy.tell(LOW, attempt(2.0, [], status="failed", failure_class="infra"))
    assert strategy.ask() is None


@pytest.mark.parametrize(("levels", "is_refused"), [((), True), ((LOW,), False)])
def test_a_question_without_levels_is_refused(levels: tuple[Level, ...], is_refused: bool) -> None:
    assert (LevelsInOrder.problem(SearchQuestion(levels)) is not None) is is_refused

"""What every search strategy does, asked of all that are registered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.base.errors import InputError
from orchestrator.capacity.registry import STRATEGIES
from orchestrator.capacity.strategy import SearchQuestion, Strategy
from orchestrator.results.records import Committed
from orchestrator.spec.load import Level, Slo

LEVELS = tuple(Level(control="concurrency", value=value) for value in (1, 8, 64))
QUESTION = SearchQuestion(LEVELS, "concurrency", (Slo(name="fast", ttft=0.5),), repeats=2)
OK, FAILED = (
    Committed(
        measurement_id="m", attempt_id="a", created_unix_ns=1, status=status, deployment_id="d"
    )
    for status in ("ok", "failed")
)
MOST = 1000  # asks; a strategy that goes on for longer never ends


@pytest.fixture(params=STRATEGIES.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(name: str, question: SearchQuestion = QUESTION) -> Strategy:
    if name != "levels":  # it finds them by itself
        assert STRATEGIES[name].problem(question) is not None
        question = replace(question, levels=())
    assert STRATEGIES[name].problem(question) is None
    return STRATEGIES[name](question)


def asked(strategy: Strategy, attempt: Committed) -> list[Level]:
    """Every level it asks for until it has enough."""
    found = []
    while (level := strategy.ask()) is not None:
        assert strategy.ahead()[0] == level
        found.append(level)
        strategy.tell(level, attempt)
        assert len(found) < MOST
    return found


def test_it_asks_the_same_until_it_is_told(name: str) -> None:
    strategy = made(name)
    first = strategy.ask()
    assert first is not None
    assert strategy.ask() == first
    assert strategy.ahead()[0] == first


@pytest.mark.parametrize("attempt", [OK, FAILED])
def test_it_ends_whatever_comes_of_its_levels(name: str, attempt: Committed) -> None:
    strategy = made(name)
    assert asked(strategy, attempt)
    assert strategy.ask() is None
    assert list(strategy.ahead()) == []


def test_told_the_same_it_asks_the_same_so_a_sweep_can_go_on_where_it_was_killed(name: str) -> None:
    whole = asked(made(name), OK)
    for done in range(len(whole)):
        again = made(name)
        for level in whole[:done]:
            assert again.ask() == level
            again.tell(level, OK)
        assert asked(again, OK) == whole[done:]


def test_every_level_is_of_the_control_that_was_asked_for(name: str) -> None:
    assert {level.control for level in asked(made(name), OK)} == {"concurrency"}


def test_levels_are_measured_in_their_order_and_all_of_them_before_any_again() -> None:
    strategy = made("levels")
    assert strategy.ahead() == LEVELS * 2
    assert asked(strategy, OK) == list(LEVELS * 2)


def test_levels_without_any_are_a_problem() -> None:
    assert "given levels" in str(STRATEGIES["levels"].problem(SearchQuestion()))


def test_an_unknown_name_is_an_input_error_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match="'level'.*did you mean 'levels'"):
        STRATEGIES["level"]

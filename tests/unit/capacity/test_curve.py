"""A ladder of levels from idle to saturation, on servers whose curve is known."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.capacity.curve import Curve
from orchestrator.capacity.levels import ANY_LEVEL, LevelRange
from orchestrator.capacity.strategy import SearchQuestion
from orchestrator.results.records import AttemptData, Committed
from orchestrator.spec.load import Control, Level, Slo

SLO = Slo(name="fast", ttft=1.0)
E2E_S, TOKENS = 2.0, 10


def attempt(level: Level, slots: float, came: float = 1.0, validity: str = "valid") -> AttemptData:
    """An attempt at a server with so many slots, where each request takes 2 s of one, and is late
    if it waits for it. ``came``: throughput, as a multiple of the average.
    """
    offered = level.value if level.control == "request_rate" else level.value / E2E_S
    rate = min(offered, slots / E2E_S)
    met = rate / offered if level.control == "request_rate" else float(level.value <= slots)
    late = np.arange(100) >= 100 * met
    figures: Any = SimpleNamespace(
        output_token_throughput=rate * TOKENS * came,
        e2e_ms=SimpleNamespace(mean=1e3 * (E2E_S if met == 1 else 10 * E2E_S)),
        requests=SimpleNamespace(ok=100),
    )
    values = {
        f"request_{name}_s": np.where(late, 9.0, 0.1)
        for name in ("ttft", "tpot", "e2e", "normalized_ttft")
    }
    return AttemptData(
        measurement_id="m", attempt_id="a", created_unix_ns=0, status="ok", metrics_version=0, point=SimpleNamespace(validity=validity),  # type: ignore[arg-type]
        deployment=None, figures=figures, batch_tokens=(), batch_s=(), request_ok=np.ones(100, bool), **values,  # type: ignore[arg-type]
    )  # fmt: skip


def measured(
    slots: float,
    control: Control,
    guess: float | None = None,
    repeats: int = 1,
    sendable: LevelRange = ANY_LEVEL,
) -> list[float]:
    question = SearchQuestion((), control, (SLO,), repeats, guess, sendable=sendable)
    curve = Curve(question)
    found = []
    while (level := curve.ask()) is not None:
        assert curve.ahead()[0] == level
        found.append(level.value)
        curve.tell(level, attempt(level, slots))
    return found


@pytest.mark.parametrize(
    ("validity", "goes_on"),
    [("valid", True), ("disturbed", True), ("invalid", False), ("broken_output", False)],
)
def test_it_ends_at_a_verdict_that_no_other_load_changes(validity: str, goes_on: bool) -> None:
    curve = Curve(SearchQuestion((), "concurrency", (SLO,), 1, None))
    level = curve.ask()
    assert level is not None
    curve.tell(level, attempt(level, 8.0, validity=validity))
    assert (curve.ask() is not None) == goes_on
    assert bool(curve.ahead()) == goes_on


def test_a_closed_loop_doubles_until_more_in_flight_gives_no_more() -> None:
    assert measured(16, "concurrency") == [1, 2, 4, 8, 16, 32, 23]


@pytest.mark.parametrize(
    ("guess", "expected"),
    [
        (None, [1, 2, 4, 8, 16, 0.5, 0.25, 11.3]),
        (8.0, [1, 2, 4, 8, 16, 0.5, 0.25, 11.3]),
        (0.8, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 9.05]),
        (800.0, [100, 50, 25, 12.5, 6.25, 3.125, 1.5625, 0.78125, 0.390625, 8.84]),
    ],
)
def test_rates_reach_from_idle_to_saturated_wherever_they_start(
    guess: float | None, expected: list[float]
) -> None:
    assert measured(16, "request_rate", guess) == expected


@given(st.floats(0.01, 1e4), st.none() | st.floats(0.01, 1e4), st.integers(1, 3))
def test_a_ladder_brackets_the_capacity_and_repeats_every_level(
    slots: float, guess: float | None, repeats: int
) -> None:
    found = measured(slots, "request_rate", guess, repeats)
    capacity, once = slots / E2E_S, sorted(set(found))
    assert sorted(found) == sorted(once * repeats)
    assert once[0] * E2E_S < 1 or len(once) >= 12, "idle, or as far down as it goes"
    assert max(once) > capacity or len(once) >= 12
    if once[0] < capacity < once[-1]:
        above, below = min(x for x in once if x > capacity), max(x for x in once if x <= capacity)
        assert above / below <= 2.1


@pytest.mark.parametrize("guess", [None, 3.0, 80.0])
def test_a_ladder_goes_no_higher_and_no_lower_than_can_be_sent(guess: float | None) -> None:
    rates = measured(1e6, "request_rate", guess, sendable=LevelRange(0.4, 3.3))
    assert max(rates) == 3.3, "where nothing fails, the highest is measured"
    assert min(rates) == 3.3 / 8, "the engine is idle below, and 3.3 / 16 cannot be sent"
    assert {math.log2(3.3 / rate) for rate in rates} <= set(range(8))


def test_the_level_in_between_is_next_to_saturation() -> None:
    curve, found = Curve(SearchQuestion((), "request_rate", (SLO,), 1, None)), []
    while (level := curve.ask()) is not None:
        found.append(level.value)
        curve.tell(level, attempt(level, 16, came=0.8 if level.value == 4 else 1.0))
    assert found == [1, 2, 4, 8, 16, 0.5, 0.25, 11.3]


def test_levels_that_fail_end_the_ladder_and_unknown_ones_do_not() -> None:
    curve, seen = Curve(SearchQuestion((), "concurrency")), []
    while (level := curve.ask()) is not None:
        seen.append(level.value)
        status: Any = "failed" if level.value >= 8 else "ok"
        curve.tell(
            level, Committed(measurement_id="m", attempt_id="a", created_unix_ns=1, status=status)
        )
    assert seen == [1, 2, 4, 8, 6]


@given(st.floats(1, 1e3), st.integers(1, 3), st.integers(0, 30))
def test_a_ladder_told_of_earlier_attempts_goes_on_where_it_was(
    slots: float, repeats: int, done: int
) -> None:
    whole = measured(slots, "request_rate", None, repeats)
    curve = Curve(SearchQuestion((), "request_rate", (SLO,), repeats))
    for value in whole[:done]:
        level = Level(control="request_rate", value=value)
        curve.tell(level, attempt(level, slots))
    rest = []
    while (found := curve.ask()) is not None:
        rest.append(found.value)
        curve.tell(found, attempt(found, slots))
    assert rest == whole[done:]

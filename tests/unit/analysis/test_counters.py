"""Counters and gauges between and around their readings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.counters import CounterFell, Readings, TimeWindow, readings


def read(*pairs: tuple[float, float]) -> Readings:
    at_s, values = zip(*pairs, strict=True)
    return readings(np.array(at_s, np.float64), np.array(values, np.float64))


def test_a_counter_is_interpolated_at_the_ends_of_the_window() -> None:
    # 0 at 0 s, 10 at 1 s, 40 at 2 s: from 0.5 s (5) to 1.5 s (25) it grows by 20
    assert read((0, 0), (1, 10), (2, 40)).rate(TimeWindow(0.5, 1.5)) == pytest.approx(20)


def test_a_gauge_has_the_area_under_its_readings() -> None:
    # 100 until 1 s, then rising to 300 at 2 s: from 0 to 2 s its mean is (100 + 200) / 2
    assert read((0, 100), (1, 100), (2, 300)).mean(TimeWindow(0, 2)) == pytest.approx(150)
    # from 1.5 to 2 s it rises from 200 to 300
    assert read((0, 100), (1, 100), (2, 300)).mean(TimeWindow(1.5, 2)) == pytest.approx(250)


def test_a_reading_without_a_value_is_left_out() -> None:
    assert read((0, 0), (1, math.nan), (2, 40)).rate(TimeWindow(0, 2)) == pytest.approx(20)


def test_a_counter_that_fell_has_no_growth() -> None:
    with pytest.raises(CounterFell):
        read((0, 5), (1, 7), (2, 1)).rate(TimeWindow(0, 2))


@pytest.mark.parametrize("window", [TimeWindow(2, 4), TimeWindow(2.5, 3.5)])
def test_a_fall_outside_the_window_does_not_count(window: TimeWindow) -> None:
    counter = read((0, 90), (1, 100), (2, 0), (3, 10), (4, 20), (5, 0))
    assert counter.rate(window) == pytest.approx(10)


@pytest.mark.parametrize("window", [TimeWindow(1.5, 4), TimeWindow(2, 4.5)])
def test_a_fall_at_an_end_of_the_window_counts(window: TimeWindow) -> None:
    with pytest.raises(CounterFell):
        read((0, 90), (1, 100), (2, 0), (3, 10), (4, 20), (5, 0)).rate(window)


@pytest.mark.parametrize("window", [TimeWindow(-2, 2), TimeWindow(0, 4), TimeWindow(5, 6)])
def test_a_window_that_was_not_read_has_no_figure(window: TimeWindow) -> None:
    counter = read((0, 0), (1, 10), (2, 20))
    assert math.isnan(counter.rate(window))
    assert math.isnan(counter.mean(window))


def test_less_than_a_second_at_an_end_may_be_missing() -> None:
    assert read((0.5, 0), (9.5, 90)).rate(TimeWindow(0, 10)) == pytest.approx(10)


@given(
    rates=st.lists(st.floats(0, 1e6), min_size=2, max_size=20),
    cut=st.floats(0.01, 0.99),
)
def test_the_growth_of_two_parts_is_that_of_the_whole(rates: list[float], cut: float) -> None:
    values = np.cumsum(rates)
    at_s = np.arange(len(values), dtype=np.float64)
    counter = readings(at_s, values)
    whole = TimeWindow(0, at_s[-1])
    middle_s = cut * at_s[-1]
    first, second = TimeWindow(0, middle_s), TimeWindow(middle_s, at_s[-1])
    parts = counter.rate(first) * first.length_s + counter.rate(second) * second.length_s
    assert parts == pytest.approx(counter.rate(whole) * whole.length_s, abs=1e-6)

"""Runs of misses, and the fit over levels that never rises."""

from __future__ import annotations

import pytest

from orchestrator.capacity.design_effect import isotonic


def test_values_that_fall_stay_as_they_are() -> None:
    assert isotonic([0.9, 0.5, 0.5, 0.1], [1.0, 2.0, 3.0, 4.0]) == [0.9, 0.5, 0.5, 0.1]


def test_neighbours_that_rise_become_their_weighted_mean() -> None:
    assert isotonic([0.9, 0.2, 0.6], [1.0, 1.0, 3.0]) == pytest.approx([0.9, 0.5, 0.5], abs=1e-12)


def test_a_late_rise_pools_all_that_came_before() -> None:
    assert isotonic([0.3, 0.2, 0.9], [1.0, 1.0, 2.0]) == pytest.approx([0.575] * 3, abs=1e-12)


def test_one_value_is_its_own_fit() -> None:
    assert isotonic([0.25], [7.0]) == [0.25]

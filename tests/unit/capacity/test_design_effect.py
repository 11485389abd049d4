"""Runs of misses, and how much less dependent requests tell."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.capacity.design_effect import (
    PRIOR_EFFECT,
    MissRuns,
    design_effect,
    miss_runs,
    not_rising,
    usual_effect,
)
from tests.unit.capacity.builders import flags, runs_of_misses


@pytest.mark.parametrize(("length", "low", "high"), [(1, 1.0, 2.0), (20, 15.0, 90.0)])
def test_the_design_effect_sees_runs_of_misses(length: float, low: float, high: float) -> None:
    flags = runs_of_misses(np.random.default_rng(7), 0.9, length, 40_000)
    assert low <= design_effect([flags]) <= high


def test_values_that_fall_stay_as_they_are() -> None:
    assert not_rising([0.9, 0.5, 0.5, 0.1], [1.0, 2.0, 3.0, 4.0]) == [0.9, 0.5, 0.5, 0.1]


def test_neighbours_that_rise_become_their_weighted_mean() -> None:
    assert not_rising([0.9, 0.2, 0.6], [1.0, 1.0, 3.0]) == pytest.approx([0.9, 0.5, 0.5], abs=1e-12)


def test_a_late_rise_pools_all_that_came_before() -> None:
    assert not_rising([0.3, 0.2, 0.9], [1.0, 1.0, 2.0]) == pytest.approx([0.575] * 3, abs=1e-12)


def test_one_value_is_its_own_fit() -> None:
    assert not_rising([0.25], [7.0]) == [0.25]


def test_without_any_level_the_effect_is_assumed() -> None:
    assert usual_effect([], 0.95) == PRIOR_EFFECT


def test_many_runs_of_misses_outweigh_what_is_assumed() -> None:
    assert usual_effect([MissRuns(0.05, 3.0, 10**9)], 0.95) == pytest.approx(3.0)


def test_the_usual_effect_lies_between_levels_on_both_sides_of_the_target() -> None:
    seen = [MissRuns(0.02, 2.0, 10**9), MissRuns(0.1, 8.0, 10**9)]
    assert 2.0 < usual_effect(seen, 0.95) < 8.0


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_levels_without_misses_or_with_too_many_tell_no_runs(share: float) -> None:
    assert miss_runs([flags(share)[0]], 0.95) is None

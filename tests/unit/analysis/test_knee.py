"""Where a throughput curve bends."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.knee import knee, knees
from orchestrator.analysis.points import load_points
from orchestrator.results.store import Store
from tests.unit.results.builders import commit_measurement, request

LEVELS = [1, 2, 4, 8, 16, 32]
SERVED = {1: 1, 2: 2, 4: 4, 8: 5, 16: 5}  # requests/s at each level


def test_a_curve_that_is_cut_off_has_its_knee_there() -> None:
    assert knee(LEVELS, [min(level, 9) for level in LEVELS]) == 3


def test_a_curve_that_rises_ever_faster_has_none() -> None:
    assert knee(LEVELS, [level * 1.02**index for index, level in enumerate(LEVELS)]) is None


def test_three_levels_are_too_few() -> None:
    assert knee(LEVELS[:3], [1, 2, 2]) is None


def test_a_flat_curve_has_none() -> None:
    assert knee(LEVELS, [5.0] * 6) is None


def test_a_smooth_curve_has_its_knee_where_its_slope_is_the_mean() -> None:
    levels = range(1, 33)
    smooth = [1 - math.exp(-level / 4) for level in levels]
    slope = (smooth[-1] - smooth[0]) / 31
    assert knee(levels, smooth) == pytest.approx(4 * math.log(1 / (4 * slope)) - 1, abs=1)


def commit(store: Store, level: float, served: int, **point: Any) -> None:
    """One second at ``level``, in which this many requests are answered."""
    point_id = f"{point.get('deployment_id', 'd0')}-{point.get('workload', 'chat')}-{level}"
    fields = {"point_id": point_id, "level": level, "window_end_ns": 10**9}
    rows = [request(index, 10.0 * index, tokens=10) for index in range(served)]
    commit_measurement(store, f"m-{point_id}", rows, **fields | point)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def test_each_workload_of_each_deployment_has_a_curve_of_its_own(store: Store) -> None:
    for level, served in SERVED.items():
        commit(store, level, served)
        commit(store, level, served, workload="batch")
        commit(store, level, level, deployment_id="d1")
    assert knees(load_points(store)) == {"d0-chat-4", "d0-batch-4"}


def test_points_that_are_not_valid_are_not_part_of_a_curve(store: Store) -> None:
    for level, served in SERVED.items():
        commit(store, level, served, validity="client_bound" if level < 4 else "valid")
    assert knees(load_points(store)) == frozenset()


def test_points_that_fell_behind_are_part_of_a_curve(store: Store) -> None:
    for level, served in SERVED.items():
        commit(store, level, served, validity="engine_bound_backlog" if level > 4 else "valid")
    assert knees(load_points(store)) == {"d0-chat-4"}


def test_requests_all_at_once_have_no_place_on_the_axis(store: Store) -> None:
    for level, served in SERVED.items():
        commit(store, level if level < 16 else math.inf, served)
    assert knees(load_points(store)) == {"d0-chat-4"}

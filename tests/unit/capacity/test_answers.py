"""What is known of a ranked deployment: its level, and the bounds of its request rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.points import load_points
from orchestrator.capacity.answers import RankedDeployment, RateBounds, level_at
from orchestrator.capacity.claim import Claim
from tests.unit.capacity.stored_levels import SLO, StoredLevels

CONVERGED = Claim(claim=8.0, low=8.0, high=10.0, status="converged", levels=())


def ranked(folder: Path, capacity: Claim | None, **point: Any) -> RankedDeployment:
    """A deployment of two GPUs that was measured at a level of 4."""
    stored = StoredLevels(folder)
    stored.level("d0", 4, **point)
    (measured,) = load_points(stored.store, SLO)
    unknown = Interval(math.nan, math.nan, math.nan)
    return RankedDeployment(measured, unknown, unknown, False, (), 0.0, capacity, divisor=2.0)


def test_bounds_of_a_rate_are_those_of_the_search_per_unit(tmp_path: Path) -> None:
    assert ranked(tmp_path, CONVERGED).bounds == RateBounds(claim=8 / 2, fails=10 / 2)


def test_more_requests_in_flight_bound_no_rate(tmp_path: Path) -> None:
    assert ranked(tmp_path, CONVERGED, control="concurrency").bounds is None


@pytest.mark.parametrize("capacity", [None, Claim(None, 0.0, 10.0, "budget", ())])
def test_without_a_claim_there_are_no_bounds(capacity: Claim | None, tmp_path: Path) -> None:
    assert ranked(tmp_path, capacity).bounds is None


def test_the_level_is_that_of_the_point(tmp_path: Path) -> None:
    assert ranked(tmp_path, None).level == level_at("request_rate", 4)

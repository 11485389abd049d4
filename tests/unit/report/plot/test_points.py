"""The points that a picture shows: their numbers, their order, and the names of their curves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.report.plot.points import (
    PlottedPoint,
    frontier_points,
    number_of,
    points_of,
    points_of_documents,
    series_of,
)
from tests.unit.report.plot.frames import frame, row


def points(*rows: dict[str, Any]) -> list[PlottedPoint]:
    return points_of(frame(*rows))


def test_what_a_row_does_not_have_is_no_number() -> None:
    assert math.isnan(number_of(None))
    assert number_of(True) == 1


def test_a_point_has_the_numbers_of_its_row() -> None:
    (point,) = points(row(level=2.0, per_user=50.0, hardware=None))
    assert point.numbers["per_user"] == 50
    assert point.hardware == ""


def test_a_column_that_no_point_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown column 'ttft_ms\.p98'.*ttft_ms\.p9"):
        points_of_documents([], ["ttft_ms.p98"])


def test_the_points_of_a_curve_ascend_with_their_level() -> None:
    (series,) = series_of(points(row(level=4.0), row(level=2.0)))
    assert [point.numbers["level"] for point in series.points] == [2, 4]


def test_deployments_on_the_frontier_come_first() -> None:
    beaten = row("beaten", per_user=50.0, per_device=90.0)
    for_users = row("for users", per_user=99.0, per_device=80.0)
    for_devices = row("for devices", per_user=60.0, per_device=95.0)
    labels = [each.label for each in series_of(points(beaten, for_users, for_devices))]
    assert labels == ["for devices", "for users", "beaten"]


def test_points_that_are_not_valid_are_on_no_frontier() -> None:
    valid = row("valid", per_user=50.0, per_device=90.0)
    other = row("not valid", per_user=99.0, per_device=99.0, validity="disturbed")
    assert [point.deployment for point in frontier_points(points(valid, other))] == ["valid"]


def test_a_level_of_all_at_once_has_no_place_on_an_axis() -> None:
    (finite, infinite) = series_of(points(row("a"), row("b", level=math.inf, per_device=1.0)))
    assert (finite.has_all_at_once, infinite.has_all_at_once) == (False, True)

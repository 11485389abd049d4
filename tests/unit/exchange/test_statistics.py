"""Figures that other tools state, where some statistics are left out."""

from __future__ import annotations

import math

import pytest

from orchestrator.exchange.statistics import (
    disagrees,
    distribution_of,
    filled_in,
    imported_figures,
    only_mean,
    stated_distribution,
)
from orchestrator.results.records import RequestTotals


def test_values_that_are_unknown_are_not_part_of_a_distribution() -> None:
    values = distribution_of([1.0, None, 3.0])
    assert values is not None
    assert values.mean == 2
    assert distribution_of([None]) is None


def test_statistics_that_a_file_leaves_out_come_from_its_requests() -> None:
    stated = stated_distribution({"mean": 10.0, "p99": None})
    filled = filled_in(stated, distribution_of([1.0, 3.0]))
    assert filled is not None
    assert filled.mean == 10
    assert filled.p50 == 2  # of 1 and 3


def test_what_only_the_file_or_only_its_requests_have_is_taken_as_it_is() -> None:
    stated = stated_distribution({"mean": 10.0})
    assert filled_in(stated, None) is stated
    assert filled_in(None, stated) is stated


@pytest.mark.parametrize(
    ("stated_ms", "own_ms", "is_wrong"),
    [
        (1004.0, 1000.0, False),  # 0.4 %
        (1006.0, 1000.0, True),  # 0.6 %
        (0.0009, 0.0, False),  # less than a microsecond
        (0.0011, 0.0, True),
    ],
)
def test_a_mean_may_be_half_a_percent_or_a_microsecond_off(
    stated_ms: float, own_ms: float, is_wrong: bool
) -> None:
    stated = stated_distribution({"mean": stated_ms})
    assert disagrees(stated, stated_distribution({"mean": own_ms})) is is_wrong


def test_of_a_sum_and_a_number_only_the_mean_is_known() -> None:
    values = only_mean(total=30.0, count=4)
    assert values is not None
    assert values.mean == 7.5
    assert math.isnan(values.p99)
    assert only_mean(total=0.0, count=0) is None


def test_figures_of_a_tool_count_failures_and_minutes() -> None:
    totals = RequestTotals(scheduled=10, ok=8, failed=2)
    figures = imported_figures(totals, 5.0, {"request_throughput": 1.5}, {})
    assert figures.errors == {"error": 2}
    assert figures.requests_per_minute == 90  # 60 x 1.5

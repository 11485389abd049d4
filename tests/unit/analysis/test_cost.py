"""What tokens cost, by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.analysis.cost import MillionTokens, allocated_usd, usd_per_million
from orchestrator.analysis.points import StoredPoint


@dataclass
class Point:
    """The parts of a point that prices need."""

    input_s: float | None
    output_s: float
    usd_per_hour: float | None = 3.6
    workload: str = "chat"
    validity: str = "valid"
    deployment_id: str = "d0"
    figures: Any = field(init=False)

    def __post_init__(self) -> None:
        total = None if self.input_s is None else self.input_s + self.output_s
        self.figures = SimpleNamespace(
            input_token_throughput=self.input_s,
            output_token_throughput=self.output_s,
            total_token_throughput=total,
        )

    @property
    def head(self) -> Any:
        return SimpleNamespace(deployment_id=self.deployment_id, workload=self.workload)

    @property
    def deployment(self) -> Any:
        return SimpleNamespace(usd_per_hour=self.usd_per_hour)


def stored(*points: Point) -> list[StoredPoint]:
    return cast("list[StoredPoint]", list(points))


def test_each_convention_by_hand() -> None:
    # 3.6 USD an hour are 0.001 USD/s: of 100 output tokens 10 USD a million, of 400 input tokens
    # 2.50, of all 500 tokens 2.00
    (point,) = stored(Point(input_s=400, output_s=100))
    prices = usd_per_million(point)
    assert (prices.output, prices.input_only, prices.blended) == pytest.approx((10, 2.5, 2))


def test_unknown_prompts_and_unknown_prices_are_none() -> None:
    (uncounted,) = stored(Point(input_s=None, output_s=100))
    prices = usd_per_million(uncounted)
    assert prices.output == pytest.approx(10)
    assert prices.blended is None and prices.input_only is None
    (free,) = stored(Point(input_s=400, output_s=100, usd_per_hour=None))
    assert usd_per_million(free) == MillionTokens(None, None, None)


def test_two_workloads_pay_for_their_hours_together() -> None:
    # 1,000 a + 100 b = 200 a + 180 b = 0.001 USD: b = 10 a, so a = 0.5 and b = 5 USD a million
    points = stored(
        Point(input_s=1000, output_s=100, workload="long"),
        Point(input_s=200, output_s=180, workload="short"),
    )
    prices = allocated_usd(points)["d0"]
    assert (prices.input, prices.output) == pytest.approx((0.5, 5.0))


def test_the_busiest_valid_point_of_each_workload_counts() -> None:
    points = stored(
        Point(input_s=1000, output_s=100, workload="long"),
        Point(input_s=10, output_s=1, workload="long"),
        Point(input_s=9000, output_s=900, workload="long", validity="disturbed"),
        Point(input_s=200, output_s=180, workload="short"),
    )
    assert allocated_usd(points)["d0"].output == pytest.approx(5.0)


@pytest.mark.parametrize(
    "others",
    [
        [],
        [Point(input_s=500, output_s=51, workload="alike")],
        # more of both in the same time: one price would have to be below 0
        [Point(input_s=1500, output_s=400, workload="faster")],
        [Point(input_s=200, output_s=180, workload="short", deployment_id="d1")],
        [Point(input_s=200, output_s=180, workload="short", validity="client_bound")],
    ],
)
def test_where_they_cannot_be_told_apart_there_are_no_prices(others: list[Point]) -> None:
    points = stored(Point(input_s=1000, output_s=100, workload="long"), *others)
    assert allocated_usd(points) == {}

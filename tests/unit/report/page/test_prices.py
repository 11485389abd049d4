from dataclasses import replace

import pytest

from orchestrator.analysis.points import StoredPoint
from orchestrator.report.page.prices import TokenPrice, token_price
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.stores import points_of


@pytest.fixture
def point(tmp_path) -> StoredPoint:
    """80 output tokens/s; of 10 input tokens/s each has 10."""
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned())
    return points_of(store)[0]


def priced(point: StoredPoint, usd_per_hour: float | None) -> StoredPoint:
    return replace(point, deployment=replace(point.deployment, usd_per_hour=usd_per_hour))


def test_both_prices_together_pay_for_the_hour(point):
    price = token_price(priced(point, 3.6), ratio=4)
    assert price is not None and price.input is not None and price.output is not None
    assert price.output == pytest.approx(4 * price.input)
    tokens_in = point.figures.input_token_throughput * 3600
    tokens_out = point.figures.output_token_throughput * 3600
    hour = (tokens_in * price.input + tokens_out * price.output) / 1e6
    assert hour == pytest.approx(3.6)


def test_with_free_input_the_output_pays_alone(point):
    price = token_price(priced(point, 3.6))
    assert price is not None
    tokens_out = point.figures.output_token_throughput * 3600
    assert price.output_alone == pytest.approx(3.6 / tokens_out * 1e6)


def test_without_counted_prompts_only_that_is_known(point):
    class Uncounted:
        deployment = priced(point, 3.6).deployment
        figures = replace(point.figures, input_token_throughput=None)

    assert token_price(Uncounted()) == TokenPrice(None, None, pytest.approx(12.5, rel=0.05))


@pytest.mark.parametrize("usd_per_hour", [None, 0.0])
def test_without_a_price_nothing_is_known(point, usd_per_hour):
    assert token_price(priced(point, usd_per_hour)) is None

"""What tokens cost, under conventions that are named.

In MillionTokens, ``output`` and ``input_only`` each charge the whole hour to tokens of one kind, so
they must not be added (NVIDIA's formula for total cost of ownership: USD per hour / (3600 x
tokens/s) x 10^6).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.points import StoredPoint
from orchestrator.base.grouping import values_by_key

MILLION = 1e6
# If the shares of output tokens differ by less than this between workloads, the prices of input and
# output tokens cannot be told apart.
_LEAST_MIX_DIFFERENCE = 0.05


@dataclass(frozen=True, slots=True)
class AllocatedUsd:
    """USD per million input and output tokens that together pay for the hours."""

    input: float
    output: float


@dataclass(frozen=True, slots=True)
class MillionTokens:
    """USD per million tokens at one load; None: not known.

    ``output``: output tokens carry the whole hour. ``input_only``: input tokens do. ``blended``:
    all tokens cost the same.
    """

    output: float | None
    blended: float | None
    input_only: float | None


def usd_per_million(point: StoredPoint) -> MillionTokens:
    """What tokens cost at the load of a point."""
    usd_per_hour = point.deployment.usd_per_hour
    if not usd_per_hour:
        return MillionTokens(None, None, None)  # before figures are decoded
    figures = point.figures
    return MillionTokens(
        output=_usd_per_million(usd_per_hour, figures.output_token_throughput),
        blended=_usd_per_million(usd_per_hour, figures.total_token_throughput),
        input_only=_usd_per_million(usd_per_hour, figures.input_token_throughput),
    )


def _usd_per_million(usd_per_hour: float, tokens_s: float | None) -> float | None:
    if not tokens_s:
        return None
    return usd_per_hour / (3600 * tokens_s) * MILLION


def allocated_usd(points: Iterable[StoredPoint]) -> dict[str, AllocatedUsd]:
    """By deployment, prices of input and output tokens that pay for the hours of all its workloads.

    Of each workload the valid point with the most tokens per second counts. The prices are the
    non-negative least squares of USD per second = input tokens/s x a + output tokens/s x b. A
    deployment has none with a single workload, with workloads of nearly the same mix, and where one
    price would be zero.
    """
    by_deployment = values_by_key((point.head.deployment_id, point) for point in points)
    allocated: dict[str, AllocatedUsd] = {}
    for deployment_id, of_deployment in by_deployment.items():
        usd_per_hour = of_deployment[0].deployment.usd_per_hour
        workloads = {point.head.workload for point in of_deployment}
        if len(workloads) < 2 or not usd_per_hour:
            continue  # before its figures are read
        prices = _allocated(_busiest(of_deployment), usd_per_hour)
        if prices is not None:
            allocated[deployment_id] = prices
    return allocated


def _busiest(points: Sequence[StoredPoint]) -> list[StoredPoint]:
    """The valid point with the most tokens per second, of each workload."""
    busiest: dict[str, StoredPoint] = {}
    highest_rates: dict[str, float] = {}
    for point in points:
        rate = point.figures.total_token_throughput
        if point.validity != "valid" or not rate:
            continue
        workload = point.head.workload
        if rate > highest_rates.get(workload, 0.0):
            highest_rates[workload] = rate
            busiest[workload] = point
    return list(busiest.values())


def _allocated(points: Sequence[StoredPoint], usd_per_hour: float) -> AllocatedUsd | None:
    if len(points) < 2:
        return None
    from scipy.optimize import nnls  # imported late: it takes 0.4 s that most answers can save

    rates = np.array(
        [
            [
                point.figures.input_token_throughput or 0.0,
                point.figures.output_token_throughput or 0.0,
            ]
            for point in points
        ]
    )
    output_shares = rates[:, 1] / rates.sum(axis=1)
    if np.ptp(output_shares) < _LEAST_MIX_DIFFERENCE:
        return None
    usd_per_s = np.full(len(points), usd_per_hour / 3600)
    (input_price, output_price), _ = nnls(rates, usd_per_s)
    if input_price <= 0 or output_price <= 0:
        return None
    return AllocatedUsd(float(input_price) * MILLION, float(output_price) * MILLION)

"""Whether the figures that a file states follow from the requests that it lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.exchange.imported import ImportedRequest
from orchestrator.exchange.statistics import LEAST_TOLERANCE, TOLERANCE, disagrees, only_mean
from orchestrator.results.records import Distribution, Figures

SHARES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


class Values:
    """The values of one figure, of all answered requests, in ms or tokens, in ascending order.

    ``weights``: how often each value counts; None: once.
    """

    def __init__(
        self, values: Iterable[float | None], weights: Sequence[float] | None = None
    ) -> None:
        present = np.asarray([value for value in values if value is not None], np.float64)
        order = np.argsort(present)
        weighted = np.ones(len(present)) if weights is None else np.asarray(weights, np.float64)
        self.values: NDArray[np.float64] = present[order]
        self._weights: NDArray[np.float64] = weighted[order]

    def mean(self) -> Distribution | None:
        """Their mean alone; None without values."""
        return only_mean(float(self.values @ self._weights), float(self._weights.sum()))

    def around(self, share: float) -> tuple[float, float]:
        """The lowest and the highest value that a tool may call this percentile.

        Tools interpolate in different ways, or not at all: any value from the neighbour below to
        the neighbour above is one. The ends of the distribution have no such room.
        """
        last = len(self.values) - 1
        if share in (0.0, 1.0):
            end = float(self.values[0 if share == 0 else last])
            return end, end
        ends = np.cumsum(self._weights)
        place = int(np.searchsorted(ends, share * ends[-1] * (1 - 1e-12)))  # rounding
        below = self.values[max(place - 1, 0)]
        above = self.values[min(place + 1, last)]
        return float(below), float(above)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRequests:
    """What the requests of a file say, under the definitions of its tool.

    ``values``: by the figure's name in Figures. ``names``: what the file calls figures and rates.
    ``times_s``: the shortest and the longest time that its rates may be counted over, in seconds.
    ``surely_counted``: those that its rates include; the others may be included or not.
    """

    requests: Sequence[ImportedRequest]
    surely_counted: Sequence[ImportedRequest]
    values: Mapping[str, Values]
    names: Mapping[str, str]
    times_s: tuple[float, float]

    def contradictions(self, figures: Figures) -> list[str]:
        """A sentence for each stated figure that these requests contradict."""
        if not self.requests:
            return []
        return [*self._counts(figures), *self._latencies(figures), *self._rates(figures)]

    def _counts(self, figures: Figures) -> Iterable[str]:
        totals = figures.requests
        answered = len(_answered(self.requests))
        failed = len(self.requests) - answered
        if (totals.ok, totals.failed) != (answered, failed):
            yield (
                f"it states {totals.ok} answered and {totals.failed} failed requests, "
                f"and lists {answered} and {failed}"
            )

    def _latencies(self, figures: Figures) -> Iterable[str]:
        """Means, ends and percentiles, of lengths too."""
        for figure, values in self.values.items():
            stated: Distribution | None = getattr(figures, figure)
            if stated is None or not len(values.values):
                continue
            name = self.names[figure]
            if not math.isnan(stated.mean) and disagrees(stated, values.mean()):
                yield f"the mean of {name} is not that of its own requests"
            for statistic, share in SHARES.items():
                value = getattr(stated, statistic)
                if not math.isnan(value) and not _is_between(value, *values.around(share)):
                    yield f"{statistic} of {name} is not that of its own requests"

    def _rates(self, figures: Figures) -> Iterable[str]:
        shortest_s, longest_s = self.times_s
        least = _rate_counts(_answered(self.surely_counted))
        most = _rate_counts(_answered(self.requests))
        for rate, most_count in most.items():
            stated: float | None = getattr(figures, rate)
            least_count = least[rate]
            if stated is None or most_count is None or least_count is None:
                continue
            low, high = least_count / longest_s, most_count / shortest_s
            if not _is_between(stated, low, high):
                own = f"{low:.6g}" if math.isclose(low, high) else f"{low:.6g} to {high:.6g}"
                yield f"{self.names[rate]} is {stated:.6g}/s, and its own requests give {own}/s"
        span_s = _span_s(_answered(self.surely_counted))
        if figures.window_s < span_s * (1 - TOLERANCE) - LEAST_TOLERANCE:
            yield f"its requests took {span_s:.6g} s, and its run {figures.window_s:.6g} s"


def _answered(requests: Sequence[ImportedRequest]) -> Sequence[ImportedRequest]:
    return [request for request in requests if request.error is None]


def _is_between(value: float, low: float, high: float) -> bool:
    low -= max(abs(low) * TOLERANCE, LEAST_TOLERANCE)
    high += max(abs(high) * TOLERANCE, LEAST_TOLERANCE)
    return low <= value <= high


def _rate_counts(answered: Sequence[ImportedRequest]) -> Mapping[str, int | None]:
    """What each rate counts; None where a request does not say its tokens."""
    inputs = _sum([request.input_tokens for request in answered])
    outputs = _sum([request.output_tokens for request in answered])
    return {
        "request_throughput": len(answered),
        "input_token_throughput": inputs,
        "output_token_throughput": outputs,
        "total_token_throughput": _sum([inputs, outputs]),
    }


def _sum(counts: Sequence[int | None]) -> int | None:
    present = [count for count in counts if count is not None]
    return sum(present) if len(present) == len(counts) else None


def _span_s(answered: Sequence[ImportedRequest]) -> float:
    """From sending the first to the last token of the last, in seconds."""
    if not answered:
        return 0.0
    begin_ns = min(request.sent_ns for request in answered)
    ends_ns = [request.last_token_ns or request.done_ns for request in answered]
    return (max(ends_ns) - begin_ns) / 1e9

"""Figures as other tools state them, in the shape of ours; what a file does not state is NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from orchestrator.analysis.metrics import distribution
from orchestrator.results.records import Distribution, Figures, RequestTotals

# By how much a figure that a file states may differ from that of its own requests: by this share of
# it or, where it is near 0, by so much in its own unit.
TOLERANCE = 0.005
LEAST_TOLERANCE = 1e-3


def distribution_of(values: Iterable[float | None]) -> Distribution | None:
    """The distribution of the values that are not None; None if all are. Percentiles are
    interpolated linearly.
    """
    present = [value for value in values if value is not None]
    return distribution(np.asarray(present, np.float64))


def filled_in(stated: Distribution | None, of_requests: Distribution | None) -> Distribution | None:
    """The statistics that a file states; those that it leaves out are computed from its requests.

    ``stated``: NaN where the file states nothing. ``of_requests``: None: the file has no requests.
    """
    if stated is None or of_requests is None:
        return stated or of_requests
    values = {}
    for name in Distribution.__slots__:
        value = getattr(stated, name)
        values[name] = getattr(of_requests, name) if math.isnan(value) else value
    return Distribution(**values)


def disagrees(stated: Distribution | None, of_requests: Distribution | None) -> bool:
    """Whether the mean of a latency (ms) or length (tokens) that a file states is not that of its
    own requests. ``stated`` has a mean.
    """
    if stated is None or of_requests is None:
        return False
    return not math.isclose(
        stated.mean, of_requests.mean, rel_tol=TOLERANCE, abs_tol=LEAST_TOLERANCE
    )


def only_mean(total: float, count: float) -> Distribution | None:
    """A distribution whose mean alone is known, from the sum of its values and their number; None
    without values.
    """
    return stated_distribution({"mean": total / count}) if count else None


def stated_distribution(values: Mapping[str, float | None]) -> Distribution:
    """A distribution of which only some statistics are known; the others are NaN."""
    present = {name: value for name, value in values.items() if value is not None}
    return Distribution(**{name: present.get(name, math.nan) for name in Distribution.__slots__})


def imported_figures(
    totals: RequestTotals,
    window_s: float,
    rates: Mapping[str, float | None],
    distributions: Mapping[str, Distribution | None],
) -> Figures:
    """The figures of a point. What is not given is None: the tool does not state it.

    Failures count as ``error``, since tools do not class them as we do.
    ``rates``: throughputs by their names in Figures. TTFT and E2E of other tools count from
    sending, so they are also those of ``ttft_from_sent_ms`` and ``e2e_from_sent_ms``.
    """
    requests_per_s = rates.get("request_throughput")
    return Figures(
        requests=totals,
        errors={"error": totals.failed} if totals.failed else {},
        window_s=window_s,
        request_throughput=requests_per_s,
        requests_per_minute=None if requests_per_s is None else 60 * requests_per_s,
        output_token_throughput=rates.get("output_token_throughput"),
        input_token_throughput=rates.get("input_token_throughput"),
        total_token_throughput=rates.get("total_token_throughput"),
        throughput_basis=None,
        ttft_ms=distributions.get("ttft_ms"),
        ttfo_ms=distributions.get("ttfo_ms"),
        e2e_ms=distributions.get("e2e_ms"),
        ttft_from_sent_ms=distributions.get("ttft_ms"),
        e2e_from_sent_ms=distributions.get("e2e_ms"),
        tpot_ms=distributions.get("tpot_ms"),
        prefill_throughput=None,
        decode_throughput=None,
        normalized_ttft_ms=None,
        input_tokens=distributions.get("input_tokens"),
        output_tokens=distributions.get("output_tokens"),
        itl_ms=distributions.get("itl_ms"),
        itl_kind="chunk" if distributions.get("itl_ms") is not None else None,
        decode_context=None,
    )

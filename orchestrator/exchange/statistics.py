"""Figures as other tools state them, in the shape of ours; what a file does not state is NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from orchestrator.analysis.metrics import distribution
from orchestrator.results.records import Distribution, Figures, RequestTotals

TOLERANCE = 0.005  # by which a file's own mean may differ from that of its requests


def computed(values: Iterable[float | None]) -> Distribution | None:
    """The distribution of the values that are there; percentiles are interpolated linearly."""
    present = [value for value in values if value is not None]
    return distribution(np.asarray(present, np.float64))


def completed(stated: Distribution | None, of_requests: Distribution | None) -> Distribution | None:
    """What the file states; where it states nothing, what its requests give."""
    if stated is None or of_requests is None:
        return stated or of_requests
    values = {}
    for name in Distribution.__slots__:
        value = getattr(stated, name)
        values[name] = getattr(of_requests, name) if math.isnan(value) else value
    return Distribution(**values)


def disagrees(stated: Distribution | None, of_requests: Distribution | None) -> bool:
    """Whether the file's mean is not that of its own requests."""
    if stated is None or of_requests is None:
        return False
    return not math.isclose(stated.mean, of_requests.mean, rel_tol=TOLERANCE, abs_tol=1e-3)


def only_mean(total: float, count: float) -> Distribution | None:
    """The distribution of which a file states no more than a sum."""
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
    per_second = rates.get("request_throughput")
    return Figures(
        requests=totals,
        errors={"error": totals.failed} if totals.failed else {},
        window_s=window_s,
        request_throughput=per_second,
        requests_per_minute=None if per_second is None else 60 * per_second,
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

"""Requests to the figures people compare engines by.

Latencies are over the ok requests of phase ``measure`` that were due inside the window; throughput is over what was
completed inside it, whichever request it belonged to (a window in steady state starts and ends with requests under
way; ITL counts from first to last content chunk). Failed requests are counted and give no latency and no throughput.
The definitions are this project's (docs/metrics.md says where other tools differ).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.analysis import throughput
from orchestrator.analysis.columns import Bools, Floats, RequestColumns, WindowNs, blocks, positions, request_columns
from orchestrator.analysis.gaps import NO_GAPS, GapCounts, count_gaps, merge_gaps

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Observed:
    """What the metrics of one measurement, or of several merged, are computed from.

    ``samples``: name to one value per request (names and units as in the JSON). ``delivered``: requests, input and
    output tokens completed in ``window_s`` seconds. ``token_batches``: output tokens over time, one per measurement.
    """

    scheduled: int
    ok: int
    errors: Counter[str]
    samples: dict[str, Floats]
    gaps: GapCounts
    delivered: dict[str, float]
    token_batches: tuple[throughput.Batches, ...]
    window_s: float
    basis: frozenset[str]
    itl_kind: frozenset[str]


def summarize(requests: pa.Table, token_events: pa.Table | None, window_ns: WindowNs) -> dict[str, Any]:
    """The metrics of one measurement as a JSON object: ``describe(observe(…))``.

    ``requests``, ``token_events``: rows of one attempt in the schemas of results/schemas.py (all its clients
    together); without ``token_events`` there is no ITL and output tokens are spread evenly over their request.
    ``window_ns``: steady window [start, end) in ns since the point's start.
    """
    return describe(observe(requests, token_events, window_ns))


def observe(requests: pa.Table, token_events: pa.Table | None, window_ns: WindowNs) -> Observed:
    """Everything the metrics of one attempt need. Raises ValueError when rows of several attempts are mixed."""
    columns = request_columns(requests)
    due = columns.scheduled_in(window_ns)
    chosen = due & columns.ok
    gaps = NO_GAPS
    if token_events is not None:
        gaps = count_gaps(blocks(columns, token_events, positions(columns, token_events)), chosen)
    batches = throughput.token_batches(columns, token_events, window_ns)
    return Observed(
        scheduled=int(due.sum()),
        ok=int(chosen.sum()),
        errors=_errors(requests, due & ~columns.ok),
        samples={name: values[~np.isnan(values)] for name, values in _samples(columns, chosen).items()},
        gaps=gaps,
        delivered=_delivered(columns, batches, window_ns),
        token_batches=(batches,),
        window_s=max(window_ns[1] - window_ns[0], 0) / 1e9,
        basis=frozenset([throughput.basis(columns, token_events)]),
        itl_kind=frozenset(requests["itl_kind"].filter(pa.array(chosen)).drop_null().unique().to_pylist()),
    )


def merge(parts: Iterable[Observed]) -> Observed:
    """Several measurements as one: samples are pooled (never a mean of percentiles), windows are added."""
    found = list(parts)
    names = found[0].samples
    return Observed(
        scheduled=sum(part.scheduled for part in found),
        ok=sum(part.ok for part in found),
        errors=sum((part.errors for part in found), Counter()),
        samples={name: np.concatenate([part.samples[name] for part in found]) for name in names},
        gaps=merge_gaps(part.gaps for part in found),
        delivered={name: sum(part.delivered[name] for part in found) for name in found[0].delivered},
        token_batches=tuple(batches for part in found for batches in part.token_batches),
        window_s=sum(part.window_s for part in found),
        basis=frozenset().union(*(part.basis for part in found)),
        itl_kind=frozenset().union(*(part.itl_kind for part in found)),
    )


def describe(observed: Observed) -> dict[str, Any]:
    """The JSON object. Distributions are {mean, p50, p90, p95, p99}; null where there is nothing to compute.

    request_throughput = ok requests completed in the window / its length; requests_per_minute = 60 times that;
    output_token_throughput and input_token_throughput likewise for tokens, total_token_throughput their sum; the last
    two are null where prompts were not counted by anyone.
    """
    rates = {name: _rate(amount, observed.window_s) for name, amount in observed.delivered.items()}
    return {
        "requests": {
            "scheduled": observed.scheduled,
            "ok": observed.ok,
            "failed": observed.scheduled - observed.ok,
        },
        "errors": dict(sorted(observed.errors.items())),
        "window_s": observed.window_s,
        "request_throughput": rates["requests"],
        "requests_per_minute": _rate(observed.delivered["requests"] * 60, observed.window_s),
        "output_token_throughput": rates["output_tokens"],
        "input_token_throughput": rates["input_tokens"],
        "total_token_throughput": _rate(
            observed.delivered["output_tokens"] + observed.delivered["input_tokens"], observed.window_s
        ),
        "throughput_basis": _one(observed.basis),
        **{name: distribution(values) for name, values in observed.samples.items()},
        "itl_ms": _gap_distribution(observed.gaps),
        "itl_kind": _one(observed.itl_kind),
    }


def distribution(values: Floats) -> dict[str, float] | None:
    """Mean and percentiles (linear interpolation, numpy's default); None of nothing."""
    if not values.size:
        return None
    quantiles = np.quantile(values, list(PERCENTILES.values()))
    return {"mean": float(values.mean())} | dict(zip(PERCENTILES, map(float, quantiles), strict=True))


def _samples(columns: RequestColumns, chosen: Bools) -> dict[str, Floats]:
    """One value per chosen request, NaN where its formula has no value.

    - ttft_ms = first content token - scheduled; ttft_from_sent_ms = … - sent (what others report)
    - e2e_ms = last content token - scheduled; e2e_from_sent_ms = … - sent
    - tpot_ms = (last - first content token) / (N - 1), for N > 1
    - prefill_throughput = prompt tokens / TTFT from sent, tokens/s of one request (genai-bench's input_throughput)
    - decode_throughput = (N - 1) / (last - first), tokens/s of one request: 1 / TPOT
    - normalized_ttft_ms = ttft_ms / prompt tokens: compares prompts of different lengths
    """
    scheduled, sent = columns.scheduled_ns[chosen], columns.sent_ns[chosen]
    first, last = columns.first_ns[chosen], columns.last_ns[chosen]
    prompt, output = _positive(columns.input_tokens[chosen]), columns.output_tokens[chosen]
    after_first = _positive(output - 1)
    return {
        "ttft_ms": (first - scheduled) / 1e6,
        "e2e_ms": (last - scheduled) / 1e6,
        "ttft_from_sent_ms": (first - sent) / 1e6,
        "e2e_from_sent_ms": (last - sent) / 1e6,
        "tpot_ms": (last - first) / after_first / 1e6,
        "prefill_throughput": prompt / _positive(first - sent) * 1e9,
        "decode_throughput": after_first / _positive(last - first) * 1e9,
        "normalized_ttft_ms": (first - scheduled) / prompt / 1e6,
        "input_tokens": columns.input_tokens[chosen],
        "output_tokens": output,
    }


def _positive(values: Floats) -> Floats:
    return np.where(values > 0, values, np.nan)


def _delivered(columns: RequestColumns, batches: throughput.Batches, window_ns: WindowNs) -> dict[str, float]:
    """Input tokens are NaN when those of any request are unknown: a part of the sum would be taken for the whole."""
    first = columns.first_ns
    unknown = columns.ok & np.isnan(columns.input_tokens) & (first >= window_ns[0]) & (first < window_ns[1])
    requests = throughput.requests_by(columns, window_ns)
    prompts = throughput.input_tokens_by(columns, window_ns)
    return {
        "requests": float(requests[1] - requests[0]),
        "input_tokens": float("nan") if unknown.any() else float(prompts[1] - prompts[0]),
        "output_tokens": float(batches.amounts.sum()),
    }


def _errors(requests: pa.Table, failed: Bools) -> Counter[str]:
    rows = requests.select(["status", "error_class"]).filter(pa.array(failed)).to_pydict()
    return Counter(kind or status for kind, status in zip(rows["error_class"], rows["status"], strict=True))


def _rate(amount: float, window_s: float) -> float | None:
    return amount / window_s if window_s > 0 and not math.isnan(amount) else None


def _gap_distribution(gaps: GapCounts) -> dict[str, float] | None:
    """ITL in ms: gap before each output token but those of the first chunk."""
    if not gaps.total:
        return None
    quantiles = gaps.quantiles_us(PERCENTILES.values()) / 1e3
    return {"mean": gaps.mean_us() / 1e3} | dict(zip(PERCENTILES, map(float, quantiles), strict=True))


def _one(values: frozenset[str]) -> str | None:
    return None if not values else next(iter(values)) if len(values) == 1 else "mixed"

"""From requests to the figures by which people compare engines.

Latencies are those of the ok requests of phase ``measure`` that were due inside the window.
Throughput counts all that was completed inside the window, whichever request it belongs to: a
steady window begins and ends with requests under way. Failed requests are counted and add neither
latency nor throughput. docs/metrics.md says where other tools define these figures differently.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis import throughput
from orchestrator.analysis.gaps import NO_GAPS, GapCounts, count_gaps, merge_gaps
from orchestrator.analysis.requests import RequestArrays, WindowNs, request_arrays, within
from orchestrator.analysis.steady import steady_from_ns
from orchestrator.base.arrays import Bools, Floats
from orchestrator.results.columns import NumberColumn, quantiles
from orchestrator.results.lazy_rows import Rows, slices
from orchestrator.results.records import Distribution, Figures, RequestTotals
from orchestrator.results.validity import Validity

QUANTILES = (0.5, 0.9, 0.95, 0.99)
FAILING = "failing"  # one more verdict, beside those of results/validity.py
FAILING_SHARE = 0.05
# the verdicts that blame the engine
BACKLOG = Validity.ENGINE_BOUND_BACKLOG
BROKEN = Validity.BROKEN_OUTPUT


@dataclass(frozen=True, slots=True)
class Observed:
    """What the metrics of one attempt, or of several pooled, are computed from.

    ``samples``: per attempt, by the names of Figures, the values of the requests that have one.
    ``delivered``: requests, input and output tokens that were completed in ``window_s`` seconds.
    ``token_batches``: output tokens over time, one entry per attempt.
    """

    scheduled: int
    ok: int
    errors: Counter[str]
    samples: tuple[Mapping[str, NumberColumn], ...]
    gaps: GapCounts
    delivered: dict[str, float]
    token_batches: tuple[throughput.Batches, ...]
    window_s: float
    basis: frozenset[str]
    itl_kind: frozenset[str]


def steady_window_ns(
    warmup_s: float | None, duration_s: float | None, requests: Rows | None
) -> WindowNs:
    """The steady window of a run: from the end of its warm-up, for its duration or else until the
    last request ended.

    ``warmup_s`` None: from where the run became steady; the whole run where it never did.
    """
    start_ns = round((warmup_s or 0.0) * 1e9)
    if duration_s is not None:
        end_ns = start_ns + round(duration_s * 1e9)
        found_ns = (
            steady_from_ns(requests, end_ns) if warmup_s is None and requests is not None else None
        )
        return found_ns or start_ns, end_ns
    ends = (
        (pc.max(part["done_ns"]).as_py() for part in slices(requests))
        if requests is not None
        else ()
    )
    return start_ns, max([start_ns, *(last_ns + 1 for last_ns in ends if last_ns is not None)])


def observe(requests: Rows, token_events: Rows | None, window_ns: WindowNs) -> Observed:
    """Everything the metrics of one attempt need. Raises ValueError when rows of several attempts
    are mixed.
    """
    return observe_arrays(request_arrays(requests, token_events), window_ns)


def observe_arrays(arrays: Iterable[RequestArrays], window_ns: WindowNs) -> Observed:
    """As ``observe``, of requests that are read already."""
    return reduce(_joined, (_observed(columns, window_ns) for columns in arrays))


def _observed(columns: RequestArrays, window_ns: WindowNs) -> Observed:
    due = columns.scheduled_in(window_ns)
    chosen = due & columns.ok
    batches = throughput.token_batches(columns, window_ns)
    samples = defaultdict[str, NumberColumn](NumberColumn)
    for name, values in _samples(columns, chosen):
        samples[name].add(values[~np.isnan(values)])
    return Observed(
        scheduled=int(due.sum()),
        ok=int(chosen.sum()),
        errors=_errors(columns.rows, due & ~columns.ok),
        samples=(samples,),
        gaps=NO_GAPS
        if columns.buffered
        else count_gaps(columns.blocks(), chosen & columns.has_token_times),
        delivered=_delivered(columns, batches, window_ns),
        token_batches=(batches,),
        window_s=max(window_ns[1] - window_ns[0], 0) / 1e9,
        basis=throughput.basis(columns),
        itl_kind=frozenset(
            columns.rows["itl_kind"].filter(pa.array(chosen)).drop_null().unique().to_pylist()
        ),
    )


def _joined(some: Observed, more: Observed) -> Observed:
    """Requests of one attempt and more of them. The samples of ``some`` grow."""
    for name, column in more.samples[0].items():
        some.samples[0][name].add(column.values())
    amounts = some.token_batches[0].amounts + more.token_batches[0].amounts
    batches = throughput.Batches(amounts, some.token_batches[0].sizes)
    both = merge([some, more])
    return replace(both, samples=some.samples, token_batches=(batches,), window_s=some.window_s)


def merge(parts: Iterable[Observed]) -> Observed:
    """Several attempts as one: samples are pooled (percentiles are never averaged), windows are
    added.
    """
    found = list(parts)
    return Observed(
        scheduled=sum(part.scheduled for part in found),
        ok=sum(part.ok for part in found),
        errors=sum((part.errors for part in found), Counter()),
        samples=tuple(one for part in found for one in part.samples),
        gaps=merge_gaps(part.gaps for part in found),
        delivered={
            name: sum(part.delivered[name] for part in found) for name in found[0].delivered
        },
        token_batches=tuple(batches for part in found for batches in part.token_batches),
        window_s=sum(part.window_s for part in found),
        basis=frozenset().union(*(part.basis for part in found)),
        itl_kind=frozenset().union(*(part.itl_kind for part in found)),
    )


def figures(observed: Observed) -> Figures:
    """The metrics of docs/metrics.md.

    request_throughput = ok requests completed in the window / its length; requests_per_minute = 60
    times that; output_token_throughput and input_token_throughput are the same for tokens,
    total_token_throughput is their sum. The last two are None where nobody counted the prompts.
    """
    delivered, window_s = observed.delivered, observed.window_s
    return Figures(
        requests=RequestTotals(
            scheduled=observed.scheduled, ok=observed.ok, failed=observed.scheduled - observed.ok
        ),
        errors=dict(sorted(observed.errors.items())),
        window_s=window_s,
        request_throughput=_rate(delivered["requests"], window_s),
        requests_per_minute=_rate(delivered["requests"] * 60, window_s),
        output_token_throughput=_rate(delivered["output_tokens"], window_s),
        input_token_throughput=_rate(delivered["input_tokens"], window_s),
        total_token_throughput=_rate(
            delivered["output_tokens"] + delivered["input_tokens"], window_s
        ),
        throughput_basis=_one(observed.basis) or "interpolated",
        **_distributions(observed),
        itl_ms=_gap_distribution(observed.gaps),
        itl_kind=_one(observed.itl_kind),
    )


def validity_of(measured: str, requests: Sequence[RequestTotals]) -> str:
    """The verdict; ``failing`` in place of valid where more than FAILING_SHARE of the requests
    failed, since the latencies of the others are then no answer.
    """
    failed, scheduled = (
        sum(getattr(one, name) for one in requests) for name in ("failed", "scheduled")
    )
    return FAILING if measured == "valid" and failed > FAILING_SHARE * scheduled else measured


def few(count: int, quantile: float) -> bool:
    """Whether ``count`` values are too few for this percentile: less than one of them is expected
    above it.
    """
    return count * (1 - quantile) < 1 - 1e-9


def distribution(values: Floats) -> Distribution | None:
    """None without values. Percentiles interpolate linearly (numpy's default). ``values`` are
    sorted where they lie: so sums of the same ones are the same to the last digit.
    """
    if not values.size:
        return None
    values.sort()
    # as values.mean() and values.std() do, which take four times as long
    mean = np.add.reduce(values) / values.size
    off = values - mean
    std = np.sqrt(np.add.reduce(np.multiply(off, off, out=off)) / values.size)
    return _distribution((mean, std, values[0], values[-1]), quantiles(values, QUANTILES))


def _distributions(observed: Observed) -> dict[str, Distribution | None]:
    first, *others = observed.samples
    return {
        name: distribution(
            np.concatenate([column.values(), *(one[name].values() for one in others)])
        )
        for name, column in first.items()
    }


def _distribution(moments: Sequence[float], quantiles: Floats) -> Distribution:
    mean, std, least, most = map(float, moments)
    p50, p90, p95, p99 = map(float, quantiles)
    return Distribution(mean=mean, std=std, min=least, max=most, p50=p50, p90=p90, p95=p95, p99=p99)


def _samples(columns: RequestArrays, chosen: Bools) -> Iterator[tuple[str, Floats]]:
    """One value per chosen request, NaN where its formula has none.

    - ttft_ms = first content token - scheduled; ttft_from_sent_ms = … - sent (what others report)
    - ttfo_ms = first token of the answer - scheduled, of requests whose stream began with reasoning
    - e2e_ms = last content token - scheduled; e2e_from_sent_ms = … - sent
    - tpot_ms = (last - first content token) / (N - k) for N > k streamed tokens, of which the first
      chunk held k; none where the stream was buffered, or the answer came in one event or few
    - prefill_throughput = prompt tokens / TTFT from sent, in tokens/s of one request (genai-bench's
      input_throughput)
    - decode_throughput = (N - k) / (last - first), in tokens/s of one request: 1 / TPOT
    - normalized_ttft_ms = ttft_ms / prompt tokens, to compare prompts of different lengths
    """

    def between(start_ns: Floats, end_ns: Floats) -> Floats:
        return (end_ns - start_ns)[chosen]

    def positive(values: Floats) -> Floats:
        return np.where(values > 0, values, np.nan)

    scheduled_ns, sent_ns, first_ns, last_ns = (
        columns.scheduled_ns,
        columns.sent_ns,
        columns.first_ns,
        columns.last_ns,
    )
    yield "ttft_ms", between(scheduled_ns, first_ns) / 1e6
    yield "ttfo_ms", between(scheduled_ns, columns.answer_ns) / 1e6
    yield "e2e_ms", between(scheduled_ns, last_ns) / 1e6
    yield "ttft_from_sent_ms", between(sent_ns, first_ns) / 1e6
    yield "e2e_from_sent_ms", between(sent_ns, last_ns) / 1e6
    yield "tpot_ms", between(first_ns, last_ns) / positive(columns.intervals[chosen]) / 1e6
    prompt = positive(columns.input_tokens[chosen])
    yield "prefill_throughput", prompt / positive(between(sent_ns, first_ns)) * 1e9
    yield "normalized_ttft_ms", between(scheduled_ns, first_ns) / prompt / 1e6
    yield (
        "decode_throughput",
        positive(columns.intervals[chosen]) / positive(between(first_ns, last_ns)) * 1e9,
    )
    yield "input_tokens", columns.input_tokens[chosen]
    yield "output_tokens", columns.output_tokens[chosen]


def _delivered(
    columns: RequestArrays, batches: throughput.Batches, window_ns: WindowNs
) -> dict[str, float]:
    """Ok requests completed in the window, input tokens of those whose first token came in it,
    output tokens in it.

    Input tokens are NaN where those of any request are unknown: a part of the sum would be taken
    for the whole.
    """
    return {
        "requests": float((columns.ok & within(columns.finished_ns, window_ns)).sum()),
        "input_tokens": float(
            columns.input_tokens[columns.ok & within(columns.first_ns, window_ns)].sum()
        ),
        "output_tokens": float(batches.amounts.sum()),
    }


def _errors(requests: Rows, failed: Bools) -> Counter[str]:
    if not failed.any():
        return Counter()
    kinds, statuses = (
        requests[name].filter(pa.array(failed)).to_pylist() for name in ("error_class", "status")
    )
    return Counter(kind or status for kind, status in zip(kinds, statuses, strict=True))


def _rate(amount: float, window_s: float) -> float | None:
    return amount / window_s if window_s > 0 and not math.isnan(amount) else None


def _gap_distribution(gaps: GapCounts) -> Distribution | None:
    """ITL in ms: the gap before each output token, except those of the first chunk."""
    if not gaps.total:
        return None
    moments = (gaps.mean_us(), gaps.std_us(), gaps.us[0], gaps.us[-1])
    return _distribution([one / 1e3 for one in moments], gaps.quantiles_us(QUANTILES) / 1e3)


def _one(values: frozenset[str]) -> str | None:
    return None if not values else next(iter(values)) if len(values) == 1 else "mixed"

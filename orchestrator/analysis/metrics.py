"""Computes from requests the figures by which people compare engines.

Latencies are those of the ok requests of phase ``measure`` that were due inside the window.
Throughput counts all that was completed inside the window, whichever request it belongs to: a
steady window begins and ends with requests under way. Failed requests are counted and add neither
latency nor throughput. docs/reference/metrics.md says where other tools define these figures
differently.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis import throughput
from orchestrator.analysis.gaps import NO_GAPS, GapCounts, count_gaps, merge_gaps
from orchestrator.analysis.requests import RequestArrays, request_arrays, within
from orchestrator.analysis.steady import steady_from_ns
from orchestrator.base.arrays import Bools, Floats
from orchestrator.results.columns import NumberColumn, quantiles
from orchestrator.results.lazy_rows import Rows, slices
from orchestrator.results.outcomes import ErrorClass
from orchestrator.results.records import (
    Distribution,
    Figures,
    PartFacts,
    PartFigures,
    RequestTotals,
)
from orchestrator.results.validity import Validity
from orchestrator.results.window import MeasuredWindow

QUANTILES = (0.5, 0.9, 0.95, 0.99)
FAILING = "failing"  # one more verdict, beside those of results/validity.py
FAILING_SHARE = 0.05
# the verdicts that blame the engine
BACKLOG = Validity.ENGINE_BOUND_BACKLOG
BROKEN = Validity.BROKEN_OUTPUT
# the verdict on what another tool measured: it blames nothing
UNCHECKED = Validity.UNCHECKED


@dataclass(frozen=True, slots=True)
class Delivered:
    """What ok requests got inside a window.

    ``requests``: how many were completed. ``input_tokens``: of the requests whose first token came
    in the window; NaN where those of any request are unknown, since a part of the sum would be
    taken for the whole. ``output_tokens``: how many came in the window.
    """

    requests: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class DecodedContext:
    """The context of decoded tokens: all output tokens of a request but the first.

    ``tokens``: decoded tokens. ``context``: the sum of their contexts in tokens; NaN where a prompt
    was not counted.
    """

    tokens: float
    context: float

    def __add__(self, other: "DecodedContext") -> "DecodedContext":
        return DecodedContext(self.tokens + other.tokens, self.context + other.context)

    @property
    def mean(self) -> float | None:
        if not self.tokens or math.isnan(self.context):
            return None
        return self.context / self.tokens


@dataclass(frozen=True, slots=True)
class Observed:
    """What the metrics of one attempt, or of several pooled, are computed from.

    ``samples``: one entry per attempt: by the names of Figures, the values of all requests that
    have one. ``delivered``: in all windows together, which have ``window_s`` seconds.
    ``token_batches``: output tokens over time, one entry per attempt.
    """

    scheduled: int
    ok: int
    errors: Counter[str]
    samples: tuple[Mapping[str, NumberColumn], ...]
    decoded: DecodedContext
    gaps: GapCounts
    delivered: Delivered
    token_batches: tuple[throughput.Batches, ...]
    window_s: float
    basis: frozenset[str]
    itl_kind: frozenset[str]


def steady_window(
    warmup_s: float | None, duration_s: float | None, requests: Rows | None
) -> MeasuredWindow:
    """The steady window of a run.

    - Without ``duration_s``, from the end of the warm-up, or from the beginning where none is
      given, until the last request ended.
    - With ``duration_s`` and ``warmup_s``, for this duration from the end of the warm-up.
    - With ``duration_s`` alone, from where the run became steady until the duration was over; where
      it never became steady, for the whole duration.
    """
    start_ns = round((warmup_s or 0.0) * 1e9)
    if duration_s is None:
        return MeasuredWindow(start_ns, max(start_ns, _end_of_last_ns(requests)))
    end_ns = start_ns + round(duration_s * 1e9)
    if warmup_s is None and requests is not None:
        steady_ns = steady_from_ns(requests, end_ns)
        return MeasuredWindow(steady_ns or start_ns, end_ns)
    return MeasuredWindow(start_ns, end_ns)


def _end_of_last_ns(requests: Rows | None) -> int:
    """The instant after the last request ended; 0 where none did."""
    if requests is None:
        return 0
    end_ns = 0
    for part in slices(requests):
        last_ns = pc.max(part["done_ns"]).as_py()
        if last_ns is not None:
            end_ns = max(end_ns, last_ns + 1)
    return end_ns


def observe(requests: Rows, token_events: Rows | None, window: MeasuredWindow) -> Observed:
    """Gathers everything that the metrics of one attempt need.

    Raises ValueError where rows of several attempts are mixed.
    """
    return observe_arrays(request_arrays(requests, token_events), window)


class ObservedParts:
    """Gathers what the metrics of each part of a mix need, some requests at a time."""

    def __init__(self, window: MeasuredWindow) -> None:
        self._window = window
        self._by_part: dict[str, Observed] = {}

    def add(self, columns: RequestArrays) -> None:
        """Adds further requests of the same attempt."""
        for name in columns.part.names:
            is_of_part = columns.part.of(name)
            of_part = replace(
                columns, ok=columns.ok & is_of_part, measured=columns.measured & is_of_part
            )
            observed = _observed(of_part, self._window)
            earlier = self._by_part.get(name)
            self._by_part[name] = observed if earlier is None else _joined(earlier, observed)

    @property
    def by_part(self) -> dict[str, Observed]:
        """By name, those of the parts that requests are of, in the order of their names."""
        return dict(sorted(self._by_part.items()))


def part_figures(
    by_part: Mapping[str, Observed], facts: Mapping[str, PartFacts] = MappingProxyType({})
) -> tuple[PartFigures, ...]:
    """The metrics of each part. Throughput is over the window of the whole point, so that the
    throughputs of all parts add up to that of the point. ``facts``: by part, those of an attempt.
    """
    return tuple(
        PartFigures(part=name, figures=figures(observed), facts=facts.get(name))
        for name, observed in by_part.items()
    )


def observe_arrays(arrays: Iterable[RequestArrays], window: MeasuredWindow) -> Observed:
    """Does what ``observe`` does, with requests that are already decoded."""
    parts = (_observed(columns, window) for columns in arrays)
    observed = next(parts)
    for part in parts:
        observed = _joined(observed, part)
    return observed


def _observed(columns: RequestArrays, window: MeasuredWindow) -> Observed:
    due = columns.scheduled_in(window)
    chosen = due & columns.ok
    batches = throughput.token_batches(columns, window)
    samples = defaultdict[str, NumberColumn](NumberColumn)
    for name, values in _samples(columns, chosen):
        samples[name].add(values[~np.isnan(values)])
    gaps = NO_GAPS
    if not columns.buffered:
        gaps = count_gaps(columns.blocks(), chosen & columns.has_token_times)
    itl_kinds = columns.rows["itl_kind"].filter(pa.array(chosen)).drop_null().unique()
    return Observed(
        scheduled=int(due.sum()),
        ok=int(chosen.sum()),
        errors=_errors(columns.rows, due & ~columns.ok),
        samples=(samples,),
        decoded=_decoded(columns, chosen),
        gaps=gaps,
        delivered=_delivered(columns, batches, window),
        token_batches=(batches,),
        window_s=window.length_s,
        basis=throughput.basis(columns),
        itl_kind=frozenset(itl_kinds.to_pylist()),
    )


def _joined(first: Observed, more: Observed) -> Observed:
    """Adds more requests of the same attempt. The samples of ``first`` grow in place."""
    for name, column in more.samples[0].items():
        first.samples[0][name].add(column.values())
    # ``merge`` takes the two for different attempts: it lists the samples and batches of both and
    # adds the lengths of their windows. Here the window and its batches are the same, so these
    # three fields are replaced.
    amounts = first.token_batches[0].amounts + more.token_batches[0].amounts
    batches = throughput.Batches(amounts, first.token_batches[0].sizes)
    both = merge([first, more])
    return replace(both, samples=first.samples, token_batches=(batches,), window_s=first.window_s)


def merge(parts: Iterable[Observed]) -> Observed:
    """Several attempts as one. Samples are pooled (percentiles are never averaged).

    The lengths of their windows are added.
    """
    attempts = list(parts)
    return Observed(
        scheduled=sum(attempt.scheduled for attempt in attempts),
        ok=sum(attempt.ok for attempt in attempts),
        errors=sum((attempt.errors for attempt in attempts), Counter()),
        samples=tuple(chain.from_iterable(attempt.samples for attempt in attempts)),
        decoded=sum((attempt.decoded for attempt in attempts), DecodedContext(0.0, 0.0)),
        gaps=merge_gaps(attempt.gaps for attempt in attempts),
        delivered=Delivered(
            requests=sum(attempt.delivered.requests for attempt in attempts),
            input_tokens=sum(attempt.delivered.input_tokens for attempt in attempts),
            output_tokens=sum(attempt.delivered.output_tokens for attempt in attempts),
        ),
        token_batches=tuple(chain.from_iterable(attempt.token_batches for attempt in attempts)),
        window_s=sum(attempt.window_s for attempt in attempts),
        basis=frozenset().union(*(attempt.basis for attempt in attempts)),
        itl_kind=frozenset().union(*(attempt.itl_kind for attempt in attempts)),
    )


def figures(observed: Observed) -> Figures:
    """The metrics of docs/reference/metrics.md.

    request_throughput = ok requests completed in the window / its length; requests_per_minute = 60
    times that; output_token_throughput and input_token_throughput are the same for tokens,
    total_token_throughput is their sum. The last two are None where the tokens of a prompt are
    unknown.
    """
    delivered = observed.delivered
    window_s = observed.window_s
    total_tokens = delivered.output_tokens + delivered.input_tokens
    return Figures(
        requests=RequestTotals(
            scheduled=observed.scheduled, ok=observed.ok, failed=observed.scheduled - observed.ok
        ),
        errors=dict(sorted(observed.errors.items())),
        window_s=window_s,
        request_throughput=_rate(delivered.requests, window_s),
        requests_per_minute=_rate(delivered.requests * 60, window_s),
        output_token_throughput=_rate(delivered.output_tokens, window_s),
        input_token_throughput=_rate(delivered.input_tokens, window_s),
        total_token_throughput=_rate(total_tokens, window_s),
        # the basis is empty where no answer has two tokens: then no times of chunks were needed
        throughput_basis=_only_or_mixed(observed.basis) or "interpolated",
        **_distributions(observed),
        itl_ms=_gap_distribution(observed.gaps),
        itl_kind=_only_or_mixed(observed.itl_kind),
        decode_context=observed.decoded.mean,
    )


def ended_requests(requests: RequestTotals, errors: Mapping[str, int]) -> RequestTotals:
    """``requests`` without those that this program cut off, which are no failures of the server.

    ``errors``: requests by error class.
    """
    return without_cut_off(requests, errors.get(ErrorClass.ABORTED, 0))


def without_cut_off(requests: RequestTotals, cut_off: int) -> RequestTotals:
    """``requests`` without so many failed ones."""
    if not cut_off:
        return requests
    return RequestTotals(
        scheduled=requests.scheduled - cut_off, ok=requests.ok, failed=requests.failed - cut_off
    )


def validity_of(measured: str, requests: Sequence[RequestTotals]) -> str:
    """The verdict on a point; ``failing`` in place of ``valid`` where too many requests failed.

    Too many are more than FAILING_SHARE: the latencies of the others alone would then mislead.
    ``requests``: see ``ended_requests``.
    """
    failed = sum(totals.failed for totals in requests)
    scheduled = sum(totals.scheduled for totals in requests)
    is_failing = failed > FAILING_SHARE * scheduled
    return FAILING if measured == "valid" and is_failing else measured


def are_too_few(count: int, quantile: float) -> bool:
    """Whether ``count`` values are too few: less than one is expected above the percentile."""
    return count * (1 - quantile) < 1 - 1e-9


def distribution(values: Floats) -> Distribution | None:
    """Mean, spread and percentiles of ``values``; None without values.

    Percentiles interpolate linearly (numpy's default). ``values`` are sorted in place, so that the
    same values in another order have the same sum to the last digit.
    """
    if not values.size:
        return None
    values.sort()
    # as values.mean() and values.std() do, which take four times as long
    mean = np.add.reduce(values) / values.size
    deviations = values - mean
    squares = np.multiply(deviations, deviations, out=deviations)
    std = np.sqrt(np.add.reduce(squares) / values.size)
    return _distribution(mean, std, values[0], values[-1], quantiles(values, QUANTILES))


def _distributions(observed: Observed) -> dict[str, Distribution | None]:
    distributions = {}
    for name in observed.samples[0]:
        values = [samples[name].values() for samples in observed.samples]
        distributions[name] = distribution(np.concatenate(values))
    return distributions


def _distribution(
    mean: float, std: float, least: float, most: float, at_quantiles: Floats
) -> Distribution:
    """``at_quantiles``: the values at QUANTILES."""
    p50, p90, p95, p99 = map(float, at_quantiles)
    return Distribution(
        mean=float(mean),
        std=float(std),
        min=float(least),
        max=float(most),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
    )


def _samples(columns: RequestArrays, chosen: Bools) -> Iterator[tuple[str, Floats]]:
    """Yields each figure with one value per chosen request, NaN where the formula gives none.

    The formulas are those of ``formulas.py``: LATENCIES and OF_ONE_REQUEST. There is no TPOT where
    the stream was buffered, or where the answer came in one event or a few.
    """

    def between(start_ns: Floats, end_ns: Floats) -> Floats:
        return (end_ns - start_ns)[chosen]

    def positive(values: Floats) -> Floats:
        return np.where(values > 0, values, np.nan)

    scheduled_ns = columns.scheduled_ns
    sent_ns = columns.sent_ns
    first_ns = columns.first_ns
    last_ns = columns.last_ns
    prompt_tokens = positive(columns.input_tokens[chosen])
    intervals = positive(columns.intervals[chosen])
    yield "ttft_ms", between(scheduled_ns, first_ns) / 1e6
    yield "ttfo_ms", between(scheduled_ns, columns.answer_ns) / 1e6
    yield "e2e_ms", between(scheduled_ns, last_ns) / 1e6
    yield "ttft_from_sent_ms", between(sent_ns, first_ns) / 1e6
    yield "e2e_from_sent_ms", between(sent_ns, last_ns) / 1e6
    yield "tpot_ms", between(first_ns, last_ns) / intervals / 1e6
    yield "prefill_throughput", prompt_tokens / positive(between(sent_ns, first_ns)) * 1e9
    yield "normalized_ttft_ms", between(scheduled_ns, first_ns) / prompt_tokens / 1e6
    yield "decode_throughput", intervals / positive(between(first_ns, last_ns)) * 1e9
    yield "input_tokens", columns.input_tokens[chosen]
    yield "output_tokens", columns.output_tokens[chosen]


def _decoded(columns: RequestArrays, chosen: Bools) -> DecodedContext:
    """The context of the decoded tokens of the chosen requests: with p prompt and n output tokens,
    token i + 1 is decoded in a context of p + i tokens, so n - 1 tokens have p + n / 2 on average.
    """
    prompt_tokens = columns.input_tokens[chosen]
    output_tokens = columns.output_tokens[chosen]
    decoded = np.maximum(output_tokens - 1, 0)
    contexts = decoded * (prompt_tokens + output_tokens / 2)
    return DecodedContext(float(decoded.sum()), float(contexts.sum()))


def _delivered(
    columns: RequestArrays, batches: throughput.Batches, window: MeasuredWindow
) -> Delivered:
    is_finished = columns.ok & within(columns.finished_ns, window)
    has_begun = columns.ok & within(columns.first_ns, window)
    return Delivered(
        requests=float(is_finished.sum()),
        input_tokens=float(columns.input_tokens[has_begun].sum()),
        output_tokens=float(batches.amounts.sum()),
    )


def _errors(requests: Rows, failed: Bools) -> Counter[str]:
    if not failed.any():
        return Counter()
    error_classes = requests["error_class"].filter(pa.array(failed)).to_pylist()
    statuses = requests["status"].filter(pa.array(failed)).to_pylist()
    return Counter(
        error_class or status for error_class, status in zip(error_classes, statuses, strict=True)
    )


def _rate(amount: float, window_s: float) -> float | None:
    return amount / window_s if window_s > 0 and not math.isnan(amount) else None


def _gap_distribution(gaps: GapCounts) -> Distribution | None:
    """ITL in ms: the gap before each output token, except those of the first chunk."""
    if not gaps.total:
        return None
    return _distribution(
        gaps.mean_us() / 1e3,
        gaps.std_us() / 1e3,
        gaps.us[0] / 1e3,
        gaps.us[-1] / 1e3,
        gaps.quantiles_us(QUANTILES) / 1e3,
    )


def _only_or_mixed(values: frozenset[str]) -> str | None:
    """The only one of the values, ``mixed`` where there are several, None without values."""
    if len(values) > 1:
        return "mixed"
    return next(iter(values), None)

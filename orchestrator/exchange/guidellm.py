"""The JSON report of GuideLLM 0.8 (report version 2). Each of its benchmarks is a point.

Its clock is the wall clock, in seconds. It times the first and the last token of a request and none
between, so there are no gaps. Its ``time_per_output_token_ms`` includes the first token: what
others call TPOT is its ``inter_token_latency_ms``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.exchange.consistency import OwnRequests, Values
from orchestrator.exchange.fields import (
    Count,
    Fields,
    UnixSeconds,
    Value,
    printable_name,
    read_fields,
    size_of,
)
from orchestrator.exchange.imported import (
    ImportedLoad,
    ImportedPoint,
    ImportedRequest,
    ImportFile,
    UnreadableFile,
    UnreadableFiles,
)
from orchestrator.exchange.statistics import imported_figures, stated_distribution
from orchestrator.results.records import Distribution, RequestTotals
from orchestrator.results.window import MeasuredWindow

TOOL = "GuideLLM"
VERSIONS = ("0.8.",)
REPORT_VERSION = 2
_MARKS = frozenset({"metadata", "config", "benchmarks"})
DEFINITIONS = {
    "ttft_ms": "time_to_first_token_ms: first token - sending",
    "ttfo_ms": "time_to_first_output_token_ms: first token after the reasoning - sending",
    "tpot_ms": (
        "inter_token_latency_ms: (last token - first token) / (output tokens - 1) of each request, "
        "weighted by its tokens; its time_per_output_token_ms includes the first token"
    ),
    "e2e_ms": "request_latency: end of the response - sending",
    "request_throughput": "requests_per_second: completed requests over the measured time",
    "output_token_throughput": "output_tokens_per_second of successful requests",
    "input_token_throughput": "prompt_tokens_per_second of successful requests",
    "total_token_throughput": "tokens_per_second of successful requests",
    "input_tokens": "prompt_token_count of successful requests",
    "output_tokens": "output_token_count of successful requests",
}
_FIGURES = {
    "ttft_ms": ("time_to_first_token_ms", 1.0),
    "ttfo_ms": ("time_to_first_output_token_ms", 1.0),
    "tpot_ms": ("inter_token_latency_ms", 1.0),
    "e2e_ms": ("request_latency", 1e3),
    "input_tokens": ("prompt_token_count", 1.0),
    "output_tokens": ("output_token_count", 1.0),
}
_RATES = {
    "request_throughput": "requests_per_second",
    "output_token_throughput": "output_tokens_per_second",
    "input_token_throughput": "prompt_tokens_per_second",
    "total_token_throughput": "tokens_per_second",
}
_NAMES = {**{figure: name for figure, (name, _) in _FIGURES.items()}, **_RATES}
_ROUNDING_NS = 1_000_000


class _Percentiles(Fields):
    p50: Value
    p90: Value
    p95: Value
    p99: Value


class _Summary(Fields):
    mean: Value
    std_dev: Value
    min: Value
    max: Value
    count: Count
    percentiles: _Percentiles


class _ByStatus(Fields):
    successful: _Summary | None = None


class _Totals(Fields):
    successful: Count
    incomplete: Count
    errored: Count


class _Metrics(Fields):
    request_totals: _Totals
    requests_per_second: _ByStatus
    request_latency: _ByStatus
    prompt_token_count: _ByStatus
    output_token_count: _ByStatus
    time_to_first_token_ms: _ByStatus
    time_to_first_output_token_ms: _ByStatus | None = None
    inter_token_latency_ms: _ByStatus
    prompt_tokens_per_second: _ByStatus
    output_tokens_per_second: _ByStatus
    tokens_per_second: _ByStatus


class _Timings(Fields):
    """Instants by the wall clock, in seconds."""

    request_start: UnixSeconds | None = None
    first_token_iteration: UnixSeconds | None = None
    first_output_token_iteration: UnixSeconds | None = None
    last_token_iteration: UnixSeconds | None = None
    token_iterations: Count = 0
    request_end: UnixSeconds | None = None
    resolve_end: UnixSeconds | None = None


class _Info(Fields):
    turn_index: Annotated[int, Field(ge=0, lt=2**15)] = 0
    error: str | None = None
    timings: _Timings


class _Request(Fields):
    info: _Info
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    cached_tokens: Count | None = None


class _Requests(Fields):
    successful: list[_Request]
    incomplete: list[_Request]
    errored: list[_Request]


class _Strategy(Fields):
    type_: Literal["synchronous", "concurrent", "throughput", "constant", "poisson"]
    streams: Count | None = None
    rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    max_concurrency: Count | None = None


class _Config(Fields):
    strategy: _Strategy
    sample_size: Count | None = None
    backend: dict[str, Any]


class _SchedulerMetrics(Fields):
    measure_start_time: UnixSeconds
    measure_end_time: UnixSeconds


class _Benchmark(Fields):
    config: _Config
    scheduler_metrics: _SchedulerMetrics
    metrics: _Metrics
    requests: _Requests


class _Metadata(Fields):
    version: Literal[2]
    guidellm_version: str


class _Report(Fields):
    metadata: _Metadata
    config: dict[str, Any]
    benchmarks: list[_Benchmark]


class GuideLlm:
    """See the module."""

    title = "GuideLLM 0.8 JSON"

    def recognises(self, file: ImportFile) -> bool:
        """Whether it is a report of GuideLLM, of whatever version."""
        if len(file.documents) != 1:
            return False
        (document,) = file.documents
        if not isinstance(document, dict) or not document.keys() >= _MARKS:
            return False
        metadata = document["metadata"]
        return isinstance(metadata, dict) and "guidellm_version" in metadata

    def read(self, files: Sequence[ImportFile]) -> Mapping[str, Sequence[ImportedPoint]]:
        """The points of all files. Raises UnreadableFiles."""
        points: dict[str, Sequence[ImportedPoint]] = {}
        reasons: dict[str, Sequence[str]] = {}
        for file in files:
            (document,) = file.documents
            try:
                points[file.name] = _points(document)
            except UnreadableFile as error:
                reasons[file.name] = error.reasons
        if reasons:
            raise UnreadableFiles(reasons)
        return points


FORMAT = GuideLlm()


def _points(document: Any) -> list[ImportedPoint]:
    """Raises UnreadableFile for a version that is not known, and for a report that is damaged."""
    metadata = document["metadata"]
    version = metadata["guidellm_version"]
    report_version = metadata.get("version")
    is_known = isinstance(version, str) and version.startswith(VERSIONS)
    if not is_known or report_version != REPORT_VERSION:
        raise UnreadableFile(
            [
                f"it is report version {report_version!r} of GuideLLM {version!r}: "
                f"what is read is version {REPORT_VERSION} of GuideLLM 0.8"
            ]
        )
    report = read_fields(_Report, document)
    if not report.benchmarks:
        raise UnreadableFile(["it has no benchmarks"])
    data = _data(report.config)
    points: list[ImportedPoint] = []
    reasons: list[str] = []
    for place, benchmark in enumerate(report.benchmarks):
        try:
            points.append(_point(benchmark, place, version, data))
        except UnreadableFile as error:
            reasons += [f"benchmark {place + 1}: {reason}" for reason in error.reasons]
    if reasons:
        raise UnreadableFile(reasons)
    return points


def _point(
    benchmark: _Benchmark, place: int, version: str, data: Mapping[str, object]
) -> ImportedPoint:
    metrics = benchmark.metrics
    begin_s = _begin_s(benchmark)
    measured = benchmark.scheduler_metrics
    window_s = measured.measure_end_time - measured.measure_start_time
    if window_s <= 0:
        raise UnreadableFile(["measure_end_time is not after measure_start_time"])
    distributions = {figure: _distribution(metrics, *name) for figure, name in _FIGURES.items()}
    if distributions["ttfo_ms"] == distributions["ttft_ms"]:
        distributions["ttfo_ms"] = None  # no reasoning: ours is empty there, too
    totals = RequestTotals(
        scheduled=metrics.request_totals.successful + metrics.request_totals.errored,
        ok=metrics.request_totals.successful,
        failed=metrics.request_totals.errored,
    )
    requests = _requests(benchmark, begin_s)
    window = MeasuredWindow(
        round((measured.measure_start_time - begin_s) * 1e9),
        round((measured.measure_end_time - begin_s) * 1e9),
    )
    figures = imported_figures(totals, window_s, _rates(metrics), distributions)
    own = OwnRequests(
        requests=requests,
        surely_counted=_within(window, requests),
        values=_values(benchmark.requests.successful),
        names=_NAMES,
        times_s=(window_s, window_s),
    )
    reasons = own.contradictions(figures)
    if reasons:
        raise UnreadableFile(reasons)
    return ImportedPoint(
        tool=TOOL,
        version=version,
        place=place,
        model=_model(benchmark.config),
        load=_load(benchmark.config.strategy),
        workload=data,
        started_unix_ns=round(begin_s * 1e9),
        window=window,
        figures=figures,
        definitions=_definitions(distributions),
        aggregates=_aggregates(metrics),
        left_out=_left_out(benchmark),
        requests=requests,
    )


def _begin_s(benchmark: _Benchmark) -> float:
    """The earliest instant that is used: of the window, or of a request."""
    starts = [benchmark.scheduler_metrics.measure_start_time]
    for request in _all_requests(benchmark):
        if request.info.timings.request_start is not None:
            starts.append(request.info.timings.request_start)
    return min(starts)


def _all_requests(benchmark: _Benchmark) -> list[_Request]:
    requests = benchmark.requests
    return [*requests.successful, *requests.incomplete, *requests.errored]


def _distribution(metrics: _Metrics, name: str, factor: float) -> Distribution | None:
    """A distribution over successful requests in our unit; None where none has a value."""
    by_status: _ByStatus | None = getattr(metrics, name)
    summary = by_status.successful if by_status is not None else None
    if summary is None or not summary.count:
        return None
    percentiles = summary.percentiles
    values = {
        "mean": summary.mean,
        "std": summary.std_dev,
        "min": summary.min,
        "max": summary.max,
        "p50": percentiles.p50,
        "p90": percentiles.p90,
        "p95": percentiles.p95,
        "p99": percentiles.p99,
    }
    return stated_distribution({key: factor * value for key, value in values.items()})


def _rates(metrics: _Metrics) -> dict[str, float | None]:
    rates: dict[str, float | None] = {}
    for figure, name in _RATES.items():
        by_status: _ByStatus = getattr(metrics, name)
        rates[figure] = by_status.successful.mean if by_status.successful is not None else None
    return rates


def _requests(benchmark: _Benchmark, begin_s: float) -> tuple[ImportedRequest, ...]:
    """The requests in order of sending; empty where the report has only a sample of them.

    Those that were under way when the benchmark ended are no failures, and are left out.
    """
    totals = benchmark.metrics.request_totals
    answered = benchmark.requests.successful
    failed = benchmark.requests.errored
    if len(answered) < totals.successful or len(failed) < totals.errored:
        return ()
    requests = [_request(request, begin_s, is_failed=False) for request in answered]
    requests += [_request(request, begin_s, is_failed=True) for request in failed]
    return tuple(sorted(requests, key=lambda request: request.sent_ns))


def _within(window: MeasuredWindow, requests: Sequence[ImportedRequest]) -> list[ImportedRequest]:
    """The requests that were sent and ended while it measured: its rates leave out what happened
    before and after.
    """
    within = []
    for request in requests:
        is_after = request.sent_ns >= window.start_ns - _ROUNDING_NS
        if is_after and request.done_ns <= window.end_ns + _ROUNDING_NS:
            within.append(request)
    return within


def _values(answered: Sequence[_Request]) -> dict[str, Values]:
    """The values of these requests under GuideLLM's definitions, in ms and tokens."""
    ttfts: list[float | None] = []
    ttfos: list[float | None] = []
    latencies: list[float | None] = []
    tpots: list[float] = []
    weights: list[float] = []
    for request in answered:
        timings = request.info.timings
        sent_s = timings.request_start
        first_s, last_s = timings.first_token_iteration, timings.last_token_iteration
        ttfts.append(_ms(sent_s, first_s))
        ttfos.append(_ms(sent_s, timings.first_output_token_iteration))
        latencies.append(_ms(sent_s, timings.request_end or timings.resolve_end))
        decode_ms = _ms(first_s, last_s)
        later_tokens = (request.output_tokens or 0) - 1
        if decode_ms is not None and later_tokens > 0:
            tpots.append(decode_ms / later_tokens)
            weights.append(later_tokens)
    return {
        "ttft_ms": _complete(ttfts),
        "ttfo_ms": _complete(ttfos),
        "tpot_ms": Values(tpots, weights),
        "e2e_ms": _complete(latencies),
        "input_tokens": _complete([request.prompt_tokens for request in answered]),
        "output_tokens": _complete([request.output_tokens for request in answered]),
    }


def _complete(values: Sequence[float | None]) -> Values:
    """These values; none where one is unknown: the report may count it as 0."""
    return Values(() if None in values else values)


def _ms(begin_s: float | None, end_s: float | None) -> float | None:
    return None if begin_s is None or end_s is None else 1e3 * (end_s - begin_s)


def _request(request: _Request, begin_s: float, is_failed: bool) -> ImportedRequest:
    timings = request.info.timings

    def since_begin_ns(instant_s: float | None) -> int | None:
        return None if instant_s is None else round((instant_s - begin_s) * 1e9)

    ended_ns = since_begin_ns(timings.request_end) or since_begin_ns(timings.resolve_end)
    sent_ns = since_begin_ns(timings.request_start)
    if ended_ns is None or (sent_ns is None and not is_failed):
        raise UnreadableFile(["a request has no request_start or no request_end"])
    answer_ns = since_begin_ns(timings.first_output_token_iteration)
    first_ns = since_begin_ns(timings.first_token_iteration)
    return ImportedRequest(
        sent_ns=ended_ns if sent_ns is None else sent_ns,
        done_ns=ended_ns,
        first_token_ns=first_ns,
        first_answer_ns=answer_ns if answer_ns != first_ns else None,
        last_token_ns=since_begin_ns(timings.last_token_iteration),
        input_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        cached_tokens=request.cached_tokens,
        chunks=timings.token_iterations,
        turn=request.info.turn_index or None,
        error=(request.info.error or "no reason given") if is_failed else None,
    )


def _load(strategy: _Strategy) -> ImportedLoad:
    cap = strategy.max_concurrency
    if strategy.type_ in ("constant", "poisson"):
        if strategy.rate is None:
            raise UnreadableFile(["its strategy has no rate"])
        return ImportedLoad(
            control="request_rate",
            level=strategy.rate,
            arrivals=strategy.type_,
            max_in_flight=cap,
        )
    if strategy.type_ == "throughput" and not cap:
        return ImportedLoad(control="request_rate", level=math.inf, arrivals="at_once")
    streams = {"synchronous": 1, "concurrent": strategy.streams, "throughput": cap}
    level = streams[strategy.type_]
    if not level:
        raise UnreadableFile([f"its strategy {strategy.type_!r} has no number of streams"])
    return ImportedLoad(control="concurrency", level=float(level), arrivals="closed")


def _model(config: _Config) -> str:
    """The model that was asked for; ``unknown`` where the server's only one was."""
    model = config.backend.get("model")
    return model if isinstance(model, str) and model else "unknown"


def _data(config: Mapping[str, Any]) -> dict[str, object]:
    """What the report says of its prompts: the kinds and lengths of its data sets."""
    spec = config.get("spec")
    data = spec.get("data") if isinstance(spec, dict) else None
    kept: dict[str, object] = {}
    for source in data if isinstance(data, list) else ():
        if not isinstance(source, dict):
            continue
        for name, value in source.items():
            if isinstance(value, int | float) or name == "kind":
                kept[printable_name(name)] = value
    return kept


def _definitions(distributions: Mapping[str, Distribution | None]) -> dict[str, str]:
    return {
        figure: text
        for figure, text in DEFINITIONS.items()
        if figure not in distributions or distributions[figure] is not None
    }


def _aggregates(metrics: _Metrics) -> dict[str, object]:
    """The metrics of text as the report has them, without their densities."""
    kept: dict[str, object] = {}
    for name, value in metrics.model_dump(mode="json").items():
        if isinstance(value, dict) and isinstance(value.get("successful"), dict):
            kept[printable_name(name)] = {
                key: each for key, each in value["successful"].items() if key != "pdf"
            }
    kept["request_totals"] = metrics.request_totals.model_dump(mode="json")
    return kept


def _left_out(benchmark: _Benchmark) -> dict[str, int]:
    """What no table has: requests that did not end, texts and the benchmark's settings."""
    left_out = {"requests that did not end": len(benchmark.requests.incomplete)}
    totals = benchmark.metrics.request_totals
    shown = len(benchmark.requests.successful) + len(benchmark.requests.errored)
    if shown < totals.successful + totals.errored:
        left_out["requests of a sample"] = shown
    texts = [request.others.get("output") for request in _all_requests(benchmark)]
    left_out["output"] = sum(1 for text in texts if text)
    left_out["config"] = size_of(benchmark.config.model_dump(mode="json"))
    return {name: count for name, count in left_out.items() if count}

"""The files of AIPerf 0.13: ``profile_export_aiperf.json``, and ``profile_export.jsonl`` beside it.

The JSON has the figures, the load and the version; the JSONL has one record per request and none of
these, so it is read only together with the JSON of the same run. Which belong together is found by
what they say: the number of requests and their mean latency.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestrator.base.redaction import redact
from orchestrator.exchange.consistency import OwnRequests, Values
from orchestrator.exchange.fields import (
    Fields,
    UnixNs,
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

TOOL = "AIPerf"
VERSIONS = ("0.13.",)
SUMMARY_MARKS = frozenset({"aiperf_version", "schema_version"})
RECORD_MARKS = frozenset({"metadata", "metrics"})
DEFINITIONS = {
    "ttft_ms": "time_to_first_token: first chunk with content or reasoning - start of the request",
    "ttfo_ms": "time_to_first_output_token: first chunk after the reasoning - start of the request",
    "tpot_ms": (
        "inter_token_latency: (last chunk - first chunk) / (output tokens - tokens of the first "
        "chunk, or 1) of each request"
    ),
    "itl_ms": "inter_chunk_latency: time between successive chunks, those of all requests together",
    "e2e_ms": "request_latency: last chunk with content - start of the request",
    "request_throughput": "answered requests / (last response - first request)",
    "output_token_throughput": "output and reasoning tokens / (last response - first request)",
    "input_token_throughput": "total_isl / benchmark_duration",
    "total_token_throughput": "total_token_throughput: input and output tokens / benchmark_duration",
    "input_tokens": "input_sequence_length",
    "output_tokens": "output_sequence_length, reasoning included",
}
_FIGURES = {
    "ttft_ms": "time_to_first_token",
    "ttfo_ms": "time_to_first_output_token",
    "tpot_ms": "inter_token_latency",
    "itl_ms": "inter_chunk_latency",
    "e2e_ms": "request_latency",
    "input_tokens": "input_sequence_length",
    "output_tokens": "output_sequence_length",
}
_RATES = ("request_throughput", "output_token_throughput", "total_token_throughput")
_NAMES = {
    **_FIGURES,
    **{rate: rate for rate in _RATES},
    "input_token_throughput": "total_isl / benchmark_duration",
}
_UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "sec": 1e3, "s": 1e3, "tokens": 1.0}
_SAME = 1e-6  # relative: two files state the mean of the same latencies


class _Statistics(Fields):
    unit: str
    avg: Value | None = None
    std: Value | None = None
    min: Value | None = None
    max: Value | None = None
    p50: Value | None = None
    p90: Value | None = None
    p95: Value | None = None
    p99: Value | None = None
    sum: Value | None = None


class _Phase(Fields):
    kind: Literal["warmup", "profiling"] | None = None
    name: str | None = None
    type: str
    concurrency: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    rate: Annotated[float, Field(gt=0, le=1e9)] | None = None

    @property
    def is_measured(self) -> bool:
        return (self.kind or self.name) != "warmup"


class _Config(Fields):
    phases: list[_Phase]


class _Summary(Fields):
    aiperf_version: str
    request_count: _Statistics | None = None
    error_request_count: _Statistics | None = None
    request_latency: _Statistics | None = None
    benchmark_duration: _Statistics
    input_config: _Config
    start_time: str | None = None
    end_time: str | None = None
    was_cancelled: bool | None = None
    is_complete: bool | None = None
    incomplete_reason: str | None = None

    @property
    def answered(self) -> int:
        return _whole(self.request_count)

    @property
    def failed(self) -> int:
        return _whole(self.error_request_count)


class _Metric(Fields):
    value: Any
    unit: str


class _Metadata(Fields):
    conversation_id: str | None = None
    turn_index: Annotated[int, Field(ge=0, lt=2**15)] | None = None
    request_start_ns: UnixNs
    request_end_ns: UnixNs
    benchmark_phase: Literal["warmup", "profiling"]


class _Error(Fields):
    code: Annotated[int, Field(ge=-(2**15), lt=2**15)] | None = None
    message: str


class _Record(Fields):
    metadata: _Metadata
    metrics: dict[str, _Metric]
    error: _Error | None = None

    def milliseconds(self, name: str) -> float | None:
        """A latency of this request in ms; None where it has none."""
        metric = self.metrics.get(name)
        if metric is None:
            return None
        value = _number(metric.value, name)
        return value * _factor(metric.unit, name)

    def tokens(self, *names: str) -> int | None:
        """The first of these counts that it has."""
        for name in names:
            if name in self.metrics:
                value = _number(self.metrics[name].value, name)
                if not 0 <= value < 2**31:
                    raise UnreadableFile([f"{name} is {value:g}"])
                return int(value)
        return None


class AiPerf:
    """See the module."""

    title = "AIPerf 0.13 JSON and JSONL"

    def recognises(self, file: ImportFile) -> bool:
        """Whether it is a summary or the records of AIPerf, of whatever version."""
        return _is_summary(file) or _is_records(file)

    def read(self, files: Sequence[ImportFile]) -> Mapping[str, Sequence[ImportedPoint]]:
        """The points of all files; the records count as those of their summary's file.

        Raises UnreadableFiles, also for records without the summary of their run.
        """
        reasons: dict[str, Sequence[str]] = {}
        summaries: dict[str, _Summary] = {}
        records: dict[str, list[_Record]] = {}
        for file in files:
            try:
                if _is_summary(file):
                    summaries[file.name] = _summary(file)
                else:
                    records[file.name] = _records(file)
            except UnreadableFile as error:
                reasons[file.name] = error.reasons
        records_of = _paired(summaries, records, reasons)
        points: dict[str, Sequence[ImportedPoint]] = {}
        for name, summary in summaries.items():
            try:
                points[name] = [_point(summary, records_of.get(name, ()))]
            except UnreadableFile as error:
                reasons[name] = error.reasons
        if reasons:
            raise UnreadableFiles(reasons)
        return points


FORMAT = AiPerf()


def _is_summary(file: ImportFile) -> bool:
    documents = file.documents
    return (
        len(documents) == 1
        and isinstance(documents[0], dict)
        and (documents[0].keys() >= SUMMARY_MARKS)
    )


def _is_records(file: ImportFile) -> bool:
    """Whether each document is a record: metadata with a phase and clock readings, and metrics."""
    if not file.documents:
        return False
    for document in file.documents:
        if not isinstance(document, dict) or not document.keys() >= RECORD_MARKS:
            return False
        metadata = document["metadata"]
        if not isinstance(metadata, dict) or "request_start_ns" not in metadata:
            return False
    return True


def _summary(file: ImportFile) -> _Summary:
    """Raises UnreadableFile for a version that is not known, and for a run that did not finish or
    was cancelled.
    """
    (document,) = file.documents
    assert isinstance(document, dict)
    version = document["aiperf_version"]
    if not isinstance(version, str) or not version.startswith(VERSIONS):
        raise UnreadableFile([f"it is of AIPerf {version!r}: what is read is AIPerf 0.13"])
    summary = read_fields(_Summary, document)
    if summary.is_complete is False or summary.was_cancelled:
        default_reason = "it was cancelled" if summary.was_cancelled else "no reason given"
        reason = summary.incomplete_reason or default_reason
        raise UnreadableFile([f"its run is not complete: {reason}"])
    return summary


def _records(file: ImportFile) -> list[_Record]:
    records: list[_Record] = []
    reasons: list[str] = []
    for number, document in enumerate(file.documents, 1):
        try:
            records.append(read_fields(_Record, document))
        except UnreadableFile as error:
            reasons += [f"line {number}: {reason}" for reason in error.reasons]
    if reasons:
        more = [f"and {len(reasons) - 5} more"] if len(reasons) > 5 else []
        raise UnreadableFile([*reasons[:5], *more])
    return records


def _paired(
    summaries: Mapping[str, _Summary],
    records: Mapping[str, list[_Record]],
    reasons: dict[str, Sequence[str]],
) -> dict[str, list[_Record]]:
    """The records of each summary, by the summary's file.

    Adds to ``reasons`` what has no partner.
    """
    paired: dict[str, list[_Record]] = {}
    for name, of_file in records.items():
        try:
            partners = [each for each, summary in summaries.items() if _is_of(summary, of_file)]
        except UnreadableFile as error:
            reasons[name] = error.reasons
            continue
        free = [each for each in partners if each not in paired]
        if len(free) == 1:
            paired[free[0]] = of_file
        elif free:
            reasons[name] = [f"it may belong to any of {', '.join(free)}: import them apart"]
        elif partners:
            reasons[name] = [f"other records were already read for {partners[0]}"]
        else:
            reasons[name] = [
                "it holds AIPerf's records, without load and version: give the "
                "profile_export_aiperf.json of the same run, too"
            ]
    return paired


def _is_of(summary: _Summary, records: Sequence[_Record]) -> bool:
    """Whether the records are those of the run that the summary is about."""
    measured = [record for record in records if record.metadata.benchmark_phase == "profiling"]
    answered = [record for record in measured if record.error is None]
    if len(answered) != summary.answered or len(measured) - len(answered) != summary.failed:
        return False
    if not answered:
        return True
    latencies = [record.milliseconds("request_latency") for record in answered]
    present = [latency for latency in latencies if latency is not None]
    stated = summary.request_latency
    if stated is None or stated.avg is None or not present:
        return stated is None and not present
    mean = math.fsum(present) / len(present)
    return math.isclose(mean, stated.avg * _factor(stated.unit, "request_latency"), rel_tol=_SAME)


def _point(summary: _Summary, records: Sequence[_Record]) -> ImportedPoint:
    duration_s = _duration_s(summary)
    metrics = _metrics(summary)
    distributions = {figure: _distribution(metrics, name) for figure, name in _FIGURES.items()}
    if distributions["ttfo_ms"] == distributions["ttft_ms"]:
        distributions["ttfo_ms"] = None  # no reasoning: ours is empty there, too
    rates: dict[str, float | None] = {name: _average(metrics, name) for name in _RATES}
    prompts = _average(metrics, "total_isl")
    rates["input_token_throughput"] = None if prompts is None else prompts / duration_s
    totals = RequestTotals(
        scheduled=summary.answered + summary.failed, ok=summary.answered, failed=summary.failed
    )
    measured = [record for record in records if record.metadata.benchmark_phase == "profiling"]
    begin_ns = min((record.metadata.request_start_ns for record in measured), default=None)
    requests = _requests(measured, begin_ns or 0)
    last_ns = max((request.sent_ns for request in requests), default=0)
    figures = imported_figures(totals, duration_s, rates, distributions)
    own = OwnRequests(
        requests=requests,
        surely_counted=requests,
        values=_values(measured),
        names=_NAMES,
        times_s=_rate_times_s(summary, duration_s),
    )
    reasons = own.contradictions(figures)
    if reasons:
        raise UnreadableFile(reasons)
    return ImportedPoint(
        tool=TOOL,
        version=summary.aiperf_version,
        place=0,
        model=_model(summary),
        load=_load(summary),
        workload=_workload(summary),
        started_unix_ns=begin_ns if begin_ns is not None else _unix_ns(summary.start_time),
        window=MeasuredWindow(0, max(round(duration_s * 1e9), last_ns + 1)),
        figures=figures,
        definitions=_definitions(distributions, rates),
        aggregates={name: metric.model_dump(mode="json") for name, metric in metrics.items()},
        left_out=_left_out(summary, records, measured),
        requests=requests,
    )


def _rate_times_s(summary: _Summary, duration_s: float) -> tuple[float, float]:
    """The shortest and the longest time that its rates may be counted over, in seconds.

    They are counted until the run ended, a few ms after the last response.
    """
    if summary.start_time is None or summary.end_time is None:
        return duration_s, duration_s
    run_s = (_unix_ns(summary.end_time) - _unix_ns(summary.start_time)) / 1e9
    if run_s <= 0:
        raise UnreadableFile(["end_time is not after start_time"])
    return min(duration_s, run_s), max(duration_s, run_s)


def _values(measured: Sequence[_Record]) -> dict[str, Values]:
    """The values of answered requests as the records have them, in ms and tokens."""
    values: dict[str, Values] = {}
    answered = [record for record in measured if record.error is None]
    for figure, name in _FIGURES.items():
        of_requests: list[float | None] = []
        for record in answered:
            if figure == "itl_ms":
                of_requests += [1e3 * gap_s for gap_s in _gaps_s(record) or ()]
            else:
                of_requests.append(record.milliseconds(name))
        values[figure] = Values(of_requests)
    return values


def _metrics(summary: _Summary) -> dict[str, _Statistics]:
    """All metrics of the summary, declared or not. Raises UnreadableFile for a damaged one."""
    metrics: dict[str, _Statistics] = {}
    reasons: list[str] = []
    fields = {name: getattr(summary, name) for name in type(summary).model_fields}
    for name, value in {**fields, **summary.others}.items():
        if isinstance(value, _Statistics):
            metrics[name] = value
        elif isinstance(value, dict) and "unit" in value:
            try:
                metrics[printable_name(name)] = read_fields(_Statistics, value)
            except UnreadableFile as error:
                reasons += [f"{name}.{reason}" for reason in error.reasons]
    if reasons:
        raise UnreadableFile(reasons)
    return metrics


def _distribution(metrics: Mapping[str, _Statistics], name: str) -> Distribution | None:
    metric = metrics.get(name)
    if metric is None or metric.avg is None:
        return None
    factor = _factor(metric.unit, name)
    values = {"mean": metric.avg, "std": metric.std, "min": metric.min, "max": metric.max}
    values |= {"p50": metric.p50, "p90": metric.p90, "p95": metric.p95, "p99": metric.p99}
    present = {key: factor * value for key, value in values.items() if value is not None}
    return stated_distribution(present)


def _average(metrics: Mapping[str, _Statistics], name: str) -> float | None:
    metric = metrics.get(name)
    return metric.avg if metric is not None else None


def _duration_s(summary: _Summary) -> float:
    duration = summary.benchmark_duration
    duration_ms = (duration.avg or 0.0) * _factor(duration.unit, "benchmark_duration")
    if not 0 < duration_ms <= 1e12:
        raise UnreadableFile([f"benchmark_duration is {duration.avg!r} {duration.unit}"])
    return duration_ms / 1e3


def _factor(unit: str, name: str) -> float:
    """What a value in this unit is multiplied by to be in ms; 1 for tokens."""
    if unit not in _UNITS:
        raise UnreadableFile([f"the unit of {name} is {unit[:40]!r}"])
    return _UNITS[unit]


def _number(value: object, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(float(value)) < 1e15:  # type: ignore[arg-type]
        raise UnreadableFile([f"{name} is {str(value)[:40]!r}"])
    return float(value)  # type: ignore[arg-type]


def _whole(metric: _Statistics | None) -> int:
    return 0 if metric is None or metric.avg is None else round(metric.avg)


def _requests(records: Sequence[_Record], begin_ns: int) -> tuple[ImportedRequest, ...]:
    sessions: dict[str, int] = {}
    requests = [_request(record, begin_ns, sessions) for record in records]
    return tuple(sorted(requests, key=lambda request: request.sent_ns))


def _request(record: _Record, begin_ns: int, sessions: dict[str, int]) -> ImportedRequest:
    """``sessions``: numbers of conversations, added to as they come."""
    metadata = record.metadata
    sent_ns = metadata.request_start_ns - begin_ns
    done_ns = metadata.request_end_ns - begin_ns
    if done_ns < sent_ns or done_ns >= 2**62:
        raise UnreadableFile(["request_end_ns is before request_start_ns"])
    session = None
    if metadata.turn_index is not None and metadata.conversation_id is not None:
        session = sessions.setdefault(metadata.conversation_id, len(sessions))
    input_tokens = record.tokens("input_sequence_length")
    if record.error is not None:
        return ImportedRequest(
            sent_ns=sent_ns,
            done_ns=done_ns,
            input_tokens=input_tokens,
            session=session,
            turn=metadata.turn_index,
            error=record.error.message,
            http_status=record.error.code,
        )
    ttft_ms = record.milliseconds("time_to_first_token")
    answer_ms = record.milliseconds("time_to_first_output_token")
    latency_ms = record.milliseconds("request_latency")
    gaps_s = _gaps_s(record)
    return ImportedRequest(
        sent_ns=sent_ns,
        done_ns=done_ns,
        first_token_ns=_after(sent_ns, ttft_ms),
        first_answer_ns=_after(sent_ns, answer_ms if answer_ms != ttft_ms else None),
        last_token_ns=_after(sent_ns, latency_ms),
        input_tokens=input_tokens,
        output_tokens=record.tokens("output_sequence_length", "output_token_count"),
        chunks=None if gaps_s is None else len(gaps_s) + 1,
        gaps_s=gaps_s,
        session=session,
        turn=metadata.turn_index,
    )


def _after(sent_ns: int, milliseconds: float | None) -> int | None:
    return None if milliseconds is None else sent_ns + round(milliseconds * 1e6)


def _gaps_s(record: _Record) -> list[float] | None:
    metric = record.metrics.get("inter_chunk_latency")
    if metric is None:
        return None
    if not isinstance(metric.value, list):
        raise UnreadableFile(["inter_chunk_latency is no list"])
    factor = _factor(metric.unit, "inter_chunk_latency") / 1e3
    gaps_s = [factor * _number(value, "inter_chunk_latency") for value in metric.value]
    if any(not 0 <= gap_s <= 2_000 for gap_s in gaps_s):
        raise UnreadableFile(["inter_chunk_latency has a gap that is no time"])
    return gaps_s


def _load(summary: _Summary) -> ImportedLoad:
    """Raises UnreadableFile where the run had no one load level."""
    phases = [phase for phase in summary.input_config.phases if phase.is_measured]
    if len(phases) != 1:
        raise UnreadableFile([f"it has {len(phases)} measured phases: want one"])
    (phase,) = phases
    if phase.type == "concurrency":
        return ImportedLoad(
            control="concurrency", level=float(phase.concurrency or 1), arrivals="closed"
        )
    if phase.type in ("poisson", "gamma", "constant") and phase.rate is not None:
        return ImportedLoad(
            control="request_rate",
            level=phase.rate,
            arrivals=phase.type,
            max_in_flight=phase.concurrency,
        )
    raise UnreadableFile([f"its phase is {phase.type[:40]!r}: no one load level"])


def _model(summary: _Summary) -> str:
    """The model; several are named together, ``unknown`` where the file names none."""
    config = summary.input_config.others
    models = config.get("models")
    items = models.get("items") if isinstance(models, dict) else models
    names: list[str] = []
    for item in items if isinstance(items, list) else [config.get("model")]:
        name = item.get("name") if isinstance(item, dict) else item
        if isinstance(name, str) and name:
            names.append(name)
    return ", ".join(names) or "unknown"


def _workload(summary: _Summary) -> dict[str, object]:
    """The kinds of its data sets and the numbers that describe their prompts."""
    datasets = summary.input_config.others.get("datasets")
    kept: dict[str, object] = {}
    for place, dataset in enumerate(datasets if isinstance(datasets, list) else ()):
        if not isinstance(dataset, dict):
            continue
        if isinstance(dataset.get("type"), str):
            kept[f"{place}.type"] = redact(dataset["type"])[:200]
        kept |= _numbers(dataset.get("prompts"), f"{place}.prompts")
    return kept


def _numbers(value: object, name: str) -> dict[str, object]:
    """The numbers in a JSON value, by the names that lead to them: ``prompts.isl.mean``."""
    if isinstance(value, int | float):
        return {printable_name(name): value}
    numbers: dict[str, object] = {}
    if isinstance(value, dict):
        for key, inner in value.items():
            numbers |= _numbers(inner, f"{name}.{key}")
    return numbers


def _unix_ns(instant: str | None) -> int:
    try:
        return round(datetime.fromisoformat(instant or "").timestamp() * 1e9)
    except (ValueError, OverflowError, OSError) as error:
        raise UnreadableFile([f"start_time or end_time is {instant!r}"]) from error


def _definitions(
    distributions: Mapping[str, Distribution | None], rates: Mapping[str, float | None]
) -> dict[str, str]:
    figures: dict[str, object] = {**distributions, **rates}
    return {figure: text for figure, text in DEFINITIONS.items() if figures.get(figure) is not None}


def _left_out(
    summary: _Summary, records: Sequence[_Record], measured: Sequence[_Record]
) -> dict[str, int]:
    """Warm-up records, metrics of requests that no table has, and the run's settings."""
    left_out: Counter[str] = Counter()
    left_out["requests of the warm-up"] = len(records) - len(measured)
    kept = {*_FIGURES.values(), "output_token_count"}
    for record in measured:
        for name, metric in record.metrics.items():
            if name not in kept:
                left_out[printable_name(name)] += size_of(metric.value)
    left_out["input_config"] = size_of(summary.input_config.model_dump(mode="json"))
    for name in ("telemetry_data", "warmup_metrics", "error_summary", "branch_stats"):
        left_out[name] = size_of(summary.others[name]) if name in summary.others else 0
    return {name: count for name, count in left_out.items() if count}

"""The JSON of ``vllm bench serve --save-result``, with ``--save-detailed`` or without.

The file names neither vLLM's version nor the instants at which requests were due.
``--append-result`` writes several results into one file, one after the other: each is a point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.base.redaction import redact
from orchestrator.exchange.consistency import OwnRequests, Values
from orchestrator.exchange.fields import (
    Count,
    Fields,
    GapSeconds,
    Seconds,
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
from orchestrator.exchange.statistics import (
    distribution_of,
    filled_in,
    imported_figures,
    only_mean,
    stated_distribution,
)
from orchestrator.results.records import Distribution, RequestTotals
from orchestrator.results.window import MeasuredWindow

TOOL = "vllm bench serve"
_MARKS = frozenset({"date", "model_id", "tokenizer_id", "num_prompts", "burstiness", "duration"})
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms"}
_NAMES = {
    **{figure: f"{name}_ms" for name, figure in _LATENCIES.items()},
    "input_tokens": "total_input_tokens",
    "output_tokens": "total_output_tokens",
    "request_throughput": "request_throughput",
    "input_token_throughput": "total_input_tokens / duration",
    "output_token_throughput": "output_throughput",
    "total_token_throughput": "total_token_throughput",
}
DEFINITIONS = {
    "ttft_ms": "ttft: first chunk - sending",
    "tpot_ms": "tpot: (last chunk - first chunk) / (output tokens - 1), of requests with 2 or more",
    "itl_ms": "itl: time between successive chunks of a request, those of all requests together",
    "e2e_ms": "e2el: last chunk - sending",
    "request_throughput": "completed / duration, which includes ramp-up and the last answers",
    "output_token_throughput": "output_throughput: output tokens of completed requests / duration",
    "input_token_throughput": "total_input_tokens / duration",
    "total_token_throughput": "input and output tokens of completed requests / duration",
    "input_tokens": "prompt lengths of completed requests",
    "output_tokens": "output lengths: the server's count, else the tokenizer's of the text",
}
Level = Annotated[float, Field(gt=0, le=1e9)]
# The part of a run in which requests that are all due at once are sent at most. A recorded trace that
# is sent at its own times (--self-timed) has the same request_rate, and its file does not say so.
MOST_SENDING_SHARE = 0.5


class _Result(Fields):
    """One result. The lists have one entry per request, in the order in which they were sent."""

    date: str
    backend: str | None = None
    model_id: str
    tokenizer_id: str | None = None
    num_prompts: Count
    request_rate: Level | Literal["inf"]
    burstiness: Level
    max_concurrency: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    ramp_up_strategy: str | None = None
    duration: Annotated[float, Field(gt=0, le=1e9)]
    completed: Count
    failed: Count | None = None
    total_input_tokens: Annotated[int, Field(ge=0, lt=2**53)]
    total_output_tokens: Annotated[int, Field(ge=0, lt=2**53)]
    request_throughput: Value
    output_throughput: Value
    total_token_throughput: Value
    input_lens: list[Count] | None = None
    output_lens: list[Count] | None = None
    ttfts: list[Seconds] | None = None
    itls: list[list[GapSeconds]] | None = None
    latencies: list[Seconds] | None = None
    start_times: list[Seconds] | None = None
    errors: list[str | None] | None = None

    @property
    def has_requests(self) -> bool:
        """Whether it was saved with ``--save-detailed``."""
        return self.ttfts is not None


class VllmBench:
    """See the module."""

    title = "vllm bench serve JSON"

    def recognises(self, file: ImportFile) -> bool:
        """Whether every document has the fields that only vLLM's results have together."""
        documents = file.documents
        return bool(documents) and all(
            isinstance(document, dict) and document.keys() >= _MARKS for document in documents
        )

    def read(self, files: Sequence[ImportFile]) -> Mapping[str, Sequence[ImportedPoint]]:
        """The points of all files. Raises UnreadableFiles."""
        points: dict[str, Sequence[ImportedPoint]] = {}
        reasons: dict[str, list[str]] = {}
        for file in files:
            of_file: list[ImportedPoint] = []
            for place, document in enumerate(file.documents):
                try:
                    of_file.append(_point(read_fields(_Result, document), place))
                except UnreadableFile as error:
                    result = f"result {place + 1}: " if len(file.documents) > 1 else ""
                    reasons.setdefault(file.name, []).extend(
                        f"{result}{reason}" for reason in error.reasons
                    )
            points[file.name] = of_file
        if reasons:
            raise UnreadableFiles(reasons)
        return points


FORMAT = VllmBench()


def _point(result: _Result, place: int) -> ImportedPoint:
    requests = _requests(result) if result.has_requests else ()
    values = _values(requests)
    distributions = _distributions(result, values)
    rates = {
        "request_throughput": result.request_throughput,
        "output_token_throughput": result.output_throughput,
        "input_token_throughput": result.total_input_tokens / result.duration,
        "total_token_throughput": result.total_token_throughput,
    }
    failed = result.failed
    if failed is None:  # older versions do not count them
        failed = sum(1 for request in requests if request.error is not None)
    totals = RequestTotals(scheduled=result.completed + failed, ok=result.completed, failed=failed)
    figures = imported_figures(totals, result.duration, rates, distributions)
    own = OwnRequests(
        requests=requests,
        surely_counted=requests,
        values=values,
        names=_NAMES,
        times_s=(result.duration, result.duration),
    )
    reasons = own.contradictions(figures)
    if reasons:
        raise UnreadableFile(reasons)
    last_ns = max((request.sent_ns for request in requests), default=0)
    duration_ns = round(result.duration * 1e9)
    return ImportedPoint(
        tool=TOOL,
        version=None,
        place=place,
        model=result.model_id,
        load=_load(result),
        workload={},  # the file does not name the dataset
        started_unix_ns=_end_unix_ns(result.date) - duration_ns,
        window=MeasuredWindow(0, max(duration_ns, last_ns + 1)),
        figures=figures,
        definitions=_definitions(distributions),
        aggregates=_aggregates(result),
        left_out=_left_out(result),
        requests=requests,
    )


def _load(result: _Result) -> ImportedLoad:
    """Raises UnreadableFile for a run that had no one load level."""
    if result.ramp_up_strategy is not None:
        raise UnreadableFile(
            [f"ramp_up_strategy is {result.ramp_up_strategy!r}: no one load level"]
        )
    if result.request_rate != "inf":
        is_poisson = result.burstiness == 1
        return ImportedLoad(
            control="request_rate",
            level=result.request_rate,
            arrivals="poisson" if is_poisson else "gamma",
            max_in_flight=result.max_concurrency,
        )
    if result.max_concurrency is not None:
        return ImportedLoad(
            control="concurrency", level=float(result.max_concurrency), arrivals="closed"
        )
    starts = result.start_times or [0.0]
    sending_s = max(starts) - min(starts)
    if sending_s > MOST_SENDING_SHARE * result.duration:
        raise UnreadableFile(
            [
                f"request_rate is inf, and requests were sent over {sending_s:.3g} of "
                f"{result.duration:.3g} s: a trace sent at its own times has no one load level"
            ]
        )
    return ImportedLoad(control="request_rate", level=math.inf, arrivals="at_once")


def _end_unix_ns(date: str) -> int:
    """The instant at which the result was made; the file has it in local time, without a zone."""
    try:
        return int(datetime.strptime(date, "%Y%m%d-%H%M%S").timestamp()) * 10**9
    except (ValueError, OverflowError, OSError) as error:
        raise UnreadableFile([f"date is {date[:40]!r}: want 20260131-235959"]) from error


def _requests(result: _Result) -> list[ImportedRequest]:
    """The requests of a detailed result. Raises UnreadableFile where the lists do not fit."""
    inputs = result.input_lens
    outputs = result.output_lens
    firsts = result.ttfts
    starts = result.start_times
    gaps = result.itls
    lists: dict[str, Sequence[object] | None] = {
        "input_lens": inputs,
        "output_lens": outputs,
        "ttfts": firsts,
        "itls": gaps,
        "start_times": starts,
        "errors": result.errors,
    }
    missing = [name for name, values in lists.items() if values is None]
    if missing:
        raise UnreadableFile([f"it has ttfts and no {name}" for name in missing])
    lengths = {name: len(values) for name, values in lists.items() if values is not None}
    if result.latencies is not None:
        lengths["latencies"] = len(result.latencies)
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UnreadableFile([f"its lists have different lengths: {sizes}"])
    assert inputs is not None and outputs is not None and firsts is not None
    assert starts is not None and gaps is not None and result.errors is not None
    begin = min(starts, default=0.0)
    requests = []
    for index, start in enumerate(starts):
        until_last_s = firsts[index] + sum(gaps[index])
        if result.latencies is not None:
            until_last_s = result.latencies[index]
        sent_ns = round((start - begin) * 1e9)
        last_ns = sent_ns + round(until_last_s * 1e9)
        error = result.errors[index]
        if error:
            requests.append(
                ImportedRequest(
                    sent_ns=sent_ns,
                    done_ns=last_ns,
                    input_tokens=inputs[index],
                    error=error,
                )
            )
            continue
        requests.append(
            ImportedRequest(
                sent_ns=sent_ns,
                done_ns=last_ns,
                first_token_ns=sent_ns + round(firsts[index] * 1e9),
                last_token_ns=last_ns,
                input_tokens=inputs[index],
                output_tokens=outputs[index],
                chunks=len(gaps[index]) + 1,
                gaps_s=gaps[index],
            )
        )
    return requests


def _distributions(result: _Result, values: Mapping[str, Values]) -> dict[str, Distribution | None]:
    """The distributions that the result states, by their names in Figures.

    A result has only the percentiles that were asked for; those of a detailed one are completed
    from its requests.
    """
    of_requests = {figure: distribution_of(each.values) for figure, each in values.items()}
    distributions: dict[str, Distribution | None] = {}
    for name, figure in _LATENCIES.items():
        distributions[figure] = filled_in(_stated(result, name), of_requests[figure])
    if distributions["e2e_ms"] is None and result.latencies and not result.failed:
        distributions["e2e_ms"] = distribution_of(1e3 * latency for latency in result.latencies)
    totals = {
        "input_tokens": result.total_input_tokens,
        "output_tokens": result.total_output_tokens,
    }
    for figure, total in totals.items():
        stated = only_mean(total, result.completed)
        distributions[figure] = filled_in(stated, of_requests[figure])
    return distributions


def _stated(result: _Result, name: str) -> Distribution | None:
    """The statistics of a latency; None where it was not asked for, or no request has one.

    vLLM writes zeros where no request has a value.
    """
    values: dict[str, float | None] = {}
    names = {
        "mean": "mean",
        "std": "std",
        "p50": "median",
        "p90": "p90",
        "p95": "p95",
        "p99": "p99",
    }
    for statistic, prefix in names.items():
        value = result.others.get(f"{prefix}_{name}_ms")
        if isinstance(value, int | float) and math.isfinite(value) and abs(value) < 1e15:
            values[statistic] = float(value)
    if "mean" not in values or not any(values.values()):
        return None
    return stated_distribution(values)


def _values(requests: Sequence[ImportedRequest]) -> dict[str, Values]:
    """The values of answered requests under vLLM's definitions, in ms and tokens."""
    ttfts: list[float] = []
    tpots: list[float] = []
    gaps: list[float] = []
    latencies: list[float] = []
    answered = [request for request in requests if request.error is None]
    for request in answered:
        assert request.first_token_ns is not None and request.last_token_ns is not None
        assert request.output_tokens is not None
        ttfts.append((request.first_token_ns - request.sent_ns) / 1e6)
        latencies.append((request.last_token_ns - request.sent_ns) / 1e6)
        gaps += [gap_s * 1e3 for gap_s in request.gaps_s or ()]
        if request.output_tokens > 1:
            decode_ns = request.last_token_ns - request.first_token_ns
            tpots.append(decode_ns / (request.output_tokens - 1) / 1e6)
    return {
        "ttft_ms": Values(ttfts),
        "tpot_ms": Values(tpots),
        "itl_ms": Values(gaps),
        "e2e_ms": Values(latencies),
        "input_tokens": Values(request.input_tokens for request in answered),
        "output_tokens": Values(request.output_tokens for request in answered),
    }


def _definitions(distributions: Mapping[str, Distribution | None]) -> dict[str, str]:
    """The definitions of the figures that the result has."""
    return {
        figure: text
        for figure, text in DEFINITIONS.items()
        if figure not in distributions or distributions[figure] is not None
    }


def _aggregates(result: _Result) -> dict[str, object]:
    """The numbers and names that the result has beside its lists."""
    document = {**result.model_dump(mode="json"), **result.others}
    aggregates: dict[str, object] = {}
    for name, value in document.items():
        if isinstance(value, str | int | float | bool):
            aggregates[printable_name(name)] = redact(value) if isinstance(value, str) else value
    return aggregates


def _left_out(result: _Result) -> dict[str, int]:
    """Lists and objects that no table has: texts, times in the client's queue, and fields of other
    versions. Without ``--save-detailed`` the latencies stand alone, so no request has a row.
    """
    left_out: dict[str, int] = {}
    if result.latencies and not result.has_requests:
        left_out["latencies"] = len(result.latencies)
    for name, value in result.others.items():
        if isinstance(value, list | dict) and value:
            left_out[printable_name(name)] = size_of(value)
    return left_out

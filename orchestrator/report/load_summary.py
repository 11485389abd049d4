"""What ``orchestrator load`` shows people, for one load level or several."""

import math
import shlex
from collections.abc import Iterator, Sequence

from orchestrator.analysis.metrics import are_too_few
from orchestrator.analysis.slo import format_slo, is_joint_test
from orchestrator.base.text import counted
from orchestrator.report.documents.level import LevelDocument
from orchestrator.report.documents.part import results_of_part, share_of
from orchestrator.report.documents.point import SloResult
from orchestrator.report.guidance_text import guidance_text
from orchestrator.report.part_table import PartRow, part_rows_text
from orchestrator.report.point_table import met_cell
from orchestrator.report.text import (
    EMULATED,
    FEW_TEXT,
    Cell,
    Column,
    FilledColumn,
    figure,
    interval_text,
    marked_percentile,
    marks_aligned,
    plain,
    rows_of,
    share_interval_text,
    styled,
    table,
)
from orchestrator.report.words import level_text
from orchestrator.report.written_form import TextForm
from orchestrator.results.outcomes import CacheState
from orchestrator.results.records import Distribution

LATENCIES = (
    "ttft_ms",
    "ttfo_ms",
    "tpot_ms",
    "itl_ms",
    "e2e_ms",
    "ttft_from_sent_ms",
    "e2e_from_sent_ms",
)
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def run_text(document: LevelDocument) -> Iterator[str]:
    """One level: a table of latencies, rates, counts, errors and the verdict."""
    figures = document.figures
    requests = figures.requests
    clients = counted(document.clients, "client")
    yield styled(f"{document.model} at {document.url}: {_loop(document)}, {clients}", "bold")
    yield from _latencies(document)
    yield ""
    yield from _throughput(document)
    yield _window(document)
    yield f"requests: {requests.scheduled} scheduled, {requests.ok} ok, {requests.failed} failed"
    yield _lengths(document)
    yield f"in flight: {_number(document.all_requests.in_flight_mean)} on average"
    cached = _cached_tokens(document, "it")
    yield f"prefix cache at the start: {_cache_text(document.source.cache_state)}{cached}"
    yield from _adapters(document)
    if document.guidance is not None:
        yield guidance_text(document.guidance)
    yield from _errors(document, "  ")
    if document.slo_result is not None:
        yield from _limits(document.slo_result)
    yield from part_rows_text(("part",), _part_rows([document]), TextForm("--format json"))
    is_valid = document.validity == "valid"
    yield styled(f"validity: {document.validity}", "green" if is_valid else "yellow")
    for reason in document.validity_reasons:
        yield styled(f"  {reason}", "yellow")
    yield from _ending([document])


def _cache_text(state: CacheState) -> str:
    """The state of a prefix cache, and what a word means that is not the reader's."""
    if state == "salted":
        return "salted (no request finds prompts of an earlier run)"
    return state


def runs_text(documents: Sequence[LevelDocument]) -> Iterator[str]:
    """Several levels in one table; below it the errors and doubts of each."""
    first = documents[0]
    clients = counted(first.clients, "client")
    yield styled(f"{first.model} at {first.url}: {clients}", "bold")
    columns = list(_level_columns(documents))
    form = TextForm("--format json")
    yield from form.table([each.column for each in columns], rows_of(columns))
    if any(_has_few(document) for document in documents):
        yield styled(FEW_TEXT, "dim")
    yield from form.closing()
    yield ""
    cache_states = dict.fromkeys(document.source.cache_state for document in documents)
    yield f"prefix cache at the start: {', '.join(map(_cache_text, cache_states))}"
    if first.slo_result is not None:
        yield f"limits: {format_slo(first.slo_result.slo)}"
    parts = _part_rows(documents, with_load=True)
    yield from part_rows_text(("load", "part"), parts, TextForm("--format json"))
    for document in documents:
        yield from _remarks(document)
    yield from _ending(documents)


def _part_rows(documents: Sequence[LevelDocument], with_load: bool = False) -> list[PartRow]:
    """The parts of a mix at each level."""
    rows: list[PartRow] = []
    for document in documents:
        requests = sum(part.figures.requests.scheduled for part in document.parts)
        results = [] if document.slo_result is None else [document.slo_result]
        for part in document.parts:
            of_part = results_of_part(results, part.part)
            load = (level_text(document.level),) if with_load else ()
            rows.append(
                PartRow(
                    labels=(*load, part.part),
                    figures=part.figures,
                    share_of_requests=share_of(part.figures.requests.scheduled, requests),
                    result=of_part[0] if of_part else None,
                )
            )
    return rows


def _remarks(document: LevelDocument) -> Iterator[str]:
    """The lines on one of several levels, below the table."""
    load = level_text(document.level)
    cached = _cached_tokens(document, "the prefix cache")
    yield f"{load}: {_window(document)}; {_lengths(document)}{cached}"
    yield from (f"{load}: {line}" for line in _adapters(document))
    if document.guidance is not None:
        yield f"{load}: {guidance_text(document.guidance)}"
    yield from _errors(document, f"{load}: ")
    reasons = document.validity_reasons
    if document.validity != "valid" or reasons:
        yield styled(f"{load}: {document.validity}: {'; '.join(reasons)}", "yellow")


def _loop(document: LevelDocument) -> str:
    level = document.level
    if level.control == "concurrency":
        return f"{level.value:g} in flight, closed loop"
    if math.isinf(level.value):
        return "all requests at once"
    return f"{level.value:g} requests/s, {document.arrivals}"


def _latencies(document: LevelDocument) -> Iterator[str]:
    figures = document.figures
    answers = figures.requests.ok
    rows = []
    for name in LATENCIES:
        latencies: Distribution | None = getattr(figures, name)
        if name == "ttfo_ms" and latencies is None:
            continue  # no answer had reasoning before it
        count = answers
        if name == "itl_ms":
            count = _output_tokens(document)  # there are about as many gaps
        label = name.removesuffix("_ms").replace("_", " ")
        rows.append([label, *_latency_cells(latencies, count)])
    titles = ["mean", *QUANTILES]
    yield from table([Column("ms", fold=True), *map(Column, titles)], rows)


def _output_tokens(document: LevelDocument) -> int:
    figures = document.figures
    if figures.output_tokens is None:
        return 0
    return round(figures.output_tokens.mean * figures.requests.ok)


def _latency_cells(latencies: Distribution | None, count: int) -> list[str]:
    """The mean and the percentiles; beside a percentile of too few values stands their number."""
    if latencies is None:
        return ["-" for _ in ("mean", *QUANTILES)]
    cells = [_number(latencies.mean)]
    for name, quantile in QUANTILES.items():
        number = _number(getattr(latencies, name))
        cells.append(f"{number} (n={count})" if are_too_few(count, quantile) else number)
    return cells


def _throughput(document: LevelDocument) -> Iterator[str]:
    figures = document.figures
    requests = _number(figures.request_throughput)
    output_tokens = _number(figures.output_token_throughput)
    yield f"throughput: {requests} requests/s{_offered(document)}, {output_tokens} output tokens/s"
    yield f"  {_number(figures.total_token_throughput)} tokens/s with those of the prompts"
    interval = document.output_token_throughput
    if interval is not None and not math.isnan(interval.lower):
        bounds = f"{interval.lower:,.2f}-{interval.upper:,.2f}"
        yield f"  output tokens/s, 95 % interval within this run: {bounds}"


def _offered(document: LevelDocument) -> str:
    """The rate at which requests of an open loop were due, which differs from the one asked for by
    chance, or while conversations begin; empty for other loops.
    """
    level = document.level
    offered = document.evidence["offered_rate"]
    if level.control != "request_rate" or math.isinf(level.value) or not offered:
        return ""
    return f" of {_number(offered)} offered"


def _window(document: LevelDocument) -> str:
    reason = " (in flight steady)" if document.window_was_found else ""
    length_s = document.figures.window_s
    return f"window: from {document.window_start_s:.1f} s{reason}, {length_s:.1f} s long"


def _lengths(document: LevelDocument) -> str:
    figures = document.figures
    sources = ", ".join(document.all_requests.token_count_sources) or "nobody"
    lengths = f"{_mean(figures.input_tokens)} in, {_mean(figures.output_tokens)} out"
    return f"tokens a request: {lengths} (counted by: {sources})"


def _cached_tokens(document: LevelDocument, source: str) -> str:
    tokens = document.all_requests.cached_tokens
    if tokens is None:
        return ""
    return f", {tokens:,} prompt tokens came from {source}"


def _adapters(document: LevelDocument) -> Iterator[str]:
    """The latencies of adapters beside those of the model itself."""
    cost = document.adapter_cost
    if cost is None:
        return
    adapters = counted(cost.adapters_asked, "adapter")
    of_adapters = (
        f"ttft {_number(cost.adapter_ttft_ms)} ms, tpot {_number(cost.adapter_tpot_ms)} ms"
    )
    yield f"{adapters}, {cost.adapter_share:.0%} of answers, p50: {of_adapters}"
    if cost.base_ttft_ms is not None:
        of_base = f"ttft {_number(cost.base_ttft_ms)} ms, tpot {_number(cost.base_tpot_ms)} ms"
        yield f"  the model itself beside them, p50: {of_base}"


def _errors(document: LevelDocument, indent: str) -> Iterator[str]:
    """How many requests failed, by class of error, with the commonest message of each."""
    for error_class, count in document.figures.errors.items():
        message = document.all_requests.error_texts.get(error_class)
        mostly = f", mostly: {plain(message)}" if message else ""
        yield styled(f"{indent}{error_class}: {count}{mostly}", "red")


def _ending(documents: Sequence[LevelDocument]) -> Iterator[str]:
    """Each note once; whether an emulator answered; how to send the same requests again."""
    notes: dict[str, None] = {}
    for document in documents:
        notes.update(dict.fromkeys(document.source.notes))
    for note in notes:
        yield styled(f"note: {plain(note)}", "yellow")
    source = documents[0].source
    if source.emulated:
        yield styled(EMULATED, "yellow")
    if source.repeat:
        yield styled(f"seed: {source.seed}, of which each repeat draws requests of its own", "dim")
    else:
        option = f"--seed {source.seed} sends the same requests again"
        yield styled(f"seed: {source.seed} ({option})", "dim")
    if source.name is not None and source.results is not None:
        command = f"orchestrator results {shlex.quote(source.results)}"
        yield styled(f"stored as {source.name}: {command} shows all runs there", "dim")


def _level_columns(documents: Sequence[LevelDocument]) -> Iterator[FilledColumn]:
    """The columns of the table, which has one line per level."""
    figures = [document.figures for document in documents]
    loads = [level_text(document.level) for document in documents]
    yield FilledColumn(Column("load", fold=True), loads)
    answered = [f"{each.requests.ok}/{each.requests.scheduled}" for each in figures]
    yield FilledColumn(Column("ok/all", drop_rank=2), answered)
    if any(document.validity != "valid" for document in documents):
        verdicts = [_verdict_cell(document) for document in documents]
        yield FilledColumn(Column("verdict", is_left=True), verdicts)
    rates = [figure(each.request_throughput) for each in figures]
    yield FilledColumn(Column("requests/s", drop_rank=6), rates)
    intervals = [document.output_token_throughput for document in documents]
    tokens = [figure(interval.estimate if interval else None) for interval in intervals]
    yield FilledColumn(Column("output\ntokens/s"), tokens)
    bounds = [interval_text(interval) for interval in intervals]
    yield FilledColumn(Column("95 %\ninterval", drop_rank=3, name="interval of tokens/s"), bounds)
    in_flight = [figure(document.all_requests.in_flight_mean) for document in documents]
    yield FilledColumn(Column("in flight", drop_rank=4), in_flight)
    yield from _latency_columns(documents, "TTFT", "ttft_ms", (7, 0))
    yield from _latency_columns(documents, "TPOT", "tpot_ms", (8, 0))
    yield from _latency_columns(documents, "E2E", "e2e_ms", (9, 5))
    if documents[0].slo_result is not None:
        yield from _limit_columns(documents)


def _verdict_cell(document: LevelDocument) -> Cell:
    style = None if document.validity == "valid" else "yellow"
    return Cell(document.validity, style)


def _latency_columns(
    documents: Sequence[LevelDocument], title: str, figure_name: str, drop_ranks: tuple[int, int]
) -> Iterator[FilledColumn]:
    """The median and the 99th percentile. ``drop_ranks``: of these two columns."""
    quantiles = {"p50": 0.5, "p99": 0.99}
    for (name, quantile), drop_rank in zip(quantiles.items(), drop_ranks, strict=True):
        texts = [
            marked_percentile(
                getattr(document.figures, figure_name), quantile, document.figures.requests.ok
            )
            for document in documents
        ]
        yield FilledColumn(Column(f"{title} ms\n{name}", drop_rank=drop_rank), marks_aligned(texts))


def _limit_columns(documents: Sequence[LevelDocument]) -> Iterator[FilledColumn]:
    results = [document.slo_result for document in documents]
    shares = [result.attainment if result else None for result in results]
    estimates = [f"{share.estimate:.3f}" if share else "-" for share in shares]
    yield FilledColumn(Column("attain-\nment"), estimates)
    intervals = [share_interval_text(share) for share in shares]
    yield FilledColumn(
        Column("95 %\ninterval", drop_rank=1, name="interval of attainment"), intervals
    )
    met = [met_cell(result) for result in results]
    yield FilledColumn(Column("SLO", is_left=True), met)


def _has_few(document: LevelDocument) -> bool:
    """Whether there are too few answers for a 99th percentile."""
    return are_too_few(document.figures.requests.ok, QUANTILES["p99"])


def _limits(result: SloResult) -> Iterator[str]:
    """The limits; below them, for each test, the share of requests that met it, with interval."""
    style = "green" if result.is_met else "yellow"
    yield styled(f"limits: {format_slo(result.slo)}", style)
    if not result.tests:
        yield styled("  no request was due in the window", style)
    for test in result.tests:
        name = test.name if is_joint_test(test.name) else f"within {test.name}"
        share = test.share
        interval = f"{share.lower:.3f}-{share.upper:.3f}"
        yield styled(f"  {name} {share.estimate:.3f} ({interval})", style)
    if result.goodput is not None:
        goodput = f"goodput {_number(result.goodput)} req/s"
        yield styled(f"  {goodput}: requests per second that met the limits", style)


def _mean(values: Distribution | None) -> str:
    return f"{values.mean:,.0f}" if values else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"

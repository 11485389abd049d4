"""What ``orchestrator load`` shows: one run per load level."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis.intervals import rate_interval
from orchestrator.analysis.metrics import few, figures, observe, steady_window_ns, validity_of
from orchestrator.analysis.points import attained
from orchestrator.analysis.requests import WindowNs
from orchestrator.analysis.slo import JOINT, judge, limit_values
from orchestrator.report.as_json import slo_json
from orchestrator.report.documents.point import SloResult
from orchestrator.report.formats import Document, metrics
from orchestrator.report.text import (
    EMULATED,
    Column,
    figure,
    p50_p99,
    plain,
    plus_minus,
    say,
    share_text,
    table,
)
from orchestrator.results.lazy_rows import Rows, slices
from orchestrator.results.records import Distribution, Figures
from orchestrator.spec.load import INFINITE, Slo, counted, in_json, load_text

if TYPE_CHECKING:
    from orchestrator.load.point import ClientStats, LoadPoint
    from orchestrator.load.validity import Verdict

LATENCIES = (
    "ttft_ms",
    "ttfo_ms",
    "tpot_ms",
    "itl_ms",
    "e2e_ms",
    "ttft_from_sent_ms",
    "e2e_from_sent_ms",
)
RATES = ("request_throughput", "output_token_throughput", "total_token_throughput")
COLUMNS = {"mean": 0.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def run_document(
    point: LoadPoint,
    clients: int,
    requests: Rows,
    token_events: Rows,
    stats: Sequence[ClientStats],
    verdict: Verdict,
) -> dict[str, object]:
    """How the level was measured, the metrics of docs/metrics.md, the verdict. Holds no secrets."""
    window_ns = steady_window_ns(point.warmup_s, point.duration_s, requests)
    observed = observe(requests, token_events, window_ns)
    found = figures(observed)
    return {
        "url": point.targets[0].url,
        "model": point.targets[0].model,
        "api": point.workload.api,
        "path": point.dialect.path,
        "control": point.level.control,
        "level": in_json(point.level.value),
        "arrivals": point.arrivals.at(point.level),
        "prompt_file": getattr(point.workload, "prompts", None),
        "warmup_s": point.warmup_s,  # null: the window begins where the run became steady
        "window_start_s": window_ns[0] / 1e9,
        "duration_s": point.duration_s,
        "seed": point.seed,
        "max_in_flight": point.max_in_flight,
        "clients": clients,
        **metrics(found),
        "output_token_throughput_interval": rate_interval(observed.token_batches),
        **_of_all_phases(requests, window_ns),
        "validity": validity_of(verdict.validity, [found.requests]),
        "validity_reasons": verdict.reasons,
        "evidence": verdict.evidence,
        "clients_stats": [asdict(one) for one in stats],
    }


def limits_document(
    point: LoadPoint, requests: Rows, token_events: Rows, slos: Sequence[Slo]
) -> dict[str, object]:
    """How many requests met the limits of ``--slo``; empty without it."""
    if not slos:
        return {}
    window_ns = steady_window_ns(point.warmup_s, point.duration_s, requests)
    (slo,) = slos
    verdicts = judge(limit_values(requests, token_events, window_ns), slo)
    window_s = (window_ns[1] - window_ns[0]) / 1e9
    return {"slo": slo_json(SloResult(slo, attained([verdicts]), (verdicts,), window_s))}


def run_text(found: Document) -> Iterator[str]:
    """The document for people: a table of latencies, rates, counts, errors and the verdict."""
    one: dict[str, Any] = dict(found)
    yield say(
        f"{one['model']} at {one['url']}: {_loop(one)}, {counted(one['clients'], 'client')}", "bold"
    )
    shown = _figures(one)
    columns = [Column("ms", fold=True), *map(Column, COLUMNS)]
    counts = shown.requests
    # about as many as gaps
    tokens = round(shown.output_tokens.mean * counts.ok) if shown.output_tokens else 0
    rows = [
        (name, getattr(shown, name), tokens if name == "itl_ms" else counts.ok)
        for name in LATENCIES
    ]
    yield from table(columns, [_row(*row) for row in rows if row[1] or row[0] != "ttfo_ms"])
    yield ""
    requests, output_tokens, all_tokens = (_number(getattr(shown, name)) for name in RATES)
    yield f"throughput: {requests} requests/s, {output_tokens} output tokens/s"
    yield f"  {all_tokens} tokens/s with those of the prompts"
    if interval := one["output_token_throughput_interval"]:
        low, high = interval.lower, interval.upper
        yield f"  output tokens/s, 95 % interval within this run: {low:,.2f}-{high:,.2f}"
    yield _window(one)
    yield f"requests: {counts.scheduled} scheduled, {counts.ok} ok, {counts.failed} failed"
    yield _lengths(one)
    yield f"in flight: {_number(one['in_flight_mean'])} on average"
    yield f"prefix cache at the start: {one.get('cache_state', 'unknown')}{_cached(one)}"
    yield from _errors(one, "  ")
    if "slo" in one:
        yield from _limits(one["slo"])
    yield say(f"validity: {one['validity']}", "green" if one["validity"] == "valid" else "yellow")
    yield from (say(f"  {reason}", "yellow") for reason in one["validity_reasons"])
    yield from _ending([one])


def runs_text(documents: Sequence[Document]) -> Iterator[str]:
    """Several levels in one table; below it the errors and doubts of each."""
    every: list[dict[str, Any]] = [dict(one) for one in documents]
    first = every[0]
    yield say(f"{first['model']} at {first['url']}: {counted(first['clients'], 'client')}", "bold")
    titles = [
        "ok/all",
        "requests/s",
        "output\ntokens/s",
        "in flight",
        "TTFT ms\np50, p99",
        "TPOT ms\np50, p99",
    ]
    titles += ["E2E ms\np50, p99", *(["attainment"] if "slo" in first else [])]
    yield from table(
        [Column("load", fold=True), *map(Column, titles)], [_cells(one) for one in every]
    )
    yield ""
    yield (
        "prefix cache at the start: "
        f"{', '.join(dict.fromkeys(one.get('cache_state', 'unknown') for one in every))}"
    )
    if "slo" in first:
        yield f"limits: {first['slo']['text']}"
    for one in every:
        load = load_text(one["control"], float(one["level"]))
        yield f"{load}: {_window(one)}; {_lengths(one)}{_cached(one, 'the prefix cache')}"
        yield from _errors(one, f"{load}: ")
        if one["validity"] != "valid" or one["validity_reasons"]:
            yield say(f"{load}: {one['validity']}: {'; '.join(one['validity_reasons'])}", "yellow")
    yield from _ending(every)


def _window(one: dict[str, Any]) -> str:
    begin, found = one["window_start_s"], one["warmup_s"] is None and one["window_start_s"] > 0
    how = " (in flight steady)" if found else ""
    return f"window: from {begin:.1f} s{how}, {one['window_s']:.1f} s long"


def _lengths(one: dict[str, Any]) -> str:
    sources = ", ".join(one["token_count_sources"]) or "nobody"
    lengths = f"{_mean(one['input_tokens'])} in, {_mean(one['output_tokens'])} out"
    return f"tokens a request: {lengths} (counted by: {sources})"


def _cached(one: dict[str, Any], source: str = "it") -> str:
    return (
        ""
        if one["cached_tokens"] is None
        else f", {one['cached_tokens']:,} prompt tokens came from {source}"
    )


def _errors(one: dict[str, Any], before: str) -> Iterator[str]:
    """How many requests failed by class of error, with what was said most often."""
    for name, count in one["errors"].items():
        text = one["error_texts"].get(name)
        yield say(f"{before}{name}: {count}{f', mostly: {plain(text)}' if text else ''}", "red")


def _ending(documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Notes, each once; whether it was an emulator; how to send the same requests again."""
    notes = dict.fromkeys(note for one in documents for note in one.get("notes", ()))
    yield from (say(f"note: {plain(note)}", "yellow") for note in notes)
    first = documents[0]
    if first.get("emulated"):
        yield say(EMULATED, "yellow")
    if first.get("repeat"):
        yield say(f"seed: {first['seed']}, of which each repeat draws requests of its own", "dim")
    else:
        yield say(
            f"seed: {first['seed']} (--seed {first['seed']} sends the same requests again)", "dim"
        )
    if first.get("name"):
        yield say(
            f"stored as {first['name']}: orchestrator results {shlex.quote(first['results'])}"
            " shows all runs there",
            "dim",
        )


def _cells(one: dict[str, Any]) -> list[str]:
    shown, share = _figures(one), one.get("slo", {}).get("attainment")
    ok, latencies = shown.requests.ok, (shown.ttft_ms, shown.tpot_ms, shown.e2e_ms)
    return [
        load_text(one["control"], float(one["level"])),
        f"{ok}/{shown.requests.scheduled}"
        + ("" if one["validity"] == "valid" else f"\n{one['validity']}"),
        figure(shown.request_throughput),
        plus_minus(one["output_token_throughput_interval"]),
        figure(one["in_flight_mean"]),
        *(p50_p99(values, ok) for values in latencies),
        *([share_text(share) if share else "-"] if "slo" in one else []),
    ]


def _limits(slo: dict[str, Any]) -> Iterator[str]:
    """The limits, and below them each share of requests that met them, with its interval."""
    style = "green" if slo["met"] else "yellow"
    yield say(f"limits: {slo['text']}", style)
    if not slo["tests"]:
        yield say("  no request was due in the window", style)
    for test in slo["tests"]:
        name = test["name"] if test["name"] == JOINT else f"within {test['name']}"
        share = test["share"]
        interval = f"{share.lower:.3f}-{share.upper:.3f}"
        yield say(f"  {name} {share.estimate:.3f} ({interval})", style)
    if slo["goodput"] is not None:
        goodput = f"goodput {_number(slo['goodput'])} req/s"
        yield say(f"  {goodput}: requests per second that met the limits", style)


def _figures(found: Document) -> Figures:
    return Figures(**{name: found[name] for name in Figures.__slots__})  # type: ignore[arg-type]


def _loop(found: Document) -> str:
    if found["control"] == "concurrency":
        return f"{found['level']:g} in flight, closed loop"
    if found["level"] == INFINITE:
        return "all requests at once"
    return f"{found['level']:g} requests/s, {found['arrivals']}"


def _of_all_phases(requests: Rows, window_ns: WindowNs) -> dict[str, object]:
    """What is said of all requests, warm-up included."""
    ok, in_flight_ns, (start, end) = 0, 0.0, window_ns
    sources, cached, texts = set[str](), list[int | None](), Counter[tuple[str, str]]()
    for part in slices(requests):
        ok += pc.sum(pc.equal(part["status"], "ok"), min_count=0).as_py()
        sources |= set(part["token_count_source"].drop_null().unique().to_pylist())
        cached.append(pc.sum(part["cached_tokens"]).as_py())
        sent, done = (part[name].to_numpy().astype(np.float64) for name in ("sent_ns", "done_ns"))
        in_flight_ns += float(
            np.nansum(np.clip(np.minimum(done, end) - np.maximum(sent, start), 0, None))
        )
        said = pa.table({name: part[name] for name in ("error_class", "error")}).drop_null()
        texts.update(zip(said["error_class"].to_pylist(), said["error"].to_pylist(), strict=True))
    return {
        # sent and not done
        "in_flight_mean": in_flight_ns / (end - start) if end > start else None,
        "token_count_sources": sorted(sources),
        # null: the engine does not report them
        "cached_tokens": sum(one or 0 for one in cached)
        if any(one is not None for one in cached)
        else None,
        # the most frequent
        "error_texts": {kind: text for (kind, text), _ in reversed(texts.most_common()) if text},
        "requests_all_phases": {"scheduled": len(requests), "ok": ok, "failed": len(requests) - ok},
    }


def _row(name: str, values: Distribution | None, count: int) -> list[str]:
    label = name.removesuffix("_ms").replace("_", " ")
    marks = {
        key: f" (n={count})" if few(count, quantile) else "" for key, quantile in COLUMNS.items()
    }
    return [
        label,
        *(_number(getattr(values, key, None)) + (marks[key] if values else "") for key in COLUMNS),
    ]


def _mean(values: Distribution | None) -> str:
    return f"{values.mean:,.0f}" if values else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"

"""One run at one load level: what ``orchestrator load`` shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from orchestrator.analysis.metrics import figures, observe, steady_window_ns
from orchestrator.report.documents import Document, metrics
from orchestrator.report.text import Column, say, table
from orchestrator.results.records import Distribution, Figures

if TYPE_CHECKING:
    import pyarrow as pa

    from orchestrator.load.point import ClientStats, LoadPoint
    from orchestrator.load.validity import Verdict

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "ttft_from_sent_ms", "e2e_from_sent_ms")
RATES = ("request_throughput", "output_token_throughput", "total_token_throughput")


def run_document(
    point: LoadPoint,
    clients: int,
    requests: pa.Table,
    token_events: pa.Table,
    stats: Sequence[ClientStats],
    verdict: Verdict,
) -> dict[str, object]:
    """How it was measured, the metrics of docs/metrics.md, the verdict. No secrets."""
    ok = requests["status"].to_pylist().count("ok")
    window_ns = steady_window_ns(point.warmup_s, point.duration_s, requests)
    return {
        "url": point.targets[0].url,
        "model": point.targets[0].model,
        "api": point.workload.api,
        "control": point.level.control,
        "level": point.level.value,
        "arrivals": point.arrivals.process if point.level.control == "request_rate" else "closed",
        "prompt_file": getattr(point.workload, "prompts", None),
        "warmup_s": point.warmup_s,
        "duration_s": point.duration_s,
        "seed": point.seed,
        "max_in_flight": point.max_in_flight,
        "clients": clients,
        **metrics(figures(observe(requests, token_events, window_ns))),
        "requests_all_phases": {"scheduled": len(requests), "ok": ok, "failed": len(requests) - ok},
        "validity": verdict.validity,
        "validity_reasons": verdict.reasons,
        "evidence": verdict.evidence,
        "clients_stats": [asdict(one) for one in stats],
    }


def run_text(found: Document) -> Iterator[str]:
    """The document for a person: latencies as a table, rates, counts, errors and the verdict."""
    loop = f"{found['level']:g} requests/s, {found['arrivals']}"
    if found["control"] == "concurrency":
        loop = f"{found['level']:g} in flight, closed loop"
    yield say(f"{found['model']} at {found['url']}: {loop}, {found['clients']} client(s)", "bold")
    shown = Figures(**{name: found[name] for name in Figures.__slots__})  # type: ignore[arg-type]
    columns = [Column("ms", fold=True), *(Column(name) for name in Distribution.__slots__)]
    yield from table(columns, [_row(name, getattr(shown, name)) for name in LATENCIES])
    yield ""
    yield "   ".join(f"{name.replace('_', ' ')} {_number(getattr(shown, name))}/s" for name in RATES)
    counts = shown.requests
    yield f"requests: {counts.scheduled} scheduled, {counts.ok} ok, {counts.failed} failed"
    yield from (say(f"  {name}: {count}", "red") for name, count in shown.errors.items())
    yield say(f"validity: {found['validity']}", "green" if found["validity"] == "valid" else "yellow")
    reasons = found["validity_reasons"]
    assert isinstance(reasons, list)
    yield from (say(f"  {reason}", "yellow") for reason in reasons)


def _row(name: str, values: Distribution | None) -> list[str]:
    label = name.removesuffix("_ms").replace("_", " ")
    return [label, *(_number(getattr(values, key, None)) for key in Distribution.__slots__)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"

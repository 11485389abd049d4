"""What ``load`` shows: a progress line on stderr, a table or one JSON document on stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import pyarrow as pa

    from orchestrator.load.point import ClientStats, LoadPoint, Progress
    from orchestrator.load.validity import Verdict

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "ttft_from_sent_ms", "e2e_from_sent_ms")
RATES = ("request_throughput", "output_token_throughput", "total_token_throughput")


class Watch:
    """A line on a terminal's stderr, renewed a few times a second; elsewhere nothing, and clients stay undisturbed."""

    def __init__(self, point: LoadPoint) -> None:
        self.on_progress: Callable[[Progress], None] | None = self._show if sys.stderr.isatty() else None
        self._point = point
        self._began = time.monotonic()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.on_progress is not None:
            click.echo("\r\x1b[K", err=True, nl=False)

    def _show(self, progress: Progress) -> None:
        total = f"/{self._point.requests}" if self._point.requests else ""
        failed = f"  {progress.failed} failed" if progress.failed else ""
        click.echo(
            f"\r\x1b[K{time.monotonic() - self._began:5.0f} s  sent {progress.sent}{total}  "
            f"done {progress.done}  in flight {progress.in_flight}{failed}",
            err=True,
            nl=False,
        )


def window_ns(point: LoadPoint, requests: pa.Table) -> tuple[int, int]:
    """The measured window: after the warm-up, for the duration, or until the last request was over."""
    start_ns = round(point.warmup_s * 1e9)
    if point.duration_s is not None:
        return start_ns, start_ns + round(point.duration_s * 1e9)
    return start_ns, max([start_ns, *requests["done_ns"].to_pylist()]) + 1


def document(
    point: LoadPoint,
    clients: int,
    requests: pa.Table,
    token_events: pa.Table,
    stats: Sequence[ClientStats],
    verdict: Verdict,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The JSON document: how it was measured, the metrics of docs/metrics.md, the verdict. No secrets."""
    from orchestrator.analysis.metrics import summarize

    ok = requests["status"].to_pylist().count("ok")
    return {
        "url": point.targets[0].url,
        "model": point.targets[0].model,
        "api": point.workload.api,
        "control": point.level.control,
        "level": point.level.value,
        "arrivals": point.arrivals.process if point.level.control == "request_rate" else "closed",
        "prompt_file": point.workload.prompts,
        "warmup_s": point.warmup_s,
        "duration_s": point.duration_s,
        "seed": point.seed,
        "max_in_flight": point.max_in_flight,
        "clients": clients,
        **summarize(requests, token_events, window_ns(point, requests)),
        "requests_all_phases": {"scheduled": len(requests), "ok": ok, "failed": len(requests) - ok},
        "validity": verdict.validity,
        "validity_reasons": verdict.reasons,
        "evidence": verdict.evidence,
        "notes": list(notes),
        "clients_stats": [asdict(one) for one in stats],
    }


def print_document(found: dict[str, Any], form: str) -> None:
    """One JSON document, or tables for a person."""
    if form == "json":
        click.echo(json.dumps(found, indent=1))
        return
    from rich.console import Console

    console = Console(highlight=False)
    counts = found["requests"]
    loop = f"{found['level']:g} requests/s, {found['arrivals']}"
    if found["control"] == "concurrency":
        loop = f"{found['level']:g} in flight, closed loop"
    console.print(f"[bold]{found['model']}[/bold] at {found['url']}: {loop}, {found['clients']} client(s)")
    console.print(_latencies(found))
    rates = "   ".join(f"{name.replace('_', ' ')} {_number(found[name])}/s" for name in RATES)
    console.print(f"{rates}\nrequests: {counts['scheduled']} scheduled, {counts['ok']} ok, {counts['failed']} failed")
    for name, count in found["errors"].items():
        console.print(f"  {name}: {count}", style="red")
    console.print(f"validity: {found['validity']}", style="green" if found["validity"] == "valid" else "yellow")
    for reason in found["validity_reasons"]:
        console.print(f"  {reason}", style="yellow")


def _latencies(found: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("ms", "mean", "p50", "p90", "p95", "p99", header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in LATENCIES:
        values = found[name] or {}
        label = name.removesuffix("_ms").replace("_", " ")
        table.add_row(label, *(_number(values.get(key)) for key in ("mean", "p50", "p90", "p95", "p99")))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"

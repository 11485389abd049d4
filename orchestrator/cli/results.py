"""``orchestrator results``: what was measured, one row per point, failed ones too."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

EXAMPLES = """
\b
Examples:
  orchestrator results results/
  orchestrator results results/ --slo "ttft<=500ms,tpot<=50ms,attainment>=0.95"
  orchestrator results results/quickstart --format json | jq '.[].output_token_throughput'
  orchestrator results results/ --launches
  orchestrator results results/ --hosts
  orchestrator results "s3://bucket/sweeps?endpoint_override=127.0.0.1:9000&scheme=http" --format csv > points.csv

\b
A point's figures are over its valid repeats pooled ("2 of 3" below its load); --format json has each repeat below
"repeats", --format csv on a line of its own ("row" tells which). Latencies count from when a request was due, in
milliseconds; throughput is per second of the steady window, with its 95 % interval (docs/metrics.md).

\b
--launches shows the starts of engines: weights, KV cache and concurrency as the plan predicted them, as the engine
reported them, and the prediction's error in per cent of what was reported; versions and seconds until ready.
--hosts shows the self-check of every host with clients: how many streamed events a client there keeps up with.
"""
TABLE_WIDTH = 120


@click.command(epilog=EXAMPLES)
@click.argument("uri")
@click.option("--slo", "slo_text", metavar="SLO", help='Limits, like "ttft<=500ms,tpot<=50ms,attainment>=0.95".')
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option("--launches", is_flag=True, help="The starts of engines in place of points: predicted beside reported.")
@click.option("--hosts", is_flag=True, help="What the hosts with clients can do, by their self-check.")
def results(uri: str, slo_text: str | None, form: str, launches: bool, hosts: bool) -> int:
    """Metrics of every point stored at URI: a folder, s3://bucket/prefix or gs://bucket/prefix."""
    if (launches or hosts) and slo_text:
        raise click.UsageError("--slo is about points: leave it out, or --launches and --hosts")
    if launches and hosts:
        raise click.UsageError("give one of --launches and --hosts")
    if hosts:
        return _hosts(uri, form)
    return _launches(uri, form) if launches else _points(uri, slo_text, form)


def _points(uri: str, slo_text: str | None, form: str) -> int:
    from orchestrator.analysis.measured import load_points, point_object
    from orchestrator.analysis.slo import parse_slo
    from orchestrator.results.root import open_results

    slo = parse_slo(slo_text) if slo_text else None
    objects = [point_object(point, slo) for point in load_points(open_results(uri), slo)]
    if form == "json":
        click.echo(json.dumps(objects, indent=1))
    elif form == "csv":
        click.echo(_csv(_lines(objects)), nl=False)
    else:
        _print_tables(console(), objects, slo_text)
    return 0


def _hosts(uri: str, form: str) -> int:
    from orchestrator.cli.results_hosts import host_sentence, load_hosts
    from orchestrator.results.root import open_results

    objects = load_hosts(open_results(uri))
    if form == "json":
        click.echo(json.dumps(objects, indent=1))
    elif form == "csv":
        click.echo(_csv(objects), nl=False)
    else:
        for one in objects:
            say(console(), f"{one['experiment']}: {host_sentence(one)}", "red" if one["status"] != "ok" else None)
        say(console(), f"{len(objects)} self-checks", "dim")
    return 0


def _launches(uri: str, form: str) -> int:
    from orchestrator.analysis.launches import load_launches
    from orchestrator.cli.results_launches import launches_table
    from orchestrator.results.root import open_results

    objects = load_launches(open_results(uri))
    if form == "json":
        click.echo(json.dumps(objects, indent=1))
    elif form == "csv":
        click.echo(_csv([_flat(one) for one in objects]), nl=False)
    else:
        out = console()
        served = [one for one in objects if one["status"] == "ok"]
        if served:
            out.print(launches_table(served))
        if any(one["emulated"] for one in objects):
            say(
                out,
                "emulated: an emulator computes its figures by the plan's own rules; that they agree proves nothing",
                "yellow",
            )
        for one in objects:
            if one["status"] != "ok":
                say(out, f"failed: {one['label']}: {one['reason']} ({one['failure_class']})", "red")
        say(out, f"{len(served)} launches served, {len(objects) - len(served)} failed", "dim")
    return 0


def console() -> Console:
    """Standard output, 120 columns where it is no terminal."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=TABLE_WIDTH)


def _print_tables(out: Console, objects: Sequence[dict[str, Any]], slo_text: str | None) -> None:
    done = [one for one in objects if one["status"] == "ok"]
    failed = [one for one in objects if one["status"] != "ok"]
    if done:
        out.print(_table(done, slo_text))
    if any(one["emulated"] for one in objects):
        say(
            out,
            "emulated: an emulator answered, not an engine; these figures say nothing about real hardware",
            "yellow",
        )
    for one in done:
        for text in _warnings(one):
            say(out, f"{_name(one)}: {text}", "yellow")
    for one in failed:
        say(out, f"failed: {_name(one)}: {one['reason']} ({one['failure_class']})", "red")
    say(out, f"{len(done)} points measured, {len(failed)} failed", "dim")


def say(out: Console, text: str, style: str | None = None) -> None:
    """One line as it is: no markup is read from it and no line break put into it."""
    out.print(text, style=style, markup=False, soft_wrap=True)


def _warnings(one: dict[str, Any]) -> list[str]:
    texts = []
    if one["validity"] != "valid":
        texts.append(f"{one['validity']}: {'; '.join(one['validity_reasons']) or 'no reason was stored'}")
    if one["merged"]["failed"]:
        texts.append(f"{one['merged']['failed']} of {one['merged']['of']} repeats failed: {one['reason']}")
    return texts


def _name(one: dict[str, Any]) -> str:
    return f"{one['label']}{' (emulated)' if one['emulated'] else ''}, {one['workload']}, {load_text(one)}"


def load_text(one: dict[str, Any]) -> str:
    """``8 req/s`` or ``8 in flight``."""
    return f"{one['level']:g} {'req/s' if one['control'] == 'request_rate' else 'in flight'}"


def _table(objects: Sequence[dict[str, Any]], slo_text: str | None) -> Table:
    from rich import box
    from rich.table import Table

    title = f"under {slo_text}" if slo_text else None
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("deployment", overflow="fold", ratio=2)
    table.add_column("workload", overflow="fold", ratio=1)
    names = ["load", "ok/all", "output\ntokens/s", "TTFT ms\np50, p99", "TPOT ms\np50, p99", "E2E ms\np50, p99"]
    for name in [*names, *(["attainment"] if slo_text else [])]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("validity", overflow="fold", max_width=12)
    for one in objects:
        table.add_row(*_cells(one, slo_text is not None))
    return table


def _cells(one: dict[str, Any], with_slo: bool) -> list[str]:
    from rich.markup import escape

    counts, repeats = one["requests"], one["merged"]
    badge = "\n[yellow]emulated[/]" if one["emulated"] else ""
    load = load_text(one) + (f"\n{repeats['used']} of {repeats['of']}" if repeats["of"] > 1 else "")
    cells = [escape(one["label"]) + badge, escape(one["workload"]), load, f"{counts['ok']}/{counts['scheduled']}"]
    cells.append(_plus_minus(one["output_token_throughput_interval"]))
    cells += [_p50_p99(one[name]) for name in ("ttft_ms", "tpot_ms", "e2e_ms")]
    if with_slo:
        share = one["slo"]["attainment"]
        mark = "[green]✓[/]" if one["slo"]["met"] else "[red]✗[/]"
        cells.append(f"{share['estimate']:.3f} {mark}\n{share['lower']:.3f}-{share['upper']:.3f}" if share else "-")
    return [*cells, "valid" if one["validity"] == "valid" else f"[yellow]{one['validity']}[/]"]


def _plus_minus(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return "-"
    return f"{figure(interval['estimate'])}\n±{figure((interval['upper'] - interval['lower']) / 2)}"


def _p50_p99(values: dict[str, float] | None) -> str:
    return f"{figure(values['p50'])}\n{figure(values['p99'])}" if values else "-"


def figure(value: float) -> str:
    """Three digits that matter, thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _lines(objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per point; of a point with several repeats also one per repeat. ``row`` tells: point | repeat."""
    lines = []
    for one in objects:
        shared = {name: value for name, value in one.items() if name != "repeats"}
        single = one["repeats"][0] if len(one["repeats"]) == 1 else {}
        lines.append(_flat({"row": "point", **single, **shared}))
        if not single:
            lines += [_flat({"row": "repeat", **shared, "merged": {}, **repeat}) for repeat in one["repeats"]]
    return lines


def _csv(lines: Sequence[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested objects become dotted columns (``ttft_ms.p50``), lists one cell."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            flat |= _flat(item, f"{prefix}{name}.")
        else:
            flat[prefix + name] = "; ".join(map(str, item)) if isinstance(item, list) else item
    return flat

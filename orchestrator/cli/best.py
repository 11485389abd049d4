"""``orchestrator best``: which configuration gives the most throughput while the limits hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

EXAMPLES = """
\b
Examples:
  orchestrator best results/ --slo "ttft<=500ms,tpot<=50ms,attainment>=0.95"
  orchestrator best results/ --slo "ttft<=2s,itl_p99<=100ms,attainment>=99%" --per usd
  orchestrator best results/ --slo "e2e<=10s" --format json | jq .winner.settings

\b
Per deployment: the highest measured load whose attainment (share of all requests, errors included, that met every
limit) reaches the target, and the output tokens per second there. The limits need not be those of the experiment
file: they are checked against the stored requests.
"""


@click.command(epilog=EXAMPLES)
@click.argument("uri")
@click.option("--slo", "slo_text", required=True, metavar="SLO", help="Limits: ttft, tpot, e2e, itl_p99, attainment.")
@click.option("--per", type=click.Choice(["gpu", "usd", "deployment"]), default="gpu", show_default=True)
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True)
def best(uri: str, slo_text: str, per: str, form: str) -> int:
    """The deployment at URI with the most throughput per GPU, dollar or deployment under the limits."""
    from orchestrator.analysis import best as analysis
    from orchestrator.analysis.measured import load_points
    from orchestrator.analysis.slo import parse_slo
    from orchestrator.cli.results import console, say
    from orchestrator.results.root import open_results

    slo = parse_slo(slo_text)
    answer = analysis.best(load_points(open_results(uri), slo), slo, per)  # type: ignore[arg-type]  # click.Choice
    if form == "json":
        click.echo(json.dumps(answer, indent=1))
        return 0
    out = console()
    for one in answer["answers"]:
        _print_answer(out, one, answer["slo"])
    if answer["emulated"]:
        say(out, "emulated: an emulator answered, not an engine; this says nothing about real hardware", "yellow")
    return 0


def _print_answer(out: Console, answer: dict[str, Any], slo: str) -> None:
    from orchestrator.cli.results import figure, load_text, say

    winner = answer["winner"]
    say(out, f"{answer['workload']} under {slo}", "bold")
    if winner is not None:
        rate = f"{figure(winner['throughput']['estimate'])} {answer['unit']}"
        badge = " (emulated)" if winner["emulated"] else ""
        say(out, f"best: {winner['label']}{badge} at {load_text(winner)}: {rate}", "bold green")
        out.print(_table(answer))
    say(out, answer["why"])
    for one in answer["candidates"]:
        for note in one["notes"]:
            say(out, f"note: {one['label']}: {note}")
    for one in answer["left_out"]:
        level = f" at {load_text(one)}" if one["level"] is not None else ""
        say(out, f"left out: {one['label']}{level}: {one['reason']}", "dim")


def _table(answer: dict[str, Any]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from orchestrator.cli.results import figure, load_text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("deployment", overflow="fold")
    unit = answer["unit"].replace(" per", "\nper")
    for title in ("load", unit, "95 %\ninterval", "attainment", "95 %\ninterval", "TTFT ms\np99", "TPOT ms\np99"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in answer["candidates"]:
        rate, share = one["throughput"], one["attainment"]
        table.add_row(
            escape(one["label"]) + ("\n[yellow]emulated[/]" if one["emulated"] else ""),
            load_text(one),
            figure(rate["estimate"]),
            f"{figure(rate['lower'])}-{figure(rate['upper'])}",
            f"{share['estimate']:.3f}",
            f"{share['lower']:.3f}-{share['upper']:.3f}",
            *(figure(one[name]["p99"]) if one[name] else "-" for name in ("ttft_ms", "tpot_ms")),
        )
    return table

"""``orchestrator best``: which configuration gives the most throughput while the limits hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from orchestrator.analysis.best import Per

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
def best(uri: str, slo_text: str, per: Per, form: str) -> int:
    """The deployment at URI with the most throughput per GPU, dollar or deployment under the limits."""
    from orchestrator.analysis import best as analysis
    from orchestrator.analysis.measured import load_points
    from orchestrator.analysis.slo import parse_slo
    from orchestrator.load.rows import leave_pandas_out
    from orchestrator.report.best import best_document, best_text
    from orchestrator.report.documents import json_text
    from orchestrator.results.root import open_results

    leave_pandas_out()
    slo = parse_slo(slo_text)
    answers = analysis.best(load_points(open_results(uri), slo), slo, per)
    for text in [json_text(best_document(answers, slo, per))] if form == "json" else best_text(answers, slo):
        click.echo(text)
    return 0

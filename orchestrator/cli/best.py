"""``orchestrator best``: which configuration gives the most throughput while the limits hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.command import CliCommand
from orchestrator.cli.numbers import WholeNumber
from orchestrator.cli.results_uri import checked_uri

if TYPE_CHECKING:
    from orchestrator.spec.load import Per

SHOWN_BY = "a wider terminal or --format json"
MARKDOWN_WIDTH = 160  # characters into which lines with names should fit
EXAMPLES = """
\b
Examples:
  orchestrator best results/
  orchestrator best results/ --slo interactive --per usd --price h100=2.10
  orchestrator best results/ --experiment quickstart \\
      --slo "ttft<=2s,itl_p99<=100ms,attainment>=99%"
  orchestrator best results/ --top 12 --format md
  orchestrator best results/ --slo "e2e<=10s" --format json |
      jq '.comparisons[0].ranking[0].settings'
"""
DETAILS = """
For each deployment: the highest measured load at which enough requests met every limit (attainment counts all
requests, errors included), and the output tokens per second there. If capacities were searched, the claimed load.

Without --slo the experiment file's limits apply. Any others are checked against the stored requests: limits on ttft,
tpot, e2e, itl_p99 and normalized_ttft, each also as a percentile (ttft_p95), and attainment.
Without any, deployments that got all requests at once are ranked by throughput alone.

Intervals are 95 % intervals. "not the limit" beside a load: no higher one was shown to fail, so it may hold more.
The bar shows the throughput beside the best one's. A wide terminal has more columns, and --format json has everything.
Compared are only points that the experiment's current plan asks for, of the same model under the same load.

Exit status: 0; 3 if files are damaged or a ranking has no valid measurement; 2 bad input.
"""

OTHER_NAMES = {
    "--workload": "results URI --where 'workload == \"chat\"' for its points; best ranks each "
    "workload apart",
}


@click.command(cls=CliCommand, examples=EXAMPLES, details=DETAILS, other_names=OTHER_NAMES)
@click.argument("uri", callback=checked_uri)
@click.option(
    "--slo",
    "slo_text",
    metavar="SLO|NAME",
    help="A named SLO of the file, or limits as in the examples.",
)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
@click.option(
    "--per",
    type=click.Choice(["gpu", "usd", "joule", "deployment"]),
    help=(
        "What to rank by; joule: by the GPUs' own counters of energy. Default: the file's objective,"
        " else gpu (deployment if one has no GPUs)."
    ),
)
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="HARDWARE=USD",
    help="Use this price in USD per GPU hour instead of the file's.",
)
@click.option(
    "--top",
    type=WholeNumber(min=1),
    metavar="N",
    help="Show the first N of each ranking. Default: 5; 3 where there are more than two rankings.",
)
@click.option(
    "--format",
    "form_name",
    type=click.Choice(["table", "md", "json"]),
    default="table",
    show_default=True,
    help="md: Markdown, for a pull request.",
)
def best(
    uri: str,
    slo_text: str | None,
    experiment: str | None,
    per: Per | None,
    prices: tuple[str, ...],
    top: int | None,
    form_name: str,
) -> int:
    """Rank the deployments at URI under latency limits."""
    from orchestrator.cli.load_again import search_options
    from orchestrator.report.answer_table import AnswerView, best_text, rows_to_show
    from orchestrator.report.as_json import answer_json
    from orchestrator.report.documents.answer import answer_document
    from orchestrator.report.formats import json_text
    from orchestrator.report.next_step import next_step_text, next_steps
    from orchestrator.report.selection import (
        answers,
        check_prices,
        experiments,
        parse_prices,
        ranking_limits,
    )
    from orchestrator.report.text import echo, output_width
    from orchestrator.report.words import decided_notes, experiment_notes, without_limits_text
    from orchestrator.report.written_form import MarkdownForm, TextForm
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.results.root import open_results

    leave_pandas_out()
    usd_by_hardware = parse_prices(prices)
    stored_experiments = experiments(open_results(uri), experiment, usd_by_hardware)
    check_prices(usd_by_hardware, stored_experiments)
    limits_of_each = ranking_limits(slo_text, stored_experiments)
    if not any(limits.slos for limits in limits_of_each):
        raise click.UsageError(
            'no experiment there names limits (slos:): give --slo, like "ttft<=500ms"'
        )
    ranked = answers(limits_of_each, per)
    answer = answer_document(ranked.comparisons)
    if form_name == "json":
        click.echo(json_text(answer_json(answer)))
    elif form_name == "md":
        view = AnswerView(MarkdownForm(), MARKDOWN_WIDTH, top or rows_to_show(answer))
        click.echo("\n".join(best_text(answer, view)))  # not echo: rows must not be wrapped
    else:
        width = output_width()
        view = AnswerView(TextForm(SHOWN_BY, width), width, top or rows_to_show(answer))
        echo("\n".join(best_text(answer, view)))
    notes = [
        without_limits_text(limits.experiment, slo_text)
        for limits in limits_of_each
        if not limits.slos
    ]
    for stored in stored_experiments:
        notes += decided_notes(stored)
    for answered in ranked.experiments:
        notes += experiment_notes(
            answered.experiment, answered.points, answered.unanswered, answered.ranked_apart
        )
    for note in notes:
        echo(f"note: {note}", err=True)
    has_limits_of_file = slo_text is None or all(limits.are_of_file for limits in limits_of_each)
    if form_name == "table" and has_limits_of_file:  # `run` decides under the file's limits only
        for step in next_steps(ranked, search_options):
            echo(next_step_text(step), err=True)
    is_damaged = any(stored.damaged for stored in stored_experiments)
    has_rankings = len(ranked.comparisons) > 0
    is_measured = all(comparison.measured for comparison in ranked.comparisons)
    return 0 if has_rankings and is_measured and not is_damaged else 3

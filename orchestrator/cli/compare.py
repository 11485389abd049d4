"""``orchestrator compare``: whether a second sweep is worse than a first one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.command import CliCommand
from orchestrator.cli.numbers import parse_share
from orchestrator.cli.output_file import check_folder, write_whole
from orchestrator.cli.results_uri import checked_uri
from orchestrator.report.documents.comparison_defaults import ACROSS, GATED

if TYPE_CHECKING:
    from orchestrator.plan.current import StoredExperiment

REGRESSION_STATUS = 4
UNDECIDED_STATUS = 5
EXAMPLES = """
\b
Examples:
  orchestrator compare before/ after/
  orchestrator compare results/monday results/tuesday
  orchestrator compare before/ after/ --within 5% \\
      --fail-on output_token_throughput
  orchestrator compare before/ after/ --across kv_cache_dtype --format md
  orchestrator compare before/ after/ --strict --output compare.html
  orchestrator compare before/ after/ --format json |
      jq '.changes[] | select(.verdict == "worse")'
"""
DETAILS = """
Points are pairs if they have the same workload, load and settings, but for those that --across names. What has no
partner, and what is invalid on either side, is listed and fails nothing.

\b
  worse, better   certain (5 % false alarms of each over all figures together),
                  and measured beyond --within
  same            certainly within --within
  undecided       both sides would need so many starts more than the one with
                  fewer has; with one start nothing is ever decided
  failed          NEW's engine failed or gave broken output; what a client or a
                  neighbour distorted is no failure. Where it failed more
                  requests than BASE's, that is listed; a limit (--slo) decides

What counts is the engine start: ask for `repeats: 2` and `starts: 2` in the file, or more (docs/guides/compare-versions.md).
A server that already ran, as `load` measures it, has one start.

Exit status: 0; 4 if anything is certainly worse or failed; 3 if nothing could be compared or files are damaged; 5 if anything
is undecided, invalid or fails more requests, with --strict alone; 2 bad input.
"""


@click.command(
    cls=CliCommand,
    examples=EXAMPLES,
    details=DETAILS,
    short_help="Say what is worse, better or the same in NEW than in BASE.",
)
@click.argument("base_uri", metavar="BASE", callback=checked_uri)
@click.argument("new_uri", metavar="NEW", callback=checked_uri)
@click.option(
    "--across",
    metavar="NAMES",
    default=",".join(ACROSS),
    show_default=True,
    help="Settings that may differ within a pair.",
)
@click.option(
    "--within",
    "within_text",
    metavar="SHARE",
    default="3%",
    show_default=True,
    help="What is tolerated: of rates and latencies relative, of attainment in points.",
)
@click.option(
    "--fail-on",
    "gated",
    metavar="NAMES",
    default=", ".join(GATED),
    show_default=True,
    help="Figures that are compared, as JSON of `results` names them; of a part of a mix as "
    "chat:ttft_ms.p99, of each part as *:ttft_ms.p99.",
)
@click.option(
    "--slo",
    "slo_text",
    metavar="SLO|NAME",
    help="Limits that attainment is of. Default: the first of BASE's file.",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    metavar="N",
    default=12,
    show_default=True,
    help="Show so many figures, and all that are worse or better.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Status 5 if anything is undecided, invalid or fails more requests.",
)
@click.option("--experiment", metavar="NAME", help="Only this experiment of BASE and of NEW.")
@click.option(
    "--format",
    "form_name",
    type=click.Choice(["table", "md", "json"]),
    default="table",
    show_default=True,
    help="md: Markdown, for a pull request.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Also write one page (HTML) with every change and its charts.",
)
def compare(
    base_uri: str,
    new_uri: str,
    across: str,
    within_text: str,
    gated: str,
    slo_text: str | None,
    top: int,
    strict: bool,
    experiment: str | None,
    form_name: str,
    output: Path | None,
) -> int:
    """Say what is worse, better or the same in NEW than in BASE, two results URIs."""
    from orchestrator.report.comparison_text import comparison_object, comparison_text
    from orchestrator.report.documents.comparison import (
        DifferenceRules,
        compare_sweeps,
        metric_named,
    )
    from orchestrator.report.formats import json_text
    from orchestrator.report.selection import limits
    from orchestrator.report.text import echo
    from orchestrator.report.written_form import MarkdownForm, TextForm
    from orchestrator.results.pandas_hook import leave_pandas_out

    leave_pandas_out()
    if output is not None:
        check_folder(output)
    metrics = tuple(metric_named(name) for name in _names(gated))
    if not metrics:
        raise click.UsageError("--fail-on names no figure: give one, like ttft_ms.p99")
    rules = DifferenceRules(_names(across), parse_share(within_text), metrics)
    base = _only_experiment(base_uri, "BASE", experiment)
    new = _only_experiment(new_uri, "NEW", experiment)
    (judged,) = limits(slo_text, [base])
    is_judged = any(metric.is_share for metric in metrics)
    slo = judged.slos[0] if judged.slos and is_judged else None
    comparison = compare_sweeps(base, new, rules, slo)
    if form_name == "json":
        click.echo(json_text(comparison_object(comparison)))
    else:
        form = (
            MarkdownForm() if form_name == "md" else TextForm("a wider terminal or --format json")
        )
        lines = "\n".join(comparison_text(comparison, form, top))
        if form_name == "md":
            click.echo(lines)
        else:
            echo(lines)
    if output is not None:
        from orchestrator.report.page.comparison import comparison_page

        page = comparison_page(comparison).encode()
        write_whole(output, page)
        click.echo(f"page: {output}", err=True)
    if comparison.has_regressed:
        return REGRESSION_STATUS
    if not comparison.changes or base.damaged or new.damaged:
        return 3
    return UNDECIDED_STATUS if strict and comparison.has_undecided else 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _only_experiment(uri: str, side: str, name: str | None) -> StoredExperiment:
    """The experiment of this name, or the only one.

    ``side``: BASE or NEW, for the message. Raises UsageError where there are several experiments
    and none is named.
    """
    from orchestrator.base.text import listed
    from orchestrator.report.selection import experiments
    from orchestrator.results.location import uri_inside
    from orchestrator.results.root import open_results

    results = open_results(uri)
    if name is None and len(results.experiments) > 1:
        first = uri_inside(results.uri, results.experiments[0])
        raise click.UsageError(
            f"{side} holds several experiments ({listed(results.experiments)}): "
            f"name one's folder, like {first}, or --experiment"
        )
    (stored,) = experiments(results, name)
    return stored

"""``orchestrator logs``: prints what engines wrote, from the results alone."""

import click

from orchestrator.cli.command import CliCommand
from orchestrator.cli.numbers import WholeNumber
from orchestrator.cli.results_uri import checked_uri

EXAMPLES = """
\b
Examples:
  orchestrator logs results/
  orchestrator logs results/quickstart "vllm tp=2" --lines 200
  orchestrator logs s3://bucket/sweeps tp=2 --lines 0
"""
DETAILS = """
Without DEPLOYMENT you get the logs of launches that failed. DEPLOYMENT is part of a label, or the beginning of a
deployment id or launch id; then you also get those that served.
docs/reference/failures.md explains the kinds of failures.
"""


@click.command(cls=CliCommand, examples=EXAMPLES, details=DETAILS)
@click.argument("uri", callback=checked_uri)
@click.argument("deployment", required=False)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
@click.option(
    "--lines",
    type=WholeNumber(min=0),
    default=50,
    show_default=True,
    help="From the end; 0: all.",
)
def logs(uri: str, deployment: str | None, experiment: str | None, lines: int) -> int:
    """Print the end of the engine logs at URI."""
    from orchestrator.report.launch_table import log_text
    from orchestrator.report.selection import experiments
    from orchestrator.results.root import open_results

    has_printed = False
    for stored in experiments(open_results(uri), experiment):
        for line in log_text(stored.store, deployment, lines):
            click.echo(line)
            has_printed = True
    if has_printed:
        return 0
    if deployment is not None:
        raise click.UsageError(f"no launch of a deployment like {deployment!r} is stored there")
    click.echo("no launch failed; name a DEPLOYMENT for the logs of those that served", err=True)
    return 0

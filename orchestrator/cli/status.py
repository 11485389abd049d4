"""``orchestrator status``: shows what the runs of experiments do, from their results alone."""

from __future__ import annotations

import click

from orchestrator.cli.command import CliCommand
from orchestrator.cli.results_uri import checked_uri

EXAMPLES = """
\b
Examples:
  orchestrator status results/
  orchestrator status s3://bucket/sweeps --experiment quickstart --format json
"""
DETAILS = """
Needs no cluster: a run writes its progress beside its results every 10 s. A run whose process is gone is `dead`; one on
another host that wrote nothing for a minute is `silent`. Running its command again replaces either. Ages compare the
clocks of the storage and of this machine. While a run joins its cluster it is `starting`, and runs before it that are
over are left out; JSON has them.

Exit status: 0; 2 bad input, or a storage that does not answer.
"""


@click.command(cls=CliCommand, examples=EXAMPLES, details=DETAILS)
@click.argument("uri", callback=checked_uri)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def status(uri: str, experiment: str | None, form: str) -> None:
    """Show the runs at URI and their progress."""
    from orchestrator.base.redaction import redact_all
    from orchestrator.base.text import listed
    from orchestrator.report.as_json import runs_json
    from orchestrator.report.documents.run import experiment_runs
    from orchestrator.report.formats import json_text
    from orchestrator.report.run_status import run_text
    from orchestrator.report.text import echo
    from orchestrator.results.runs import runs_at
    from orchestrator.results.store import Store

    documents = []
    for runs in runs_at(uri, experiment):
        is_simulated = Store.open(runs.uri, runs.experiment).simulated() is True
        documents.append(experiment_runs(runs, is_simulated))
    if form == "json":
        objects = [runs_json(document) for document in documents]
        click.echo(json_text(redact_all(objects)))
        return
    for document in documents:
        for run in document.of_now:
            echo(run_text(run))
    # each run of `load --results` is an experiment without a run on record
    simulated = [document.experiment for document in documents if document.simulated]
    if simulated:
        echo(f"simulated, nothing was measured: {listed(simulated)}")
    idle = [
        document.experiment for document in documents if not (document.runs or document.simulated)
    ]
    if idle:
        echo(f"no run on record: {listed(idle)}")

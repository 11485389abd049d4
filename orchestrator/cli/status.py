"""``orchestrator status``: what the active run of an experiment does, from its results alone."""

import click

from orchestrator.cli.results_uri import no_file

EXAMPLES = """
\b
Examples:
  orchestrator status results/
  orchestrator status s3://bucket/sweeps --experiment quickstart --format json

\b
Needs no cluster: a run writes its progress beside its results every 10 s. A run whose process is gone is `dead`; one on
another host that wrote nothing for a minute is `silent`. Running its command again replaces either. Ages compare the
clocks of the storage and of this machine.
"""


@click.command(epilog=EXAMPLES)
@click.argument("uri", callback=no_file)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def status(uri: str, experiment: str | None, form: str) -> None:
    """Show the runs at URI and their progress."""
    from orchestrator.base.redaction import redact_all
    from orchestrator.base.text import listed
    from orchestrator.report.formats import json_text
    from orchestrator.report.run_status import run_documents, run_text
    from orchestrator.report.text import echo
    from orchestrator.results.runs import runs_at

    found = []
    for runs in runs_at(uri, experiment):
        ages = runs.names()
        records = [(record, ages.get(f"{record.run_id}.json", 0.0)) for record, _ in runs.all()]
        found.append((runs.experiment, records))
    if form == "json":
        told = [{"experiment": name, "runs": run_documents(records)} for name, records in found]
        click.echo(json_text(redact_all(told)))
        return
    for name, records in found:
        for record, age_s in records:
            echo(run_text(name, record, age_s))
    if idle := [name for name, records in found if not records]:  # each `load --results` is one
        echo(f"no run on record: {listed(idle)}")

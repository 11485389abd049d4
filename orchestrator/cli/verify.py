"""``orchestrator verify``: checks that every committed file is there, whole and unchanged."""

import click

from orchestrator.cli.command import CliCommand
from orchestrator.cli.results_uri import checked_uri

EXAMPLES = """
\b
Examples:
  orchestrator verify results/
  orchestrator verify s3://bucket/sweeps --experiment quickstart
"""
DETAILS = """
Reads every file and compares its size and SHA-256 with its manifest. A damaged file costs only its own measurement.
The next run measures it again if the file is gone or cut off; if its content changed, remove its manifest from commits/
first. Until then results and best show the figures computed earlier, or leave the point out; they name what is cut off
or gone.

Exit status: 0 all files are whole, 3 some are damaged.
"""
REMEDY = (
    "to mend it: the same run again measures what is gone or cut off; of a file whose content has "
    "changed, remove the manifest from commits/ first"
)


@click.command(cls=CliCommand, examples=EXAMPLES, details=DETAILS)
@click.argument("uri", callback=checked_uri)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
def verify(uri: str, experiment: str | None) -> int:
    """Check the files at URI for damage."""
    from orchestrator.base.text import listed
    from orchestrator.report.selection import experiments
    from orchestrator.report.text import echo
    from orchestrator.results.root import open_results

    files = 0
    damaged = 0
    simulated: list[str] = []
    for stored in experiments(open_results(uri), experiment):
        if stored.store.simulated():
            simulated.append(stored.name)
        for part, problem in stored.store.verify():
            files += 1
            if problem:
                damaged += 1
                click.echo(f"{stored.name}/{part}: {problem}")
    click.echo(f"{files} files, {damaged} damaged")
    if damaged:
        echo(REMEDY)
    if simulated:
        click.echo(f"simulated, nothing was measured: {listed(simulated)}")
    return 3 if damaged else 0

"""``orchestrator verify``: whether every committed file is there, whole and unchanged."""

from __future__ import annotations

import click

EXAMPLES = """
\b
Examples:
  orchestrator verify results/
  orchestrator verify s3://bucket/sweeps --experiment quickstart

\b
Reads every file and compares size and SHA-256 with its manifest. A damaged file costs its own measurement: the
next run measures it again where a file is gone or cut off, or once you removed its manifest from commits/. Until then
results and best show what was computed of it before; else they leave it out and name it. Exit status: 0 all whole, 3
some are damaged.
"""


@click.command(epilog=EXAMPLES)
@click.argument("uri")
@click.option("--experiment", metavar="NAME", help="Only this one of the root.")
def verify(uri: str, experiment: str | None) -> int:
    """Check every file stored at URI against the manifests that name them."""
    from orchestrator.report.stored import experiments
    from orchestrator.results.root import open_results

    files = damaged = 0
    for one in experiments(open_results(uri), experiment):
        for part, problem in one.store.verify():
            files += 1
            if problem:
                damaged += 1
                click.echo(f"{one.name}/{part}: {problem}")
    click.echo(f"{files} files, {damaged} damaged")
    return 3 if damaged else 0

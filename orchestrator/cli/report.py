"""``orchestrator report``: the answer as one page that opens from disk."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.command import CliCommand
from orchestrator.cli.output_file import check_folder, write_whole
from orchestrator.cli.results_uri import checked_uri

EXAMPLES = """
\b
Examples:
  orchestrator report results/
  orchestrator report results/ --experiment quickstart --output quickstart.html
  orchestrator report s3://bucket/sweeps --output sweeps.html
"""
DETAILS = """
The page needs no network and no server: open it, mail it, keep it. It shows the answer under the
file's limits, and judges every stored request again when a limit is moved.

Exit status: 0; 3 if files are damaged or nothing has a valid measurement; 2 bad input.
"""


@click.command(
    cls=CliCommand,
    examples=EXAMPLES,
    details=DETAILS,
    short_help="Write one page with the answer and all points at URI.",
)
@click.argument("uri", callback=checked_uri)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
def report(uri: str, output: Path, experiment: str | None) -> int:
    """Write one page with the answer, its charts and all points at URI."""
    from orchestrator.report.page.html import page_of
    from orchestrator.report.selection import experiments, ranked_by_files
    from orchestrator.report.text import echo
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.results.root import open_results

    leave_pandas_out()
    check_folder(output)
    stored = experiments(open_results(uri), experiment)
    page = page_of(uri, ranked_by_files(stored))
    write_whole(output, page.html)
    echo(f"{output}: {len(page.html) / 1e6:.1f} MB, {page.requests:,} requests")
    is_damaged = any(each.damaged for each in stored)
    return 0 if page.has_answer and not is_damaged else 3

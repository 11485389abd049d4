"""``orchestrator export``: writes points for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.command import CliCommand
from orchestrator.cli.results_uri import checked_uri

EXAMPLES = """
\b
Examples:
  orchestrator export results/ --format llm-d --output reports/
  orchestrator export results/ --format inferencex --experiment quickstart
  orchestrator export s3://bucket/sweeps --format llm-d
"""
DETAILS = """
\b
Formats:
  llm-d        the llm-d benchmark report 0.2.1, one file per point, with time
               series
  inferencex   rows as InferenceX has them, one file per experiment; valid
               closed-loop points only

What has no place in a format is counted, with the reason (docs/guides/other-tools.md).

Exit status: 0; 3 if nothing was written or files are damaged; 2 bad input.
"""


@click.command(cls=CliCommand, examples=EXAMPLES, details=DETAILS)
@click.argument("uri", callback=checked_uri)
@click.option("--format", "format_name", metavar="NAME", required=True, help="llm-d or inferencex.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("export"),
    show_default=True,
    help="The folder to write to; files of the same name are replaced.",
)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
def export(uri: str, format_name: str, output: Path, experiment: str | None) -> int:
    """Write the points at URI for other tools."""
    import orjson

    from orchestrator.exchange.export_formats import EXPORT_FORMATS
    from orchestrator.exchange.exported import ExportedFile, LeftOutPoint
    from orchestrator.report.exported_text import export_text
    from orchestrator.report.selection import experiments
    from orchestrator.report.text import echo
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.results.root import open_results

    leave_pandas_out()
    writer = EXPORT_FORMATS[format_name]
    stored = experiments(open_results(uri), experiment)
    points = 0
    files: list[str] = []
    left_out: list[str] = []
    without_parts: list[str] = []
    for each in stored:
        for item in writer.files(each):
            if isinstance(item, ExportedFile):
                output.mkdir(parents=True, exist_ok=True)
                path = output / item.name
                path.write_bytes(orjson.dumps(item.document, option=orjson.OPT_INDENT_2))
                files.append(str(path))
                points += item.points
            elif isinstance(item, LeftOutPoint):
                left_out.append(item.reason)
            else:
                without_parts.append(item.reason)
    for line in export_text(writer.title, files, points, left_out, without_parts):
        echo(line)
    is_damaged = any(each.damaged for each in stored)
    return 0 if files and not is_damaged else 3

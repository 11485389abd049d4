"""``orchestrator import``: reads files of other tools into a store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.command import CliCommand

if TYPE_CHECKING:
    from orchestrator.exchange.importing import StoredFile
    from orchestrator.report.imported_text import ImportedFileSummary

NAME = "imported"
WORKLOAD = "prompts"
EXAMPLES = """
\b
Examples:
  orchestrator import benchmarks.json --results results/
  orchestrator import bench-*.json --results results/ --name peers \\
      --deployment tp2
  orchestrator import artifacts/profile_export_aiperf.json \\
      artifacts/profile_export.jsonl --results results/
  orchestrator results results/ --experiment peers
"""
DETAILS = """
\b
What is read, found by content and not by name:
  vllm bench serve   --save-result, with --save-detailed or without;
                     --append-result too
  GuideLLM 0.8       JSON report; each of its benchmarks is a point
  AIPerf 0.13        profile_export_aiperf.json, and profile_export.jsonl
                     together with it

Figures stay those of the tool, under its definitions, and are shown with its name (docs/guides/other-tools.md).
They are ranked among themselves, never with what this program measured. A file imported twice counts once.

Exit status: 0; 2 if any file cannot be read: then nothing is stored.
"""


@click.command("import", cls=CliCommand, examples=EXAMPLES, details=DETAILS)
@click.argument(
    "paths",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--results", "uri", metavar="URI", required=True, help="Where to store the points.")
@click.option(
    "--name",
    metavar="NAME",
    default=NAME,
    show_default=True,
    help="Name of the experiment that they become.",
)
@click.option(
    "--deployment",
    metavar="LABEL",
    help="What to call the server that was measured. Default: its model.",
)
@click.option(
    "--workload",
    metavar="NAME",
    default=WORKLOAD,
    show_default=True,
    help="What to call the prompts.",
)
def import_results(
    paths: tuple[Path, ...], uri: str, name: str, deployment: str | None, workload: str
) -> int:
    """Read result FILEs of other tools into a store."""
    from orchestrator.exchange.importing import ImportNames, check_place, read_files, store_points
    from orchestrator.report.imported_text import import_text
    from orchestrator.report.text import echo
    from orchestrator.results.location import check_answers, uri_inside
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.results.store import Store

    leave_pandas_out()
    files = read_files(paths)
    check_answers(uri)
    store = Store.open(uri, name)
    check_place(store)
    store.check_writable()
    stored = store_points(store, files, ImportNames(deployment, workload))
    summaries = [_summary(file) for file in stored]
    for line in import_text(summaries, uri_inside(store.uri, store.experiment)):
        echo(line)
    return 0


def _summary(stored: StoredFile) -> ImportedFileSummary:
    """What is said of a file. A file of requests has no points: they are those of its partner."""
    from orchestrator.report.imported_text import ImportedFileSummary

    points = stored.read.points
    left_out: Counter[str] = Counter()
    for point in points:
        left_out.update(point.left_out)
    return ImportedFileSummary(
        name=stored.read.file.name,
        source=points[0].source if points else stored.read.format_title,
        points=len(points),
        already_stored=stored.already_stored,
        with_requests=sum(1 for point in points if point.requests),
        left_out=dict(left_out),
    )

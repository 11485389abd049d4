"""``orchestrator results``: what was measured, one row per point, failed ones too."""

from __future__ import annotations

from collections.abc import Iterable

import click

EXAMPLES = """
\b
Examples:
  orchestrator results results/
  orchestrator results results/ --slo "ttft<=500ms,tpot<=50ms,attainment>=0.95"
  orchestrator results results/quickstart --format json | jq '.[].output_token_throughput'
  orchestrator results results/ --launches
  orchestrator results "s3://bucket/sweeps?endpoint_override=127.0.0.1:9000&scheme=http" --format csv > points.csv

\b
A point's figures are over its valid repeats pooled ("2 of 3" below its load); --format json has each repeat below
"repeats", --format csv on a line of its own ("row" tells which). Latencies count from when a request was due, in
milliseconds; throughput is per second of the steady window, with its 95 % interval (docs/metrics.md).

\b
--launches shows the starts of engines: weights, KV cache and concurrency as the plan predicted them, as the engine
reported them, and the prediction's error in per cent of what was reported; versions and seconds until ready; of those
that failed where their log is.
"""


@click.command(epilog=EXAMPLES)
@click.argument("uri")
@click.option("--slo", "slo_text", metavar="SLO", help='Limits, like "ttft<=500ms,tpot<=50ms,attainment>=0.95".')
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option("--launches", is_flag=True, help="The starts of engines in place of points: predicted beside reported.")
def results(uri: str, slo_text: str | None, form: str, launches: bool) -> int:
    """Metrics of every point stored at URI: a folder, s3://bucket/prefix or gs://bucket/prefix."""
    from orchestrator.load.rows import leave_pandas_out

    leave_pandas_out()
    if launches and slo_text:
        raise click.UsageError("--slo is about points: leave it out, or --launches")
    for text in _launches(uri, form) if launches else _points(uri, slo_text, form):
        click.echo(text, nl=form == "table")
    return 0


def _points(uri: str, slo_text: str | None, form: str) -> Iterable[str]:
    from orchestrator.analysis.launches import launches_of
    from orchestrator.analysis.measured import load_points
    from orchestrator.analysis.slo import parse_slo
    from orchestrator.report.documents import csv_text, json_list
    from orchestrator.report.points import csv_lines, point_document, points_text
    from orchestrator.results.root import open_results

    slo, stored = parse_slo(slo_text) if slo_text else None, open_results(uri)
    points = load_points(stored, slo)
    if form == "table":
        return points_text(points, slo)
    logs = launches_of(stored, [one.point for point in points for one in point.repeats if not one.ok])
    documents = (point_document(point, slo, logs) for point in points)
    return json_list(documents) if form == "json" else [csv_text(csv_lines(documents))]


def _launches(uri: str, form: str) -> Iterable[str]:
    from orchestrator.analysis.launches import load_launches
    from orchestrator.report.documents import csv_text, json_list
    from orchestrator.report.launches import launch_document, launches_text
    from orchestrator.results.root import open_results

    launches = load_launches(open_results(uri))
    if form == "table":
        return launches_text(launches)
    documents = map(launch_document, launches)
    return json_list(documents) if form == "json" else [csv_text(documents)]

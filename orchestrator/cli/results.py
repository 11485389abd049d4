"""``orchestrator results``: what was measured, one row per point, failed ones too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from orchestrator.cli.results_uri import no_file

if TYPE_CHECKING:
    from orchestrator.analysis.points import StoredPoint
    from orchestrator.plan.current import StoredExperiment
    from orchestrator.report.documents.capacity import CapacityDocument
    from orchestrator.report.documents.point import PointDocument
    from orchestrator.report.selection import JudgedExperiment
    from orchestrator.results.records import PointHead

EXAMPLES = """
\b
Examples:
  orchestrator results results/
  orchestrator results results/ --experiment quickstart --slo "ttft<=500ms,tpot<=50ms,attainment>=0.95"
  orchestrator results results/quickstart --format json | jq '.[].output_token_throughput'
  orchestrator results results/ --launches
  orchestrator results "s3://bucket/sweeps?endpoint_override=127.0.0.1:9000&scheme=http" --format csv > points.csv

\b
Latencies are in milliseconds and count from when a request was due. Throughput is per second of the steady window, with
its 95 % interval (docs/metrics.md). Valid repeats of a point are pooled ("2 of 3" below its load). JSON lists each
repeat under "repeats", CSV on a line of its own ("row" tells which). Claims of capacity searches are listed below the
points; in JSON and CSV they have "row": "capacity".

\b
Shown are the points that the experiment's current plan asks for, under every SLO of its file. --all adds points of
earlier versions of the file, in tables of their own.

\b
--launches shows engine starts: version, seconds until ready, and weights, KV cache and concurrency as predicted and as
the engine reported them, with the prediction's error in percent. For failed starts it shows where the log is.
Exit status: 0, 3 if files are damaged, 2 bad input.
"""


@click.command(epilog=EXAMPLES)
@click.argument("uri", callback=no_file)
@click.option("--experiment", metavar="NAME", help="Only this experiment at URI.")
@click.option(
    "--all", "superseded", is_flag=True, help="Also show points of earlier versions of the file."
)
@click.option(
    "--slo", "slo_text", metavar="SLO|NAME", help='Limits, like "ttft<=500ms,attainment>=0.95".'
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
)
@click.option(
    "--launches", is_flag=True, help="Engine starts instead of points: predicted beside reported."
)
@click.option(
    "--profile",
    is_flag=True,
    help="Show prefill and decode separately, as in a batch-size profile.",
)
def results(
    uri: str,
    experiment: str | None,
    superseded: bool,
    slo_text: str | None,
    form: str,
    launches: bool,
    profile: bool,
) -> int:
    """Show the metrics of every point at URI.

    URI is a folder, s3://bucket/prefix or gs://bucket/prefix.
    """
    from orchestrator.report.selection import experiments, with_limits
    from orchestrator.report.text import echo
    from orchestrator.report.words import experiment_notes
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.results.root import open_results

    leave_pandas_out()
    if launches and slo_text:
        raise click.UsageError("--slo is about points: leave it out, or --launches")
    if profile and (launches or form != "table"):
        raise click.UsageError(
            "--profile is a table of points: json and csv hold the same figures of each"
        )
    stored_experiments = experiments(open_results(uri), experiment)
    judged_experiments: list[JudgedExperiment] = []
    if launches:
        texts = _launches(stored_experiments, form)
    else:
        judged_experiments = list(with_limits(slo_text, stored_experiments))
        texts = _points(judged_experiments, superseded, form, profile)
    for text in texts:
        if form == "table":
            echo(text)
        else:
            click.echo(text, nl=False)
    notes: list[str] = []  # complete once all is read
    if launches:
        for stored in stored_experiments:
            notes += experiment_notes(stored)
    for judged in judged_experiments:
        notes += experiment_notes(judged.experiment, judged.points, judged.unanswered)
    for note in notes:
        echo(f"note: {note}", err=True)
    return 3 if any(stored.damaged for stored in stored_experiments) else 0


def _points(
    shown: Iterable[JudgedExperiment], superseded: bool, form: str, profile: bool
) -> Iterable[str]:
    from orchestrator.report.as_json import csv_lines, row_json
    from orchestrator.report.formats import csv_text, json_list

    if form == "table":
        return _tables(shown, superseded, profile)
    documents = _documents(shown, superseded)
    if form == "json":
        return json_list(map(row_json, documents))
    return [csv_text(csv_lines(documents))]


def _tables(shown: Iterable[JudgedExperiment], superseded: bool, profile: bool) -> Iterator[str]:
    from orchestrator.report.capacity_table import capacities_text
    from orchestrator.report.documents.capacity import capacity_documents
    from orchestrator.report.load_runs import load_runs_table

    load_runs = []
    for judged in shown:
        if judged.experiment.is_load_run:
            load_runs.append(judged)
        else:
            for content, points in judged.experiment.alike(judged.points).items():
                heading = f", {content}" if content else ""
                yield from _table(judged, points, heading, profile)
            yield from capacities_text(
                capacity_documents(judged.experiment, judged.points.current, judged.slos)
            )
        if superseded:
            groups = judged.experiment.by_content(judged.points.superseded)
            for content, points in groups.items():
                yield from _table(judged, points, f", superseded: {content}", profile)
    yield from load_runs_table(load_runs, profile)


def _table(
    judged: JudgedExperiment, points: Sequence[StoredPoint], heading: str, profile: bool
) -> Iterator[str]:
    from orchestrator.analysis.knee import knees
    from orchestrator.report.documents.point import point_document
    from orchestrator.report.point_table import points_text

    points_at_knees = knees(points)
    documents = [point_document(point, judged.slos, knees=points_at_knees) for point in points]
    return points_text(documents, heading, profile)


def _documents(
    shown: Iterable[JudgedExperiment], superseded: bool
) -> Iterator[PointDocument | CapacityDocument]:
    from orchestrator.analysis.launches import launches_of
    from orchestrator.report.documents.capacity import capacity_documents
    from orchestrator.report.documents.point import point_document

    for judged in shown:
        points = judged.points
        knees = judged.experiment.knees(points)
        older = points.superseded if superseded else ()
        failed: list[PointHead] = []
        for point in (*points.current, *older):
            failed += [repeat.point for repeat in point.repeats if not repeat.ok]
        launches = launches_of(judged.experiment.store, failed)
        for point in points.current:
            yield point_document(point, judged.slos, launches, is_current=True, knees=knees)
        for point in older:
            yield point_document(point, judged.slos, launches, is_current=False, knees=knees)
        yield from capacity_documents(judged.experiment, points.current, judged.slos)


def _launches(stored: Iterable[StoredExperiment], form: str) -> Iterable[str]:
    from orchestrator.analysis.launches import load_launches
    from orchestrator.report.as_json import launch_json
    from orchestrator.report.documents.launch import launch_documents
    from orchestrator.report.formats import csv_text, json_list
    from orchestrator.report.launch_table import launches_text

    documents = []
    for experiment in stored:
        documents += launch_documents(load_launches(experiment.store))
    if form == "table":
        return launches_text(documents)
    as_json = map(launch_json, documents)
    return json_list(as_json) if form == "json" else [csv_text(as_json)]

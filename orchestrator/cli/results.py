"""``orchestrator results``: what was measured, one row per point, failed ones too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.base.text import listed
from orchestrator.cli.command import CliCommand
from orchestrator.cli.results_uri import checked_uri

if TYPE_CHECKING:
    from orchestrator.plan.current import StoredExperiment
    from orchestrator.report.point_selection import PointQuery
    from orchestrator.report.selection import JudgedExperiment
    from orchestrator.report.spending_words import SpendingRow
    from orchestrator.report.written_form import Form

EXAMPLES = """
\b
Examples:
  orchestrator results results/
  orchestrator results results/ --slo "ttft<=500ms,tpot<=50ms,attainment>=0.95"
  orchestrator results results/ --top 5 --sort -per_device \\
      --where "tensor_parallel_size == 2 and ttft_ms.p99 < 500"
  orchestrator results results/ --plot points.svg
"""
DETAILS = """
\b
More examples:
  orchestrator results results/ --format md \\
      --columns deployment,level,per_user,per_device
  orchestrator results results/ \\
      --columns deployment,level,mfu,usd_per_m_output,j_per_output_token
  orchestrator results results/quickstart --format json |
      jq '.[].output_token_throughput'
  orchestrator results results/ --where "tensor_parallel_size <= 4" \\
      --plot points.svg
  orchestrator results results/ --launches
  orchestrator results --format csv \\
      "s3://bucket/sweeps?endpoint_override=127.0.0.1:9000&scheme=http" \\
      > points.csv

Latencies are in milliseconds and count from when a request was due. Throughput is per second of the steady window, with
its 95 % interval (docs/explained/certainty.md). Valid repeats of a point are pooled ("2 of 3"). JSON lists each repeat
under "repeats", CSV on a line of its own ("row" tells which); so it is with the "parts" of a mix. Capacities that
were searched have a table below the points; in JSON and CSV they have "row": "capacity".

Shown are the points that the experiment's current plan asks for, under every SLO of its file. --all adds points of
earlier versions of the file, in tables of their own.

--where, --sort and --columns name what JSON has, nested values with dots: ttft_ms.p99, attainment.lower, validity,
settings.tensor_parallel_size (or just tensor_parallel_size), and where a file has several SLOs slos.NAME.attainment
(attainment alone is that of the first); repeats is their number, slo the limits as text. --where is written like
the rules of an experiment file; text needs quotes, and a value that a point lacks is None: no < or > holds for it, and
!= does. --sort -NAME or NAME:desc puts the largest first; --top alone shows the most output tokens/s per GPU. On a
narrow terminal columns go, and a line says which: --columns shows those that are named, and --format md all.

--plot writes a picture in place of the table: the frontier (tokens/s that a user sees against tokens/s per GPU), and
throughput, latencies and attainment over load with their intervals. Each part of a mix has curves of its own, and
--part draws those of one part alone. The file ends in .svg or .png.

--launches shows engine starts: version, seconds until ready, and weights, KV cache and concurrency as predicted and as
the engine reported them, with the prediction's error in percent. For failed starts it shows where the log is.

Exit status: 0; 3 if files are damaged; 2 bad input.
"""
COMMON = (  # what the short help shows; --help-all shows all
    *("experiment", "slo_text", "form", "launches", "where", "sort", "top", "columns"),
    *("picture", "part"),
)


@dataclass(frozen=True, slots=True)
class WantedPicture:
    """What ``--plot`` asks for. ``part``: of mixes, to be drawn alone; None: everything."""

    path: Path
    part: str | None


@click.command(cls=CliCommand, common=COMMON, examples=EXAMPLES, details=DETAILS)
@click.argument("uri", callback=checked_uri)
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
    type=click.Choice(["table", "md", "json", "csv"]),
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
@click.option("--where", metavar="RULE", help="Only points that match, like 'level >= 8'.")
@click.option("--sort", metavar="NAME[,NAME]", help="Order by these; -NAME: the largest first.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Only the first N points.")
@click.option("--columns", metavar="NAME[,NAME]", help="Only these columns, in this order.")
@click.option(
    "--plot",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the frontier and the curves to this .svg or .png instead.",
)
@click.option("--part", metavar="NAME", help="With --plot: draw this part of mixes alone.")
def results(
    uri: str,
    experiment: str | None,
    superseded: bool,
    slo_text: str | None,
    form: str,
    launches: bool,
    profile: bool,
    where: str | None,
    sort: str | None,
    top: int | None,
    columns: str | None,
    picture: Path | None,
    part: str | None,
) -> int:
    """Show the metrics of every point at URI.

    URI is a folder, s3://bucket/prefix or gs://bucket/prefix.
    """
    from orchestrator.report.point_selection import parse_query
    from orchestrator.report.selection import experiments, with_limits
    from orchestrator.report.text import echo
    from orchestrator.report.words import experiment_notes
    from orchestrator.results.pandas_hook import leave_pandas_out
    from orchestrator.results.root import open_results

    leave_pandas_out()
    of_points = {"--where": where, "--sort": sort, "--top": top, "--columns": columns}
    given = [option for option, value in of_points.items() if value is not None]
    _check(form, launches, profile, slo_text, given)
    _check_picture(picture, part, form, launches, profile, columns)
    stored_experiments = experiments(open_results(uri), experiment)
    judged_experiments: list[JudgedExperiment] = []
    if launches:
        texts = _launches(stored_experiments, form)
    else:
        judged_experiments = list(with_limits(slo_text, stored_experiments))
        slo_names: list[str] = []
        for judged in judged_experiments:
            slo_names += [slo.name for slo in judged.slos]
        query = parse_query(where, sort, top, columns, slo_names)
        wanted = None if picture is None else WantedPicture(picture, part)
        texts = _points(judged_experiments, superseded, form, query, profile, wanted)
    _print_texts(texts, form)
    notes: list[str] = []  # gathered here, because only now everything has been read
    if launches:
        for stored in stored_experiments:
            notes += experiment_notes(stored)
    else:
        for judged in judged_experiments:
            notes += experiment_notes(judged.experiment, judged.points, judged.unanswered)
    for note in notes:
        echo(f"note: {note}", err=True)
    return 3 if any(stored.damaged for stored in stored_experiments) else 0


def _print_texts(texts: Iterable[str], form: str) -> None:
    from orchestrator.report.text import echo

    for text in texts:
        if form == "table":
            echo(text)
        elif form == "md":
            click.echo(text)
        else:
            click.echo(text, nl=False)  # the texts of json and csv end their lines themselves


def _check(
    form: str, launches: bool, profile: bool, slo: str | None, of_points: Sequence[str]
) -> None:
    """Raises UsageError for options that exclude each other.

    ``of_points``: which of the options about points were given.
    """
    if launches and slo:
        raise click.UsageError("--slo is about points: leave it out, or --launches")
    if profile and (launches or form in ("json", "csv")):
        raise click.UsageError(
            "--profile is a table of points: json and csv hold the same figures of each"
        )
    if profile and "--columns" in of_points:
        raise click.UsageError("--profile and --columns both say which columns: give one of them")
    if launches and of_points:
        raise click.UsageError(f"{of_points[0]} is about points: leave it out, or --launches")


def _check_picture(
    picture: Path | None,
    part: str | None,
    form: str,
    launches: bool,
    profile: bool,
    columns: str | None,
) -> None:
    """Checks the options that go with ``--plot``.

    Raises UsageError for options that say what a table shows, and for ``--part`` without a picture;
    InputError for a file that cannot be written.
    """
    if picture is None:
        if part is not None:
            raise click.UsageError("--part says what --plot draws: tables and JSON have every part")
        return
    from orchestrator.report.plot.picture import check_picture_path

    if form != "table" or launches or profile or columns is not None:
        raise click.UsageError(
            "--plot writes a picture of points in place of a table: leave out --format, --columns,"
            " --launches and --profile"
        )
    check_picture_path(picture)


def _picture(
    judged: Iterable[JudgedExperiment],
    superseded: bool,
    query: PointQuery,
    wanted: WantedPicture,
) -> Iterator[str]:
    from orchestrator.base.text import counted
    from orchestrator.report.plot.picture import write_picture
    from orchestrator.report.results_text import shown_results

    shown = shown_results(judged, superseded).selected(query.selection)
    picture = write_picture(wanted.path, shown, wanted.part)
    by_part = f", by part: {listed(picture.parts)}" if picture.parts else ""
    yield f"{wanted.path}: {counted(picture.points, 'point')}{by_part}"
    if picture.left_out:
        yield f"not drawn: {listed(picture.left_out)}"


def _points(
    judged: Iterable[JudgedExperiment],
    superseded: bool,
    form: str,
    query: PointQuery,
    profile: bool,
    picture: WantedPicture | None,
) -> Iterable[str]:
    from orchestrator.report.as_json import csv_lines, row_json
    from orchestrator.report.formats import csv_text, json_list
    from orchestrator.report.point_table import PointView
    from orchestrator.report.results_text import result_rows, results_text, shown_results

    if picture is not None:
        return _picture(judged, superseded, query, picture)
    if form in ("table", "md"):
        shown = shown_results(judged, superseded).selected(query.selection)
        view = PointView(profile, query.columns, query.sort_columns)
        shown_by = "--format md" if profile else "--columns"
        return results_text(shown, _form_of(form, shown_by), view)
    rows = result_rows(judged, superseded, query.selection)
    if query.columns:
        objects = query.objects(rows)
        return json_list(objects) if form == "json" else [csv_text(objects)]
    if form == "json":
        return json_list(map(row_json, rows))
    return [csv_text(csv_lines(rows))]


def _form_of(form: str, shown_by: str) -> Form:
    """The form of a table. ``shown_by``: the option that shows columns for which there is no room."""
    from orchestrator.report.written_form import MarkdownForm, TextForm

    return MarkdownForm() if form == "md" else TextForm(shown_by)


def _launches(stored: Iterable[StoredExperiment], form: str) -> Iterable[str]:
    from orchestrator.analysis.launches import load_launches
    from orchestrator.report.as_json import launch_json
    from orchestrator.report.documents.launch import launch_documents
    from orchestrator.report.formats import csv_text, json_list
    from orchestrator.report.launch_table import launches_text

    documents = []
    for experiment in stored:
        documents += launch_documents(load_launches(experiment.store))
    if form in ("table", "md"):
        return launches_text(documents, _form_of(form, "--format json"), _spendings(stored))
    as_json = map(launch_json, documents)
    return json_list(as_json) if form == "json" else [csv_text(as_json)]


def _spendings(stored: Iterable[StoredExperiment]) -> list[SpendingRow]:
    """What the experiments cost, of those whose hardware has a price."""
    from orchestrator.analysis.spending import spending_of
    from orchestrator.report.spending_words import SpendingRow

    rows = []
    for experiment in stored:
        spending = spending_of(experiment.store, experiment.points().current)
        if spending is not None:
            rows.append(SpendingRow(experiment.name, spending))
    return rows

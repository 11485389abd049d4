"""Runs of ``orchestrator load`` that one folder holds: before and after a flag, side by side."""

from collections.abc import Container, Iterator, Sequence

from orchestrator.analysis.knee import knees
from orchestrator.plan.current import StoredExperiment, differences
from orchestrator.report.as_json import csv_lines
from orchestrator.report.capacity_table import capacities_text
from orchestrator.report.documents.capacity import CapacityDocument, capacity_documents
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.formats import csv_text
from orchestrator.report.point_table import LoadRunDocument, load_runs_text
from orchestrator.report.selection import JudgedExperiment
from orchestrator.results.store import Store


def load_runs_table(runs: Sequence[JudgedExperiment], profile: bool = False) -> Iterator[str]:
    """All runs in one table, and below it in what they differ and the capacities that were found."""
    measured = [run for run in runs if run.points.current]
    if not measured:
        return
    measured.sort(key=_began_unix_ns)
    first, *others = measured
    remarks = []
    for run in others:
        # the levels stand in the table
        names = [name for name in differences(first.experiment, run.experiment) if name != "levels"]
        if names:
            remarks.append(
                f"{run.experiment.name} was asked otherwise than {first.experiment.name}:"
                f" {', '.join(names)}"
            )
    yield from load_runs_text([_load_run(run) for run in measured], remarks, profile)
    for run in measured:
        yield from capacities_text(capacity_documents(run.experiment, run.points.current, run.slos))


def _began_unix_ns(run: JudgedExperiment) -> int:
    return min(point.head.started_unix_ns for point in run.points.current)


def _load_run(run: JudgedExperiment) -> LoadRunDocument:
    bends = knees(run.points.current)
    documents = [point_document(point, run.slos, knees=bends) for point in run.points.current]
    return LoadRunDocument(tuple(documents), tuple(run.slos))


def stored_csv(store: Store, measurement_ids: Container[str] | None = None) -> str:
    """The lines that ``orchestrator results --format csv`` has for the points of these
    measurements; None: for all points, and for the capacities that were searched.
    """
    experiment = StoredExperiment(store)
    slos = experiment.slos
    points = experiment.points(*slos)
    bends = experiment.knees(points)
    documents: list[PointDocument | CapacityDocument] = []
    for point in points.current:
        ids = [repeat.point.measurement_id for repeat in point.repeats]
        if measurement_ids is None or any(one in measurement_ids for one in ids):
            documents.append(point_document(point, slos, knees=bends))
    if measurement_ids is None:
        documents += capacity_documents(experiment, points.current, slos)
    return csv_text(csv_lines(documents))

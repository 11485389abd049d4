"""Runs of ``orchestrator load`` that one folder holds: before and after a flag, side by side."""

from collections.abc import Container, Iterator, Sequence

from orchestrator.analysis.points import StoredPoint
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.as_json import csv_lines
from orchestrator.report.capacity_table import capacities_text
from orchestrator.report.documents.capacity import CapacityDocument, capacity_documents
from orchestrator.report.documents.load_run import load_run_documents
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.formats import csv_text
from orchestrator.report.point_table import load_runs_text
from orchestrator.report.selection import JudgedExperiment
from orchestrator.results.store import Store


def load_runs_table(runs: Sequence[JudgedExperiment], profile: bool = False) -> Iterator[str]:
    """All runs in one table, and below it in what they differ and the capacities that were found."""
    documents = load_run_documents(runs)
    if not documents:
        return
    yield from load_runs_text(documents, profile)
    run_by_name = {run.experiment.name: run for run in runs}
    for document in documents:
        run = run_by_name[document.name]
        yield from capacities_text(capacity_documents(run.experiment, run.points.current, run.slos))


def stored_csv(store: Store, measurement_ids: Container[str] | None = None) -> str:
    """The lines that ``orchestrator results --format csv`` has for the points of these
    measurements; None: for all points, and for the capacities that were searched.
    """
    experiment = StoredExperiment(store)
    slos = experiment.slos
    points = experiment.points(*slos)
    knees = experiment.knees(points)
    documents: list[PointDocument | CapacityDocument] = []
    for point in points.current:
        if measurement_ids is None or _is_any_of(point, measurement_ids):
            documents.append(point_document(point, slos, knees=knees))
    if measurement_ids is None:
        documents += capacity_documents(experiment, points.current, slos)
    return csv_text(csv_lines(documents))


def _is_any_of(point: StoredPoint, measurement_ids: Container[str]) -> bool:
    return any(repeat.point.measurement_id in measurement_ids for repeat in point.repeats)

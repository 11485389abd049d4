"""What ``orchestrator load`` just measured, as CSV."""

from collections.abc import Container

from orchestrator.analysis.points import StoredPoint
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.as_json import csv_lines
from orchestrator.report.documents.capacity import CapacityDocument, capacity_documents
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.formats import csv_text
from orchestrator.results.store import Store


def stored_csv(store: Store, measurement_ids: Container[str] | None = None) -> str:
    """The CSV of stored points, as ``orchestrator results --format csv`` prints it.

    ``measurement_ids``: only the points of these measurements; None: all points, and the capacities
    that were searched.
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
    return any(repeat.head.measurement_id in measurement_ids for repeat in point.repeats)

"""The runs of ``orchestrator load`` in one folder: the records of their common table."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.analysis.knee import knees
from orchestrator.plan.current import differences
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.selection import JudgedExperiment
from orchestrator.spec.load import Slo


@dataclass(frozen=True, slots=True)
class LoadRunDocument:
    """One run: its points, and the limits with which it was measured.

    ``differences``: the options in which it differs from the first run that is shown with it.
    Levels are left out, since the table has them.
    """

    name: str
    points: tuple[PointDocument, ...]
    slos: tuple[Slo, ...]
    differences: tuple[str, ...] = ()


def load_run_documents(runs: Sequence[JudgedExperiment]) -> list[LoadRunDocument]:
    """The runs that have points, in the order in which they began."""
    measured = sorted((run for run in runs if run.points.current), key=_began_unix_ns)
    return [_load_run_document(run, first=measured[0]) for run in measured]


def _load_run_document(run: JudgedExperiment, first: JudgedExperiment) -> LoadRunDocument:
    at_knees = knees(run.points.current)
    points = [point_document(point, run.slos, knees=at_knees) for point in run.points.current]
    options: list[str] = []
    if run is not first:
        options = differences(first.experiment, run.experiment)
    return LoadRunDocument(
        name=run.experiment.name,
        points=tuple(points),
        slos=tuple(run.slos),
        differences=tuple(option for option in options if option != "levels"),
    )


def _began_unix_ns(run: JudgedExperiment) -> int:
    return min(point.head.started_unix_ns for point in run.points.current)

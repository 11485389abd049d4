"""Runs of ``orchestrator load`` that one folder holds: before and after a flag, side by side."""

from collections.abc import Container, Iterator, Sequence

from orchestrator.report.capacities import capacities_text, capacity_documents
from orchestrator.report.documents import csv_text
from orchestrator.report.points import csv_lines, load_runs_text, point_document
from orchestrator.report.stored import Experiment, Points, differences
from orchestrator.results.store import Store
from orchestrator.spec.load import Slo

StoredRun = tuple[Experiment, Sequence[Slo], Points]


def load_runs_table(runs: Sequence[StoredRun], profile: bool = False) -> Iterator[str]:
    """All runs in one table, and below it in what they differ and the capacities that were found."""
    measured = [run for run in runs if run[2].current]
    if not measured:
        return
    measured.sort(key=lambda run: min(point.head.started_unix_ns for point in run[2].current))
    first = measured[0][0]
    remarks = []
    for experiment, _, _ in measured[1:]:
        # the levels stand in the table
        named = [name for name in differences(first, experiment) if name != "levels"]
        if named:
            remarks.append(
                f"{experiment.name} was asked otherwise than {first.name}: {', '.join(named)}"
            )
    shown = [(points.current, slos) for _, slos, points in measured]
    yield from load_runs_text(shown, remarks, profile)
    for experiment, slos, points in measured:
        yield from capacities_text(experiment, points.current, slos)


def stored_csv(store: Store, measurement_ids: Container[str] | None = None) -> str:
    """The lines that ``orchestrator results --format csv`` has for the points of these
    measurements; None: for all points, and for the capacities that were searched.
    """
    experiment = Experiment(store)
    slos = experiment.slos
    points = experiment.points(*slos)
    bends = experiment.knees(points)
    documents = [
        point_document(point, slos, knees=bends)
        for point in points.current
        if measurement_ids is None
        or any(one.point.measurement_id in measurement_ids for one in point.repeats)
    ]
    if measurement_ids is None:
        documents += capacity_documents(experiment, points.current, slos)
    return csv_text(csv_lines(documents))

"""Gathers the points that ``orchestrator results`` shows as tables, JSON and CSV, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.cost import allocated_usd
from orchestrator.analysis.knee import knees
from orchestrator.analysis.launches import launches_of
from orchestrator.analysis.points import StoredPoint
from orchestrator.report.capacity_table import capacities_text
from orchestrator.report.documents.capacity import CapacityDocument, capacity_documents
from orchestrator.report.documents.load_run import LoadRunDocument, load_run_documents
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.part_table import parts_text
from orchestrator.report.point_selection import PointSelection
from orchestrator.report.point_table import (
    PointSection,
    PointView,
    closing_text,
    load_runs_text,
    points_text,
)
from orchestrator.report.selection import JudgedExperiment
from orchestrator.report.written_form import Form
from orchestrator.results.records import PointHead


@dataclass(frozen=True, slots=True)
class ShownResults:
    """All that the tables of ``results`` show.

    ``load_runs``: runs of ``orchestrator load``, whose points share one table. ``left_out``: how
    many points were not selected.
    """

    sections: Sequence[PointSection]
    load_runs: Sequence[LoadRunDocument]
    points_of_load_runs: Sequence[PointDocument]
    capacities_of_load_runs: Sequence[CapacityDocument]
    left_out: int = 0

    @property
    def documents(self) -> list[PointDocument]:
        documents: list[PointDocument] = []
        for section in self.sections:
            documents += section.documents
        return [*documents, *self.points_of_load_runs]

    def selected(self, selection: PointSelection) -> ShownResults:
        """Only the selected points, in the order of the selection, and capacities among them."""
        if selection.is_everything:
            return self
        documents = selection.select(self.documents)
        sections = [_selected_section(section, documents) for section in self.sections]
        of_load_runs = _kept(self.points_of_load_runs, documents)
        runs = [run for run in self.load_runs if _kept(run.points, of_load_runs)]
        return ShownResults(
            sections=[each for each in sections if each.documents or each.capacities],
            load_runs=runs,
            points_of_load_runs=of_load_runs,
            capacities_of_load_runs=selected_capacities(self.capacities_of_load_runs, documents),
            left_out=len(self.documents) - len(documents),
        )


def _selected_section(section: PointSection, documents: Sequence[PointDocument]) -> PointSection:
    return replace(
        section,
        documents=_kept(section.documents, documents),
        capacities=selected_capacities(section.capacities, documents),
    )


def _kept(
    selected: Iterable[PointDocument], documents: Sequence[PointDocument]
) -> list[PointDocument]:
    """The documents that are among the ``selected``, in the order of ``documents``."""
    ids = {id(document) for document in selected}
    return [document for document in documents if id(document) in ids]


def selected_capacities(
    capacities: Iterable[CapacityDocument], documents: Iterable[PointDocument]
) -> list[CapacityDocument]:
    """The capacities that were searched among these points."""
    searches = {_search(document.point) for document in documents}
    return [capacity for capacity in capacities if _search(capacity.probe) in searches]


@dataclass(frozen=True, slots=True)
class _Search:
    experiment: str
    deployment_id: str
    workload: str


def _search(point: StoredPoint) -> _Search:
    head = point.head
    return _Search(head.experiment, head.deployment_id, head.workload)


def shown_results(judged: Iterable[JudgedExperiment], with_superseded: bool) -> ShownResults:
    """All points of these experiments.

    ``with_superseded``: also the points of earlier versions of their files, in sections of their
    own.
    """
    sections: list[PointSection] = []
    load_runs: list[JudgedExperiment] = []
    for judged_experiment in judged:
        if judged_experiment.experiment.is_load_run:
            load_runs.append(judged_experiment)
        else:
            sections += _sections(judged_experiment)
        if with_superseded:
            sections += _superseded_sections(judged_experiment)
    capacities: list[CapacityDocument] = []
    for load_run in load_runs:
        capacities += _capacities(load_run)
    runs = load_run_documents(load_runs)
    documents: list[PointDocument] = []
    for run in runs:
        documents += run.points
    return ShownResults(sections, runs, documents, capacities)


def _superseded_sections(judged: JudgedExperiment) -> Iterator[PointSection]:
    """The points of earlier versions of a file, by what they asked for."""
    groups = judged.experiment.by_content(judged.points.superseded)
    for content, points in groups.items():
        yield PointSection(_documents(judged, points), f", superseded: {content}")


def _sections(judged: JudgedExperiment) -> list[PointSection]:
    """The current points, and below them the capacities."""
    sections = []
    for content, points in judged.experiment.alike(judged.points).items():
        heading = f", {content}" if content else ""
        sections.append(PointSection(_documents(judged, points), heading))
    return [*sections, PointSection((), capacities=list(_capacities(judged)))]


def _documents(judged: JudgedExperiment, points: Sequence[StoredPoint]) -> list[PointDocument]:
    at_knees = knees(points)
    allocated = allocated_usd(points)
    return [
        point_document(point, judged.slos, knees=at_knees, allocated=allocated) for point in points
    ]


def results_text(shown: ShownResults, form: Form, view: PointView) -> Iterator[str]:
    """The tables of all points, the capacities, and the lines that stand once below them."""
    for section in shown.sections:
        yield from points_text(section, form, view)
        if view.shows_parts:
            yield from parts_text(section.documents, form)
    if shown.load_runs:
        yield from load_runs_text(shown.load_runs, shown.points_of_load_runs, form, view)
        if view.shows_parts:
            yield from parts_text(shown.points_of_load_runs, form)
        yield from capacities_text(shown.capacities_of_load_runs, form)
    yield from closing_text(shown.documents, form, shown.left_out)


def result_rows(
    judged: Iterable[JudgedExperiment], with_superseded: bool, selection: PointSelection
) -> Iterator[PointDocument | CapacityDocument]:
    """The rows of JSON and CSV, with the logs of engines that failed.

    Without a selection, only one experiment is in memory at a time.
    """
    if selection.is_everything:
        for each in judged:
            yield from point_rows(each, with_superseded)
            yield from _capacities(each)
        return
    documents: list[PointDocument] = []
    capacities: list[CapacityDocument] = []
    for each in judged:
        documents += point_rows(each, with_superseded)
        capacities += _capacities(each)
    selected = selection.select(documents)
    yield from selected
    yield from selected_capacities(capacities, selected)


def point_rows(judged: JudgedExperiment, with_superseded: bool) -> Iterator[PointDocument]:
    """The points of an experiment, with the logs of engines that failed."""
    points = judged.points
    slos = judged.slos
    at_knees = judged.experiment.knees(points)
    older = points.superseded if with_superseded else ()
    failed: list[PointHead] = []
    for point in (*points.current, *older):
        failed += [repeat.head for repeat in point.repeats if not repeat.ok]
    launches = launches_of(judged.experiment.store, failed)
    allocated = allocated_usd(points.current)
    for point in points.current:
        yield point_document(
            point, slos, launches, is_current=True, knees=at_knees, allocated=allocated
        )
    for point in older:
        yield point_document(point, slos, launches, is_current=False, knees=at_knees)


def _capacities(judged: JudgedExperiment) -> Iterator[CapacityDocument]:
    yield from capacity_documents(judged.experiment, judged.points.current, judged.slos)

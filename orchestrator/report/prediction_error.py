"""Measured beside predicted, for people: columns of the table, and deployments that need a look."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.metrics import BACKLOG
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.documents.prediction import PredictionComparison
from orchestrator.report.text import Cell, Column, FilledColumn, figure
from orchestrator.spec.load import load_text

_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "output_throughput": "output tokens/s"}
_SHORT_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "output_throughput": "tokens/s"}


@dataclass(frozen=True, slots=True)
class _WorseFigure:
    """A figure of a point that is worse than its prediction's known error explains.

    ``excess``: how many times worse than predicted it is, over the factor within which nine in ten
    predictions are right.
    """

    document: PointDocument
    prediction: PredictionComparison
    name: str
    excess: float

    @property
    def text(self) -> str:
        """``TPOT is 3.10 times the predicted 12.0 at 4 req/s (9 in 10 within 1.25x)``."""
        point = self.document.point
        name = self.name
        times = self.prediction.worse[name]
        amount = f"{times:.2f} times"
        if name == "output_throughput":
            amount = f"{1 / times:.2f} of"
        predicted = figure(self.prediction.predicted[name])
        level = load_text(point.head.control, point.head.level)
        behind = " and it fell behind" if point.validity == BACKLOG else ""
        factor = self.prediction.error_factors[name]
        origin = "simulated" if point.deployment.prediction.simulated else "predicted"
        return (
            f"{_NAMES[name]} is {amount} the {origin} {predicted} at {level}{behind}"
            f" (9 in 10 within {factor:.2f}x)"
        )


def predicted_vs_measured_columns(documents: Sequence[PointDocument]) -> list[FilledColumn]:
    """Measured over predicted at each point, a column per figure; empty without predictions."""
    if not any(document.prediction for document in documents):
        return []
    return [
        _ratio_column(documents, figure_name) for figure_name in ("output_throughput", "tpot_ms")
    ]


def _ratio_column(documents: Sequence[PointDocument], figure_name: str) -> FilledColumn:
    title = f"measured/\npredicted\n{_SHORT_NAMES[figure_name]}"
    column = Column(title, name=f"measured_over_predicted.{figure_name}")
    cells = [_cell(document.prediction, figure_name) for document in documents]
    return FilledColumn(column, cells)


def _cell(prediction: PredictionComparison | None, figure_name: str) -> Cell:
    if prediction is None:
        return Cell("-")
    ratio = prediction.ratio[figure_name]
    style = "yellow" if figure_name in prediction.worse else None
    return Cell("-" if ratio is None else f"{ratio:.2f}", style)


def predicted_vs_measured_notes(documents: Sequence[PointDocument]) -> Iterator[str]:
    """How near a simulation came; then a sentence on the worst figure of some deployments.

    These are the deployments that are worse than the known error of their prediction explains.
    """
    yield from _measured_over_simulated(documents)
    worst_by_label: dict[str, _WorseFigure] = {}
    for document in documents:
        for figure_of_point in _worse_figures(document):
            worst = worst_by_label.get(document.label)
            if worst is None or figure_of_point.excess > worst.excess:
                worst_by_label[document.label] = figure_of_point
    for label, worst in worst_by_label.items():
        yield f"look at {label}: {worst.text}"


def _measured_over_simulated(documents: Sequence[PointDocument]) -> Iterator[str]:
    """``measured over simulated (median of 6): tokens/s 1.00, TTFT 1.01, TPOT 1.00``.

    The medians are over so many points.
    """
    comparisons = [
        document.prediction
        for document in documents
        if document.prediction is not None and document.point.deployment.prediction.simulated
    ]
    if not comparisons:
        return
    medians: list[str] = []
    for name in ("output_throughput", "ttft_ms", "tpot_ms"):
        of_points = [each.ratio[name] for each in comparisons]
        ratios = [ratio for ratio in of_points if ratio is not None]
        if ratios:
            medians.append(f"{_SHORT_NAMES[name]} {statistics.median(ratios):.2f}")
    yield f"measured over simulated (median of {len(comparisons)}): {', '.join(medians)}"


def _worse_figures(document: PointDocument) -> Iterator[_WorseFigure]:
    """The worse figures of a point that is valid, or at which the engine fell behind.

    Points with another verdict are left out: their verdict says already what is wrong.
    """
    prediction = document.prediction
    if prediction is None or document.point.validity not in ("valid", BACKLOG):
        return
    for name, times in prediction.worse.items():
        excess = times / prediction.error_factors[name]
        yield _WorseFigure(document, prediction, name, excess)

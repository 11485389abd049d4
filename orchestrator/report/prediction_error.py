"""Measured beside predicted, for people: a column for every point, and which deployments deserve a
look.
"""

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.analysis.metrics import BACKLOG
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.documents.prediction import PredictionComparison
from orchestrator.report.text import Cell, Column, figure, say
from orchestrator.spec.load import load_text

_NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "output_throughput": "output tokens/s"}


def predicted_vs_measured_column(
    documents: Sequence[PointDocument],
) -> tuple[list[Column], list[list[str | Cell]]]:
    """A table column and its cell for every point; empty where nothing was predicted."""
    if not any(document.prediction for document in documents):
        return [], [[] for _ in documents]
    column = Column("measured/\npredicted\ntokens/s, TPOT")
    return [column], [[_cell(document.prediction)] for document in documents]


def _cell(prediction: PredictionComparison | None) -> Cell:
    if prediction is None:
        return Cell("-")
    ratios = (prediction.ratio["output_throughput"], prediction.ratio["tpot_ms"])
    lines = ["-" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
    return Cell("\n".join(lines), "yellow" if prediction.worse else None)


def predicted_vs_measured_text(documents: Iterable[PointDocument]) -> Iterator[str]:
    """A line for each deployment that is worse than its prediction's known error explains: its
    worst point of those that are valid, or at which the engine fell behind.
    """
    worst: dict[str, tuple[float, str]] = {}
    for document in documents:
        point, prediction = document.point, document.prediction
        # what is wrong with points of other verdicts is known
        if prediction is None or point.validity not in ("valid", BACKLOG):
            continue
        label = document.label + (" (emulated)" if point.emulated else "")
        for name, times in prediction.worse.items():
            excess = times / prediction.error_factors[name]
            text = _worse_text(document, prediction, name)
            worst[label] = max(worst.get(label, (0.0, "")), (excess, text))
    for label, (_, text) in worst.items():
        yield say(f"look at {label}: {text}", "yellow")


def _worse_text(document: PointDocument, prediction: PredictionComparison, name: str) -> str:
    head = document.point.head
    times = prediction.worse[name]
    amount = f"{1 / times:.2f} of" if name == "output_throughput" else f"{times:.2f} times"
    predicted = figure(prediction.predicted[name])
    level = load_text(head.control, head.level)
    behind = " and it fell behind" if document.point.validity == BACKLOG else ""
    factor = prediction.error_factors[name]
    return (
        f"{_NAMES[name]} is {amount} the predicted {predicted} at {level}{behind},"
        f" where 9 in 10 are within {factor:.2f} times"
    )

"""What an experiment cost, as a sentence and as columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from orchestrator.analysis.spending import ExperimentSpending
from orchestrator.base.text import counted
from orchestrator.report.column import ReportColumn, Value
from orchestrator.report.text import figure

_PARTS = {
    "counting": "points that count",
    "starts": "starting engines",
    "failed_starts": "starts that failed",
    "not_counting": "points that do not count",
    "other": "all else",
}
_DESCRIPTIONS = {
    "counting": "attempts at points that answers rest on, warm-up included",
    "starts": "devices while engines started, of launches that then served",
    "failed_starts": "launches that never served",
    "not_counting": "attempts that were spoilt, tried again, or of an earlier version of the file",
    "other": "late answers, fixed prompts, pauses and stops",
}


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """What one experiment cost."""

    experiment: str
    spending: ExperimentSpending


SpendingColumn = ReportColumn[SpendingRow]


def spending_text(spending: ExperimentSpending) -> str:
    """``held devices cost 12.4 USD: 70 % points that count, 20 % starting engines, …``."""
    parts = []
    for name, words in _PARTS.items():
        usd: float = getattr(spending, name)
        if usd > 0:
            parts.append(f"{usd / spending.total:.0%} {words}")
    text = f"held devices cost {figure(spending.total)} USD: {', '.join(parts)}"
    left_out = spending.launches - spending.priced
    if left_out:
        text += f" (without {counted(left_out, 'start')} of unknown price or time)"
    return text


def spending_columns() -> dict[str, SpendingColumn]:
    """The columns of what experiments cost; all are usual."""
    return {column.name: column for column in _columns()}


def _columns() -> Iterator[SpendingColumn]:
    experiment = attrgetter("experiment")
    yield _usual("experiment", "", "name of the experiment", experiment, str)
    total = attrgetter("spending.total")
    yield _usual("usd", "USD", "all devices while they were held", total, float)
    for name, description in _DESCRIPTIONS.items():
        yield _usual(f"usd_{name}", "USD", description, attrgetter(f"spending.{name}"), float)
    priced = attrgetter("spending.priced")
    description = "engine starts with a price, whose time is known"
    yield _usual("priced_launches", "", description, priced, int)
    yield _usual("launches", "", "all engine starts", attrgetter("spending.launches"), int)


def _usual(
    name: str, unit: str, description: str, value: Value[SpendingRow], kind: type
) -> SpendingColumn:
    return ReportColumn(name, unit, description, value, kind, is_usual=True)

"""How far a deployment's answers equal those of its model's reference (analysis/output_agreement.py), beside
its speed.
"""

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.analysis.output_agreement import IS_REFERENCE, SUPERSEDED
from orchestrator.analysis.points import Point
from orchestrator.report.formats import Document
from orchestrator.report.text import Column, say


def agreement_fields(point: Point) -> Document:
    """The columns of one point: the share always comes with its n."""
    one = point.agreement
    return {
        "agreement": one.share,
        "agreement_n": one.n,
        "agreement_unit": one.unit,
        "agreement_reference": one.reference,
        "agreement_note": one.note,
    }


def agreement_column(points: Sequence[Point]) -> tuple[list[Column], list[list[str]]]:
    """A table column and its cell for every point; empty where no point has a share."""
    if all(point.agreement.share is None for point in points):
        return [], [[] for _ in points]
    return [Column("agree-\nment")], [[_cell(point)] for point in points]


def _cell(point: Point) -> str:
    one = point.agreement
    if one.share is None:
        return "ref." if one.note == IS_REFERENCE else "-"
    return f"{one.share:.3f}\nn={one.n}"


def agreement_text(points: Iterable[Point]) -> Iterator[str]:
    """One line for each reference that a table's answers were compared with."""
    shown = [point.agreement for point in points if point.agreement.share is not None]
    units: dict[tuple[str | None, str], set[str]] = {}
    for one in shown:
        units.setdefault(
            (one.reference, " (superseded)" if one.note == SUPERSEDED else ""), set()
        ).add(str(one.unit))
    for (reference, mark), found in sorted(units.items(), key=str):
        # an engine that tells no token ids is compared by characters
        unit = " or ".join(sorted(found, reverse=True))
        text = f"agreement: share of {unit} equal to those of {reference}{mark}, fixed prompts (no measure of quality)"
        yield say(text, "dim")

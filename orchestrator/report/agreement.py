"""Shows, beside a deployment's speed, how far its answers equal the reference's.

See ``analysis/output_agreement.py``.
"""

from collections.abc import Iterable, Iterator, Sequence

from orchestrator.analysis.output_agreement import AgreementNote
from orchestrator.analysis.points import StoredPoint
from orchestrator.report.formats import JsonObject
from orchestrator.report.text import Column, FilledColumn, styled
from orchestrator.report.words import agreement_note_text


def agreement_fields(point: StoredPoint) -> JsonObject:
    """The fields of one point; the share always comes with its n."""
    agreement = point.agreement
    return {
        "agreement": agreement.share,
        "agreement_n": agreement.n,
        "agreement_unit": agreement.unit,
        "agreement_reference": agreement.reference,
        "agreement_note": agreement_note_text(agreement.note),
    }


def agreement_column(points: Sequence[StoredPoint]) -> FilledColumn | None:
    """The share of each point; None where no point has one."""
    if all(point.agreement.share is None for point in points):
        return None
    column = Column("agree-\nment", name="agreement")
    return FilledColumn(column, [_cell(point) for point in points])


def _cell(point: StoredPoint) -> str:
    agreement = point.agreement
    if agreement.share is not None:
        return f"{agreement.share:.3f} n={agreement.n}"
    return "ref." if agreement.note is AgreementNote.IS_REFERENCE else "-"


def agreement_text(points: Iterable[StoredPoint]) -> Iterator[str]:
    """The sentences of ``agreement_notes``, styled for a terminal."""
    for text in agreement_notes(points):
        yield styled(text, "dim")


def agreement_notes(points: Iterable[StoredPoint]) -> Iterator[str]:
    """A sentence for each reference with which a table's answers were compared."""
    units_by_reference: dict[str, set[str]] = {}
    for point in points:
        agreement = point.agreement
        if agreement.share is None:
            continue
        reference = str(agreement.reference)
        if agreement.note is AgreementNote.SUPERSEDED:
            reference = f"{reference} (superseded)"
        units_by_reference.setdefault(reference, set()).add(str(agreement.unit))
    for reference, units in sorted(units_by_reference.items()):
        # answers of an engine that gives no token ids are compared by characters
        unit = " or ".join(sorted(units, reverse=True))
        yield (
            f"agreement: share of {unit} equal to those of {reference}, fixed prompts"
            " (no measure of quality)"
        )

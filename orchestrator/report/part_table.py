"""The table of the parts of a mix, below the points that they belong to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.report.documents.part import PartDocument, part_documents
from orchestrator.report.documents.point import PointDocument, SloResult
from orchestrator.report.point_table import met_cell
from orchestrator.report.text import (
    FEW_MARK,
    FEW_TEXT,
    Column,
    FilledColumn,
    figure,
    marked_percentile,
    marks_aligned,
    rows_of,
)
from orchestrator.report.written_form import Form
from orchestrator.results.records import Figures
from orchestrator.spec.load import load_text

TITLE = "by part"


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of a mix in a table. ``labels``: what tells its point from others, and its name."""

    labels: tuple[str, ...]
    figures: Figures
    share_of_requests: float | None
    result: SloResult | None


def parts_text(documents: Sequence[PointDocument], form: Form) -> Iterator[str]:
    """One row per part of each point that is of a mix; nothing where none is."""
    parts: list[PartDocument] = []
    for document in documents:
        if document.point.used_repeats:
            parts += part_documents(document)
    rows = [_row(part) for part in parts]
    yield from part_rows_text(("deployment", "load", "part"), rows, form)


def _row(part: PartDocument) -> PartRow:
    head = part.point.point.head
    labels = (part.point.label, load_text(head.control, head.level), part.part)
    result = part.slo_results[0] if part.slo_results else None
    return PartRow(labels, part.figures, part.share_of_requests, result)


def part_rows_text(titles: Sequence[str], rows: Sequence[PartRow], form: Form) -> Iterator[str]:
    """The table of these rows. ``titles``: of their labels."""
    if not rows:
        return
    yield from form.heading(TITLE)
    columns = list(_columns(titles, rows))
    yield from form.table([filled.column for filled in columns], rows_of(columns))
    cells = [cell for filled in columns for cell in filled.cells]
    if any(isinstance(cell, str) and cell.endswith(FEW_MARK) for cell in cells):
        yield from form.short_note(FEW_TEXT, "dim")
    yield from form.gap()


def _columns(titles: Sequence[str], rows: Sequence[PartRow]) -> Iterator[FilledColumn]:
    for place, title in enumerate(titles):
        labels = [row.labels[place] for row in rows]
        yield FilledColumn(Column(title, fold=place == 0, name=title, is_left=True), labels)
    requests = [row.figures.requests for row in rows]
    yield FilledColumn(
        Column("ok/all", drop_rank=3), [f"{each.ok}/{each.scheduled}" for each in requests]
    )
    shares = [_share(row.share_of_requests) for row in rows]
    yield FilledColumn(Column("of all\nrequests", drop_rank=5, name="share_of_requests"), shares)
    tokens = [figure(row.figures.output_token_throughput) for row in rows]
    yield FilledColumn(Column("output\ntokens/s", drop_rank=2), tokens)
    yield _latency(rows, "TTFT ms\np50", "ttft_ms", 0.5, drop_rank=7)
    yield _latency(rows, "TTFT ms\np99", "ttft_ms", 0.99, drop_rank=0)
    yield _latency(rows, "TPOT ms\np50", "tpot_ms", 0.5, drop_rank=8)
    yield _latency(rows, "TPOT ms\np99", "tpot_ms", 0.99, drop_rank=1)
    yield _latency(rows, "E2E ms\np50", "e2e_ms", 0.5, drop_rank=9)
    yield _latency(rows, "E2E ms\np99", "e2e_ms", 0.99, drop_rank=6)
    if not any(row.result for row in rows):
        return
    attained = [row.result.attainment if row.result else None for row in rows]
    estimates = [f"{share.estimate:.3f}" if share else "-" for share in attained]
    yield FilledColumn(Column("attain-\nment", name="attainment"), estimates)
    met = [met_cell(row.result) for row in rows]
    yield FilledColumn(Column("SLO", is_left=True), met)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _latency(
    rows: Sequence[PartRow], title: str, name: str, quantile: float, drop_rank: int
) -> FilledColumn:
    """A percentile of a latency; one of too few answers is marked."""
    texts = [
        marked_percentile(getattr(row.figures, name), quantile, row.figures.requests.ok)
        for row in rows
    ]
    return FilledColumn(Column(title, drop_rank=drop_rank), marks_aligned(texts))

"""Tables of the capacities that searches found, below the points in ``orchestrator results``."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.analysis.slo import format_slo
from orchestrator.base.grouping import values_by_key
from orchestrator.capacity.estimate import Estimate
from orchestrator.capacity.estimate_words import rounded_text
from orchestrator.report.documents.capacity import CapacityBounds, CapacityDocument
from orchestrator.report.origin import CLAIMS_OF_MODEL, badge_of
from orchestrator.report.text import Cell, Column, FilledColumn, figure, rows_of
from orchestrator.report.words import NOT_THE_LIMIT
from orchestrator.report.written_form import Form
from orchestrator.spec.load import UNITS, load_text

EQUAL = "1.00"  # a ratio of capacities that are the same
SIMULATED_BESIDE_PREDICTED = (
    "predicted: by formulas for a steady state; the simulation follows each request, so where they "
    "differ, take it"
)


@dataclass(frozen=True, slots=True)
class EstimateCells:
    """An estimate as a table shows it: ``16.2``, ``15.1-17.0``, ``13.1``."""

    level: str
    interval: str
    safe: str

    @property
    def together(self) -> str:
        return f"{self.level} ({self.interval})"


def estimate_cells(control: str, estimate: Estimate | None) -> EstimateCells:
    if estimate is None:
        return EstimateCells("-", "-", "-")

    def text(level: float | None) -> str:
        return "-" if level is None else rounded_text(level, control, estimate)

    return EstimateCells(
        level=text(estimate.level),
        interval=f"{text(estimate.lower)}-{text(estimate.upper)}",
        safe=text(estimate.safe),
    )


def capacities_text(documents: Sequence[CapacityDocument], form: Form) -> Iterator[str]:
    """A table per experiment, workload and SLO, one line per capacity."""
    tables = values_by_key((_title(document), document) for document in documents)
    for title, alike in tables.items():
        yield from form.heading(title)
        columns = list(_columns(alike))
        yield from form.table([each.column for each in columns], rows_of(columns))
        simulated = [document for document in alike if document.probe.simulated]
        if simulated:
            yield from form.short_note(CLAIMS_OF_MODEL, "dim")
        if any(_ratio_text(document) not in ("-", EQUAL) for document in simulated):
            yield from form.short_note(SIMULATED_BESIDE_PREDICTED, "dim")
        yield from form.gap()


def _title(document: CapacityDocument) -> str:
    probe = document.probe
    slo = document.slo
    badge = badge_of(probe)
    limits = format_slo(slo)
    under = limits if slo.name == "slo" else slo.name
    return f"capacity for {probe.head.workload} of {probe.head.experiment}{badge} under {under}"


def _columns(documents: Sequence[CapacityDocument]) -> Iterator[FilledColumn]:
    labels = [document.probe.deployment.label for document in documents]
    yield FilledColumn(Column("deployment", fold=True), labels)
    yield FilledColumn(Column("holds"), [_claim_text(document) for document in documents])
    bounds = [_bounds_text(document) for document in documents]
    yield FilledColumn(Column("95 % bounds"), bounds)
    yield from _estimate_columns(documents)
    statuses = [_status_cell(document) for document in documents]
    yield FilledColumn(Column("status", is_left=True), statuses)
    yield from _per_gpu_column(documents)
    if any(document.per_usd for document in documents):
        texts = [_per_unit_text(document.per_usd) for document in documents]
        yield FilledColumn(Column("requests\nper USD", drop_rank=1), texts)
    if any(document.predicted for document in documents):
        texts = [_predicted_text(document) for document in documents]
        yield FilledColumn(Column("predicted", drop_rank=2), texts)
        is_simulated = all(document.probe.simulated for document in documents)
        found = "simulated" if is_simulated else "measured"
        texts = [_ratio_text(document) for document in documents]
        yield FilledColumn(Column(f"{found}/\npredicted", drop_rank=3), texts)


def _estimate_columns(documents: Sequence[CapacityDocument]) -> Iterator[FilledColumn]:
    if not any(document.claim.estimate for document in documents):
        return
    cells = [estimate_cells(document.control, document.claim.estimate) for document in documents]
    yield FilledColumn(Column("estimate"), [each.level for each in cells])
    yield FilledColumn(Column("95 %\ninterval"), [each.interval for each in cells])
    yield FilledColumn(Column("safe so\nfar"), [each.safe for each in cells])


def _claim_text(document: CapacityDocument) -> str:
    claim = document.claim.claim
    return "-" if claim is None else load_text(document.control, claim)


def _bounds_text(document: CapacityDocument) -> str:
    """``5-7``; where no level was shown to fail, ``not the limit``.

    Beside an estimate, which has an upper end, it is ``5-?`` instead.
    """
    low = document.claim.low
    high = document.claim.high
    if math.isfinite(high):
        return f"{low:g}-{high:g}"
    if document.claim.estimate is not None:
        return f"{low:g}-?"
    return NOT_THE_LIMIT if low else "unknown"


def _status_cell(document: CapacityDocument) -> Cell:
    claim = document.claim
    is_good = claim.claim and not document.is_worse_than_predicted
    return Cell(claim.status, None if is_good else "yellow")


def _per_gpu_column(documents: Sequence[CapacityDocument]) -> Iterator[FilledColumn]:
    """The claim per GPU, or per core of an engine that runs on the CPU."""
    if not any(document.per_gpu for document in documents):
        return
    are_cores = all(document.probe.deployment.accelerator == "cpu" for document in documents)
    unit = "core" if are_cores else "GPU"
    control = UNITS[documents[0].control]
    texts = [_per_unit_text(document.per_gpu) for document in documents]
    yield FilledColumn(Column(f"{control}\nper {unit}", drop_rank=4), texts)


def _per_unit_text(bounds: CapacityBounds | None) -> str:
    claim = bounds.claim if bounds else None
    if claim is None:
        return "-"
    return f"{claim:.3g}" if claim < 100 else figure(claim)


def _predicted_text(document: CapacityDocument) -> str:
    if document.predicted is None:
        return "-"
    level = document.predicted.level
    return load_text(document.control, float(f"{level:.3g}")) if level else "none holds"


def _ratio_text(document: CapacityDocument) -> str:
    ratio = document.measured_over_predicted
    return "-" if ratio is None else f"{ratio:.2f}"

"""The tables of ``orchestrator results``: what was measured, one line per point."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.deployments import compared_model
from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.metrics import FAILING
from orchestrator.analysis.points import StoredPoint
from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import counted, listed
from orchestrator.capacity.best import group_of
from orchestrator.report.adapter_text import adapter_notes
from orchestrator.report.agreement import agreement_column, agreement_notes
from orchestrator.report.capacity_table import capacities_text
from orchestrator.report.documents.capacity import CapacityDocument
from orchestrator.report.documents.load_run import LoadRunDocument
from orchestrator.report.documents.point import PointDocument, SloResult
from orchestrator.report.efficiency_cells import TokenCost, efficiency_cells, token_cost
from orchestrator.report.footnotes import Footnotes, RowNote
from orchestrator.report.guidance_text import guidance_notes
from orchestrator.report.origin import (
    assumption_lines,
    badge_of,
    common_badge,
    model_error_lines,
    origin_texts,
)
from orchestrator.report.prediction_error import (
    predicted_vs_measured_columns,
    predicted_vs_measured_notes,
)
from orchestrator.report.text import (
    FEW_MARK,
    FEW_TEXT,
    Cell,
    Column,
    FilledColumn,
    confidence_text,
    figure,
    interval_text,
    marked_percentile,
    marks_aligned,
    rows_of,
    share_interval_text,
    value_texts,
)
from orchestrator.report.words import (
    NO_REASON,
    failed_repeats_texts,
    failure_text,
    load_run_difference_text,
    on_hardware,
    point_doubt_texts,
    short_model_text,
    slo_text,
)
from orchestrator.report.written_form import Form
from orchestrator.results.records import Distribution, Figures
from orchestrator.spec.load import UNITS, load_text

# Columns that are left out where the width is too small, the first one first. Others always stay.
_DROPPED_FIRST = (
    "usd_per_m_output",
    "j_per_output_token",
    "mfu",
    "e2e_ms.p50",
    "tpot_ms.p50",
    "measured_over_predicted.tpot_ms",
    "decode_mbu",
    "ttft_ms.p50",
    "ttft_from_sent_ms.p50",
    "repeats",
    "e2e_ms.p99",
    "measured_over_predicted.output_throughput",
    "requests.ok",
    "knee",
    "attainment.lower",
    "output_token_throughput.lower",
    "agreement",
    "tpot_ms.p99",
    "attainment",
)
_GOES_LAST = "ttft_ms.p99"  # left out only if else every cell would get a line of its own
_SHOWN_PERCENTILES = {"p50": 0.5, "p99": 0.99}
_Percentiles = Mapping[str, str]  # of one point: name of a column -> text
MOST_LEVELS = 6  # named with a failure; the others are counted


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """A column that was asked for by its name."""

    column: Column
    value: Callable[[PointDocument], object]


@dataclass(frozen=True, slots=True)
class PointView:
    """What the tables show of each point.

    ``is_profile``: prefill and decode take the place of limits. ``columns``: only these are shown;
    empty: the usual ones. ``more_columns``: shown beside the usual ones, since the points are
    sorted by them.
    """

    is_profile: bool = False
    columns: Sequence[ShownColumn] = ()
    more_columns: Sequence[ShownColumn] = ()

    @property
    def shows_parts(self) -> bool:
        """Whether a table of the parts of mixes follows: not where columns were asked for."""
        return not self.columns and not self.is_profile


USUAL = PointView()


@dataclass(frozen=True, slots=True)
class PointSection:
    """Points that are shown together, and the capacities that were searched among them.

    ``content``: what else the points of a workload have in common, for the heading.
    """

    documents: Sequence[PointDocument]
    content: str = ""
    capacities: Sequence[CapacityDocument] = ()


def points_text(section: PointSection, form: Form, view: PointView = USUAL) -> Iterator[str]:
    """One table of points with notes per workload, model and hardware.

    Below the tables stand the points that failed, and the capacities.
    """
    measured = [document for document in section.documents if document.point.used_repeats]
    groups = values_by_key((group_of(document.point), document) for document in measured)
    for group in groups.values():
        limits = [slo_text(result.slo) for result in group[0].slo_results]
        under = f" under {limits[0]}" if len(limits) == 1 else ""
        yield from form.heading(f"{_title(group[0].point, group)}{section.content}{under}")
        if len(limits) > 1:
            for text in limits:
                yield from form.note(f"  {text}")
        yield from _table(group, form, view)
        yield from form.gap()
    yield from _failures(section.documents, form)
    yield from capacities_text(section.capacities, form)


def load_runs_text(
    runs: Sequence[LoadRunDocument],
    documents: Sequence[PointDocument],
    form: Form,
    view: PointView = USUAL,
) -> Iterator[str]:
    """One table of several runs of ``orchestrator load``, with a row per run and level.

    Below it stands how the runs differ. ``documents``: those of their points that are shown.
    """
    limits: dict[str, None] = {}  # in the order in which they first come
    for run in runs:
        limits.update(dict.fromkeys(slo_text(slo) for slo in run.slos))
    measured = [document for document in documents if document.point.used_repeats]
    models = dict.fromkeys(document.point.deployment.model for document in documents)
    under = f" under {next(iter(limits))}" if len(limits) == 1 else ""
    title = f"{counted(len(runs), 'load run')}: {listed(list(models))}"
    yield from form.heading(f"{title}{_badge(measured)}{under}")
    for run in runs:
        label = run.points[0].label
        if len(models) > 1:
            yield from form.note(f"  {label}: {run.points[0].point.deployment.model}")
        if len(limits) > 1 and run.slos:
            yield from form.note(f"  {label}: {', '.join(slo_text(slo) for slo in run.slos)}")
    if measured:
        yield from _table(measured, form, view, "name")
        yield from form.gap()
    for run in runs:
        # where the first run shown has differences too, the run from which both differ is hidden
        if run.differences and not runs[0].differences:
            text = load_run_difference_text(run.name, runs[0].name, run.differences)
            yield from form.note(text, "yellow")
    yield from _failures(documents, form)


def closing_text(
    documents: Sequence[PointDocument], form: Form, left_out: int = 0
) -> Iterator[str]:
    """The lines that stand once, below all points. ``left_out``: how many were not selected."""
    points = [document.point for document in documents]
    for text in origin_texts(points):
        yield from form.note(text, "yellow")
    for text in model_error_lines(points):
        yield from form.short_note(text, "dim")
    for text in assumption_lines(points):
        yield from form.note(text, "yellow")
    yield from form.closing()
    yield from form.note(_counts_text(points, left_out), "dim")


def _counts_text(points: Sequence[StoredPoint], left_out: int) -> str:
    """``15 points measured, 3 failed``, or ``8 of 120 points: 8 simulated, 0 failed``."""
    used = [point for point in points if point.used_repeats]
    simulated = sum(1 for point in used if point.simulated)
    measured = len(used) - simulated
    numbers: dict[str, int] = {}
    if measured or not simulated:
        numbers["measured"] = measured
    if simulated:
        numbers["simulated"] = simulated
    numbers["failed"] = len(points) - len(used)
    texts = [f"{number} {kind}" for kind, number in numbers.items()]
    if left_out:
        every = len(points) + left_out
        return f"{len(points)} of {every} points: {', '.join(texts)}"
    kind, number = next(iter(numbers.items()))
    texts[0] = f"{counted(number, 'point')} {kind}"  # what is counted stands there once
    return ", ".join(texts)


def _title(point: StoredPoint, group: Sequence[PointDocument]) -> str:
    """``chat of quickstart: some-org/model on h100``."""
    model = short_model_text(compared_model([document.point.deployment for document in group]))
    hardware = on_hardware(point.deployment.hardware)
    name = f"{point.head.workload} of {point.head.experiment}"
    return f"{name}: {model}{hardware}{_badge(group)}"


def _badge(documents: Sequence[PointDocument]) -> str:
    """The badge that all these points have; empty where they differ, or were measured."""
    return common_badge([document.point for document in documents])


def _table(
    documents: Sequence[PointDocument], form: Form, view: PointView, first_title: str = "deployment"
) -> Iterator[str]:
    footnotes = Footnotes()
    columns = _columns(documents, view, first_title, footnotes)
    yield from form.table([each.column for each in columns], rows_of(columns))
    if any(_has_mark(each) for each in columns):
        yield from form.short_note(FEW_TEXT, "dim")
    yield from footnotes.lines(form)
    if view.columns or view.is_profile:
        return
    for text in agreement_notes([document.point for document in documents]):
        yield from form.short_note(text, "dim")
    for text in (*guidance_notes(documents), *adapter_notes(documents)):
        yield from form.note(text, "dim")
    for text in predicted_vs_measured_notes(documents):
        yield from form.short_note(text, "yellow")


def _columns(
    documents: Sequence[PointDocument], view: PointView, first_title: str, footnotes: Footnotes
) -> list[FilledColumn]:
    if view.columns:
        return [_filled(documents, shown) for shown in view.columns]
    columns = list(_identity_columns(documents, first_title))
    if view.is_profile:
        columns += _profile_columns(documents)
    else:
        columns += _usual_columns(documents, footnotes)
    usual_names = {each.column.name for each in columns}
    kept_names = {shown.column.name for shown in view.more_columns}
    for shown in view.more_columns:
        if shown.column.name not in usual_names:
            columns.append(_filled(documents, shown))
    return [FilledColumn(_with_rank(each.column, kept_names), each.cells) for each in columns]


def _with_rank(column: Column, kept_names: Container[str]) -> Column:
    if column.name == _GOES_LAST and column.name not in kept_names:
        return replace(column, goes_last=True)
    if column.name not in _DROPPED_FIRST or column.name in kept_names:
        return column
    return replace(column, drop_rank=len(_DROPPED_FIRST) - _DROPPED_FIRST.index(column.name))


def _has_mark(filled: FilledColumn) -> bool:
    """Whether some percentile in the column has too few answers."""
    if not filled.column.name.endswith((".p50", ".p99")):
        return False
    return any(isinstance(cell, str) and cell.endswith(FEW_MARK) for cell in filled.cells)


def _filled(documents: Sequence[PointDocument], shown: ShownColumn) -> FilledColumn:
    values = [shown.value(document) for document in documents]
    has_text = any(isinstance(value, str) for value in values)
    return FilledColumn(replace(shown.column, is_left=has_text), value_texts(values))


def _identity_columns(
    documents: Sequence[PointDocument], first_title: str
) -> Iterator[FilledColumn]:
    """The columns that tell the points of a table apart; where other rates were sent than asked
    for, what was sent.
    """
    is_mixed = not _badge(documents)
    labels = []
    for document in documents:
        mark = badge_of(document.point) if is_mixed else ""
        labels.append(f"{document.label}{mark}")
    yield FilledColumn(Column(first_title, fold=True, name="deployment"), labels)
    yield _load_column(documents)
    points = [document.point for document in documents]
    if not all(point.was_sent_as_asked for point in points):
        rates = [figure(point.offered_rate) for point in points]
        yield FilledColumn(Column("req/s\noffered", name="offered_rate"), rates)
    if any(document.is_knee for document in documents):
        cells = ["knee" if document.is_knee else "" for document in documents]
        yield FilledColumn(Column("curve", is_left=True, name="knee"), cells)


def _load_column(documents: Sequence[PointDocument]) -> FilledColumn:
    """The column of loads. The unit stands in the title if all points have the same one."""
    heads = [document.point.head for document in documents]
    controls = {head.control for head in heads}
    if len(controls) > 1:
        texts = [load_text(head.control, head.level) for head in heads]
        return FilledColumn(Column("load", name="level"), texts)
    (control,) = controls
    title = UNITS[control].replace(" ", "\n")
    return FilledColumn(Column(title, name="level"), [f"{head.level:g}" for head in heads])


def _usual_columns(
    documents: Sequence[PointDocument], footnotes: Footnotes
) -> Iterator[FilledColumn]:
    """Counts, verdict, throughput, latencies and limits.

    Agreement and predictions follow where some point has them.
    """
    points = [document.point for document in documents]
    if any(len(point.repeats) > 1 for point in points):
        texts = [f"{len(point.used_repeats)} of {len(point.repeats)}" for point in points]
        yield FilledColumn(Column("repeats", name="repeats"), texts)
    totals = [point.requests for point in points]
    answered = [f"{requests.ok}/{requests.scheduled}" for requests in totals]
    yield FilledColumn(Column("ok/all", name="requests.ok"), answered)
    verdicts = [_verdict_cell(point, footnotes) for point in points]
    yield FilledColumn(Column("verdict", fold=True, name="validity"), verdicts)
    yield from _throughput_columns(points)
    names = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "E2E": "e2e_ms"}
    percentiles: list[_Percentiles] = []
    costs: list[TokenCost] = []
    for point in points:  # point by point, because figures are decoded again each time
        percentiles.append(_percentiles(point.figures, names.values()))
        costs.append(token_cost(point))
    yield from _latency_columns(names, percentiles)
    yield from _limit_columns(documents)
    yield from efficiency_cells(costs)
    agreement = agreement_column(points)
    if agreement is not None:
        yield agreement
    yield from predicted_vs_measured_columns(documents)


def _profile_columns(documents: Sequence[PointDocument]) -> Iterator[FilledColumn]:
    """Latency and throughput of prefill and decode.

    They are those of single requests, except in the last columns, which are about all requests.
    """
    points = [document.point for document in documents]
    ttft = {"TTFT": "ttft_from_sent_ms"}
    tpot = {"TPOT": "tpot_ms"}
    percentiles: list[_Percentiles] = []
    prefill: list[str] = []
    decode: list[str] = []
    inputs: list[str] = []
    for point in points:  # point by point, because figures are decoded again each time
        figures = point.figures
        percentiles.append(_percentiles(figures, [*ttft.values(), *tpot.values()]))
        prefill.append(_median_text(figures.prefill_throughput))
        decode.append(_median_text(figures.decode_throughput))
        inputs.append(figure(figures.input_token_throughput))
    yield from _latency_columns(ttft, percentiles)
    yield FilledColumn(Column("prefill\ntokens/s", name="prefill_throughput.p50"), prefill)
    yield from _latency_columns(tpot, percentiles)
    yield FilledColumn(Column("decode\ntokens/s", name="decode_throughput.p50"), decode)
    yield FilledColumn(Column("all input\ntokens/s", name="input_token_throughput"), inputs)
    yield from _throughput_columns(points, "all output\ntokens/s")


def _throughput_columns(
    points: Sequence[StoredPoint], title: str = "output\ntokens/s"
) -> Iterator[FilledColumn]:
    intervals = [point.output_token_throughput() for point in points]
    estimates = [figure(interval.estimate if interval else None) for interval in intervals]
    bounds = [interval_text(interval) for interval in intervals]
    yield FilledColumn(Column(title, name="output_token_throughput"), estimates)
    interval_title = _interval_title(intervals)
    yield FilledColumn(Column(interval_title, name="output_token_throughput.lower"), bounds)


def _interval_title(intervals: Sequence[Interval | None]) -> str:
    """``95 %`` or ``9 in 10``, and ``interval``: all points of a table have the same kind."""
    confidences = [confidence_text(interval) for interval in intervals if interval is not None]
    return f"{confidences[0] if confidences else '95 %'}\ninterval"


def _median_text(values: Distribution | None) -> str:
    return figure(values.p50 if values else None)


def _percentiles(figures: Figures, figure_names: Iterable[str]) -> _Percentiles:
    """The median and the 99th percentile of each latency; a percentile of too few answers is
    marked.
    """
    texts: dict[str, str] = {}
    for figure_name in figure_names:
        values = getattr(figures, figure_name)
        for percentile, quantile in _SHOWN_PERCENTILES.items():
            text = marked_percentile(values, quantile, figures.requests.ok)
            texts[f"{figure_name}.{percentile}"] = text
    return texts


def _latency_columns(
    names: Mapping[str, str], percentiles: Sequence[_Percentiles]
) -> Iterator[FilledColumn]:
    """The columns of percentiles. ``names``: title of a latency -> the name of its figure."""
    for title, figure_name in names.items():
        for percentile in _SHOWN_PERCENTILES:
            name = f"{figure_name}.{percentile}"
            texts = [of_point[name] for of_point in percentiles]
            yield FilledColumn(Column(f"{title} ms\n{percentile}", name=name), marks_aligned(texts))


def _limit_columns(documents: Sequence[PointDocument]) -> Iterator[FilledColumn]:
    """For each SLO: the share of requests that met it, its interval, and whether it holds.

    There are no columns where no point was judged by any limits.
    """
    names: dict[str, None] = {}  # in the order in which they first come
    for document in documents:
        names.update(dict.fromkeys(result.slo.name for result in document.slo_results))
    for name in names:
        results = [_result_under(document, name) for document in documents]
        shares = [result.attainment if result else None for result in results]
        of_slo = f"\n{name}" if len(names) > 1 else ""
        estimates = [f"{share.estimate:.3f}" if share else "-" for share in shares]
        yield FilledColumn(Column(f"attain-\nment{of_slo}", name="attainment"), estimates)
        intervals = [share_interval_text(share) for share in shares]
        interval_title = f"{_interval_title(shares)}{of_slo}"
        yield FilledColumn(Column(interval_title, name="attainment.lower"), intervals)
        title = name if len(names) > 1 else "SLO"
        yield FilledColumn(Column(title, is_left=True), [met_cell(result) for result in results])


def _result_under(document: PointDocument, slo_name: str) -> SloResult | None:
    for result in document.slo_results:
        if result.slo.name == slo_name:
            return result
    return None


def met_cell(result: SloResult | None) -> Cell:
    """Whether all tests of an SLO hold; where there are several, those that do not are named."""
    if result is None or result.is_met is None:
        return Cell("-")
    if result.is_met:
        return Cell("✓", "green")
    missed = [test.name for test in result.tests if test.share.estimate < test.target]
    names = f" {', '.join(missed)}" if len(result.tests) > 1 else ""
    return Cell(f"✗{names}", "red")


def _verdict_cell(point: StoredPoint, footnotes: Footnotes) -> Cell:
    """The verdict, and the numbers of the notes on it."""
    marks = footnotes.marks(_notes(point))
    style = None if point.validity == "valid" else "yellow"
    return Cell(f"{point.validity} {marks}".rstrip(), style)


def _notes(point: StoredPoint) -> Iterator[RowNote]:
    """A note for each doubt about a point, and for what a reader must know although it is valid."""
    if point.validity in ("valid", FAILING):
        doubts = point_doubt_texts(point)
    else:
        for reason in point.reasons or [NO_REASON]:
            yield RowNote(reason, "yellow")
        doubts = failed_repeats_texts(point)  # the verdict and its reasons were said
    for text in doubts:
        yield RowNote(text, "yellow", is_exact=True)
    if point.validity == "valid":
        yield from _notes_on_valid(point)


def _notes_on_valid(point: StoredPoint) -> Iterator[RowNote]:
    """The notes of the first valid repeat that has any."""
    noted = [
        repeat.head.validity_reasons
        for repeat in point.used_repeats
        if repeat.valid and repeat.head.validity_reasons
    ]
    if not noted:
        return
    of_repeats = ""
    if len(noted) < len(point.used_repeats):
        of_repeats = f" ({len(noted)} of {len(point.used_repeats)} repeats)"
    for reason in noted[0]:
        yield RowNote(f"{reason}{of_repeats}", "dim", is_exact=bool(of_repeats))


@dataclass(frozen=True, slots=True)
class _FailureKey:
    """What points that failed alike have in common. ``reason``: without its figures."""

    label: str
    workload: str
    reason: str


def _failures(documents: Iterable[PointDocument], form: Form) -> Iterator[str]:
    """Two lines for points of a deployment that failed alike: which they are, and why."""
    failed = [document for document in documents if not document.point.used_repeats]
    alike = values_by_key((_failure_key(document), document.point) for document in failed)
    for key, points in alike.items():
        levels = [load_text(point.head.control, point.head.level) for point in points]
        at_levels = listed(levels, most=MOST_LEVELS)
        yield from form.short_note(f"failed: {key.label}, {key.workload}, at {at_levels}", "red")
        yield from form.short_note(f"  {failure_text(points[0].head)}", "red")


def _failure_key(document: PointDocument) -> _FailureKey:
    head = document.point.head
    reason = re.sub(r"\d+", "", failure_text(head))
    return _FailureKey(document.label, head.workload, reason)

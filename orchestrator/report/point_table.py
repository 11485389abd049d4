"""What was measured, one row per point: the tables of ``orchestrator results``."""

from collections.abc import Iterator, Sequence

from orchestrator.analysis.deployments import compared_model
from orchestrator.analysis.points import Attained, StoredPoint
from orchestrator.analysis.slo import JOINT
from orchestrator.base.text import grouped, listed
from orchestrator.capacity.best import group_of
from orchestrator.report.agreement import agreement_column, agreement_text
from orchestrator.report.documents.load_run import LoadRunDocument
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.prediction_error import (
    predicted_vs_measured_column,
    predicted_vs_measured_text,
)
from orchestrator.report.text import (
    EMULATED,
    Cell,
    Column,
    ExtraColumn,
    figure,
    p50_p99,
    plus_minus,
    say,
    table,
)
from orchestrator.report.words import (
    failure_text,
    load_run_difference_text,
    model_text,
    on_hardware,
    point_doubt_texts,
    slo_text,
)
from orchestrator.spec.load import counted, load_text


def points_text(
    documents: Sequence[PointDocument], content: str = "", profile: bool = False
) -> Iterator[str]:
    """One table of points per workload, model and hardware; below them what is in doubt and what
    failed.

    ``content``: what else the points of a workload have in common, for the heading. ``profile``:
    columns for prefill and decode in place of those about limits.
    """
    measured = [document for document in documents if document.point.used]
    groups = grouped((group_of(document.point), document) for document in measured)
    for group in groups.values():
        limits = [slo_text(result.slo) for result in group[0].slo_results]
        under = f" under {limits[0]}" if len(limits) == 1 else ""
        yield say(_heading(group[0].point, group) + content + under, "bold")
        if len(limits) > 1:
            yield from (f"  {text}" for text in limits)
        yield from _profile(group) if profile else _table(group)
        yield ""
    yield from _remarks(documents)


def load_runs_text(runs: Sequence[LoadRunDocument], profile: bool = False) -> Iterator[str]:
    """One table of several runs of ``orchestrator load``: a row per run and level; below it in what
    the runs differ.
    """
    documents: list[PointDocument] = []
    limits: dict[str, None] = {}  # in the order in which they first come
    for run in runs:
        documents += run.points
        limits.update(dict.fromkeys(slo_text(slo) for slo in run.slos))
    measured = [document for document in documents if document.point.used]
    models = dict.fromkeys(document.point.deployment.model for document in documents)
    under = f" under {next(iter(limits))}" if len(limits) == 1 else ""
    yield say(f"{counted(len(runs), 'load run')}: {listed(list(models))}{under}", "bold")
    for run in runs:
        label = run.points[0].label
        if len(models) > 1:
            yield f"  {label}: {run.points[0].point.deployment.model}"
        if len(limits) > 1 and run.slos:
            yield f"  {label}: {', '.join(slo_text(slo) for slo in run.slos)}"
    if measured:
        yield from _profile(measured) if profile else _table(measured, "name")
        yield ""
    for run in runs:
        if run.differences:
            yield say(load_run_difference_text(run.name, runs[0].name, run.differences), "yellow")
    yield from _remarks(documents)


def _remarks(documents: Sequence[PointDocument]) -> Iterator[str]:
    """What is in doubt and what failed, below the tables of these points."""
    measured = [document for document in documents if document.point.used]
    failed = [document for document in documents if not document.point.used]
    if any(document.point.emulated for document in documents):
        yield say(EMULATED, "yellow")
    for document in measured:
        name = _name(document.point)
        for text in point_doubt_texts(document.point):
            yield say(f"{name}: {text}", "yellow")
        note = _note(document.point)
        if note:
            yield say(f"* {name}: {note}", "dim")
    yield from predicted_vs_measured_text(measured)
    for document in failed:
        point = document.point
        yield say(f"failed: {_name(point)}: {failure_text(point.head)}", "red")
    yield say(f"{counted(len(measured), 'point')} measured, {len(failed)} failed", "dim")


def _heading(point: StoredPoint, group: Sequence[PointDocument]) -> str:
    """``chat of quickstart: some-org/model on h100``."""
    model = model_text(compared_model([document.point.deployment for document in group]))
    badge = " (emulated)" if point.emulated else ""
    hardware = on_hardware(point.deployment.hardware)
    return f"{point.head.workload} of {point.head.experiment}: {model}{hardware}{badge}"


def _profile(documents: Sequence[PointDocument]) -> Iterator[str]:
    """Latency and throughput of prefill and decode: of a single request, except for the last
    columns.
    """
    titles = [
        "load",
        "TTFT ms\np50, p99",
        "prefill\ntokens/s",
        "TPOT ms\np50, p99",
        "decode\ntokens/s",
        "all input\ntokens/s",
        "all output\ntokens/s",
    ]
    columns = [Column("deployment", fold=True), *map(Column, titles)]
    yield from table(columns, [_profile_cells(document.point) for document in documents])


def _profile_cells(point: StoredPoint) -> list[str]:
    figures = point.figures
    ok = figures.requests.ok
    prefill, decode = figures.prefill_throughput, figures.decode_throughput
    return [
        _label(point),
        load_text(point.head.control, point.head.level),
        p50_p99(figures.ttft_from_sent_ms, ok),
        figure(prefill.p50 if prefill else None),
        p50_p99(figures.tpot_ms, ok),
        figure(decode.p50 if decode else None),
        figure(figures.input_token_throughput),
        plus_minus(point.output_token_throughput()),
    ]


def _label(point: StoredPoint) -> str:
    return point.deployment.label + ("\nemulated" if point.emulated else "")


def _table(documents: Sequence[PointDocument], first_title: str = "deployment") -> Iterator[str]:
    """Throughput, latencies and attainment, beside agreement and predictions where some point has
    them.
    """
    titles = [
        "load",
        "ok/all",
        "output\ntokens/s",
        "TTFT ms\np50, p99",
        "TPOT ms\np50, p99",
        "E2E ms\np50, p99",
    ]
    columns = [Column(first_title, fold=True), *map(Column, titles)]
    rows = [_cells(document) for document in documents]
    points = [document.point for document in documents]
    extra_columns = (
        _attainment_column(documents),
        agreement_column(points),
        predicted_vs_measured_column(documents),
    )
    for extra_column in extra_columns:
        if extra_column is not None:
            extra_column.append_to(columns, rows)
    yield from table(columns, rows)
    yield from agreement_text(points)


def _cells(document: PointDocument) -> list[str | Cell]:
    point = document.point
    figures, head = point.figures, point.head
    ok = figures.requests.ok
    load = load_text(head.control, head.level) + ("\nknee" if document.is_knee else "")
    if len(point.repeats) > 1:
        load += f"\n{len(point.used)} of {len(point.repeats)}"
    answered = f"{ok}/{figures.requests.scheduled}{' *' if _note(point) else ''}"
    doubt = ""
    if point.validity != "valid":
        doubt = "\n" + point.validity.replace("_backlog", "\n_backlog")
    return [
        _label(point),
        load,
        Cell(answered + doubt, "yellow" if doubt else None),
        plus_minus(point.output_token_throughput()),
        p50_p99(figures.ttft_ms, ok),
        p50_p99(figures.tpot_ms, ok),
        p50_p99(figures.e2e_ms, ok),
    ]


def _attainment_column(documents: Sequence[PointDocument]) -> ExtraColumn | None:
    """None where no point was judged by any limits."""
    most_slos = max(len(document.slo_results) for document in documents)
    if not most_slos:
        return None
    column = Column("attainment", fold=most_slos > 1)
    return ExtraColumn(column, [_attainment_cell(document) for document in documents])


def _attainment_cell(document: PointDocument) -> Cell:
    """The share of each test and whether it holds; the interval too where there is a single test."""
    results = document.slo_results
    lines: list[str] = []
    outcomes: set[bool] = set()
    tests: list[Attained] = []
    for result in results:
        for test in result.tests:
            names = [result.slo.name] if len(results) > 1 else []
            if test.name != JOINT:
                names.append(test.name)
            is_met = test.share.estimate >= test.target
            mark = "✓" if is_met else "✗"
            lines.append(" ".join([f"{test.share.estimate:.3f} {mark}", *names]))
            outcomes.add(is_met)
            tests.append(test)
    if len(tests) == 1:
        share = tests[0].share
        lines.append(f"{share.lower:.3f}-{share.upper:.3f}")
    return Cell("\n".join(lines) or "-", _style(outcomes))


def _style(outcomes: set[bool]) -> str | None:
    """Green: all tests hold; red: none does."""
    if not outcomes:
        return None
    if len(outcomes) > 1:
        return "yellow"
    return "green" if True in outcomes else "red"


def _note(point: StoredPoint) -> str:
    """What a reader must know although the point is valid: the notes of its first repeat that has
    any.
    """
    if point.validity != "valid":
        return ""
    noted = [
        repeat.point.validity_reasons
        for repeat in point.used
        if repeat.valid and repeat.point.validity_reasons
    ]
    if not noted:
        return ""
    note = "; ".join(noted[0])
    if len(point.used) == 1:
        return note
    return f"{note} ({len(noted)} of {len(point.used)} repeats)"


def _name(point: StoredPoint) -> str:
    head = point.head
    badge = " (emulated)" if point.emulated else ""
    level = load_text(head.control, head.level)
    return f"{point.deployment.label}{badge}, {head.workload}, {level}"

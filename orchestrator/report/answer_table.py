"""The answer for people: what ``orchestrator best`` shows, and what a sweep ends with."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import listed_within
from orchestrator.capacity.answers import NoteKind, RankedDeployment
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.doubts import DoubtKind
from orchestrator.plan.current import Points, StoredExperiment
from orchestrator.report.agreement import agreement_column, agreement_notes
from orchestrator.report.capacity_table import estimate_cells
from orchestrator.report.documents.answer import (
    AnswerDocument,
    ComparisonDocument,
    RankedDocument,
    answer_document,
)
from orchestrator.report.documents.part import part_documents
from orchestrator.report.documents.point import point_document
from orchestrator.report.doubt_lines import DoubtLine, doubt_line_text, doubt_lines, merged
from orchestrator.report.efficiency_cells import efficiency_cells, token_cost
from orchestrator.report.exclusion_lines import (
    exclusion_line_text,
    exclusion_lines,
    nearest_text,
    spoilt_text,
)
from orchestrator.report.next_step import shortlist_run
from orchestrator.report.origin import assumption_lines, badge_of, model_error_lines, origin_texts
from orchestrator.report.selection import Answers, is_offline
from orchestrator.report.text import (
    FEW_MARK,
    FEW_TEXT,
    Column,
    FilledColumn,
    confidence_text,
    figure,
    interval_text,
    marked_percentile,
    marks_aligned,
    rows_of,
    share_interval_text,
)
from orchestrator.report.words import (
    among_text,
    level_text,
    name_at_level,
    on_hardware,
    ranked_load_text,
    ranked_mark,
    short_model_text,
    slo_text,
    unanswered_text,
)
from orchestrator.report.written_form import Form
from orchestrator.results.validity import SPOILT
from orchestrator.spec.load import Per

MOST_ROWS = 5  # of a ranking
WITH_RUNNER_UP = 2  # rows of a ranking at the end of a sweep
FEW_ROWS = 3  # of each ranking where there are more than two rankings
BAR = 8  # width in characters
EIGHTHS = " ▏▎▍▌▋▊▉"
UNCERTAIN = "not certain: "
UNCERTAIN_IN_ALL = "not certain, in every ranking: "
# below simulated throughputs whose intervals have no width
KEPT_UP = "no width: throughput is what was sent; attainment says how sure limits hold"
AGREEMENT = "agreement"  # the title of a column
_MARKED_FIGURE = re.compile(rf"\d\\?{re.escape(FEW_MARK)}(\s|$)")
# The unit in the title of a column; the line above the table has it whole.
SHORT_UNITS: dict[Per, str] = {
    "gpu": "tokens/s",
    "deployment": "tokens/s",
    "usd": "tokens/USD",
    "joule": "tokens/J",
}


@dataclass(frozen=True, slots=True)
class AnswerView:
    """How an answer is shown.

    ``width``: characters into which a line should fit. ``top``: how many rows of each ranking are
    shown. ``footnotes``: sentences that stand once below all rankings, gathered while they are
    written.
    """

    form: Form
    width: int
    top: int
    footnotes: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Section:
    """Rankings of the same deployments and workload under different limits."""

    title: str
    documents: Sequence[ComparisonDocument]


def rows_to_show(answer: AnswerDocument) -> int:
    """How many rows of each ranking to show, so that all fit on one screen.

    A single row is never left out: the line that says so would take as much room.
    """
    most = FEW_ROWS if len(answer.comparisons) > 2 else MOST_ROWS
    longest = max((len(document.ranking) for document in answer.comparisons), default=0)
    return longest if longest == most + 1 else most


def best_text(answer: AnswerDocument, view: AnswerView) -> Iterator[str]:
    """The lines of an answer.

    Each comparison has its winner and the first rows of its ranking, then what is in doubt, what
    would decide it, and what was left out.
    """
    form = view.form
    by_experiment = values_by_key(
        (document.comparison.experiment, document) for document in answer.comparisons
    )
    for documents in by_experiment.values():
        shared = _doubts_of_all(documents)
        for section in _sections(documents):
            yield from _section_text(section, shared, view)
        yield from _doubts_text(shared, documents, view, UNCERTAIN_IN_ALL)
        yield from _run_again_text(documents, form)
    for footnote in view.footnotes:
        yield from form.short_note(footnote, "dim")
    yield from _origin_notes(answer.comparisons, view.top, form)
    yield from form.closing()


def answer_text(rankings: Answers, view: AnswerView) -> Iterator[str]:
    """What a sweep prints at its end: the best deployment under each of the file's limits.

    The doubts follow. Where the file has several limits, only the winners are shown.
    """
    form = view.form
    documents = answer_document(rankings.comparisons).comparisons
    for section in _sections(documents):
        if len(section.documents) == 1:
            yield from _only_answer(section.documents[0], form)
        else:
            yield from _several_answers(section, form)
    yield from _doubts_text(_all_doubts(documents), documents, view)
    for answered in rankings.experiments:
        for slo in answered.unanswered:
            yield from form.note(f"note: no answer under {unanswered_text(slo)}")
    yield from _origin_notes(documents, WITH_RUNNER_UP, form)
    yield from form.closing()


def _origin_notes(documents: Sequence[ComparisonDocument], shown: int, form: Form) -> Iterator[str]:
    """Notes that something was not measured, and what the intervals of simulated points mean.

    ``shown``: how many rows of each ranking are shown.
    """
    for text in origin_texts([document.comparison for document in documents]):
        yield from form.note(text, "yellow")
    ranked: list[RankedDocument] = []
    for document in documents:
        ranked += document.ranking
    points = [each.deployment.point for each in ranked]
    for text in model_error_lines(points):
        yield from form.short_note(text, "dim")
    for text in assumption_lines(points):
        yield from form.note(text, "yellow")
    rows: list[RankedDocument] = []
    for document in documents:
        rows += document.ranking[:shown]
    if any(_is_what_was_sent(row.deployment) for row in rows):
        yield from form.short_note(f"  {KEPT_UP}", "dim")


def _is_what_was_sent(deployment: RankedDeployment) -> bool:
    """Whether it was simulated at a rate that it keeps up with, even by the model's error."""
    throughput = deployment.throughput
    return deployment.point.simulated and throughput.lower == throughput.upper


def next_commands(experiment: StoredExperiment, points: Points, rankings: Answers) -> Iterator[str]:
    """The commands to type next, at most two, one per line. ``points``: all points of the
    experiment. ``rankings``: under the limits of its file.
    """
    options = f"{experiment.uri_argument} --experiment {experiment.name}"
    is_measured = any(point.used_repeats for point in points.current)
    has_failed = any(launch.status != "ok" for launch in experiment.store.manifests("launch"))
    commands = []
    again = _again_where_all_is_spoilt(points)
    # without a measurement there is nothing to rank
    if again is not None:
        commands.append(experiment.run_command(again))
    elif is_measured and (experiment.slos or is_offline(experiment)):
        commands.append(f"orchestrator best {options}")
    elif is_measured:
        commands.append(f'orchestrator best {options} --slo "ttft<=500ms,attainment>=0.95"')
    if experiment.store.simulated():
        measuring = shortlist_run(experiment, rankings.comparisons)
        if measuring is not None:
            commands.append(measuring.command)
    elif has_failed:
        commands.append(f"orchestrator logs {options}")
    if len(commands) < 2:
        commands.append(f"orchestrator results {options}")
    before = "next: "
    for command in commands:
        yield before + command
        before = " " * len(before)


def _again_where_all_is_spoilt(points: Points) -> int | None:
    """The N with which ``run --again N`` measures everything again; None where anything was not
    spoilt.
    """
    repeats = [repeat for point in points.current for repeat in point.used_repeats]
    if not repeats or any(repeat.head.validity not in SPOILT for repeat in repeats):
        return None
    return max(repeat.attempts for repeat in repeats)


# One comparison


def _sections(documents: Sequence[ComparisonDocument]) -> list[_Section]:
    by_title = values_by_key((_title(document), document) for document in documents)
    return [_Section(title, alike) for title, alike in by_title.items()]


def _section_text(
    section: _Section, shared: Sequence[DoubtLine], view: AnswerView
) -> Iterator[str]:
    form = view.form
    if len(section.documents) == 1:
        (document,) = section.documents
        yield from form.heading(f"{section.title} {_limits_text(document)}")
        yield from _ranking_text(document, document.unit, view)
        hidden = len(document.ranking) - view.top
        if hidden > 0:
            yield from form.note(f" and {hidden} more: --top {len(document.ranking)}", "dim")
        yield from _remarks(document, shared, view)
        yield from form.gap()
        return
    yield from form.heading(f"{section.title}, {section.documents[0].unit}")
    for document in section.documents:
        count = len(document.ranking)
        part = f", {view.top} of {count} (--top {count})" if count > view.top else ""
        yield from form.heading(f"{_limits_text(document)}{part}")
        yield from _ranking_text(document, "", view)
        yield from _remarks(document, shared, view)
        yield from form.gap()


def _limits_text(document: ComparisonDocument) -> str:
    return f"under {slo_text(document.comparison.slo)}"


def _ranking_text(document: ComparisonDocument, unit: str, view: AnswerView) -> Iterator[str]:
    """The winner and the first rows of the ranking. ``unit``: empty where the heading has it."""
    if not document.ranking:
        yield from view.form.note(document.verdict)
        return
    winner = winner_text(document, unit)
    among = among_text(document.comparison)
    yield from view.form.heading(f"best{among}: {winner}", "bold green")
    yield from _ranking_table(document, view)
    yield from _parts_of_best(document, view)


def _remarks(
    document: ComparisonDocument, shared: Sequence[DoubtLine], view: AnswerView
) -> Iterator[str]:
    """How certain the answer is, notes on deployments in the ranking, and what was left out."""
    if document.comparison.certain:
        yield from view.form.note(document.verdict)
    doubts = [line for line in doubt_lines(document.comparison.doubts) if line not in shared]
    if not document.ranking:
        yield from _left_out_text(document, view)
        yield from _doubts_text(doubts, [document], view)
        return
    yield from _doubts_text(doubts, [document], view)
    yield from _notes_text(document, view)
    yield from _left_out_text(document, view)


def _title(document: ComparisonDocument) -> str:
    """What was compared: ``chat of quickstart: some-org/model on h100``."""
    comparison = document.comparison
    content = f", {comparison.content}" if comparison.content else ""
    hardware = on_hardware(comparison.hardware)
    model = f"{short_model_text(comparison.model)}{hardware}{badge_of(comparison)}"
    return f"{comparison.workload} of {comparison.experiment}: {model}{content}"


def ranked_text(deployment: RankedDeployment, unit: str = "", tied: int = 0) -> str:
    """``tp=1 at 6 in flight (not the limit): 931 output tokens/s per GPU (95 %: 900-962)``.

    ``unit``: empty: it stands in a line above, and the figures come without it. ``tied``: how many
    others are ranked by the same value.
    """
    throughput = deployment.throughput
    mark = ranked_mark(deployment)
    name = name_at_level(deployment)
    if mark:
        name += f" ({mark})"
    value = figure(throughput.estimate)
    interval = interval_text(throughput)
    remarks = f", a tie with {tied} more" if tied else ""
    remarks += if_slower_text(deployment)
    if not unit:
        return f"{name}: {value} ({interval}){remarks}"
    return f"{name}: {value} {unit} ({confidence_text(throughput)}: {interval}){remarks}"


def if_slower_text(deployment: RankedDeployment) -> str:
    """``; if slower than simulated, only 8 req/s hold``: why the interval of a simulated deployment
    begins so low. Empty where its load holds even then, or where that is not known.
    """
    held = deployment.if_slower
    if held is None:
        return ""
    if held.level is None:
        return "; if slower than simulated, no load holds"
    return f"; if slower than simulated, only {level_text(held.level)} hold"


def winner_text(document: ComparisonDocument, unit: str = "") -> str:
    """The first of a ranking as ``ranked_text``, and how many others are ranked by its value.

    ``document``: must have a ranking.
    """
    comparison = document.comparison
    return ranked_text(comparison.ranking[0], unit, len(comparison.tied))


# The ranking


def _ranking_table(document: ComparisonDocument, view: AnswerView) -> Iterator[str]:
    deployments = [ranked.deployment for ranked in document.ranking[: view.top]]
    highest = max(ranked.deployment.throughput.estimate for ranked in document.ranking)
    filled = list(_columns(deployments, SHORT_UNITS[document.comparison.per], highest))
    columns = [each.column for each in filled]
    lines = list(view.form.table(columns, rows_of(filled), is_ruled=False))
    yield from lines
    # a footnote stands only where its column was not left out
    if any(_MARKED_FIGURE.search(line) for line in lines):
        view.footnotes[FEW_TEXT] = None
    if any(AGREEMENT in line for line in lines[:2]):
        points = [deployment.point for deployment in deployments]
        view.footnotes.update(dict.fromkeys(agreement_notes(points)))


def _parts_of_best(document: ComparisonDocument, view: AnswerView) -> Iterator[str]:
    """How each part of a mix does on the deployment that is ranked first; nothing for other
    workloads.
    """
    best = document.ranking[0].deployment
    for part in part_documents(point_document(best.point, [document.comparison.slo])):
        figures = part.figures
        texts = [f"{part.part} on {best.label}"]
        if part.slo_results and part.slo_results[0].attainment is not None:
            texts.append(f"attainment {part.slo_results[0].attainment.estimate:.3f}")
        for title, latency in (("TTFT", figures.ttft_ms), ("TPOT", figures.tpot_ms)):
            if latency is not None:
                p99 = marked_percentile(latency, 0.99, figures.requests.ok)
                texts.append(f"{title} p99 {p99} ms")
        texts.append(f"{figure(figures.output_token_throughput)} tokens/s")
        yield from view.form.short_note(f"  part {', '.join(texts)}", "dim")


def _columns(
    deployments: Sequence[RankedDeployment], unit: str, highest: float
) -> Iterator[FilledColumn]:
    """The columns that every ranking has, then those that are left out on a narrow terminal."""
    throughputs = [deployment.throughput for deployment in deployments]
    labels = [deployment.label for deployment in deployments]
    yield FilledColumn(Column("deployment", fold=True), labels)
    loads = [ranked_load_text(deployment) for deployment in deployments]
    yield FilledColumn(Column("load", name="level"), loads)
    marks = [ranked_mark(deployment) for deployment in deployments]
    if any(marks):
        yield FilledColumn(Column("", is_left=True, name="censored"), marks)
    yield FilledColumn(
        Column(unit, name="value"), [figure(throughput.estimate) for throughput in throughputs]
    )
    yield FilledColumn(
        Column("interval", name="interval"), [interval_text(each) for each in throughputs]
    )
    bars = [bar(throughput.estimate / highest if highest else 0.0) for throughput in throughputs]
    yield FilledColumn(Column("of best", is_left=True), bars)
    yield from _claim_columns(deployments)
    yield from _detail_columns(deployments)


def _claim_columns(deployments: Sequence[RankedDeployment]) -> Iterator[FilledColumn]:
    """What searches know of capacities; no columns where nothing was searched.

    They say between which loads a capacity lies, what it is expected to be, and why the search
    ended.
    """
    claims = [deployment.capacity for deployment in deployments]
    if not any(claims):
        return
    bounds = [claim_bounds(claim) for claim in claims]
    yield FilledColumn(Column("capacity", name="capacity", drop_rank=1), bounds)
    if any(claim is not None and claim.estimate is not None for claim in claims):
        estimates = [_estimate_cell(deployment) for deployment in deployments]
        yield FilledColumn(Column("estimate", name="capacity.estimate", drop_rank=1), estimates)
    statuses = [str(claim.status) if claim else "-" for claim in claims]
    yield FilledColumn(Column("status", is_left=True, drop_rank=2), statuses)


def _estimate_cell(deployment: RankedDeployment) -> str:
    """``16.2 (15.1-17.0)``."""
    capacity = deployment.capacity
    if capacity is None or capacity.estimate is None:
        return "-"
    return estimate_cells(deployment.point.head.control, capacity.estimate).together


def _detail_columns(deployments: Sequence[RankedDeployment]) -> Iterator[FilledColumn]:
    points = [deployment.point for deployment in deployments]
    shares = [deployment.attainment for deployment in deployments]
    yield FilledColumn(
        Column("attainment", drop_rank=3), [f"{share.estimate:.3f}" for share in shares]
    )
    yield FilledColumn(
        Column("interval", name="attainment.lower", drop_rank=7),
        [share_interval_text(share) for share in shares],
    )
    figures = [point.figures for point in points]
    ttft = [marked_percentile(each.ttft_ms, 0.99, each.requests.ok) for each in figures]
    yield FilledColumn(Column("TTFT p99 ms", name="ttft_ms.p99", drop_rank=5), marks_aligned(ttft))
    tpot = [marked_percentile(each.tpot_ms, 0.99, each.requests.ok) for each in figures]
    yield FilledColumn(Column("TPOT p99 ms", name="tpot_ms.p99", drop_rank=6), marks_aligned(tpot))
    agreement = agreement_column(points)
    if agreement is not None:
        column = Column(AGREEMENT, name="agreement", drop_rank=4)
        yield FilledColumn(column, agreement.cells)
    starts = [str(deployment.throughput.starts) for deployment in deployments]
    yield FilledColumn(Column("starts", name="starts", drop_rank=8), starts)
    for filled in efficiency_cells([token_cost(point) for point in points]):
        column = replace(filled.column, title=filled.column.one_line, drop_rank=9)
        yield replace(filled, column=column)


def bar(share: float, width: int = BAR) -> str:
    """A bar that fills a share of ``width`` characters, in eighths; it has at least one eighth."""
    eighths = min(max(round(share * width * 8), 1), width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + EIGHTHS[rest].strip()


def claim_bounds(claim: Claim | None) -> str:
    """``5-7``; ``10-?`` where no level was shown to fail."""
    if claim is None:
        return "-"
    high = "?" if math.isinf(claim.high) else f"{claim.high:g}"
    return f"{claim.low:g}-{high}"


# Below the ranking


def _all_doubts(documents: Sequence[ComparisonDocument]) -> list[DoubtLine]:
    lines: list[DoubtLine] = []
    for document in documents:
        lines += doubt_lines(document.comparison.doubts)
    return merged(lines)


def _doubts_of_all(documents: Sequence[ComparisonDocument]) -> list[DoubtLine]:
    """The doubts that each of several comparisons has, about the same deployments."""
    if len(documents) < 2:
        return []
    first, *others = [doubt_lines(document.comparison.doubts) for document in documents]
    return [line for line in first if all(line in of_other for of_other in others)]


def _doubts_text(
    lines: Sequence[DoubtLine],
    documents: Sequence[ComparisonDocument],
    view: AnswerView,
    beginning: str = UNCERTAIN,
) -> Iterator[str]:
    """A line per cause of doubt. ``beginning``: of the lines, where there is a ranking."""
    ranked: dict[str, None] = {}
    for document in documents:
        ranked.update((each.deployment.label, None) for each in document.ranking)
    for line in lines:
        if not (ranked or line.remedy):
            continue  # the lines on what is left out say why there is no ranking
        before = beginning if ranked and line.cause else ""
        text = doubt_line_text(line, ranked, view.width - len(before))
        yield from view.form.note(before + text, "yellow" if ranked else None)
        for change in line.first_changes:
            yield from view.form.note(f"  change first: {change}")


def _run_again_text(documents: Sequence[ComparisonDocument], form: Form) -> Iterator[str]:
    """Once for all rankings, the commands that run an experiment again, where that helps."""
    commands: dict[str, None] = {}
    for document in documents:
        comparison = document.comparison
        helps = any(line.is_run_again for line in doubt_lines(comparison.doubts))
        if helps and comparison.run_command is not None:
            commands[comparison.run_command] = None
    for command in commands:
        yield from form.note(f"run again: {command}")


# Notes on deployments in the ranking. Two kinds of notes are missing: that a load is not the limit
# stands beside the load, and that attainment may be below the target is a doubt about the winner.
_NOTES: Mapping[NoteKind, str] = {
    NoteKind.NOT_MONOTONIC: "a lower level does not hold",
    NoteKind.FAILING: "many requests failed",
    NoteKind.REPEATS_LEFT_OUT: "repeats failed or not valid",
    NoteKind.FELL_BEHIND: "fell behind in a repeat",
    NoteKind.ANSWERS_DIFFER: "answers unlike the reference's",
}
# By kind of note, the doubt that says the same of a deployment.
_DOUBT_OF_NOTE: Mapping[NoteKind, DoubtKind] = {
    NoteKind.REPEATS_LEFT_OUT: DoubtKind.REPEATS_NOT_VALID,
    NoteKind.FELL_BEHIND: DoubtKind.REPEATS_NOT_VALID,
}


def _notes_text(document: ComparisonDocument, view: AnswerView) -> Iterator[str]:
    """A line per kind of note, with the deployments that have it."""
    in_doubt: set[tuple[DoubtKind, str]] = set()
    for doubt in document.comparison.doubts:
        in_doubt.update((doubt.kind, label) for label in doubt.deployments)
    labels_by_kind: dict[NoteKind, dict[str, None]] = {}
    for ranked in document.ranking:
        label = ranked.deployment.label
        for note in ranked.deployment.notes:
            is_in_doubt = (_DOUBT_OF_NOTE.get(note.kind), label) in in_doubt
            if note.kind in _NOTES and not is_in_doubt:
                labels_by_kind.setdefault(note.kind, {})[label] = None
    for kind, labels in labels_by_kind.items():
        beginning = f"note: {_NOTES[kind]}: "
        names = listed_within(list(labels), view.width - len(beginning))
        yield from view.form.short_note(beginning + names)


def _left_out_text(document: ComparisonDocument, view: AnswerView) -> Iterator[str]:
    """A line per reason; where there is no answer, also the whole of what comes nearest to one."""
    for line in exclusion_lines(document.excluded):
        before = "left out: "
        text = exclusion_line_text(line, view.width - len(before))
        yield from view.form.short_note(before + text, "dim")
        spoilt = spoilt_text(line)
        if spoilt is not None:
            yield from view.form.short_note(f"  {spoilt}", "dim")
        nearest = nearest_text(line)
        if nearest is not None and not document.ranking:
            yield from view.form.note(f"  {nearest}")


# How a sweep ends


def _only_answer(document: ComparisonDocument, form: Form) -> Iterator[str]:
    yield from form.heading(f"{_title(document)} {_limits_text(document)}")
    if not document.ranking:
        yield from _no_answer(document, form)
        return
    among = among_text(document.comparison)
    winner = winner_text(document, document.unit)
    yield from form.heading(f"best{among}: {winner}", "bold green")
    if len(document.ranking) > 1:
        yield from form.note(f"  runner-up: {ranked_text(document.ranking[1].deployment)}")
    if document.comparison.certain:
        yield from form.note(f"  {document.verdict}")


def _several_answers(section: _Section, form: Form) -> Iterator[str]:
    """A line for each of several limits."""
    yield from form.heading(f"{section.title}, {section.documents[0].unit}")
    for document in section.documents:
        name = document.comparison.slo.name
        if not document.ranking:
            yield from _no_answer(document, form, f"{name}: ")
            continue
        winner = winner_text(document)
        certain = ", certain" if document.comparison.certain else ""
        among = among_text(document.comparison)
        yield from form.heading(f"  best{among} under {name}: {winner}{certain}", "bold green")


def _no_answer(document: ComparisonDocument, form: Form, before: str = "") -> Iterator[str]:
    """Why nothing can be called best, and what comes nearest to it. ``before``: begins a line."""
    yield from form.note(f"  {before}{document.verdict}")
    for line in exclusion_lines(document.excluded):
        spoilt = spoilt_text(line)
        if spoilt is not None:
            yield from form.note(f"    {line.count_text}{line.reason}, {spoilt}")
        nearest = nearest_text(line)
        if nearest is not None:
            yield from form.note(f"    {nearest}")

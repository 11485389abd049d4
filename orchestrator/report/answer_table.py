"""The answer for people: what ``orchestrator best`` shows, and what a sweep ends with."""

import math
from collections.abc import Iterator

from orchestrator.base.text import grouped
from orchestrator.capacity.capacities import RankedDeployment, level_of
from orchestrator.capacity.claim import Claim
from orchestrator.plan.current import StoredExperiment
from orchestrator.report.agreement import agreement_column, agreement_text
from orchestrator.report.documents.answer import (
    AnswerDocument,
    ComparisonDocument,
    ExcludedDocument,
    answer_document,
)
from orchestrator.report.selection import ExperimentLimits, answers
from orchestrator.report.text import (
    EMULATED,
    Cell,
    Column,
    figure,
    percentile,
    say,
    share_text,
    table,
)
from orchestrator.report.words import (
    level_text,
    name_at_level,
    on_hardware,
    slo_text,
    unanswered_text,
)


def best_text(answer: AnswerDocument) -> Iterator[str]:
    """For each comparison the winner, the ranking, what would settle it, and why the others were
    left out.
    """
    for document in answer.comparisons:
        yield say(_title(document), "bold")
        if document.ranking:
            yield say(_headline(document), "bold green")
            yield from _ranking(document)
        yield document.verdict
        yield from (f"to decide: {remedy}" for remedy in document.remedies)
        for note, labels in _labels_by_note(document).items():
            yield f"note: {', '.join(labels)}: {note}"
        for excluded in document.excluded:
            yield say(f"left out: {_excluded_text(excluded)}", "dim")
        yield ""
    if any(document.comparison.emulated for document in answer.comparisons):
        yield say(EMULATED, "yellow")


def answer_text(experiment: StoredExperiment) -> Iterator[str]:
    """How a sweep ends: best configuration and runner-up under each of the file's limits, and the
    next commands.
    """
    found = answers([ExperimentLimits(experiment, experiment.slos)])
    for document in answer_document(found.comparisons).comparisons:
        yield from _answer_lines(document)
    for answered in found.experiments:
        for slo in answered.unanswered:
            yield f"note: no answer under {unanswered_text(slo)}"
    before = "next: "
    for command in _next_commands(experiment):
        yield before + command
        before = " " * len(before)


def _answer_lines(document: ComparisonDocument) -> Iterator[str]:
    yield say(_title(document), "bold")
    yield say(f"  {_headline(document)}", "bold green" if document.ranking else None)
    if len(document.ranking) > 1:
        second = document.ranking[1].deployment
        yield f"  runner-up: {name_at_level(second)}: {_throughput(second)} {document.unit}"
    if document.ranking:
        yield f"  {document.verdict}"
    else:
        for excluded in document.excluded:
            if excluded.excluded.level is None:
                yield f"  {_excluded_text(excluded)}"
    yield from (f"  to decide: {remedy}" for remedy in document.remedies)
    if document.comparison.emulated:
        yield say(f"  {EMULATED}", "yellow")


def _next_commands(experiment: StoredExperiment) -> Iterator[str]:
    options = f"'{experiment.store.uri}' --experiment {experiment.name}"
    limits = '"ttft<=500ms,attainment>=0.95"'
    if experiment.slos:
        limits = experiment.slos[0].name
    # where nothing was measured there is nothing to rank
    if any(point.used for point in experiment.points().current):
        yield f"orchestrator best {options} --slo {limits}"
    yield f"orchestrator results {options}"
    if any(launch.status != "ok" for launch in experiment.store.manifests("launch")):
        yield f"orchestrator logs {options}"


def _labels_by_note(document: ComparisonDocument) -> dict[str, list[str]]:
    """Each note once, with the labels of the deployments it is about."""
    return grouped(
        (note, ranked.deployment.label) for ranked in document.ranking for note in ranked.notes
    )


def _title(document: ComparisonDocument) -> str:
    """What was compared: ``chat of quickstart: some-org/model on h100 under interactive (...)``."""
    comparison = document.comparison
    content = f", {comparison.content}" if comparison.content else ""
    badge = " (emulated)" if comparison.emulated else ""
    model = f"{document.model}{on_hardware(comparison.hardware)}{badge}"
    name = f"{comparison.workload} of {comparison.experiment}: {model}{content}"
    return f"{name} under {slo_text(comparison.slo)}"


def _headline(document: ComparisonDocument) -> str:
    if not document.ranking:
        return document.verdict
    winner = document.ranking[0].deployment
    badge = " (emulated)" if winner.point.emulated else ""
    name = f"{winner.label}{badge} at {level_text(winner.level)}"
    return f"best: {name}: {_throughput(winner)} {document.unit}"


def _throughput(deployment: RankedDeployment) -> str:
    at_least = "at least " if deployment.lower_bound_only else ""
    return at_least + figure(deployment.throughput.estimate)


def _excluded_text(document: ExcludedDocument) -> str:
    excluded = document.excluded
    level = f" at {level_text(level_of(excluded.level))}" if excluded.level else ""
    return f"{excluded.deployment.label}{level}: {document.reason}"


def _ranking(document: ComparisonDocument) -> Iterator[str]:
    unit = document.unit.replace(" per", "\nper")
    titles = (
        "load",
        f"{unit}\n95 % interval",
        "attainment\n95 % interval",
        "TTFT ms\np99",
        "TPOT ms\np99",
    )
    deployments = [ranked.deployment for ranked in document.ranking]
    points = [deployment.point for deployment in deployments]
    columns = [Column("deployment", fold=True), *map(Column, titles)]
    rows = [_cells(deployment) for deployment in deployments]
    agreement = agreement_column(points)
    if agreement is not None:
        agreement.append_to(columns, rows)
    yield from table(columns, rows)
    yield from agreement_text(points)
    yield ""


def _cells(deployment: RankedDeployment) -> list[str | Cell]:
    rate, figures = deployment.throughput, deployment.point.figures
    at_least = "≥ " if deployment.lower_bound_only else ""
    one_start = "" if rate.starts > 1 else "one start: "
    interval = f"{one_start}{figure(rate.lower)}-{figure(rate.upper)}"
    level = level_text(deployment.level)
    if deployment.capacity is not None:
        level = f"{level}\n{_bounds(deployment.capacity)}"
    return [
        deployment.label + ("\nemulated" if deployment.point.emulated else ""),
        level,
        f"{at_least}{figure(rate.estimate)}\n{interval}",
        share_text(deployment.attainment),
        percentile(figures.ttft_ms, 0.99, figures.requests.ok),
        percentile(figures.tpot_ms, 0.99, figures.requests.ok),
    ]


def _bounds(claim: Claim) -> str:
    """``6.9-7.9, converged``."""
    high = "?" if math.isinf(claim.high) else f"{claim.high:g}"
    return f"{claim.low:g}-{high}\n{claim.status}"

"""The answer: what ``orchestrator best`` shows, and what a sweep ends with."""

import json
import math
from collections.abc import Iterable, Iterator

from orchestrator.analysis.slo import format_slo
from orchestrator.base.text import grouped
from orchestrator.capacity.best import Comparison
from orchestrator.capacity.capacities import Excluded, RankedDeployment, level_of
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.strategy import claim_document
from orchestrator.report.agreement import agreement_column, agreement_fields, agreement_text
from orchestrator.report.documents import Document, fields_of
from orchestrator.report.points import on_hardware, slo_text
from orchestrator.report.stored import Experiment, answers
from orchestrator.report.text import EMULATED, Column, figure, percentile, say, share_text, table
from orchestrator.report.words import (
    exclusion_text,
    level_text,
    name_at_level,
    note_texts,
    remedy_texts,
    unit_text,
    verdict_text,
)

_FIGURES = (
    "requests",
    "request_throughput",
    "output_token_throughput",
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "itl_ms",
)


def best_document(comparisons: Iterable[Comparison]) -> Document:
    """Every comparison: what was compared, how sure the answer is, and the ranking, best first."""
    return {"comparisons": [_comparison_document(one) for one in comparisons]}


def best_text(comparisons: Iterable[Comparison]) -> Iterator[str]:
    """For each comparison the winner, the ranking, what would settle it, and why the others were
    left out.
    """
    emulated = False
    for one in comparisons:
        yield say(f"{_asked(one)} under {slo_text(one.slo)}", "bold")
        if one.ranking:
            yield say(_headline(one), "bold green")
            yield from _ranking(one)
        yield verdict_text(one)
        yield from (f"to decide: {text}" for text in remedy_texts(one))
        yield from (
            f"note: {', '.join(labels)}: {note}" for note, labels in _notes(one.ranking).items()
        )
        yield from (say(f"left out: {_left_out(left)}", "dim") for left in one.excluded)
        yield ""
        emulated |= one.emulated
    if emulated:
        yield say(EMULATED, "yellow")


def answer_text(experiment: Experiment) -> Iterator[str]:
    """How a sweep ends: best configuration and runner-up under each of the file's limits, and the
    next commands.
    """
    uri = experiment.store.uri
    for one in answers([(experiment, experiment.slos)]):
        yield say(f"{_asked(one)} under {slo_text(one.slo)}", "bold")
        yield say(f"  {_headline(one)}", "bold green" if one.ranking else None)
        if len(one.ranking) > 1:
            second = one.ranking[1]
            yield f"  runner-up: {name_at_level(second)}: {_value(second)} {unit_text(one)}"
        yield from (f"  {text}" for text in ([verdict_text(one)] if one.ranking else []))
        yield from (
            f"  {_left_out(left)}"
            for left in one.excluded
            if left.level is None and not one.ranking
        )
        yield from (f"  to decide: {text}" for text in remedy_texts(one))
        if one.emulated:
            yield say(f"  {EMULATED}", "yellow")
    yield from (f"note: no answer under {text}" for text in experiment.unanswered)
    named = (
        f" --slo {experiment.slos[0].name}"
        if experiment.slos
        else ' --slo "ttft<=500ms,attainment>=0.95"'
    )
    commands = []
    # where nothing was measured there is nothing to rank
    if any(point.used for point in experiment.points().current):
        commands.append(f"orchestrator best '{uri}' --experiment {experiment.name}{named}")
    commands.append(f"orchestrator results '{uri}' --experiment {experiment.name}")
    if any(one.status != "ok" for one in experiment.store.manifests("launch")):
        commands.append(f"orchestrator logs '{uri}' --experiment {experiment.name}")
    for at, command in enumerate(commands):
        yield f"{'      ' if at else 'next: '}{command}"


def _notes(ranking: Iterable[RankedDeployment]) -> dict[str, list[str]]:
    """Each note once, with the labels of the deployments it is about."""
    return grouped(
        (note, one.point.deployment.label) for one in ranking for note in note_texts(one)
    )


def _asked(one: Comparison) -> str:
    """What was compared: ``chat of quickstart: some-org/model on h100``."""
    content = f", {one.content}" if one.content else ""
    model = f"{one.model}{on_hardware(one.hardware)}{' (emulated)' if one.emulated else ''}"
    return f"{one.workload} of {one.experiment}: {model}{content}"


def _headline(one: Comparison) -> str:
    if not one.ranking:
        return verdict_text(one)
    winner = one.ranking[0]
    badge = " (emulated)" if winner.point.emulated else ""
    return f"best: {winner.point.deployment.label}{badge} at {level_text(winner.level)}: {_value(winner)} {unit_text(one)}"


def _value(one: RankedDeployment) -> str:
    return f"{'at least ' if one.lower_bound_only else ''}{figure(one.throughput.estimate)}"


def _left_out(left: Excluded) -> str:
    level = f" at {level_text(level_of(left.level))}" if left.level else ""
    return f"{left.deployment.label}{level}: {exclusion_text(left)}"


def _ranking(one: Comparison) -> Iterator[str]:
    unit = unit_text(one).replace(" per", "\nper")
    titles = (
        "load",
        f"{unit}\n95 % interval",
        "attainment\n95 % interval",
        "TTFT ms\np99",
        "TPOT ms\np99",
    )
    points = [candidate.point for candidate in one.ranking]
    agreement, shares = agreement_column(points)
    rows = [
        [*_cells(candidate), *share] for candidate, share in zip(one.ranking, shares, strict=True)
    ]
    yield from table([Column("deployment", fold=True), *map(Column, titles), *agreement], rows)
    yield from agreement_text(points)
    yield ""


def _cells(one: RankedDeployment) -> list[str]:
    rate, share, figures = one.throughput, one.attainment, one.point.figures
    spread = f"{'' if rate.starts > 1 else 'one start: '}{figure(rate.lower)}-{figure(rate.upper)}"
    return [
        one.point.deployment.label + ("\nemulated" if one.point.emulated else ""),
        level_text(one.level) + ("" if one.capacity is None else f"\n{_bounds(one.capacity)}"),
        f"{'≥ ' if one.lower_bound_only else ''}{figure(rate.estimate)}\n{spread}",
        share_text(share),
        *(
            percentile(values, 0.99, figures.requests.ok)
            for values in (figures.ttft_ms, figures.tpot_ms)
        ),
    ]


def _bounds(claim: Claim) -> str:
    """``6.9-7.9, converged``."""
    return f"{claim.low:g}-{'?' if math.isinf(claim.high) else format(claim.high, 'g')}\n{claim.status}"


def _comparison_document(one: Comparison) -> Document:
    return {
        **fields_of(one, "experiment", "workload", "model", "hardware", "content"),
        "slo": format_slo(one.slo),
        "slo_name": one.slo.name,
        "per": one.per,
        "unit": unit_text(one),
        "certain": one.certain,
        "why": verdict_text(one),
        "decide": remedy_texts(one),
        "emulated": one.emulated,
        "ranking": [_candidate_document(candidate) for candidate in one.ranking],
        "left_out": [_left_out_document(left) for left in one.excluded],
    }


def _candidate_document(one: RankedDeployment) -> Document:
    head, deployment, rate, share = (
        one.point.head,
        one.point.deployment,
        one.throughput,
        one.attainment,
    )
    return {
        "deployment": deployment.label,
        **fields_of(head, "deployment_id", "point_id", "control", "level"),
        "value": rate.estimate,
        "interval": [rate.lower, rate.upper],
        "starts": rate.starts,
        "attainment": share.estimate,
        "attainment_interval": [share.lower, share.upper],
        "censored": one.lower_bound_only,
        # a list of levels claims none
        "capacity": None if one.capacity is None else claim_document(one.capacity),
        **fields_of(deployment, "engine", "model", "hardware", "devices", "usd_per_hour"),
        "settings": json.loads(deployment.settings_json),
        **fields_of(one.point.figures, *_FIGURES),
        **agreement_fields(one.point),
        "repeats": len(one.point.used),
        "emulated": one.point.emulated,
        "notes": note_texts(one),
    }


def _left_out_document(left: Excluded) -> Document:
    return {
        "deployment": left.deployment.label,
        **fields_of(left.deployment, "deployment_id"),
        **fields_of(left.level.head if left.level else None, "control", "level"),
        "reason": exclusion_text(left),
    }

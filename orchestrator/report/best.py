"""The answer: ``orchestrator best``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from orchestrator.analysis.best import Answer, Candidate, LeftOut, Per
from orchestrator.analysis.slo import format_slo
from orchestrator.report.documents import Document, fields_of
from orchestrator.report.text import EMULATED, Column, figure, load_text, say, table
from orchestrator.spec.load import Slo

_FIGURES = ("request_throughput", "output_token_throughput", "ttft_ms", "tpot_ms", "e2e_ms", "itl_ms")


def best_document(answers: Sequence[Answer], slo: Slo, per: Per) -> Document:
    """Every workload's answer; with one workload its fields stand at the top as well."""
    found = [_answer_document(one) for one in answers]
    head = {"slo": format_slo(slo), "per": per, "emulated": any(one.emulated for one in answers)}
    return {**head, **(found[0] if len(found) == 1 else {}), "answers": found}


def best_text(answers: Sequence[Answer], slo: Slo) -> Iterator[str]:
    """Per workload the winner, the ranking, and why the others are not in it."""
    for one in answers:
        yield say(f"{one.workload} under {format_slo(slo)}", "bold")
        if one.candidates:
            yield from _ranking(one)
        yield one.why
        for candidate in one.candidates:
            yield from (f"note: {candidate.point.deployment.label}: {note}" for note in candidate.notes)
        for left in one.left_out:
            head = left.point.head if left.point else None
            level = f" at {load_text(head.control, head.level)}" if head else ""
            yield say(f"left out: {left.deployment.label}{level}: {left.reason}", "dim")
    if any(one.emulated for one in answers):
        yield say(EMULATED, "yellow")


def _ranking(answer: Answer) -> Iterator[str]:
    winner = answer.candidates[0]
    rate = f"{figure(winner.throughput.estimate)} {answer.unit}"
    badge = " (emulated)" if winner.point.emulated else ""
    yield say(f"best: {winner.point.deployment.label}{badge} at {_load(winner)}: {rate}", "bold green")
    unit = answer.unit.replace(" per", "\nper")
    titles = ("load", unit, "95 %\ninterval", "attainment", "95 %\ninterval", "TTFT ms\np99", "TPOT ms\np99")
    yield from table(
        [Column("deployment", fold=True), *map(Column, titles)], [_cells(one) for one in answer.candidates]
    )
    yield ""


def _cells(one: Candidate) -> list[str]:
    rate, share, figures = one.throughput, one.attainment, one.point.figures
    return [
        one.point.deployment.label + ("\nemulated" if one.point.emulated else ""),
        _load(one),
        figure(rate.estimate),
        f"{figure(rate.lower)}-{figure(rate.upper)}",
        f"{share.estimate:.3f}",
        f"{share.lower:.3f}-{share.upper:.3f}",
        *(figure(values.p99 if values else None) for values in (figures.ttft_ms, figures.tpot_ms)),
    ]


def _load(one: Candidate) -> str:
    return load_text(one.point.head.control, one.point.head.level)


def _answer_document(answer: Answer) -> Document:
    ranking = [_candidate_document(one) for one in answer.candidates]
    return {
        **fields_of(answer, "workload", "unit"),
        "winner": ranking[0] if ranking else None,
        "runner_up": ranking[1] if len(ranking) > 1 else None,
        **fields_of(answer, "certain", "why"),
        "candidates": ranking,
        "left_out": [_left_out_document(one) for one in answer.left_out],
        "emulated": answer.emulated,
    }


def _candidate_document(one: Candidate) -> Document:
    head, deployment, figures = one.point.head, one.point.deployment, one.point.figures
    return {
        **fields_of(head, "experiment", "deployment_id", "point_id", "control", "level"),
        **fields_of(deployment, "label", "engine", "model", "hardware", "devices", "usd_per_hour"),
        "settings": json.loads(deployment.settings_json),
        "throughput": one.throughput,
        "attainment": one.attainment,
        **fields_of(figures, *_FIGURES),
        "repeats": len(one.point.used),
        "emulated": one.point.emulated,
        "notes": one.notes,
    }


def _left_out_document(left: LeftOut) -> Document:
    return {
        **fields_of(left.deployment, "experiment", "deployment_id", "label"),
        **fields_of(left.point.head if left.point else None, "control", "level"),
        "reason": left.reason,
    }

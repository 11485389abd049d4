"""Makes short descriptions of a point, of its outcome and of a sweep's standing, for the live view,
for events and for the reasons of a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.analysis.broken_output import BrokenOutput, Sign
from orchestrator.analysis.metrics import ended_requests, validity_of
from orchestrator.analysis.slo import Verdicts, joint_name, judge, stored_values
from orchestrator.base.text import counted
from orchestrator.capacity.estimate_words import OVERLOADED, estimate_words, missed_words
from orchestrator.capacity.probe_outcome import was_overloaded
from orchestrator.results.records import AttemptData, Committed, Figures
from orchestrator.results.validity_words import remedy_text
from orchestrator.spec.load import Level, Objective, Slo, Workload, load_text
from orchestrator.sweep.adapter_trial import AdapterFinding, AdapterTrial

if TYPE_CHECKING:
    from orchestrator.capacity.claim import Claim
    from orchestrator.capacity.standing import Lead, Standing
    from orchestrator.load.point import LoadPoint
    from orchestrator.plan.model import Deployment, Point
    from orchestrator.sweep.state import LeftUnmeasured


def level_words(point: LoadPoint | Point) -> str:
    """``chat 4 req/s``, ``chat 8 in flight``."""
    workload: Workload = point.workload
    level: Level = point.level
    return f"{workload.name} {load_text(level.control, level.value)}"


def adapter_words(trial: AdapterTrial) -> str:
    """``adapter sql answers like the model itself``, or why it does not answer at all."""
    match trial.finding:
        case AdapterFinding.LIKE_BASE:
            return (
                f"adapter {trial.adapter} answers fixed prompts like the model itself, with the "
                "same log-probabilities as far as they are known: does it change anything?"
            )
        case AdapterFinding.NO_ANSWER:
            why = f": {trial.error[:200]}" if trial.error else ""
            return f"adapter {trial.adapter} did not answer fixed prompts{why}"


def broken_output_text(broken: BrokenOutput) -> str:
    """``replica 0: all 8 answers to fixed prompts are empty``."""
    sentence = _broken_output_text(broken)
    return sentence if broken.replica is None else f"replica {broken.replica}: {sentence}"


def _broken_output_text(broken: BrokenOutput) -> str:
    number = broken.answers
    match broken.sign:
        case Sign.NAN:
            return (
                f"in {broken.answers_with_nan} of {number} answers to fixed prompts a"
                " log-probability is NaN"
            )
        case Sign.EMPTY:
            return f"all {number} answers to fixed prompts are empty"
        case Sign.SAME_TOKEN:
            return _same_token_text(broken, "tokens")
        case Sign.SAME_TOKEN_AFTER_FIRST:
            return _same_token_text(broken, "tokens after the first")
        case Sign.SAME_TEXT:
            return f"all {number} answers to different prompts repeat {broken.piece!r}"


def _same_token_text(broken: BrokenOutput, tokens: str) -> str:
    return (
        f"all {broken.tokens} {tokens} of {broken.answers} answers to different prompts are the"
        f" same (id {broken.token_id})"
    )


def claim_words(control: str, claims: Mapping[str, Claim]) -> str:
    """What a search knows of each SLO: ``interactive: estimate 9.1 req/s (8.2 to 9.9), safe so far
    8.0`` or, before there is an estimate, ``interactive: passed 8 req/s, not confirmed, fails 12
    req/s``. A level that ``holds`` was confirmed.
    """
    return "; ".join(f"{slo}: {_words_of_claim(control, claim)}" for slo, claim in claims.items())


def _words_of_claim(control: str, claim: Claim) -> str:
    """What a search knows of one SLO."""
    if not claim.levels:
        return "nothing is known yet"
    if claim.pointless:
        return f"the search ends, {claim.status}: {remedy_text(claim.status, 'the server')}"
    parts = []
    if claim.claim is not None:
        parts.append(f"holds {load_text(control, claim.claim)}")
    if claim.estimate is not None:
        parts.append(estimate_words(control, claim.estimate))
    else:
        parts += _probed_words(control, claim)
    if claim.status == "outraced":  # other statuses are reported at the end of the sweep
        parts.append("outraced")
    return ", ".join(parts)


def _probed_words(control: str, claim: Claim) -> Iterator[str]:
    """Between which levels the capacity lies, where there is no estimate yet."""
    if claim.passed is not None and claim.passed > (claim.claim or 0.0):
        yield f"passed {load_text(control, claim.passed)}, not confirmed"
    elif claim.claim is None:
        yield "no level passed yet"
    if claim.missed is not None:
        yield missed_words(control, claim.missed)
    if math.isfinite(claim.high):
        yield f"fails {load_text(control, claim.high)}"
    elif claim.missed is None:
        yield "none fails yet"


def standing_words(lead: Lead, leader: Deployment | None, per: Objective) -> str:
    """How a contest stands: ``tp=2 leads: 402 tok/s per GPU (391 to 410) at 8 req/s; 3 of 24 can
    still beat it``. ``per``: what throughput is divided by.
    """
    if leader is None:
        return f"nothing holds yet; {lead.rivals} of {lead.deployments} deployments still may"
    others = "no other can beat it"
    if lead.rivals:
        others = f"{lead.rivals} of {lead.deployments} can still beat it"
    elif lead.deployments == 1:
        others = "there is no other"
    unit = _UNITS[per]
    if per == "gpu" and leader.on_cpus:
        unit = "tok/s per core"
    return f"{leader.label} leads: {_lead_text(lead.standing, unit)}; {others}"


def _lead_text(standing: Standing, unit: str) -> str:
    """What the leader holds, and its interval."""
    assert standing.level is not None
    control = standing.level.control
    parts: list[str] = []
    if standing.claim is not None:
        parts.append(f"holds {load_text(control, standing.claim)}")
    if standing.estimate is not None:
        parts.append(estimate_words(control, standing.estimate))
    if standing.throughput is not None:
        tokens = standing.throughput
        interval = f"{_figure(tokens.lower)} to {_figure(tokens.upper)}"
        figure = f"{_figure(tokens.estimate)} {unit} ({interval})"
        where = "" if parts else f" at {load_text(control, standing.level.value)}"
        parts.append(f"{figure}{where}")
    return ", ".join(parts)


def _figure(value: float) -> str:
    """A figure with three digits, or with all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_UNITS: dict[Objective, str] = {"gpu": "tok/s per GPU", "usd": "tokens/USD", "deployment": "tok/s"}


def decided_words(early: LeftUnmeasured, within: float) -> str:
    """``decided within 5 %: 3 deployments not measured to the end (12 measurements left)``."""
    deployments = counted(early.deployments, "deployment")
    left = counted(early.measurements, "measurement")
    decided = f"decided within {100 * within:g} %"
    if not early.is_decided:  # for example if a measurement that counts must be made again
        decided = f"not yet {decided}"
    return f"{decided}: {deployments} not measured to the end ({left} left)"


def measured_words(committed: Committed, slos: Sequence[Slo]) -> str:
    """``402 tok/s, TTFT p99 151 ms, 100 % interactive``, preceded by a verdict other than
    ``valid``; of a mix, the same of each part follows: ``; chat: 300 tok/s, TTFT p99 120 ms``.
    Empty if the figures could not be computed.
    """
    if not isinstance(committed, AttemptData):
        return ""
    judged = _judged(committed, slos)
    sentences = [", ".join(_figures(committed, judged))]
    part_figures = committed.part_figures
    for of_part in part_figures[:_MOST_PARTS]:
        words = [*_speed_words(of_part.figures), *_shares_of_part(judged, of_part.part)]
        if words:
            sentences.append(f"{of_part.part}: {', '.join(words)}")
    if len(part_figures) > _MOST_PARTS:
        sentences.append(f"and {counted(len(part_figures) - _MOST_PARTS, 'more part')}")
    return "; ".join(sentences)


_MOST_PARTS = 4  # of a mix, in one sentence


@dataclass(frozen=True, slots=True)
class _Judged:
    """How the requests of an attempt did under one SLO."""

    slo: Slo
    verdicts: Verdicts


def _judged(data: AttemptData, slos: Sequence[Slo]) -> list[_Judged]:
    """The SLOs that can be judged by what is stored of the attempt."""
    values = stored_values(data)
    if not values.ok.size:
        return []
    judged: list[_Judged] = []
    for slo in slos:
        if {limit.of for limit in slo.limits} <= values.seconds.keys():
            judged.append(_Judged(slo, judge(values, slo)))
    return judged


def _figures(data: AttemptData, judged: Sequence[_Judged]) -> Iterator[str]:
    figures = data.figures
    requests = ended_requests(figures.requests, figures.errors)
    validity = validity_of(data.point.validity, [requests])
    if was_overloaded(data):
        yield OVERLOADED
    elif validity != "valid":
        yield validity
    yield from _speed_words(figures)
    for each in judged:
        share = each.verdicts.attainment
        if share is not None:
            yield f"{100 * share:.0f} % {each.slo.name}"


def _speed_words(figures: Figures) -> Iterator[str]:
    if figures.output_token_throughput is not None:
        yield f"{figures.output_token_throughput:,.0f} tok/s"
    if figures.ttft_ms is not None:
        yield f"TTFT p99 {figures.ttft_ms.p99:,.0f} ms"


def _shares_of_part(judged: Sequence[_Judged], part: str) -> Iterator[str]:
    """The share of a part's requests that met all limits on them together, by SLO."""
    for each in judged:
        for test in each.verdicts.tests:
            if test.name == joint_name(part) and test.met.size:
                yield f"{100 * test.met.mean():.0f} % {each.slo.name}"

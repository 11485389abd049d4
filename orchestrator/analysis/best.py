"""Which deployment gives the most throughput while the limits hold, how sure that is, and what would make it surer.

Per deployment the candidate is the highest measured level whose attainment (point estimate over all valid repeats) is
at least the target, with the output token throughput measured there. Only valid points can be candidates: one that the
client slowed down, or whose engine never came to a steady state, may show that a level fails but not that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestrator.analysis.intervals import Interval, exceeds, starts_to_decide
from orchestrator.analysis.measured import Point
from orchestrator.analysis.metrics import FAILING, QUANTILES
from orchestrator.analysis.slo import format_slo, limits_of
from orchestrator.results.records import DeploymentRow
from orchestrator.spec.load import Slo, format_duration, load_text

Per = Literal["gpu", "usd", "deployment"]
_FIGURE_OF = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_ms", "itl_p99": "itl_ms"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best level of one deployment. ``censored``: no higher level was measured, so it may hold more."""

    point: Point
    attainment: Interval
    throughput: Interval  # in the comparison's unit
    censored: bool
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.point.deployment.label} at {self.load}"

    @property
    def load(self) -> str:
        return load_text(self.point.head.control, self.point.head.level)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A level that is no candidate; with ``point`` None a whole deployment."""

    deployment: DeploymentRow
    point: Point | None
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ranking of the deployments that were asked the same of the same model, the best first.

    ``decide``: which further measurements would make it certain, a sentence each.
    """

    experiment: str
    workload: str
    model: str
    hardware: str
    slo: Slo
    per: Per
    unit: str
    ranking: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    certain: bool
    why: str
    decide: tuple[str, ...]
    emulated: bool


def best(points: Sequence[Point], slo: Slo, per: Per = "gpu") -> list[Comparison]:
    """One comparison per experiment, workload, model and, unless dollars make them comparable, hardware.

    ``points``: of ``load_points`` with the same ``slo``, of each workload's name those of one content.
    """
    groups: dict[tuple[str, ...], list[Point]] = {}
    for point in points:
        head, deployment = point.head, point.deployment
        key = (head.experiment, head.workload, deployment.model, "" if per == "usd" else deployment.hardware)
        groups.setdefault(key, []).append(point)
    return [_comparison(groups[key], slo, per) for key in sorted(groups)]


def _comparison(points: Sequence[Point], slo: Slo, per: Per) -> Comparison:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(point.head.deployment_id, []).append(point)
    found: list[Candidate] = []
    left_out: list[LeftOut] = []
    for group in groups.values():
        candidate, dropped = _candidate(group, slo, per)
        found += [candidate] if candidate else []
        left_out += dropped
    ranking = sorted(found, key=lambda one: (-one.throughput.estimate, one.point.deployment.label))
    certain, why, decide = _certainty(ranking, slo)
    head, model = points[0].head, points[0].deployment.model
    return Comparison(
        experiment=head.experiment,
        workload=head.workload,
        model=model,
        hardware=", ".join(sorted({point.deployment.hardware for point in points})),
        slo=slo,
        per=per,
        unit=_unit(points, per),
        ranking=tuple(ranking),
        left_out=tuple(left_out),
        certain=certain,
        why=why,
        decide=decide if ranking else _lower(points),
        emulated=any(point.emulated for point in points),
    )


def _candidate(group: list[Point], slo: Slo, per: Per) -> tuple[Candidate | None, list[LeftOut]]:
    """The deployment's best level and what was left out on the way, with reasons."""
    deployment = group[0].deployment
    reasons = [_unusable(point) for point in group]
    left_out = [LeftOut(deployment, point, why) for point, why in zip(group, reasons, strict=True) if why]
    usable = [point for point, why in zip(group, reasons, strict=True) if not why]
    divisor = _divisor(deployment, per)
    if usable and divisor is None:
        return None, [*left_out, LeftOut(deployment, None, _no_divisor(per))]
    passing = [point for point in usable if _share(point) >= slo.attainment]
    if not passing:
        return None, left_out + ([_none_passes(usable, slo)] if usable else [])
    tops: dict[str, Point] = {}  # by control
    for point in sorted(passing, key=lambda one: one.head.level, reverse=True):
        tops.setdefault(point.head.control, point)
    assert divisor is not None
    candidates = [_with_notes(top, group, usable, slo, divisor) for top in tops.values()]
    return max(candidates, key=lambda one: one.throughput.estimate), left_out


def _share(point: Point) -> float:
    return point.attainment.estimate if point.attainment else 0.0


def _unusable(point: Point) -> str | None:
    """Why a point cannot win, in one sentence; None when it can. A failing one wins where the attainment allows it."""
    if not point.used:
        return f"failed: {point.head.reason or point.head.failure_class or 'no reason was stored'}"
    if point.validity not in ("valid", FAILING):
        reasons = "; ".join(text for one in point.used for text in one.point.validity_reasons)
        return f"not a valid measurement: {point.validity}{f' ({reasons})' if reasons else ''}"
    if point.attainment is None:
        return "no request was due in its steady window"
    return None


def _with_notes(top: Point, group: list[Point], usable: list[Point], slo: Slo, divisor: float) -> Candidate:
    rate, share, head = top.output_token_throughput(), top.attainment, top.head
    assert share is not None
    assert rate is not None
    notes = []
    censored = head.level == max(point.head.level for point in group if point.head.control == head.control)
    if censored:
        notes.append("the highest level measured still holds the limits: its capacity may be higher")
    lower = [one for one in usable if one.head.control == head.control and one.head.level < head.level]
    if any(_share(one) < slo.attainment for one in lower):
        notes.append("not monotonic: a lower level does not hold the limits")
    if share.lower < slo.attainment:
        notes.append(f"attainment {share.estimate:.3f} is not certain to be at least {slo.attainment:g}")
    if top.validity == FAILING:
        notes.append(f"{FAILING}: {top.figures.requests.failed} of {top.figures.requests.scheduled} requests failed")
    if unused := len(top.repeats) - len(top.used):
        notes.append(f"{unused} of {len(top.repeats)} repeats are left out: failed or not valid")
    return Candidate(top, share, rate.scaled(1 / divisor), censored, tuple(notes))


def _divisor(deployment: DeploymentRow, per: Per) -> float | None:
    """What tokens/s are divided by: GPUs, USD per second, or 1; None where it is not known."""
    if per == "deployment":
        return 1.0
    if per == "usd":
        return deployment.usd_per_hour / 3600 if deployment.usd_per_hour else None
    return float(deployment.devices) or None


def _no_divisor(per: Per) -> str:
    if per == "usd":
        return "its price is not known: give --price HARDWARE=USD, or usd_per_gpu_hour of its hardware"
    return "it has no GPUs of ours to count (an endpoint); compare with --per deployment"


def _unit(points: Sequence[Point], per: Per) -> str:
    if per == "usd":
        return "output tokens/USD"
    cpu = all(point.deployment.accelerator == "cpu" for point in points)
    return "output tokens/s" if per == "deployment" else f"output tokens/s per {'core' if cpu else 'GPU'}"


def _certainty(ranking: Sequence[Candidate], slo: Slo) -> tuple[bool, str, tuple[str, ...]]:
    """Whether the first is certain to be the best, why in one sentence, and which measurements would decide."""
    if not ranking:
        return False, f"no deployment holds {format_slo(slo)} at any level with a valid measurement", ()
    first, *others = ranking
    doubts, decide = [], []
    if censored := [one for one in ranking if one.censored]:
        doubts.append(f"the capacity of {_names(censored)} was not reached")
        decide.append(f"measure {_names(censored)} at higher levels than {', '.join({c.load: 0 for c in censored})}")
    single = [one for one in ranking if one.throughput.starts < 2]
    if single:
        doubts.append("one start: spread unknown")
        decide.append(f"start {_names(single)} at least twice (starts: 2)")
    if first.attainment.lower < slo.attainment:
        doubts.append("the winner's attainment could be below the target")
        decide.append(f"measure {first.name} again: more repeats, or longer")
    near = [] if single else [one for one in others if not exceeds(first.throughput, one.throughput)]
    if near:
        doubts.append(f"{_names(near)} {'is' if len(near) == 1 else 'are'} behind by less than starts differ")
        starts = starts_to_decide(first.throughput, near[0].throughput)
        many = f"about {starts} starts each of" if starts else "many more starts of"
        decide.append(f"{many} {first.name} and {near[0].name}")
    if doubts:
        return False, f"not certain: {'; '.join(doubts)}", tuple(decide)
    if not others:
        return True, "certain: the only deployment that holds the limits", ()
    return True, "certain: it is ahead of every other by more than starts differ", ()


def _names(candidates: Sequence[Candidate], most: int = 3) -> str:
    labels = [one.point.deployment.label for one in candidates]
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more


def _lower(points: Sequence[Point]) -> tuple[str, ...]:
    """What to measure where nothing holds."""
    judged = [point for point in points if point.attainment]
    lowest = min(judged, key=lambda one: one.head.level, default=None)
    return (f"measure below {load_text(lowest.head.control, lowest.head.level)}",) if lowest else ()


def _none_passes(usable: list[Point], slo: Slo) -> LeftOut:
    top = max(usable, key=_share)
    level = load_text(top.head.control, top.head.level)
    reason = f"no level holds the limits: attainment is at most {_share(top):.3f} (at {level}), not {slo.attainment:g}"
    return LeftOut(top.deployment, None, f"{reason}; {binding(top, slo)}")


def binding(point: Point, slo: Slo) -> str:
    """What keeps a point from holding the limits: ``ttft p90 there: 640ms, limit 500ms``, or its failed requests."""
    verdicts = [one.verdicts for one in point.used if one.verdicts]
    shares = {name: float(np.concatenate([one.by_limit[name] for one in verdicts]).mean()) for name in limits_of(slo)}
    name, share = min(shares.items(), key=lambda one: one[1])
    requests, values = point.figures.requests, getattr(point.figures, _FIGURE_OF[name])
    if values is None or share >= requests.ok / requests.scheduled:
        return f"{requests.failed} of {requests.scheduled} requests failed there"
    quantile = 0.99 if name == "itl_p99" else min((one for one in QUANTILES if one >= slo.attainment), default=0.99)
    percentile = f"p{quantile * 100:.0f}"
    shown = name if name == "itl_p99" else f"{name} {percentile}"
    return f"{shown} there: {getattr(values, percentile):.4g} ms, limit {format_duration(limits_of(slo)[name])}"

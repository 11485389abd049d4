"""Which deployment gives the most throughput while the limits hold, and how sure that is.

Per deployment and workload the candidate is the highest measured level whose attainment (point estimate over all valid
repeats) is at least the target, with the output token throughput measured there. Only valid points can be candidates:
one that the client slowed down, or whose engine never came to a steady state, may show that a level fails but not that
it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.measured import Point
from orchestrator.analysis.slo import format_slo
from orchestrator.results.records import DeploymentRow
from orchestrator.spec.load import Slo

Per = Literal["gpu", "usd", "deployment"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best level of one deployment for one workload."""

    point: Point
    attainment: Interval
    throughput: Interval  # in the answer's unit
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A level that is no candidate; with ``point`` None a whole deployment."""

    deployment: DeploymentRow
    point: Point | None
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The ranking of one workload's deployments, the best first."""

    workload: str
    unit: str
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    certain: bool
    why: str
    emulated: bool


def best(points: Sequence[Point], slo: Slo, per: Per = "gpu") -> list[Answer]:
    """One answer per workload. ``points``: ``load_points`` with the same ``slo``."""
    names = sorted({point.head.workload for point in points})
    return [_answer([point for point in points if point.head.workload == name], slo, per, name) for name in names]


def _answer(points: Sequence[Point], slo: Slo, per: Per, workload: str) -> Answer:
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.head.experiment, point.head.deployment_id), []).append(point)
    found: list[Candidate] = []
    left_out: list[LeftOut] = []
    for group in groups.values():
        candidate, dropped = _candidate(group, slo, per)
        found += [candidate] if candidate else []
        left_out += dropped
    ranked = sorted(found, key=lambda one: one.throughput.estimate, reverse=True)
    certain, why = _certainty(ranked, slo)
    emulated = any(point.emulated for point in points)
    return Answer(workload, _unit(points, per), tuple(ranked), tuple(left_out), certain, why, emulated)


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
    """Why a point cannot win, in one sentence; None when it can."""
    if not point.used:
        return f"failed: {point.head.reason or point.head.failure_class or 'no reason was stored'}"
    if point.validity != "valid":
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
    if head.level == max(point.head.level for point in group if point.head.control == head.control):
        notes.append("the highest level measured still holds the limits: its capacity may be higher")
    lower = [one for one in usable if one.head.control == head.control and one.head.level < head.level]
    if any(_share(one) < slo.attainment for one in lower):
        notes.append("not monotonic: a lower level does not hold the limits")
    if share.lower < slo.attainment:
        notes.append(f"attainment {share.estimate:.3f} is not certain to be at least {slo.attainment:g}")
    if unused := len(top.repeats) - len(top.used):
        notes.append(f"{unused} of {len(top.repeats)} repeats are left out: failed or not valid")
    return Candidate(top, share, rate.scaled(1 / divisor), tuple(notes))


def _divisor(deployment: DeploymentRow, per: Per) -> float | None:
    """What tokens/s are divided by: GPUs, USD per second, or 1; None where it is not known."""
    if per == "deployment":
        return 1.0
    if per == "usd":
        return deployment.usd_per_hour / 3600 if deployment.usd_per_hour else None
    return float(deployment.devices) or None


def _no_divisor(per: Per) -> str:
    if per == "usd":
        return "its price is not known (usd_per_gpu_hour of its hardware)"
    return "it has no GPUs of ours to count (an endpoint); compare with --per deployment"


def _unit(points: Sequence[Point], per: Per) -> str:
    if per == "usd":
        return "output tokens/USD"
    cpu = all(point.deployment.accelerator == "cpu" for point in points)
    return "output tokens/s" if per == "deployment" else f"output tokens/s per {'core' if cpu else 'GPU'}"


def _certainty(ranked: list[Candidate], slo: Slo) -> tuple[bool, str]:
    """Whether the first is certain, and why in one sentence."""
    if not ranked:
        return False, f"no deployment holds {format_slo(slo)} at any level with a valid measurement"
    first = ranked[0]
    if first.attainment.lower < slo.attainment:
        return False, "not certain: the winner's attainment could be below the target"
    if len(ranked) == 1:
        return True, "the only deployment that holds the limits"
    if first.throughput.lower <= ranked[1].throughput.upper:
        return False, "not certain: the intervals of the first two overlap"
    return True, "certain: the intervals of the first two do not overlap"


def _none_passes(usable: list[Point], slo: Slo) -> LeftOut:
    top = max(usable, key=_share)
    level = f"{top.head.control} {top.head.level:g}"
    reason = f"no level holds the limits: attainment is at most {_share(top):.3f} (at {level}), not {slo.attainment:g}"
    return LeftOut(top.deployment, None, reason)

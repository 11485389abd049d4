"""Which deployment gives the most throughput while the limits hold, and how sure that is.

Per deployment and workload the candidate is the highest measured level whose attainment (point estimate over all valid
repeats) is at least the target, with the output token throughput measured there. Only valid points can be candidates:
one that the client slowed down, or whose engine never came to a steady state, may show that a level fails but not that
it holds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.measured import Point
from orchestrator.analysis.metrics import describe
from orchestrator.analysis.slo import format_slo
from orchestrator.spec.load import Slo

Per = Literal["gpu", "usd", "deployment"]
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best level of one deployment for one workload."""

    point: Point
    attainment: Interval
    throughput: Interval  # in the unit asked for
    notes: tuple[str, ...]


def best(points: Sequence[Point], slo: Slo, per: Per = "gpu") -> Answer:
    """One answer per workload, as JSON. ``points``: ``load_points`` with the same ``slo``.

    ``{"slo", "per", "answers": [{"workload", "unit", "winner", "runner_up", "certain", "why", "candidates",
    "left_out", "emulated"}]}``; with one workload its answer's fields stand at the top as well.
    """
    names = sorted({point.row["workload"] for point in points})
    answers = [_answer([point for point in points if point.row["workload"] == name], slo, per, name) for name in names]
    document: Answer = {"slo": format_slo(slo), "per": per, "emulated": any(answer["emulated"] for answer in answers)}
    return document | (answers[0] if len(answers) == 1 else {}) | {"answers": answers}


def _answer(points: Sequence[Point], slo: Slo, per: Per, workload: str) -> Answer:
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.row["experiment"], point.row["deployment_id"]), []).append(point)
    found: list[Candidate] = []
    left_out: list[Answer] = []
    for group in groups.values():
        candidate, dropped = _candidate(group, slo, per)
        found += [candidate] if candidate else []
        left_out += dropped
    ranked = sorted(found, key=lambda one: one.throughput.estimate, reverse=True)
    certain, why = _certainty(ranked, slo)
    objects = [_object(one) for one in ranked]
    return {
        "workload": workload,
        "unit": _unit(points, per),
        "winner": objects[0] if objects else None,
        "runner_up": objects[1] if len(objects) > 1 else None,
        "certain": certain,
        "why": why,
        "candidates": objects,
        "left_out": left_out,
        "emulated": any(point.emulated for point in points),
    }


def _candidate(group: list[Point], slo: Slo, per: Per) -> tuple[Candidate | None, list[Answer]]:
    """The deployment's best level and what was left out on the way, with reasons."""
    left_out = [_left_out(point, reason) for point in group if (reason := _unusable(point)) is not None]
    usable = [point for point in group if _unusable(point) is None]
    deployment = group[0].deployment
    divisor = _divisor(deployment, per)
    if usable and divisor is None:
        return None, [*left_out, _left_out(usable[0], _no_divisor(per), whole=True)]
    passing = [point for point in usable if _share(point) >= slo.attainment]
    if not passing:
        return None, left_out + ([_none_passes(usable, slo)] if usable else [])
    by_control: dict[str, list[Point]] = {}
    for point in passing:
        by_control.setdefault(point.row["control"], []).append(point)
    tops = [max(same, key=lambda point: point.row["level"]) for same in by_control.values()]
    assert divisor is not None
    candidates = [_judged(top, group, usable, slo, divisor) for top in tops]
    return max(candidates, key=lambda one: one.throughput.estimate), left_out


def _unusable(point: Point) -> str | None:
    """Why a point cannot win, in one sentence; None when it can."""
    if not point.used:
        return f"failed: {point.row['reason'] or point.row['failure_class'] or 'no reason was stored'}"
    if point.validity != "valid":
        reasons = "; ".join(text for one in point.used for text in one.row["validity_reasons"])
        return f"not a valid measurement: {point.validity}{f' ({reasons})' if reasons else ''}"
    if point.attainment() is None:
        return "no request was due in its steady window"
    return None


def _share(point: Point) -> float:
    share = point.attainment()
    return share.estimate if share else 0.0


def _judged(top: Point, group: list[Point], usable: list[Point], slo: Slo, divisor: float) -> Candidate:
    share, rate = top.attainment(), top.output_token_throughput()
    assert share is not None
    assert rate is not None
    same = [point for point in group if point.row["control"] == top.row["control"]]
    notes = []
    if top.row["level"] == max(point.row["level"] for point in same):
        notes.append("the highest level measured still holds the limits: its capacity may be higher")
    lower = [point for point in usable if point in same and point.row["level"] < top.row["level"]]
    if any(_share(point) < slo.attainment for point in lower):
        notes.append("not monotonic: a lower level does not hold the limits")
    if share.lower < slo.attainment:
        notes.append(f"attainment {share.estimate:.3f} is not certain to be at least {slo.attainment:g}")
    if unused := [one for one in top.repeats if one not in top.used]:
        notes.append(f"{len(unused)} of {len(top.repeats)} repeats are left out: failed or not valid")
    return Candidate(top, share, rate.scaled(1 / divisor), tuple(notes))


def _divisor(deployment: dict[str, Any], per: Per) -> float | None:
    """What tokens/s are divided by: GPUs, USD per second, or 1; None where it is not known."""
    if per == "deployment":
        return 1.0
    value = deployment["devices"] if per == "gpu" else deployment["usd_per_hour"]
    return (float(value) / (3600 if per == "usd" else 1)) if value else None


def _no_divisor(per: Per) -> str:
    if per == "usd":
        return "its price is not known (usd_per_gpu_hour of its hardware)"
    return "it has no GPUs of ours to count (an endpoint); compare with --per deployment"


def _unit(points: Sequence[Point], per: Per) -> str:
    if per == "usd":
        return "output tokens/USD"
    cpu = all(point.deployment["accelerator"] == "cpu" for point in points)
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


def _object(candidate: Candidate) -> Answer:
    point, observed = candidate.point, candidate.point.observed()
    deployment, row = point.deployment, point.row
    assert observed is not None
    figures = describe(observed)
    names = ("request_throughput", "output_token_throughput", "ttft_ms", "tpot_ms", "e2e_ms", "itl_ms")
    return {
        **{name: row[name] for name in ("experiment", "deployment_id", "point_id", "control", "level")},
        **{name: deployment[name] for name in ("label", "engine", "model", "hardware", "devices", "usd_per_hour")},
        "settings": json.loads(deployment["settings_json"] or "{}"),
        "throughput": candidate.throughput.to_dict(),
        "attainment": candidate.attainment.to_dict(),
        **{name: figures[name] for name in names},
        "repeats": len(point.used),
        "emulated": point.emulated,
        "notes": list(candidate.notes),
    }


def _left_out(point: Point, reason: str, *, whole: bool = False) -> Answer:
    """A level, or with ``whole`` a deployment, that is no candidate."""
    row = point.row
    return {
        "experiment": row["experiment"],
        "deployment_id": row["deployment_id"],
        "label": point.deployment["label"],
        "control": None if whole else row["control"],
        "level": None if whole else row["level"],
        "reason": reason,
    }


def _none_passes(usable: list[Point], slo: Slo) -> Answer:
    top = max(usable, key=_share)
    level = f"{top.row['control']} {top.row['level']:g}"
    reason = f"no level holds the limits: attainment is at most {_share(top):.3f} (at {level}), not {slo.attainment:g}"
    return _left_out(top, reason, whole=True)

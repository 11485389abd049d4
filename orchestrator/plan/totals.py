"""Sums of a plan: how much of everything, and what it costs as far as can be known before."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.plan.model import Plan
from orchestrator.spec.experiment import Budget
from orchestrator.spec.units import format_duration


@dataclass(frozen=True, slots=True)
class Totals:
    """Deployments by status, points, measurements; seconds of load one after the other, GPU hours and USD of that load.

    Starting engines comes on top: it is not known before it was done.
    """

    planned: int
    risky: int
    excluded: int
    impossible: int
    points: int
    measurements: int
    load_s: float
    gpu_hours: float
    usd: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def totals(plan: Plan) -> Totals:
    counts = dict.fromkeys(("planned", "risky", "excluded", "impossible"), 0)
    for one in plan.deployments:
        counts[one.status] += 1
    load_s = gpu_hours = usd = 0.0
    for one in plan.runnable():
        seconds = plan.load_s(one.id)
        hours = 0.0 if one.hardware.is_cpu else seconds / 3600 * one.devices
        load_s, gpu_hours = load_s + seconds, gpu_hours + hours
        usd += hours * (one.hardware.usd_per_gpu_hour or 0.0)
    return Totals(
        **counts,
        points=len(plan.points),
        measurements=len(plan.points) * plan.repeats,
        load_s=load_s,
        gpu_hours=gpu_hours,
        usd=usd,
    )


def over_budget(plan: Plan) -> list[str]:
    """Why the load alone exceeds the experiment's budget; empty when it does not."""
    budget, sums = plan.budget or Budget(), totals(plan)
    longest_s = max((plan.load_s(one.id) for one in plan.runnable()), default=0.0)
    out = []
    if budget.gpu_hours is not None and sums.gpu_hours > budget.gpu_hours:
        out.append(f"the load alone takes {sums.gpu_hours:.1f} GPU hours, the budget is {budget.gpu_hours:g}")
    if budget.usd is not None and sums.usd > budget.usd:
        out.append(f"the load alone costs {sums.usd:.2f} USD, the budget is {budget.usd:g}")
    if budget.wall is not None and longest_s > budget.wall:
        took, most = format_duration(longest_s), format_duration(budget.wall)
        out.append(f"the load of one deployment alone takes {took}, the budget is {most}")
    return out


def notes(plan: Plan) -> list[str]:
    """What someone should know before running it."""
    nothing = [] if plan.points else ["nothing is left to measure"]
    return [*plan.notes, *over_budget(plan), *nothing]


def summary(plan: Plan) -> str:
    """Three lines: deployments, points, cost; then a line for each note."""
    sums = totals(plan)
    counts = {"planned": sums.planned, "risky": sums.risky, "excluded": sums.excluded, "impossible": sums.impossible}
    states = ", ".join(f"{number:,} {status}" for status, number in counts.items() if number) or "none"
    repeats = f" x {plan.repeats} repeats" if plan.repeats > 1 else ""
    cost = [f"{_hours(sums.load_s)} of load one after the other, without the starts of engines"]
    cost += [f"{sums.gpu_hours:.1f} GPU hours"] if sums.gpu_hours else []
    cost += [f"{sums.usd:.2f} USD"] if sums.usd else []
    lines = [
        f"{len(plan.deployments):,} deployments: {states}",
        f"{sums.points:,} points{repeats} = {sums.measurements:,} measurements",
        ", ".join(cost),
        *(f"note: {note}" for note in notes(plan)),
    ]
    return "\n".join(lines)


def _hours(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

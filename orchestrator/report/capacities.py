"""Capacities that searches found, a line each, below the points in ``orchestrator results``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.analysis.capacity import claim_text, claims, divided
from orchestrator.analysis.claim import Claim
from orchestrator.analysis.measured import Point
from orchestrator.report.stored import Experiment
from orchestrator.report.text import figure, say
from orchestrator.results.records import DeploymentRow
from orchestrator.spec.load import Slo, load_text


def capacities_text(experiment: Experiment, points: Sequence[Point], slos: Sequence[Slo]) -> Iterator[str]:
    """Under each of the limits that the points are held against, what every deployment was searched to hold."""
    searches: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        searches.setdefault((point.head.deployment_id, point.head.workload), []).append(point)
    for at, slo in enumerate(slos):
        searched = experiment.searched(slo)
        for (_, workload), probes in searches.items():
            for control, claim in claims(probes, slo, searched[workload], at).items() if workload in searched else ():
                one = probes[0]
                badge = " (emulated)" if one.emulated else ""
                name = f"capacity of {one.deployment.label}{badge}, {workload}, under {slo.name}"
                yield say(f"{name}: {_said(one.deployment, control, claim)}", None if claim.claim else "yellow")


def _said(deployment: DeploymentRow, control: str, claim: Claim) -> str:
    if claim.claim is None:
        return f"no load was shown to hold it; {claim_text(control, claim)} ({claim.status})"
    each = []
    if (devices := divided(deployment, "gpu", control)) is not None:
        unit = "core" if deployment.accelerator == "cpu" else "GPU"
        each.append(f"{load_text(control, float(f'{claim.claim / devices:.3g}'))} per {unit}")
    if (usd_s := divided(deployment, "usd", control)) is not None:
        each.append(f"{figure(claim.claim / usd_s)} requests/USD")
    return ", ".join([f"{load_text(control, claim.claim)} ({claim_text(control, claim)}; {claim.status})", *each])

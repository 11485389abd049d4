"""Capacities that searches found: lines below the points in ``orchestrator results``, or documents."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from orchestrator.analysis.best import ranked_in
from orchestrator.analysis.capacity import claim_text, claims, divided, per_of, raced
from orchestrator.analysis.claim import Claim
from orchestrator.analysis.measured import Point
from orchestrator.analysis.slo import format_slo
from orchestrator.report.documents import Document, fields_of
from orchestrator.report.stored import Experiment
from orchestrator.report.text import figure, say
from orchestrator.search.base import claim_document
from orchestrator.several import grouped
from orchestrator.spec.load import Per, Slo, load_text

_Key = tuple[str, str]  # deployment id, workload
_Claims = dict[str, Claim]  # by control


class _Found(NamedTuple):
    """The capacity of one deployment under one SLO."""

    probe: Point  # any of its points: they share deployment and workload
    slo: Slo
    control: str
    claim: Claim

    def per(self, per: Per) -> float | None:
        """The claim per GPU or per dollar; None without a claim, or where the deployment has no such unit."""
        by = divided(self.probe.deployment, per, self.control)
        return None if by is None or self.claim.claim is None else self.claim.claim / by


def _found(experiment: Experiment, points: Sequence[Point], slos: Sequence[Slo]) -> Iterator[_Found]:
    """The capacity of every searched deployment, under each of the SLOs that the points were judged by."""
    searches = grouped(((point.head.deployment_id, point.head.workload), point) for point in points)
    for at, slo in enumerate(slos):
        searched = experiment.searched
        found = {key: claims(some, slo, searched[key[1]], at) for key, some in searches.items() if key[1] in searched}
        if not experiment.full_grid:
            found = _raced({key: searches[key][0] for key in found}, found, experiment.objective)
        for key, claimed in found.items():
            yield from (_Found(searches[key][0], slo, control, claim) for control, claim in claimed.items())


def _raced(of: Mapping[_Key, Point], found: Mapping[_Key, _Claims], per: Per | None) -> dict[_Key, _Claims]:
    """The claims, with the status ``outraced`` for deployments that another one in the same ``best`` ranking beats."""
    out: dict[_Key, _Claims] = {}
    for keys in grouped((ranked_in(of[key], per), key) for key in found).values():
        rows = [(of[key].deployment, found[key]) for key in keys]
        out |= zip(keys, raced(rows, per_of(per, [row for row, _ in rows])), strict=True)
    return {key: out[key] for key in found}


def capacities_text(experiment: Experiment, points: Sequence[Point], slos: Sequence[Slo]) -> Iterator[str]:
    """One line per capacity."""
    for one in _found(experiment, points, slos):
        badge = " (emulated)" if one.probe.emulated else ""
        name = f"capacity of {one.probe.deployment.label}{badge}, {one.probe.head.workload}, under {one.slo.name}"
        yield say(f"{name}: {_said(one)}", None if one.claim.claim else "yellow")


def capacity_documents(experiment: Experiment, points: Sequence[Point], slos: Sequence[Slo]) -> Iterator[Document]:
    """The claim, as in ``best``, and what the probes of each level showed."""
    for one in _found(experiment, points, slos):
        yield {
            "row": "capacity",
            **fields_of(one.probe.head, "experiment", "deployment_id", "workload", "control"),
            "label": one.probe.deployment.label,
            "emulated": one.probe.emulated,
            "slo": {"name": one.slo.name, "limits": format_slo(one.slo)},
            **claim_document(one.claim),
            "claim_per_gpu": one.per("gpu"),
            "claim_per_usd": one.per("usd"),
            "levels": [
                fields_of(level, "level", "probes", "verdict", "confirmed", "share", "requests")
                for level in one.claim.levels
            ],
        }


def _said(one: _Found) -> str:
    control, claim = one.control, one.claim
    if claim.claim is None:
        return f"no load was shown to hold it; {claim_text(control, claim)} ({claim.status})"
    each = []
    if (per_gpu := one.per("gpu")) is not None:
        unit = "core" if one.probe.deployment.accelerator == "cpu" else "GPU"
        each.append(f"{load_text(control, float(f'{per_gpu:.3g}'))} per {unit}")
    if (per_usd := one.per("usd")) is not None:
        each.append(f"{figure(per_usd)} requests/USD")
    return ", ".join([f"{load_text(control, claim.claim)} ({claim_text(control, claim)}; {claim.status})", *each])

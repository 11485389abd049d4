"""Capacities that searches found: lines below the points in ``orchestrator results``, or documents."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.analysis.measured import Point
from orchestrator.analysis.slo import format_limits, format_slo
from orchestrator.base.text import grouped
from orchestrator.capacity.best import ranked_in
from orchestrator.capacity.capacities import (
    claims,
    claims_among_rivals,
    divisor_of_capacity,
    per_or_default,
)
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.strategy import claim_document
from orchestrator.report.documents import Document, fields_of
from orchestrator.report.stored import Experiment
from orchestrator.report.text import figure, say
from orchestrator.report.words import claim_text
from orchestrator.spec.load import UNITS, Per, Slo, load_text

_Key = tuple[str, str]  # deployment id, workload
_Claims = dict[str, Claim]  # by control


class _Bounds(NamedTuple):
    """What is claimed, and between what it lies, of loads or of loads over something. ``high`` may
    be infinite.
    """

    claim: float | None
    low: float
    high: float


class _Found(NamedTuple):
    """The capacity of one deployment under one SLO. ``predicted``: as the plan has it under the
    same limits; None where it predicts nothing.
    """

    probe: Point  # any of its points: they share deployment and workload
    slo: Slo
    control: str
    claim: Claim
    predicted: Mapping[str, Any] | None

    def per(self, per: Per) -> _Bounds | None:
        """Per GPU or per dollar; None where the deployment has no such unit."""
        by, claim = divisor_of_capacity(self.probe.deployment, per, self.control), self.claim
        if by is None:
            return None
        return _Bounds(
            None if claim.claim is None else claim.claim / by, claim.low / by, claim.high / by
        )

    @property
    def over_predicted(self) -> float | None:
        """The claim over the predicted capacity; None where one of them is missing, or 0."""
        level = self.predicted["level"] if self.predicted else None
        return self.claim.claim / level if level and self.claim.claim is not None else None

    @property
    def worse(self) -> bool | None:
        """Whether it was shown to fail below the interval of the prediction; None: not known.
        Requests in flight do not follow from that interval, which is of the throughput.
        """
        if self.predicted is None or self.control != "request_rate":
            return None
        best, (lowest, _) = (
            self.predicted["output_throughput_per_gpu"],
            self.predicted["interval_per_gpu"],
        )
        return bool(best) and self.claim.high < self.predicted["level"] * lowest / best


def _found(
    experiment: Experiment, points: Sequence[Point], slos: Sequence[Slo]
) -> Iterator[_Found]:
    """The capacity of every searched deployment, under each of the SLOs that the points were judged
    by.
    """
    searches = grouped(((point.head.deployment_id, point.head.workload), point) for point in points)
    for at, slo in enumerate(slos):
        searched = experiment.searched
        found = {
            key: claims(some, slo, searched[key[1]], at)
            for key, some in searches.items()
            if key[1] in searched
        }
        if not experiment.full_grid:
            found = _raced({key: searches[key][0] for key in found}, found, experiment.objective)
        for key, claimed in found.items():
            probe = searches[key][0]
            for control, claim in claimed.items():
                yield _Found(
                    probe, slo, control, claim, _predicted(experiment, probe, slo, control)
                )


def _predicted(
    experiment: Experiment, probe: Point, slo: Slo, control: str
) -> Mapping[str, Any] | None:
    """What the plan predicts under the same limits, whatever they are called."""
    foretold = json.loads(probe.deployment.predicted_json or "{}").get("capacity", {})
    names = [one.name for one in experiment.slos if format_limits(one) == format_limits(slo)]
    known = (foretold[name].get(probe.head.workload) for name in names if name in foretold)
    found: Mapping[str, Any] | None = next(known, None)
    return found if found and found["control"] == control else None


def _raced(
    of: Mapping[_Key, Point], found: Mapping[_Key, _Claims], per: Per | None
) -> dict[_Key, _Claims]:
    """The claims, with the status ``outraced`` for deployments that another one in the same
    ``best`` ranking beats.
    """
    out: dict[_Key, _Claims] = {}
    for keys in grouped((ranked_in(of[key], per), key) for key in found).values():
        rows = [(of[key].deployment, found[key]) for key in keys]
        out |= zip(
            keys,
            claims_among_rivals(rows, per_or_default(per, [row for row, _ in rows])),
            strict=True,
        )
    return {key: out[key] for key in found}


def capacities_text(
    experiment: Experiment, points: Sequence[Point], slos: Sequence[Slo]
) -> Iterator[str]:
    """One line per capacity."""
    for one in _found(experiment, points, slos):
        badge = " (emulated)" if one.probe.emulated else ""
        name = f"capacity of {one.probe.deployment.label}{badge}, {one.probe.head.workload}, under {one.slo.name}"
        yield say(f"{name}: {_said(one)}", None if one.claim.claim and not one.worse else "yellow")


def capacity_documents(
    experiment: Experiment, points: Sequence[Point], slos: Sequence[Slo]
) -> Iterator[Document]:
    """The claim, as in ``best``, what the plan predicts, and what the probes of each level showed."""
    for one in _found(experiment, points, slos):
        yield {
            "row": "capacity",
            **fields_of(one.probe.head, "experiment", "deployment_id", "workload", "control"),
            "label": one.probe.deployment.label,
            "emulated": one.probe.emulated,
            "slo": {"name": one.slo.name, "limits": format_slo(one.slo)},
            **claim_document(one.claim),
            **_bounds_document("gpu", one.per("gpu")),
            **_bounds_document("usd", one.per("usd")),
            "predicted": one.predicted,
            "measured_over_predicted": one.over_predicted,
            "worse_than_predicted": one.worse,
            "levels": [
                fields_of(level, "level", "probes", "verdict", "confirmed", "share", "requests")
                for level in one.claim.levels
            ],
        }


def _bounds_document(unit: str, one: _Bounds | None) -> Document:
    """As ``claim_document``, of one unit; all null where the deployment has none of it."""
    claim, low, high = one or (None, None, None)
    finite = high if high is not None and math.isfinite(high) else None
    return {f"claim_per_{unit}": claim, f"low_per_{unit}": low, f"high_per_{unit}": finite}


def _said(one: _Found) -> str:
    control, claim = one.control, one.claim
    bounds = claim_text(control, claim)
    each = [f"no load was shown to hold it; {bounds} ({claim.status})"]
    if claim.claim is not None:
        each = [f"{load_text(control, claim.claim)} ({bounds}; {claim.status})"]
    if per_gpu := one.per("gpu"):
        unit = "core" if one.probe.deployment.accelerator == "cpu" else "GPU"
        each += _bounds_text(per_gpu, lambda load: f"{load:.3g}", f"{UNITS[control]} per {unit}")
    if per_usd := one.per("usd"):
        each += _bounds_text(per_usd, lambda load: figure(load) if load else "0", "requests/USD")
    return ", ".join([*each, *_beside(one)])


def _bounds_text(one: _Bounds, written: Callable[[float], str], unit: str) -> Iterator[str]:
    """``10 req/s per GPU (10 to 10.8)``; without a claim the bounds alone; nothing where nothing is
    known.
    """
    if not one.low and math.isinf(one.high):
        return
    bounds = (
        f"at least {written(one.low)}"
        if math.isinf(one.high)
        else f"{written(one.low)} to {written(one.high)}"
    )
    yield f"{bounds} {unit}" if one.claim is None else f"{written(one.claim)} {unit} ({bounds})"


def _beside(one: _Found) -> Iterator[str]:
    """What was predicted, and how much of it is claimed."""
    if one.predicted is not None:
        level = one.predicted["level"]
        yield (
            f"predicted {load_text(one.control, float(f'{level:.3g}'))}"
            if level
            else "predicted that none holds"
        )
    if one.over_predicted is not None:
        yield f"measured/predicted {one.over_predicted:.2f}"

"""Capacities that searches found: lines below the points in ``orchestrator results``."""

import math
from collections.abc import Callable, Iterable, Iterator

from orchestrator.report.documents.capacity import CapacityBounds, CapacityDocument
from orchestrator.report.text import figure, say
from orchestrator.report.words import claim_text
from orchestrator.spec.load import UNITS, load_text


def capacities_text(documents: Iterable[CapacityDocument]) -> Iterator[str]:
    """One line per capacity."""
    for document in documents:
        probe = document.probe
        badge = " (emulated)" if probe.emulated else ""
        name = (
            f"capacity of {probe.deployment.label}{badge}, {probe.head.workload},"
            f" under {document.slo.name}"
        )
        is_good = document.claim.claim and not document.is_worse_than_predicted
        yield say(f"{name}: {_capacity_text(document)}", None if is_good else "yellow")


def _capacity_text(document: CapacityDocument) -> str:
    control, claim = document.control, document.claim
    bounds = claim_text(control, claim)
    if claim.claim is None:
        parts = [f"no load was shown to hold it; {bounds} ({claim.status})"]
    else:
        parts = [f"{load_text(control, claim.claim)} ({bounds}; {claim.status})"]
    if document.per_gpu:
        unit = "core" if document.probe.deployment.accelerator == "cpu" else "GPU"
        parts += _bounds_text(document.per_gpu, _three_digits, f"{UNITS[control]} per {unit}")
    if document.per_usd:
        parts += _bounds_text(document.per_usd, _figure_or_zero, "requests/USD")
    return ", ".join([*parts, *_prediction_text(document)])


def _three_digits(load: float) -> str:
    return f"{load:.3g}"


def _figure_or_zero(load: float) -> str:
    return figure(load) if load else "0"


def _bounds_text(
    bounds: CapacityBounds, load_to_text: Callable[[float], str], unit: str
) -> Iterator[str]:
    """``10 req/s per GPU (10 to 10.8)``; without a claim the bounds alone; nothing where nothing is
    known.
    """
    if not bounds.low and math.isinf(bounds.high):
        return
    if math.isinf(bounds.high):
        text = f"at least {load_to_text(bounds.low)}"
    else:
        text = f"{load_to_text(bounds.low)} to {load_to_text(bounds.high)}"
    if bounds.claim is None:
        yield f"{text} {unit}"
    else:
        yield f"{load_to_text(bounds.claim)} {unit} ({text})"


def _prediction_text(document: CapacityDocument) -> Iterator[str]:
    """What was predicted, and how much of it is claimed."""
    if document.predicted is not None:
        level = document.predicted.level
        if level:
            yield f"predicted {load_text(document.control, float(f'{level:.3g}'))}"
        else:
            yield "predicted that none holds"
    if document.measured_over_predicted is not None:
        yield f"measured/predicted {document.measured_over_predicted:.2f}"

"""The capacity of one deployment under one SLO, as a search found it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.prediction import PredictedCapacity
from orchestrator.analysis.slo import format_limits
from orchestrator.base.grouping import values_by_key
from orchestrator.capacity.best import ranked_in
from orchestrator.capacity.capacities import (
    claims,
    claims_among_rivals,
    divisor_of_capacity,
    per_or_default,
)
from orchestrator.capacity.claim import Claim
from orchestrator.plan.current import StoredExperiment
from orchestrator.spec.load import Per, Slo


@dataclass(frozen=True, slots=True)
class CapacityBounds:
    """A claim and its bounds, per unit.

    ``claim``: None: nothing is claimed. ``high``: infinite where no level was shown to fail.
    """

    claim: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CapacityDocument:
    """The capacity of one deployment under one SLO.

    ``probe``: any of its points, which share deployment and workload. ``predicted``: what the plan
    predicts under the same limits; None: nothing. ``per_gpu``, ``per_usd``: None: the number of
    GPUs, or the price, is not known or means nothing here.
    """

    probe: StoredPoint
    slo: Slo
    control: str
    claim: Claim
    predicted: PredictedCapacity | None
    per_gpu: CapacityBounds | None
    per_usd: CapacityBounds | None

    @property
    def measured_over_predicted(self) -> float | None:
        """The claim over the predicted load; None where one of them is missing, or 0."""
        level = self.predicted.level if self.predicted else None
        if not level or self.claim.claim is None:
            return None
        return float(self.claim.claim / level)

    @property
    def is_worse_than_predicted(self) -> bool | None:
        """Whether the deployment fails at a load below the interval of the prediction.

        None: unknown. The interval is one of throughputs, and requests in flight cannot be derived
        from a throughput.
        """
        if self.predicted is None or self.control != "request_rate":
            return None
        expected = self.predicted.output_throughput_per_gpu
        lowest, _ = self.predicted.interval_per_gpu
        return bool(expected) and self.claim.high < self.predicted.level * lowest / expected


@dataclass(frozen=True, slots=True)
class _SearchKey:
    deployment_id: str
    workload: str


@dataclass(frozen=True, slots=True)
class _SearchClaims:
    """What one search claims under one SLO, by control. ``probe``: any of its points."""

    probe: StoredPoint
    by_control: Mapping[str, Claim]


def capacity_documents(
    experiment: StoredExperiment, points: Sequence[StoredPoint], slos: Sequence[Slo]
) -> Iterator[CapacityDocument]:
    """The capacity of every searched deployment under each SLO.

    ``slos``: those by which the points were judged, in the same order.
    """
    searches = experiment.searched
    points_by_search = values_by_key(
        (_SearchKey(point.head.deployment_id, point.head.workload), point)
        for point in points
        if point.head.workload in searches
    )
    for index, slo in enumerate(slos):
        searched = [
            _SearchClaims(probes[0], claims(probes, slo, searches[key.workload], index))
            for key, probes in points_by_search.items()
        ]
        if not experiment.full_grid:
            searched = _among_rivals(searched, experiment.objective)
        for search in searched:
            for control, claim in search.by_control.items():
                yield _document(experiment, search.probe, slo, control, claim)


def _document(
    experiment: StoredExperiment, probe: StoredPoint, slo: Slo, control: str, claim: Claim
) -> CapacityDocument:
    return CapacityDocument(
        probe=probe,
        slo=slo,
        control=control,
        claim=claim,
        predicted=_predicted(experiment, probe, slo, control),
        per_gpu=_bounds(probe, claim, "gpu", control),
        per_usd=_bounds(probe, claim, "usd", control),
    )


def _bounds(probe: StoredPoint, claim: Claim, per: Per, control: str) -> CapacityBounds | None:
    divisor = divisor_of_capacity(probe.deployment, per, control)
    if divisor is None:
        return None
    return CapacityBounds(
        claim=None if claim.claim is None else claim.claim / divisor,
        low=claim.low / divisor,
        high=claim.high / divisor,
    )


def _predicted(
    experiment: StoredExperiment, probe: StoredPoint, slo: Slo, control: str
) -> PredictedCapacity | None:
    """What the plan predicts under the same limits, whatever they are called."""
    capacities = probe.deployment.prediction.capacities
    for planned_slo in experiment.slos:
        if format_limits(planned_slo) != format_limits(slo) or planned_slo.name not in capacities:
            continue
        predicted = capacities[planned_slo.name].get(probe.head.workload)
        return predicted if predicted and predicted.control == control else None
    return None


def _among_rivals(searches: Sequence[_SearchClaims], per: Per | None) -> list[_SearchClaims]:
    """The searches in the same order, with the status ``outraced`` for deployments that are beaten.

    Only deployments in the same ranking of ``best`` beat each other.
    """
    among_rivals = list(searches)
    rivals_by_ranking = values_by_key(
        (ranked_in(search.probe, per), index) for index, search in enumerate(searches)
    )
    for indexes in rivals_by_ranking.values():
        rivals = [searches[index] for index in indexes]
        deployments = [search.probe.deployment for search in rivals]
        claims_of_rivals = claims_among_rivals(
            [(search.probe.deployment, search.by_control) for search in rivals],
            per_or_default(per, deployments),
        )
        for index, by_control in zip(indexes, claims_of_rivals, strict=True):
            among_rivals[index] = replace(searches[index], by_control=by_control)
    return among_rivals

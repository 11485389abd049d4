"""Which deployments a run is limited to by what was predicted of them (``run --shortlist``).

A deployment is a candidate if its prediction may be wrong by so much that it is among the best: in
a contest (plan/order.py), the most that it may hold reaches the least that the leader is predicted
to hold. It is none under limits that it holds at no load even then. If the file names no limits, a
deployment is a candidate if some load may put it on the frontier of tokens/s for a user against
tokens/s per GPU.

If there are more candidates than were asked for, those nearest to the leaders, or to the frontier,
are taken. Deployments without a prediction take the places that are left. If an SLO limits the
agreement of answers, the deployments whose answers the others are compared with come first.

If the true values of the best and of the leader lie within the stated errors, the best is a
candidate: it holds at least what the leader holds, so at least the leader's lower bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.base.errors import InputError
from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import listed
from orchestrator.plan.model import Deployment, DeploymentGroup, LeftOut, Plan, PredictedShortlist
from orchestrator.plan.order import (
    PredictedContest,
    PredictedStanding,
    objective_of,
    share_of_best,
    standings,
)
from orchestrator.results.ids import digest
from orchestrator.spec.load import Objective

PREDICTIONS = "plan --predict"  # the source of a shortlist, where no simulation is named
_ROUNDING = 1 + 1e-9


class FrontierKey(NamedTuple):
    """What the deployments of one frontier have in common."""

    group: DeploymentGroup
    workload: str


@dataclass(frozen=True, slots=True)
class PredictedCurve:
    """What a deployment is predicted to do at its loads: tokens/s that a user sees, and output
    tokens/s per unit. ``factor``: nine in ten predictions are off by no more than this factor.
    """

    deployment_id: str
    per_user: Floats
    per_unit: Floats
    factor: float


@dataclass(frozen=True, slots=True)
class FrontierPlace:
    """How near a deployment is predicted to come to the frontier; 1 is on it. ``share``: at its
    best load. ``mean_share``: on average over its loads. ``is_candidate``: it may be on the
    frontier within the errors of predictions.
    """

    share: float
    mean_share: float
    is_candidate: bool


class _Precedence(NamedTuple):
    """Which candidate is taken first: the highest, by the first field in which two differ.

    ``nearness``: how near the deployment comes to the leader of a contest, or at its best load to
    the frontier. ``tie_breaker``: the most that it may hold; on a frontier, how near it comes on
    average.
    """

    nearness: float
    tie_breaker: float
    is_sure_to_fit: bool


@dataclass(frozen=True, slots=True)
class _Judged:
    """A deployment with a prediction. ``reason_behind``: why the deployment is left out if it is
    not a candidate.
    """

    deployment: Deployment
    is_candidate: bool
    precedence: _Precedence
    reason_behind: LeftOut

    def left_out(self) -> LeftOut:
        if not self.is_candidate:
            return self.reason_behind
        return self.reason_behind.model_copy(update={"why": "no_room"})


@dataclass(frozen=True, slots=True)
class _Applicants:
    """The deployments of a plan that may get a place on a shortlist. ``judged``: by id, those with
    a prediction. ``candidates``: those predicted best first.
    """

    judged: Mapping[str, _Judged]
    references: Sequence[Deployment]
    candidates: Sequence[Deployment]
    unpredicted: Sequence[Deployment]

    def in_order(self) -> list[Deployment]:
        """Each of them once, in the order in which they get places."""
        by_id: dict[str, Deployment] = {}
        for deployment in (*self.references, *self.candidates, *self.unpredicted):
            by_id.setdefault(deployment.id, deployment)
        return list(by_id.values())


def shortlisted(plan: Plan, size: int, source: str = PREDICTIONS) -> Plan:
    """The plan that runs at most ``size`` of its deployments: those that may be the best. The
    others say why they are left out. ``plan`` must have predictions, and no shortlist.

    Raises InputError where nothing is predicted, or that no deployment may hold any load.
    """
    runnable = plan.runnable()
    applicants = _applicants(plan)
    if not applicants.judged:
        raise InputError(f"no shortlist: nothing is predicted ({_commonest_reason(runnable)})")
    if not applicants.in_order():
        raise InputError(
            "no shortlist: every deployment is predicted to hold the limits at no load, even within "
            "the error; give other limits, or run without a shortlist"
        )
    ids_on_list = {deployment.id for deployment in applicants.in_order()[:size]}
    left_out: dict[str, LeftOut] = {}
    for deployment in runnable:
        if deployment.id not in ids_on_list:
            left_out[deployment.id] = _reason_to_leave_out(deployment, applicants.judged)
    record = PredictedShortlist(
        size=size,
        source=source,
        considered=_digest_of(runnable),
        of=len(runnable),
        listed=len(ids_on_list),
        candidates=len(applicants.candidates),
        unpredicted=_labels_of_listed(applicants.unpredicted, ids_on_list),
        references=_labels_of_listed(applicants.references, ids_on_list),
        per=objective_of(plan),
    )
    return _with_shortlist(plan, record, left_out)


def size_with_room_for(plan: Plan, labels: Collection[str]) -> int | None:
    """The size of the shortest shortlist that runs all deployments with these labels that any
    shortlist runs; 0 if none runs any of them. ``plan`` must have predictions, and no shortlist.

    None: there is no shortlist, as ``shortlisted`` says. The size counts all that take places before
    them: the references of answers, and candidates that are predicted better.
    """
    applicants = _applicants(plan)
    if not (applicants.judged and applicants.in_order()):
        return None
    size = 0
    for place, deployment in enumerate(applicants.in_order(), start=1):
        if deployment.label in labels:
            size = place
    return size


def _applicants(plan: Plan) -> _Applicants:
    per = objective_of(plan)
    runnable = plan.runnable()
    judged = _judged_by_limits(runnable, per) if plan.slos else _judged_by_frontier(runnable, per)
    return _Applicants(
        judged=judged,
        references=_references(plan),
        candidates=_by_precedence(judged.values()),
        unpredicted=[deployment for deployment in runnable if deployment.id not in judged],
    )


def _by_precedence(judged: Iterable[_Judged]) -> list[Deployment]:
    """The candidates, those predicted best first; of equals, those that are sure to fit."""
    candidates = [judgement for judgement in judged if judgement.is_candidate]
    candidates.sort(key=lambda judgement: judgement.precedence, reverse=True)
    return [candidate.deployment for candidate in candidates]


def _reason_to_leave_out(deployment: Deployment, judged: Mapping[str, _Judged]) -> LeftOut:
    """Why a deployment is not on the list. ``judged``: by id, those with a prediction."""
    if deployment.id in judged:
        return judged[deployment.id].left_out()
    return LeftOut(why="not_predicted", reason=reason_not_predicted(deployment))


def _labels_of_listed(
    deployments: Iterable[Deployment], ids_on_list: Collection[str]
) -> tuple[str, ...]:
    return tuple(deployment.label for deployment in deployments if deployment.id in ids_on_list)


def continued(plan: Plan, earlier: Plan, size: int, source: str) -> Plan | None:
    """The plan with the shortlist and the predictions of an earlier one, so that later findings do
    not change what a run continues with. None if the earlier plan has no shortlist of this size,
    from this source and of these deployments.
    """
    record = earlier.shortlist
    if record is None or (record.size, record.source) != (size, source):
        return None
    if record.considered != _digest_of(plan.runnable()):
        return None
    before = {deployment.id: deployment for deployment in earlier.deployments}
    deployments: list[Deployment] = []
    for deployment in plan.deployments:
        stored = before.get(deployment.id)
        if stored is not None:
            changed = {"left_out": stored.left_out, "predicted": stored.predicted}
            deployment = deployment.model_copy(update=changed)
        deployments.append(deployment)
    return plan.with_deployments(deployments).model_copy(update={"shortlist": record})


def without_shortlist(plan: Plan) -> Plan:
    """The plan that runs all that can run."""
    if plan.shortlist is None:
        return plan
    return _with_shortlist(plan, None, {})


def ids_left_out(plan: Plan) -> frozenset[str]:
    """The deployments that a shortlist leaves out."""
    return frozenset(
        deployment.id for deployment in plan.deployments if deployment.left_out is not None
    )


def size_for_all_candidates(plan: Plan) -> int | None:
    """The size of a shortlist that would run all candidates of a plan that has a shortlist.

    None: its shortlist leaves no candidate out. References come before the candidates, so those
    that are left out need places of their own.
    """
    left_out = [deployment for deployment in plan.deployments if deployment.left_out is not None]
    candidates = [
        deployment
        for deployment in left_out
        if deployment.left_out is not None and deployment.left_out.why == "no_room"
    ]
    if not candidates:
        return None
    references = {deployment.id for deployment in _references(plan)}
    needed = {deployment.id for deployment in candidates}
    needed |= {deployment.id for deployment in left_out if deployment.id in references}
    on_list = sum(deployment.runs for deployment in plan.deployments)
    return on_list + len(needed)


def reason_not_predicted(deployment: Deployment) -> str:
    """Why nothing is predicted of a deployment."""
    return deployment.predicted.not_predicted or "nothing is known of it"


def _references(plan: Plan) -> list[Deployment]:
    """The first deployment of each model, if an SLO limits the agreement of answers: the answers of
    the others are compared with those of the first (analysis/output_agreement.py).
    """
    if all(slo.agreement is None for slo in plan.slos):
        return []
    first_of: dict[str, Deployment] = {}
    for deployment in plan.deployments:
        if deployment.can_run:
            first_of.setdefault(deployment.group("usd").model, deployment)
    return list(first_of.values())


def _with_shortlist(
    plan: Plan, record: PredictedShortlist | None, left_out: Mapping[str, LeftOut]
) -> Plan:
    deployments = (
        deployment.model_copy(update={"left_out": left_out.get(deployment.id)})
        for deployment in plan.deployments
    )
    return plan.with_deployments(deployments).model_copy(update={"shortlist": record})


def _digest_of(deployments: Iterable[Deployment]) -> str:
    return digest(sorted(deployment.id for deployment in deployments))


def _commonest_reason(deployments: Sequence[Deployment]) -> str:
    by_reason = values_by_key(
        (reason_not_predicted(deployment), deployment.label) for deployment in deployments
    )
    reason, labels = max(by_reason.items(), key=lambda each: len(each[1]))
    return f"{reason}: {listed(labels, most=3)}"


def _judged_by_limits(deployments: Sequence[Deployment], per: Objective) -> dict[str, _Judged]:
    """By id, the deployments with a prediction. Candidates are those that may lead a contest."""
    labels = {deployment.id: deployment.label for deployment in deployments}
    by_id = {deployment.id: standings(deployment, per) for deployment in deployments}
    leaders: dict[PredictedContest, PredictedStanding] = {}
    leader_ids: dict[PredictedContest, str] = {}
    for deployment_id, of_deployment in by_id.items():
        for standing in of_deployment:
            leader = leaders.get(standing.contest)
            if leader is None or standing.tokens_per_s > leader.tokens_per_s:
                leaders[standing.contest] = standing
                leader_ids[standing.contest] = deployment_id
    best = {contest: leader.tokens_per_s for contest, leader in leaders.items()}
    judged: dict[str, _Judged] = {}
    for deployment in deployments:
        of_deployment = by_id[deployment.id]
        if not of_deployment:
            continue
        leading = [each for each in of_deployment if _may_lead(each, leaders[each.contest])]
        nearest = max(leading or of_deployment, key=lambda each: share_of_best(each, best))
        leader = leaders[nearest.contest]
        judged[deployment.id] = _Judged(
            deployment=deployment,
            is_candidate=bool(leading),
            precedence=_Precedence(
                nearness=share_of_best(nearest, best),
                tie_breaker=nearest.upper,
                is_sure_to_fit=deployment.status == "planned",
            ),
            reason_behind=LeftOut(
                why="behind",
                workload=nearest.contest.workload,
                slo=nearest.contest.slo,
                leader=labels[leader_ids[nearest.contest]],
                highest=nearest.upper,
                leader_lowest=leader.lower,
            ),
        )
    return judged


def _may_lead(standing: PredictedStanding, leader: PredictedStanding) -> bool:
    """Whether a deployment may hold some load, and as much as the leader does at the least."""
    return standing.upper > 0 and standing.upper >= leader.lower


# The frontier


def _judged_by_frontier(deployments: Sequence[Deployment], per: Objective) -> dict[str, _Judged]:
    """By id, the deployments with a prediction. Candidates are those that may be on a frontier."""
    places = _frontier_places(deployments, per)
    judged: dict[str, _Judged] = {}
    for deployment in deployments:
        place = places.get(deployment.id)
        if place is None:
            continue
        judged[deployment.id] = _Judged(
            deployment=deployment,
            is_candidate=place.is_candidate,
            precedence=_Precedence(
                nearness=place.share,
                tie_breaker=place.mean_share,
                is_sure_to_fit=deployment.status == "planned",
            ),
            reason_behind=LeftOut(why="behind"),
        )
    return judged


def _frontier_places(deployments: Sequence[Deployment], per: Objective) -> dict[str, FrontierPlace]:
    """Deployment id -> how near it comes to a frontier; with several workloads, the nearest."""
    curves: dict[FrontierKey, list[PredictedCurve]] = {}
    for deployment in deployments:
        for key, curve in _curves(deployment, per):
            curves.setdefault(key, []).append(curve)
    places: dict[str, FrontierPlace] = {}
    for alike in curves.values():
        for curve, place in zip(alike, frontier_places(alike), strict=True):
            other = places.get(curve.deployment_id, place)
            places[curve.deployment_id] = FrontierPlace(
                share=max(place.share, other.share),
                mean_share=max(place.mean_share, other.mean_share),
                is_candidate=place.is_candidate or other.is_candidate,
            )
    return places


def _curves(deployment: Deployment, per: Objective) -> list[tuple[FrontierKey, PredictedCurve]]:
    factors = deployment.predicted.error_factors
    if factors is None:
        return []
    points = values_by_key(
        (level.workload, (1e3 / level.tpot_ms, level.output_throughput))
        for level in deployment.predicted.levels
        if level.tpot_ms and level.output_throughput
    )
    divisor = deployment.divisor(per) or 1.0
    curves: list[tuple[FrontierKey, PredictedCurve]] = []
    for workload, of_workload in points.items():
        per_user, throughputs = np.array(of_workload).T
        curve = PredictedCurve(
            deployment_id=deployment.id,
            per_user=per_user,
            per_unit=throughputs / divisor,
            factor=factors.tpot,
        )
        curves.append((FrontierKey(deployment.group(per), workload), curve))
    return curves


def frontier_places(curves: Sequence[PredictedCurve]) -> list[FrontierPlace]:
    """How near each of these curves comes to their common frontier, and whether it may be on the
    frontier if every curve is off by up to its factor, in both directions.
    """
    expected = _outermost(curves, [1.0] * len(curves))
    at_least = _outermost(curves, [curve.factor for curve in curves])
    places: list[FrontierPlace] = []
    for curve in curves:
        shares = 1 / _distances(curve, expected)
        nearest = float(_distances(curve, at_least).min())
        places.append(
            FrontierPlace(
                share=float(shares.max()),
                mean_share=float(shares.mean()),
                is_candidate=nearest <= curve.factor * _ROUNDING,
            )
        )
    return places


def _outermost(curves: Sequence[PredictedCurve], factors: Sequence[float]) -> Floats:
    """The points of all curves, divided by their factors, that no other point exceeds in both
    directions: a row of tokens/s for a user, and a row of tokens/s per unit.
    """
    per_user = np.concatenate(
        [curve.per_user / factor for curve, factor in zip(curves, factors, strict=True)]
    )
    per_unit = np.concatenate(
        [curve.per_unit / factor for curve, factor in zip(curves, factors, strict=True)]
    )
    # starting with the fastest for a user, each point must yield more than all before it
    order = np.lexsort((-per_unit, -per_user))
    yields = per_unit[order]
    highest_before = np.concatenate([[-np.inf], np.maximum.accumulate(yields)[:-1]])
    outermost = order[yields > highest_before]
    return np.stack([per_user[outermost], per_unit[outermost]])


def _distances(curve: PredictedCurve, outermost: Floats) -> Floats:
    """By what factor each point of a curve must be better in both directions to be on the frontier;
    1 or less means that it is on the frontier.
    """
    per_user, per_unit = outermost
    factors: Floats = np.minimum(
        per_user[None, :] / curve.per_user[:, None], per_unit[None, :] / curve.per_unit[:, None]
    )
    distances: Floats = factors.max(axis=1)
    return distances

"""Which deployment gives the most throughput while the limits hold, and how sure that is.

``capacities.py`` finds what each deployment holds, ``doubts.py`` finds why the order may be wrong.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple

from orchestrator.analysis.deployments import ComparedModel, compared_model
from orchestrator.analysis.output_agreement import NEAR_CHANCE, disagreement
from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.start_spread import CommonSpread
from orchestrator.base.errors import FailureClass
from orchestrator.capacity.answers import (
    DeploymentAnswer,
    Excluded,
    Exclusion,
    Group,
    MissingLevel,
    Note,
    NoteKind,
    RankedDeployment,
    SearchRules,
)
from orchestrator.capacity.capacities import (
    claims,
    claims_among_rivals,
    deployment_answer,
    per_or_default,
    searched_answer,
)
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.doubts import (
    Doubt,
    DoubtKind,
    doubts_of_simulation,
    lasting_verdicts,
    no_level_doubts,
    pooled_spread,
    ranking_doubts,
    refusing_labels,
    unsettled_doubts,
)
from orchestrator.results.validity import MOST_AGAIN, SPOILT
from orchestrator.spec.load import Per, Slo


class Certainty(Enum):
    """How sure the answer is, or why there is none."""

    # certain
    ONLY_ONE_HOLDS = auto()
    OTHERS_FAIL = auto()  # each was shown to fail at the load that the first one claims, or below
    AHEAD = auto()  # the first one is ahead by more than engine starts differ
    # not certain
    DOUBTED = auto()
    # nothing is ranked
    NOT_MEASURED = auto()
    INCOMPARABLE = auto()
    NOTHING_VALID = auto()
    NOTHING_HOLDS = auto()


CERTAIN = (Certainty.ONLY_ONE_HOLDS, Certainty.OTHERS_FAIL, Certainty.AHEAD)


@dataclass(frozen=True, slots=True)
class ComparisonRules:
    """How deployments are compared.

    ``per``: what throughputs are divided by; None: GPUs, or nothing where a comparison has an
    endpoint, whose GPUs are not known. ``searches``: by workload, how its capacity was searched.
    ``full_grid``: the deployments did not race. ``startable_deployments``: how many deployments
    that are not measured yet may still be started; None: all.
    """

    per: Per | None = None
    searches: Mapping[str, SearchRules] = field(default_factory=lambda: MappingProxyType({}))
    full_grid: bool = False
    startable_deployments: int | None = None


@dataclass(frozen=True, slots=True)
class Shortlisted:
    """How a shortlist cut a comparison: it took ``listed`` of its ``of`` deployments."""

    listed: int
    of: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ranking of deployments of one model that got the same workload, best first."""

    experiment: str
    workload: str
    model: ComparedModel
    hardware: str
    slo: Slo
    per: Per
    devices_are_cores: bool
    ranking: tuple[RankedDeployment, ...]
    excluded: tuple[Excluded, ...]
    certainty: Certainty
    # why it is not certain, and the measurements that would make it so
    doubts: tuple[Doubt, ...]
    emulated: bool
    measured: bool  # it has a valid measurement, whether or not the limits hold there
    # the N with which ``run --again N`` of the same plan measures what is in doubt; None: no N does
    run_again: int | None
    simulated: bool = False
    source: str | None = None  # the other tool that measured its points; None: this program did
    incomparable: Exclusion | None = None  # with INCOMPARABLE
    # with NOTHING_VALID: points by their verdict, or "failed"
    verdict_counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    # where its points are shown; several groups where prices make different hardware comparable
    groups: tuple[Group, ...] = ()
    # with AHEAD: how much starts differ; None: deployments do not have that in common
    spread: CommonSpread | None = None
    # filled in by plan/current.py
    content: str = ""  # what the requests were, where there is no plan to say it
    run_command: str | None = None  # ``run --again`` with the N of ``run_again``
    shortlisted: Shortlisted | None = None  # None: no prediction left a deployment out

    @property
    def certain(self) -> bool:
        return self.certainty in CERTAIN

    @property
    def tied(self) -> tuple[RankedDeployment, ...]:
        """The deployments behind the first of the ranking that are ranked by the same value."""
        if not self.ranking:
            return ()
        first, *others = self.ranking
        return tuple(
            other
            for other in others
            if other.is_estimate == first.is_estimate and other.ranking_value == first.ranking_value
        )

    @property
    def labels_within_model_error(self) -> frozenset[str]:
        """The deployments that may be the best by the error of a simulation's model."""
        labels: set[str] = set()
        for doubt in self.doubts:
            if doubt.kind is DoubtKind.SIMULATED:
                labels.update((doubt.leader, *doubt.deployments))
        return frozenset(labels)


@dataclass(frozen=True, slots=True)
class _DeploymentKey:
    """Tells the deployments of a comparison apart.

    The label is part of it, since two runs of ``orchestrator load`` may have measured one endpoint.
    """

    deployment_id: str
    label: str


@dataclass(slots=True)
class _StoredAndMissing:
    """The points that are stored, and the levels that are missing."""

    points: list[StoredPoint] = field(default_factory=list)
    missing: list[MissingLevel] = field(default_factory=list)


def best(
    points: Sequence[StoredPoint],
    slo: Slo,
    rules: ComparisonRules | None = None,
    missing: Sequence[MissingLevel] = (),
) -> list[Comparison]:
    """One comparison per experiment, workload, model and hardware.

    Per dollar and per joule, all hardware is compared. Emulated points are compared among
    themselves, and so are simulated ones and those of each other tool. ``points``: from
    ``load_points`` with the same ``slo``; workloads of one name must have the same content.
    """
    rules = rules or ComparisonRules()
    groups: dict[Group, _StoredAndMissing] = {}
    for point in points:
        group = ranked_in(point, rules.per)
        groups.setdefault(group, _StoredAndMissing()).points.append(point)
    for missing_level in missing:
        group = _ranked_group(missing_level.group, rules.per)
        groups.setdefault(group, _StoredAndMissing()).missing.append(missing_level)
    return [_comparison(group, groups[group], slo, rules) for group in sorted(groups)]


def group_of(point: StoredPoint) -> Group:
    """The group in which a point is shown; all checkpoints of one model stand together."""
    head = point.head
    deployment = point.deployment
    return Group(
        experiment=head.experiment,
        workload=head.workload,
        model=deployment.model_key,
        hardware=deployment.hardware,
        emulated=point.emulated,
        simulated=point.simulated,
        source=point.source or "",
    )


def ranked_in(point: StoredPoint, per: Per | None) -> Group:
    """The group in which a point is ranked."""
    return _ranked_group(group_of(point), per)


def _ranked_group(group: Group, per: Per | None) -> Group:
    return replace(group, hardware="") if per in ("usd", "joule") else group


def _comparison(
    group: Group, evidence: _StoredAndMissing, slo: Slo, rules: ComparisonRules
) -> Comparison:
    points = evidence.points
    deployments = [point.deployment for point in points]
    per = per_or_default(rules.per, deployments)
    by_deployment = _by_deployment(evidence)
    claims_by_deployment = _claims(by_deployment, slo, rules, group.workload, per)
    answers: list[DeploymentAnswer] = []
    for key, of_deployment in by_deployment.items():
        answer = _answer(of_deployment, slo, per, claims_by_deployment.get(key))
        answers.append(_without_disagreeing(answer, slo))
    ranking = _ranking(answers, points)
    if ranking:
        doubts = _doubts_with_ranking(group, ranking, answers, points, rules, per)
        certainty = _certainty_of(ranking, doubts, _some_outraced(claims_by_deployment.values()))
    else:
        certainty = _certainty_without_ranking(points, answers)
        doubts = _doubts_without_ranking(certainty, answers, points, rules)
    return Comparison(
        experiment=group.experiment,
        workload=group.workload,
        model=compared_model(deployments) if points else ComparedModel(evidence.missing[0].model),
        hardware=_hardware(evidence),
        slo=slo,
        per=per,
        devices_are_cores={deployment.accelerator for deployment in deployments} == {"cpu"},
        ranking=tuple(ranking),
        excluded=tuple(excluded for answer in answers for excluded in answer.excluded),
        certainty=certainty,
        doubts=tuple(doubts),
        emulated=group.emulated,
        simulated=group.simulated,
        source=group.source or None,
        measured=_has_valid_measurement(points),
        run_again=_run_again(evidence),
        incomparable=next((answer.incomparable for answer in answers if answer.incomparable), None),
        verdict_counts=_verdict_counts(points) if certainty is Certainty.NOTHING_VALID else {},
        groups=_groups(evidence),
        spread=_spread(ranking) if certainty is Certainty.AHEAD else None,
    )


def _doubts_with_ranking(
    group: Group,
    ranking: Sequence[RankedDeployment],
    answers: Sequence[DeploymentAnswer],
    points: Sequence[StoredPoint],
    rules: ComparisonRules,
    per: Per,
) -> list[Doubt]:
    """Why the first of the ranking may not be the best."""
    doubts = [
        *unsettled_doubts(answers, rules.startable_deployments),
        *ranking_doubts(ranking),
    ]
    return doubts_of_simulation(doubts, ranking, points, per) if group.simulated else doubts


def _doubts_without_ranking(
    certainty: Certainty,
    answers: Sequence[DeploymentAnswer],
    points: Sequence[StoredPoint],
    rules: ComparisonRules,
) -> list[Doubt]:
    """What would have to be measured or repaired for a ranking. ``certainty``: why there is none.

    Deployments with a lasting verdict, and those that refuse too many requests, need no
    measurement.
    """
    refusing = refusing_labels(points)
    hopeless = {*lasting_verdicts(points), *refusing}
    unsettled = [answer for answer in answers if answer.label not in hopeless]
    doubts = list(unsettled_doubts(unsettled, rules.startable_deployments))
    if certainty in (Certainty.NOTHING_VALID, Certainty.NOTHING_HOLDS):
        # a search went down as far as that tells anything: no lower level is to be asked for
        searched = {answer.label for answer in answers if answer.unsettled}
        doubts += no_level_doubts(points, refusing, searched)
    return doubts


def _some_outraced(claims_of_deployments: Iterable[Mapping[str, Claim]]) -> bool:
    """Whether some deployments were beaten before anything could be claimed of them."""
    return any(
        claim.status == "outraced"
        for claims_by_control in claims_of_deployments
        for claim in claims_by_control.values()
    )


def _hardware(evidence: _StoredAndMissing) -> str:
    """The hardware of all its deployments, in alphabetical order."""
    hardware = {point.deployment.hardware for point in evidence.points}
    hardware |= {missing_level.group.hardware for missing_level in evidence.missing}
    return ", ".join(sorted(hardware))


def _spread(ranking: Sequence[RankedDeployment]) -> CommonSpread | None:
    """See ``Comparison.spread``."""
    return pooled_spread([ranked.throughput for ranked in ranking if not ranked.is_estimate])


def _groups(evidence: _StoredAndMissing) -> tuple[Group, ...]:
    """The groups in which the stored and the missing levels are shown."""
    groups = {group_of(point) for point in evidence.points}
    groups |= {missing_level.group for missing_level in evidence.missing}
    return tuple(sorted(groups))


def _by_deployment(evidence: _StoredAndMissing) -> dict[_DeploymentKey, _StoredAndMissing]:
    by_deployment: dict[_DeploymentKey, _StoredAndMissing] = {}
    for point in evidence.points:
        key = _DeploymentKey(point.head.deployment_id, point.deployment.label)
        by_deployment.setdefault(key, _StoredAndMissing()).points.append(point)
    for missing_level in evidence.missing:
        key = _DeploymentKey(missing_level.deployment_id, missing_level.label)
        by_deployment.setdefault(key, _StoredAndMissing()).missing.append(missing_level)
    return by_deployment


def _answer(
    evidence: _StoredAndMissing, slo: Slo, per: Per, claims_by_control: Mapping[str, Claim] | None
) -> DeploymentAnswer:
    if claims_by_control is None:
        return deployment_answer(evidence.points, evidence.missing, slo, per)
    return searched_answer(evidence.points, slo, per, claims_by_control)


def _claims(
    by_deployment: Mapping[_DeploymentKey, _StoredAndMissing],
    slo: Slo,
    rules: ComparisonRules,
    workload: str,
    per: Per,
) -> dict[_DeploymentKey, dict[str, Claim]]:
    """The claims of searches, by deployment; empty if the workload's capacity was not searched."""
    search = rules.searches.get(workload)
    if search is None:
        return {}
    claims_by_deployment = {
        key: claims(evidence.points, slo, search)
        for key, evidence in by_deployment.items()
        if evidence.points
    }
    if rules.full_grid:
        return claims_by_deployment
    searches = [
        (by_deployment[key].points[0].deployment, claims_by_control)
        for key, claims_by_control in claims_by_deployment.items()
    ]
    return dict(zip(claims_by_deployment, claims_among_rivals(searches, per), strict=True))


def _ranking(
    answers: Sequence[DeploymentAnswer], points: Sequence[StoredPoint]
) -> list[RankedDeployment]:
    notes = _notes_on_answers(points)
    ranking = []
    for answer in answers:
        ranked = answer.ranked
        if ranked is None:
            continue
        note = notes.get(ranked.point.head.deployment_id)
        if note is not None:
            ranked = replace(ranked, notes=(*ranked.notes, note))
        ranking.append(ranked)
    return sorted(ranking, key=_place_in_ranking)


class _PlaceInRanking(NamedTuple):
    """The order of a ranking: the smaller comes first, by the first field in which two deployments
    differ. Claims come before estimates, which were not shown to hold.
    """

    is_estimate: bool
    minus_value: float
    minus_lower: float  # the lower bound of the throughput: of equal values, the surer comes first
    label: str


def _place_in_ranking(ranked: RankedDeployment) -> _PlaceInRanking:
    lower = ranked.throughput.lower
    return _PlaceInRanking(
        is_estimate=ranked.is_estimate,
        minus_value=-ranked.ranking_value,
        minus_lower=0.0 if math.isnan(lower) else -lower,
        label=ranked.label,
    )


def _without_disagreeing(answer: DeploymentAnswer, slo: Slo) -> DeploymentAnswer:
    """Takes a deployment out of the ranking if its outputs agree too little with the reference's.

    No further measurement changes that, so it leaves no doubts either.
    """
    if slo.agreement is None or answer.ranked is None:
        return answer
    point = answer.ranked.point
    disagrees = disagreement(point.agreement, slo.agreement)
    if disagrees is None:
        return answer
    excluded = Excluded(point.deployment, Exclusion.DISAGREES, disagreement=disagrees)
    return replace(
        answer,
        ranked=None,
        excluded=(*answer.excluded, excluded),
        open_levels=(),
        near_levels=(),
        unsettled=(),
    )


def _notes_on_answers(points: Sequence[StoredPoint]) -> dict[str, Note]:
    """By deployment id, a note where hardly any output equals the reference's.

    There are notes only if the outputs of other deployments of the model agree with the reference.
    """
    agreement_known: dict[str, StoredPoint] = {}
    for point in points:
        if point.agreement.share is not None:
            agreement_known[point.head.deployment_id] = point
    agreeing = [
        point.deployment.label for point in agreement_known.values() if not _is_near_chance(point)
    ]
    if not agreeing:
        return {}
    note = Note(NoteKind.ANSWERS_DIFFER, agreeing=tuple(agreeing))
    return {
        deployment_id: note
        for deployment_id, point in agreement_known.items()
        if _is_near_chance(point)
    }


def _is_near_chance(point: StoredPoint) -> bool:
    return (point.agreement.share or 0.0) < NEAR_CHANCE


def _certainty_of(
    ranking: Sequence[RankedDeployment], doubts: Sequence[Doubt], some_outraced: bool
) -> Certainty:
    """How certain it is that the first of the ranking is the best.

    ``some_outraced``: see ``_some_outraced``.
    """
    if doubts:
        return Certainty.DOUBTED
    if len(ranking) == 1 and not some_outraced:
        return Certainty.ONLY_ONE_HOLDS
    # Bounds that overlap with the first one's would be a doubt. So all others fail at its claim or
    # below.
    if all(ranked.bounds for ranked in ranking):
        return Certainty.OTHERS_FAIL
    return Certainty.AHEAD


def _certainty_without_ranking(
    points: Sequence[StoredPoint], answers: Sequence[DeploymentAnswer]
) -> Certainty:
    if not points:
        return Certainty.NOT_MEASURED
    if any(answer.incomparable for answer in answers):
        return Certainty.INCOMPARABLE
    if not _has_valid_measurement(points):
        return Certainty.NOTHING_VALID
    return Certainty.NOTHING_HOLDS


def _has_valid_measurement(points: Sequence[StoredPoint]) -> bool:
    return any(repeat.shows_engine for point in points for repeat in point.repeats)


def _verdict_counts(points: Sequence[StoredPoint]) -> Counter[str]:
    return Counter(point.validity if point.repeats[0].ok else "failed" for point in points)


def _run_again(evidence: _StoredAndMissing) -> int | None:
    """See ``Comparison.run_again``."""
    repeats = [repeat for point in evidence.points for repeat in point.repeats]
    spoilt = [repeat for repeat in repeats if repeat.ok and repeat.head.validity in SPOILT]
    if spoilt:
        # N must be at least the number of spoilt tries, or nothing is tried again (``spoilt_of``)
        return max(MOST_AGAIN, *(repeat.attempts for repeat in spoilt))
    failed = [
        repeat
        for repeat in repeats
        if not repeat.ok and repeat.head.failure_class != FailureClass.BAD_CONFIG
    ]
    return MOST_AGAIN if failed or evidence.missing else None

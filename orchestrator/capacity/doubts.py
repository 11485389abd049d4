"""Finds why the answer is not certain, and which measurement would settle it.

These are facts that ``report/words.py`` puts into sentences. A level that was asked for and not
measured is as much a doubt as a badly measured one: nothing is certain while a level that was never
judged could still change the answer.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from orchestrator.analysis.intervals import Interval, exceeds, starts_to_decide
from orchestrator.analysis.points import Attained, StoredPoint
from orchestrator.analysis.start_spread import CommonSpread, common_spread
from orchestrator.base.grouping import values_by_key
from orchestrator.capacity.answers import (
    DeploymentAnswer,
    RankedDeployment,
    SearchedClaim,
    level_of,
)
from orchestrator.capacity.capacities import (
    divisor_of_point,
    holds,
    reason_to_exclude,
    tests_that_may_miss,
)
from orchestrator.capacity.claim import ClaimStatus
from orchestrator.capacity.dominance import SETTLED
from orchestrator.capacity.first_change import (
    FirstChange,
    LongerProbes,
    WiderPrecision,
    WidestMiss,
)
from orchestrator.capacity.levels import SAME, STEPS
from orchestrator.results.outcomes import ErrorClass
from orchestrator.results.validity import LASTING_VERDICTS, Validity
from orchestrator.spec.load import Level, Per

# The fewest deployments whose starts are judged by the spread of all. Where there are two, their
# own spreads are all that is known.
LEAST_POOLED = 3
# Degrees of freedom with which the mean spread counts beside that of two deployments. With 3 the
# first of four equal deployments is called the best in at most 5 % of cases, even where one of them
# spreads four times as much as the others (benchmarks/compare). In ``compare`` the mean counts for
# more where there are more deployments (``start_spread.usual_prior_freedom``).
POOLED_FREEDOM = 3.0
GRID_STEP = 2 ** (1 / STEPS)  # a level of the search grid over the next lower one


class DoubtKind(Enum):
    """What is in doubt."""

    # deployments that could turn out better than all in the ranking
    NOT_MEASURED = auto()  # no level of theirs is measured yet
    OPEN_LEVELS = auto()  # levels that could hold have no valid measurement
    NEAR_THE_LIMIT = auto()  # levels failed by no more than chance
    NOT_SETTLED = auto()  # the search ended before it knew enough
    CAPACITY_NOT_REACHED = auto()
    INCOMPARABLE = auto()
    # the order of the ranking
    NOT_STEADY = auto()
    REPEATS_NOT_VALID = auto()
    ONE_START = auto()
    ONE_VALID_START = auto()
    MAY_MISS_TARGET = auto()
    MORE_IS_CLAIMED = auto()  # others claim more than the first
    BOUNDS_OVERLAP = auto()
    STARTS_DIFFER = auto()  # deployments differ by less than their engine starts do
    SIMULATED = auto()  # nothing was measured; some are behind by less than the model's error
    # nothing holds
    NO_LEVEL_HOLDS = auto()
    NO_LOAD_HELPS = auto()  # all points of a deployment have the same lasting verdict


class Remedy(Enum):
    """What would settle a doubt."""

    RUN_AGAIN = auto()
    MORE_DEPLOYMENTS = auto()  # a larger ``max_deployments``
    MORE_ROOM = auto()  # nodes that can hold the deployment
    MORE_REPEATS_OR_LONGER = auto()
    MORE_REPEATS = auto()
    LONGER = auto()
    MORE_STARTS = auto()
    SEARCH_LONGER = auto()
    LONGER_PROBES = auto()
    WIDER_PRECISION = auto()
    VALID_PROBES = auto()  # something spoilt all probes of the levels that are open
    MORE_CLIENTS = auto()
    OTHER_LIMITS = auto()
    SMALLER_PRECISION = auto()
    HIGHER_LEVELS = auto()
    STRETCH = auto()  # stretch the recorded times: a thinned trace is never faster
    LOWER_LEVELS = auto()
    LONGER_CONTEXT = auto()  # a larger ``max_model_len``: requests are refused at any load
    REPAIR = auto()  # repair the deployment: no measurement helps
    MEASURE = auto()  # measure what was simulated


@dataclass(frozen=True, slots=True)
class DeploymentLevels:
    """Some levels of one deployment."""

    label: str
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class DeploymentClaims:
    """What the searches of one deployment show, one per control."""

    label: str
    claims: tuple[SearchedClaim, ...]


@dataclass(frozen=True, slots=True)
class Doubt:
    """One reason why the answer is not certain. Deployments are named by their labels.

    ``deployments``: those that are in doubt. ``remedy``: None: no measurement settles the doubt.
    ``to_remedy``: the deployments that need the remedy, where those are others.
    """

    kind: DoubtKind
    deployments: tuple[str, ...]
    remedy: Remedy | None = None
    to_remedy: tuple[str, ...] = ()
    levels: tuple[DeploymentLevels, ...] = ()
    claims: tuple[DeploymentClaims, ...] = ()  # with NOT_SETTLED
    # the first of the ranking, with MORE_IS_CLAIMED, BOUNDS_OVERLAP and SIMULATED
    leader: str = ""
    test: Attained | None = None  # with MAY_MISS_TARGET
    excess: float = 0.0  # how far bounds reach above the leader's claim, as a share of it
    starts_needed: int | None = None  # with STARTS_DIFFER; None: more than MOST_STARTS
    spread: CommonSpread | None = None  # with STARTS_DIFFER: see ``pooled_spread``
    startable_deployments: int | None = None  # with NOT_MEASURED: how many may start; None: all
    # with SIMULATED: the N of the ``run --shortlist N`` that measures all deployments that may be
    # the best under any SLO of the plan (report/selection.py); None: no such run does, or it would
    # be one of all deployments
    shortlist_size: int | None = None
    # with SIMULATED: how many deployments a run without a shortlist measures, where that run is what
    # measures all that may be the best
    deployments_of_run: int | None = None
    validity: Validity = Validity.VALID  # with REPAIR


def unsettled_doubts(
    answers: Sequence[DeploymentAnswer], startable_deployments: int | None
) -> Iterator[Doubt]:
    """Doubts about deployments that could still turn out better than all in the ranking."""
    not_measured = tuple(answer.label for answer in answers if not answer.measured)
    if not_measured:
        yield Doubt(
            DoubtKind.NOT_MEASURED,
            not_measured,
            Remedy.MORE_DEPLOYMENTS if startable_deployments == 0 else Remedy.RUN_AGAIN,
            startable_deployments=startable_deployments,
        )
    yield from _open_levels(answers)
    with_near = [answer for answer in answers if answer.near_levels]
    if with_near:
        yield Doubt(
            DoubtKind.NEAR_THE_LIMIT,
            _labels_of(with_near),
            Remedy.MORE_REPEATS_OR_LONGER,
            levels=tuple(
                DeploymentLevels(answer.label, answer.near_levels) for answer in with_near
            ),
        )
    yield from _not_settled(answers)
    not_reached = [
        answer.ranked
        for answer in answers
        if answer.ranked is not None
        and answer.ranked.lower_bound_only
        and not answer.open_levels
        and not answer.unsettled
    ]
    by_remedy = values_by_key((_remedy_to_reach(ranked), ranked) for ranked in not_reached)
    for remedy, alike in by_remedy.items():
        yield Doubt(
            DoubtKind.CAPACITY_NOT_REACHED,
            _labels(alike),
            remedy,
            levels=_best_levels(alike),
        )
    incomparable = tuple(answer.label for answer in answers if answer.incomparable)
    if incomparable:
        yield Doubt(DoubtKind.INCOMPARABLE, incomparable)


def _remedy_to_reach(deployment: RankedDeployment) -> Remedy:
    """What would show the capacity of a deployment of which no level was seen to fail."""
    capacity = deployment.capacity
    if capacity is not None and capacity.status == "not_the_limit":
        return Remedy.STRETCH
    if deployment.sends_whole_trace:
        return Remedy.STRETCH
    return Remedy.HIGHER_LEVELS


# by the status of a search: what would take it further; other statuses have no known remedy
_REMEDIES_OF_SEARCHES: Mapping[ClaimStatus, Remedy] = {
    "budget": Remedy.SEARCH_LONGER,
    "unresolved": Remedy.LONGER_PROBES,
    "client_bound": Remedy.MORE_CLIENTS,
    "nothing_holds": Remedy.OTHER_LIMITS,
}


def _not_settled(answers: Sequence[DeploymentAnswer]) -> Iterator[Doubt]:
    """Searches that ended before they knew enough: one doubt for each remedy."""
    by_remedy = values_by_key(
        (_remedy_of_search(answer.unsettled[0]), answer) for answer in answers if answer.unsettled
    )
    for remedy, alike in by_remedy.items():
        yield Doubt(
            DoubtKind.NOT_SETTLED,
            _labels_of(alike),
            remedy,
            claims=tuple(DeploymentClaims(answer.label, answer.unsettled) for answer in alike),
        )


def _remedy_of_search(searched: SearchedClaim) -> Remedy | None:
    if searched.claim.lacks_valid_probes:
        return Remedy.VALID_PROBES
    if isinstance(searched.change, WiderPrecision):
        return Remedy.WIDER_PRECISION
    return _REMEDIES_OF_SEARCHES.get(searched.claim.status)


class _Distance(NamedTuple):
    """How far requests are from a limit: the smaller, the nearer, by ``shortfall`` first.

    ``shortfall``: how many more of them must meet it, as a share. ``times_the_limit``: the value
    within which enough of them stayed, over the limit.
    """

    shortfall: float
    times_the_limit: float


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """The limit that the requests of the deployment nearest to the limits missed by most."""

    label: str
    control: str
    miss: WidestMiss

    @property
    def distance(self) -> _Distance:
        return _Distance(self.miss.shortfall, self.miss.value_s / self.miss.limit.seconds)


def nearest_miss(doubt: Doubt) -> NearestMiss | None:
    """Of the deployments in doubt that hold nothing, the nearest to the limits; None: unknown."""
    misses: list[NearestMiss] = []
    for deployment in doubt.claims:
        for searched in deployment.claims:
            if isinstance(searched.change, WidestMiss):
                misses.append(NearestMiss(deployment.label, searched.control, searched.change))
    return min(misses, key=lambda miss: miss.distance, default=None)


def longest_probes(doubt: Doubt) -> LongerProbes | None:
    """The probes that decide all searches in doubt; None: not known of all of them."""
    changes = _changes(doubt)
    longer = [change for change in changes if isinstance(change, LongerProbes)]
    if len(longer) < len(changes):
        return None
    return max(longer, key=lambda probes: probes.seconds, default=None)


def widest_precision(doubt: Doubt) -> WiderPrecision:
    """The precision with which all claims in doubt are answers, with WIDER_PRECISION."""
    wider = [change for change in _changes(doubt) if isinstance(change, WiderPrecision)]
    return max(wider, key=lambda change: change.precision)


def _changes(doubt: Doubt) -> list[FirstChange | None]:
    changes: list[FirstChange | None] = []
    for deployment in doubt.claims:
        changes += [searched.change for searched in deployment.claims]
    return changes


def _open_levels(answers: Sequence[DeploymentAnswer]) -> Iterator[Doubt]:
    """Levels that could hold and have no valid measurement.

    Another run measures them, unless they have a verdict that neither load nor repeats change, or
    no node had room for the deployment.
    """
    to_measure: list[DeploymentLevels] = []
    without_room: list[DeploymentLevels] = []
    to_repair: dict[Validity, list[DeploymentLevels]] = {
        validity: [] for validity in LASTING_VERDICTS
    }
    for answer in answers:
        if not answer.measured:
            continue
        lasting = [verdict.level for verdict in answer.lasting_levels]
        open_levels = tuple(level for level in answer.open_levels if level not in lasting)
        if open_levels:
            waiting = without_room if answer.had_no_room else to_measure
            waiting.append(DeploymentLevels(answer.label, open_levels))
        for validity, deployments in to_repair.items():
            levels = tuple(
                verdict.level for verdict in answer.lasting_levels if verdict.validity is validity
            )
            if levels:
                deployments.append(DeploymentLevels(answer.label, levels))
    for remedy, deployments in (
        (Remedy.RUN_AGAIN, to_measure),
        (Remedy.MORE_ROOM, without_room),
    ):
        if deployments:
            labels = tuple(deployment.label for deployment in deployments)
            yield Doubt(DoubtKind.OPEN_LEVELS, labels, remedy, levels=tuple(deployments))
    for validity, deployments in to_repair.items():
        if deployments:
            yield Doubt(
                DoubtKind.OPEN_LEVELS,
                tuple(deployment.label for deployment in deployments),
                Remedy.REPAIR,
                levels=tuple(deployments),
                validity=validity,
            )


def pooled_spread(throughputs: Sequence[Interval]) -> CommonSpread | None:
    """The relative spread between starts that the deployments of a ranking have in common.

    None: fewer than LEAST_POOLED deployments have two starts, some spread more than others, or no
    starts differ at all. Then each two deployments are compared by their own starts.
    """
    spreads = [throughput.start_spread for throughput in throughputs]
    known = [spread for spread in spreads if spread is not None]
    if len(known) < LEAST_POOLED:
        return None
    common = common_spread(known, POOLED_FREEDOM)
    return common if common is not None and common.is_even else None


def ranking_doubts(ranking: Sequence[RankedDeployment]) -> Iterator[Doubt]:
    """Doubts about the order of the ranking.

    Deployments that were outraced need no more measuring unless one of them is first, since they
    failed at a load that another one holds. Estimates are a doubt of their own (NOT_SETTLED): until
    something is claimed, nothing else matters.
    """
    claimed = [deployment for deployment in ranking if not deployment.is_estimate]
    if not claimed:
        return
    first, *others = claimed
    compared = [first, *(other for other in others if not _is_outraced(other))]
    unsteady = [
        deployment
        for deployment in compared
        if any(repeat.head.steady is False for repeat in deployment.point.used_repeats)
    ]
    if unsteady:
        yield Doubt(
            DoubtKind.NOT_STEADY, _labels(unsteady), Remedy.LONGER, levels=_best_levels(unsteady)
        )
    partly_valid = [
        deployment
        for deployment in compared
        if not all(repeat.valid for repeat in deployment.point.repeats)
    ]
    if partly_valid:
        yield Doubt(DoubtKind.REPEATS_NOT_VALID, _labels(partly_valid))
    with_one_start = [deployment for deployment in compared if deployment.throughput.starts < 2]
    if with_one_start:
        yield from _one_start(with_one_start)
    may_miss = tests_that_may_miss(first.point)
    # a claimed capacity was confirmed by a test of its own
    if first.capacity is None and may_miss:
        yield Doubt(
            DoubtKind.MAY_MISS_TARGET,
            (first.label,),
            Remedy.MORE_REPEATS_OR_LONGER,
            levels=_best_levels([first]),
            test=min(may_miss, key=lambda test: test.share.lower - test.target),
        )
    yield from _order_doubts(first, others, some_have_one_start=bool(with_one_start))


# doubts that a simulation cannot have: its model does the same each time
_OF_MEASUREMENTS = (
    DoubtKind.NEAR_THE_LIMIT,
    DoubtKind.ONE_START,
    DoubtKind.ONE_VALID_START,
    DoubtKind.MAY_MISS_TARGET,
    DoubtKind.STARTS_DIFFER,
)


def doubts_of_simulation(
    doubts: Sequence[Doubt],
    ranking: Sequence[RankedDeployment],
    points: Sequence[StoredPoint],
    per: Per,
) -> list[Doubt]:
    """The doubts of a simulation: those of ``doubts`` that it can have, and SIMULATED.

    SIMULATED lists the deployments that may, by the model's error, hold more than the least that
    the first of the ranking holds. ``points``: all points of the comparison.
    """
    first = ranking[0]
    least = _least_by_model(first, points, per)
    kept = [doubt for doubt in doubts if doubt.kind not in _OF_MEASUREMENTS]
    most = _most_by_model(ranking, points, per)
    near: list[str] = []
    for label, throughput in most.items():
        is_behind = throughput < least  # false where the model's error is not known (NaN)
        if label != first.label and not is_behind:
            near.append(label)
    simulated = Doubt(
        DoubtKind.SIMULATED,
        tuple(near),
        Remedy.MEASURE,
        leader=first.label,
    )
    return [simulated, *kept]


def _least_by_model(ranked: RankedDeployment, points: Sequence[StoredPoint], per: Per) -> float:
    """The least that a deployment holds by the error of its model.

    Where levels were simulated, it is the highest throughput at which the limits hold even if all
    latencies are longer by that error, and 0 if they hold at no level then. Where its capacity was
    searched, it is the lower bound of the throughput at the claim, which that error gives.
    """
    if ranked.capacity is not None:
        return ranked.throughput.lower
    least = 0.0
    for point in points:
        if point.deployment.label != ranked.label or reason_to_exclude(point) is not None:
            continue
        throughput = point.output_token_throughput()
        divisor = divisor_of_point(point, per)
        if throughput is None or divisor is None:
            continue
        # where a bound is not known (NaN), the throughput alone says how little it may hold
        may_fail = any(test.share.lower < test.target for test in point.tests)
        if not may_fail:
            least = max(throughput.lower / divisor, least)
    return least


def _most_by_model(
    ranking: Sequence[RankedDeployment], points: Sequence[StoredPoint], per: Per
) -> dict[str, float]:
    """By label, the most that each deployment may hold; those of the ranking come first.

    Where levels were simulated, it is the highest throughput at which the limits may hold. Where
    capacities were searched, it is the claimed throughput times the model's error, or NaN where
    that error is not known.
    """
    most: dict[str, float] = {}
    for deployment in ranking:
        most[deployment.label] = 0.0
        if deployment.capacity is not None:
            error = deployment.point.model_error
            factor = math.nan if error is None else error.tpot
            most[deployment.label] = deployment.throughput.estimate * factor
    for point in points:
        if reason_to_exclude(point) is not None:
            continue
        throughput = point.output_token_throughput()
        divisor = divisor_of_point(point, per)
        if throughput is None or divisor is None:
            continue
        is_certain_to_fail = any(test.share.upper < test.target for test in point.tests)
        if not is_certain_to_fail:
            label = point.deployment.label
            most[label] = max(throughput.upper / divisor, most.get(label, 0.0))
    return most


def no_level_doubts(
    points: Sequence[StoredPoint], refusing: tuple[str, ...], searched: Collection[str]
) -> Iterator[Doubt]:
    """What to do where no level holds. ``refusing``: from ``refusing_labels``. ``searched``: labels
    of the deployments whose levels a search chose; for these nobody can ask for a lower one.
    """
    if refusing:
        yield Doubt(DoubtKind.NO_LEVEL_HOLDS, refusing, Remedy.LONGER_CONTEXT)
    not_lower = {*refusing, *searched}
    yield from _lower_levels([point for point in points if point.deployment.label not in not_lower])
    verdicts = lasting_verdicts(points)
    for validity in LASTING_VERDICTS:
        labels = tuple(label for label, verdict in verdicts.items() if verdict == validity)
        if labels:
            yield Doubt(DoubtKind.NO_LOAD_HELPS, labels, Remedy.REPAIR, validity=validity)


def lasting_verdicts(points: Sequence[StoredPoint]) -> dict[str, str]:
    """The lasting verdicts of deployments, by label; only where all points of one have the same.

    A lasting verdict is one that no other load and no repeat changes.
    """
    verdicts: dict[str, set[str]] = {}
    for point in points:
        verdicts.setdefault(point.deployment.label, set()).add(point.validity)
    lasting: dict[str, str] = {}
    for label, verdicts_of_label in verdicts.items():
        if len(verdicts_of_label) > 1:
            continue
        (verdict,) = verdicts_of_label
        if verdict in LASTING_VERDICTS:
            lasting[label] = verdict
    return lasting


def _one_start(with_one_start: Sequence[RankedDeployment]) -> Iterator[Doubt]:
    """Doubts about deployments with valid measurements of one start only.

    Those that were started more than once need no further start, but repeats that are not spoilt.
    An endpoint, which runs already, cannot be started again.
    """
    to_start: list[RankedDeployment] = []
    spoilt: list[RankedDeployment] = []
    for deployment in with_one_start:
        if not deployment.point.deployment.launched:
            continue
        starts = {repeat.head.start for repeat in deployment.point.repeats}
        if len(starts) > 1:
            spoilt.append(deployment)
        else:
            to_start.append(deployment)
    yield Doubt(
        DoubtKind.ONE_START,
        _labels(with_one_start),
        Remedy.MORE_STARTS if to_start else None,
        to_remedy=_labels(to_start),
    )
    if spoilt:
        yield Doubt(DoubtKind.ONE_VALID_START, _labels(spoilt), Remedy.MORE_REPEATS)


def _order_doubts(
    first: RankedDeployment, others: Sequence[RankedDeployment], *, some_have_one_start: bool
) -> Iterator[Doubt]:
    """Doubts about which deployment holds most.

    Request rates that were searched are compared by their bounds, because the throughput at a rate
    is what was sent. Throughputs are compared only if all have several starts.
    """
    claiming_more = [other for other in others if _claims_more(other, first)]
    if claiming_more:
        yield Doubt(
            DoubtKind.MORE_IS_CLAIMED,
            _labels(claiming_more),
            Remedy.SMALLER_PRECISION,
            to_remedy=_labels([first, *claiming_more]),
            leader=first.label,
        )
    claiming_less = [other for other in others if not _claims_more(other, first)]
    settled = [
        other for other in claiming_less if other.capacity and other.capacity.status in SETTLED
    ]
    yield from _overlapping_bounds(first, settled)
    if some_have_one_start:
        return
    spread = pooled_spread([deployment.throughput for deployment in (first, *others)])
    near = [
        other
        for other in claiming_less
        if other.throughput.starts > 1
        and not (first.bounds and other.bounds)
        and not exceeds(first.throughput, other.throughput, spread)
    ]
    if near:
        yield Doubt(
            DoubtKind.STARTS_DIFFER,
            _labels(near),
            Remedy.MORE_STARTS,
            levels=_best_levels([first, near[0]]),
            starts_needed=starts_to_decide(first.throughput, near[0].throughput, spread),
            spread=spread,
        )


def _overlapping_bounds(
    first: RankedDeployment, settled: Sequence[RankedDeployment]
) -> Iterator[Doubt]:
    """Deployments whose search ended before they were shown to fail at the first one's claim.

    Searches that are not settled are a doubt of their own, and so are those under which nothing
    fails.
    """
    if first.bounds is None:
        return
    claim = first.bounds.claim
    overlapping = [
        other for other in settled if other.bounds and claim * SAME < other.bounds.fails < math.inf
    ]
    if not overlapping:
        return
    highest = max(other.bounds.fails for other in overlapping if other.bounds)
    wide = [deployment for deployment in [first, *overlapping] if _has_wide_bounds(deployment)]
    yield Doubt(
        DoubtKind.BOUNDS_OVERLAP,
        _labels(overlapping),
        Remedy.SMALLER_PRECISION if wide else None,
        to_remedy=_labels(wide),
        leader=first.label,
        excess=highest / claim - 1,
    )


def _has_wide_bounds(deployment: RankedDeployment) -> bool:
    """Whether a level of the grid lies between its bounds, which more probes could decide."""
    bounds = deployment.bounds
    return bounds is not None and bounds.fails > bounds.claim * GRID_STEP * SAME


def _claims_more(other: RankedDeployment, first: RankedDeployment) -> bool:
    """Whether more is claimed of ``other``, although it is not first."""
    if other.bounds and first.bounds:
        return other.bounds.claim > first.bounds.claim * SAME
    return other.throughput.estimate > first.throughput.estimate


def _is_outraced(deployment: RankedDeployment) -> bool:
    return deployment.capacity is not None and deployment.capacity.status == "outraced"


def _lower_levels(points: Sequence[StoredPoint]) -> Iterator[Doubt]:
    """Asks for levels below the lowest one that failed, if there can be any."""
    failing = [
        point for point in points if point.tests and not holds(point) and _tells_of_load(point)
    ]
    if not failing:
        return
    lowest = min(failing, key=lambda point: point.head.level)
    if lowest.head.control == "concurrency" and lowest.head.level <= 1:
        return
    label = lowest.deployment.label
    yield Doubt(
        DoubtKind.NO_LEVEL_HOLDS,
        (label,),
        Remedy.LOWER_LEVELS,
        levels=(DeploymentLevels(label, (level_of(lowest),)),),
    )


def refusing_labels(points: Sequence[StoredPoint]) -> tuple[str, ...]:
    """Labels of the deployments that refuse more requests than the limits let fail.

    An engine refuses (``http_4xx``) requests that are too long for it at any load, so the requests
    of all levels count together. Too many requests at once are another error (``http_429``).
    """
    by_label = values_by_key(
        (point.deployment.label, point) for point in points if point.tests and _tells_of_load(point)
    )
    return tuple(label for label, alike in by_label.items() if _refuses_too_many(alike))


def _refuses_too_many(points: Sequence[StoredPoint]) -> bool:
    for test in points[0].tests:
        refused = 0
        scheduled = 0
        for point in points:
            figures = point.figures_of(test.part)
            if figures is not None:
                refused += figures.errors.get(ErrorClass.HTTP_4XX, 0)
                scheduled += figures.requests.scheduled
        if refused > (1 - test.target) * scheduled:
            return True
    return False


def _tells_of_load(point: StoredPoint) -> bool:
    """Whether its requests show how the engine did, and another load could change the verdict."""
    return point.validity not in LASTING_VERDICTS and any(
        repeat.shows_engine for repeat in point.repeats
    )


def _labels(deployments: Sequence[RankedDeployment]) -> tuple[str, ...]:
    return tuple(deployment.label for deployment in deployments)


def _labels_of(answers: Sequence[DeploymentAnswer]) -> tuple[str, ...]:
    return tuple(answer.label for answer in answers)


def _best_levels(deployments: Sequence[RankedDeployment]) -> tuple[DeploymentLevels, ...]:
    return tuple(
        DeploymentLevels(deployment.label, (deployment.level,)) for deployment in deployments
    )

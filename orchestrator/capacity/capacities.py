"""What one deployment holds: its best level, why no other level is, and what may still be better.

The best level is the highest measured one at which every test of the SLO holds: the share of
requests that met it, a point estimate over all repeats that count, is at least its target. Its
figure is the output token throughput measured there. Only valid points can be best. A point shows
that its level fails where the engine fell behind or answered noise, or where a single repeat failed
because of the engine. Any other point that is not valid, such as one that the client slowed down,
shows nothing. A level that was asked for and not measured is as open as a badly measured one.

Everything here is a fact; ``report/words.py`` has the sentences.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.deployments import StoredDeployment
from orchestrator.analysis.metrics import BACKLOG, BROKEN, FAILING, QUANTILES, UNCHECKED
from orchestrator.analysis.points import Attained, Repeat, StoredPoint
from orchestrator.analysis.slo import first_target, shares, targets_of
from orchestrator.base.arrays import Bools
from orchestrator.base.errors import FailureKind
from orchestrator.capacity.answers import (
    DeploymentAnswer,
    ExceededPercentile,
    Excluded,
    Exclusion,
    HeldIfSlower,
    LastingVerdict,
    MissedLimit,
    MissingLevel,
    Note,
    NoteKind,
    RankedDeployment,
    SearchedClaim,
    SearchRules,
    Shortfall,
    level_at,
    level_of,
)
from orchestrator.capacity.claim import POINTLESS, Claim, claim_of
from orchestrator.capacity.dominance import (
    SETTLED,
    RivalClaim,
    among_rivals,
    lead_of,
    ranking_level,
)
from orchestrator.capacity.estimate import Estimate
from orchestrator.capacity.first_change import first_change
from orchestrator.capacity.levels import at_levels
from orchestrator.capacity.probe_outcome import ProbeOutcome, outcome_of_point
from orchestrator.results.validity import LASTING_VERDICTS, Validity
from orchestrator.spec.load import Level, Limit, Per, Slo
from orchestrator.workloads.fidelity import RATE_DIFFERS

# statuses of searches that would go on with more time, longer probes or more clients
_UNFINISHED = ("budget", "unresolved", "client_bound")
# by latency, its field of Figures; itl_p99 is missing because itl_ms pools the gaps of all requests
_FIGURE_OF = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "e2e": "e2e_ms",
    "normalized_ttft": "normalized_ttft_ms",
}


def deployment_answer(
    points: Sequence[StoredPoint], missing: Sequence[MissingLevel], slo: Slo, per: Per
) -> DeploymentAnswer:
    """The deployment's best level, what was excluded and why, and what could be better still."""
    excluded: list[Excluded] = []
    usable: list[StoredPoint] = []
    for point in points:
        reason = reason_to_exclude(point)
        if reason is None:
            usable.append(point)
        else:
            excluded.append(Excluded(point.deployment, reason, level=point, evidence=point))
    usable.sort(key=lambda point: point.head.level)
    # of each control the last one stays: the highest level that holds
    best_points = {point.head.control: point for point in usable if holds(point)}
    controls = {point.head.control for point in points}
    controls |= {missing_level.level.control for missing_level in missing}
    above = {
        control: _levels_above(control, points, missing, best_points.get(control))
        for control in sorted(controls)
    }
    divisors = {control: divisor_of_point(point, per) for control, point in best_points.items()}
    incomparable = None
    if best_points and not any(divisors.values()):
        incomparable = _reason_without_divisor(points[0].deployment, per)
        excluded.append(Excluded(points[0].deployment, incomparable))
    elif usable and not best_points:
        excluded.append(_no_level_holds(usable, slo))
    ranked: list[RankedDeployment] = []
    for control, point in best_points.items():
        divisor = divisors[control]
        if divisor:
            # nothing is above all requests at once
            may_hold_more = above[control].nothing_missed and not math.isinf(point.head.level)
            of_point = _ranked(point, usable, divisor, may_hold_more)
            ranked.append(_down_to_if_slower(of_point, usable))
    return DeploymentAnswer(
        label=points[0].deployment.label if points else missing[0].label,
        measured=bool(points),
        ranked=max(ranked, key=lambda deployment: deployment.ranking_value, default=None),
        excluded=tuple(excluded),
        open_levels=tuple(level for levels in above.values() for level in levels.open),
        lasting_levels=tuple(verdict for levels in above.values() for verdict in levels.lasting),
        near_levels=tuple(level for levels in above.values() for level in levels.near),
        had_no_room=_had_no_room(points),
        incomparable=incomparable,
    )


def claims(
    points: Sequence[StoredPoint], slo: Slo, rules: SearchRules, slo_index: int = 0
) -> dict[str, Claim]:
    """What probes of one workload on one deployment show, by control.

    ``slo_index``: the index of ``slo`` among the SLOs by which the points were judged.
    """
    launched = points[0].deployment.launched
    probes: dict[str, list[tuple[int, ProbeOutcome]]] = {}
    for point in points:
        for repeat in point.repeats:
            met: tuple[Bools, ...] = ()
            if repeat.verdicts:
                met = tuple(test.met for test in repeat.verdicts[slo_index].tests)
            head = repeat.head
            probe = outcome_of_point(head, head.level, met, slo, launched, rules.starts)
            probes.setdefault(head.control, []).append((head.started_unix_ns, probe))
    shares_to_meet = targets_of(slo)
    claims_by_control: dict[str, Claim] = {}
    for control, timed_probes in probes.items():
        timed_probes.sort(key=lambda timed_probe: timed_probe[0])
        claims_by_control[control] = claim_of(
            at_levels([probe for _, probe in timed_probes], shares_to_meet),
            shares_to_meet[0],
            control == "concurrency",
            rules.precision,
            rules.sendable,
        )
    return claims_by_control


def claims_among_rivals(
    searches: Sequence[tuple[StoredDeployment, Mapping[str, Claim]]], per: Per
) -> list[dict[str, Claim]]:
    """The claims of deployments that are compared, with the status ``outraced`` for the beaten.

    Only request rates are compared: more requests in flight do not mean more throughput.
    """
    control = "request_rate"
    divisors = [divisor_of(deployment, per) or 0.0 for deployment, _ in searches]
    rivals: list[RivalClaim] = []
    for (_, claims_by_control), divisor in zip(searches, divisors, strict=True):
        claim = claims_by_control.get(control)
        if claim is not None and divisor:
            rivals.append(RivalClaim(claim, divisor))
    lead = lead_of(rivals)
    among_all: list[dict[str, Claim]] = []
    for (_, claims_by_control), divisor in zip(searches, divisors, strict=True):
        beside_rivals = dict(claims_by_control)
        if control in beside_rivals:
            beside_rivals[control] = among_rivals(beside_rivals[control], lead * divisor)
        among_all.append(beside_rivals)
    return among_all


def searched_answer(
    points: Sequence[StoredPoint], slo: Slo, per: Per, claims_by_control: Mapping[str, Claim]
) -> DeploymentAnswer:
    """What is known of a deployment whose capacity was searched.

    What holds is what is claimed. Where nothing is claimed, the estimate of a search that may go on
    takes its place.
    """
    deployment = points[0].deployment
    searched: list[SearchedClaim] = []
    for control, claim in claims_by_control.items():
        probes: list[Repeat] = []
        for point in points:
            if point.head.control == control:
                probes += point.repeats
        searched.append(SearchedClaim(control, claim, first_change(claim, probes, slo)))
    claimed = [search for search in searched if search.claimed_level is not None]
    estimated = [] if claimed else _estimated(points, searched)
    usable = [point for point in points if reason_to_exclude(point) is None]
    ranked: list[RankedDeployment] = []
    for search in claimed:
        point = _point_of_claim(points, search)
        divisor = divisor_of_point(point, per)
        if divisor:
            by_claim = _ranked_by_claim(point, search, divisor, slo)
            ranked.append(_down_to_if_slower(by_claim, usable))
    for estimate in estimated:
        divisor = divisor_of_point(estimate.point, per)
        if divisor:
            ranked.append(_ranked_by_estimate(estimate, divisor))
    excluded: list[Excluded] = []
    incomparable = None
    if not (claimed or estimated):
        excluded.append(_search_found_no_level(points, searched, slo))
    elif not ranked:
        incomparable = _reason_without_divisor(deployment, per)
        excluded.append(Excluded(deployment, incomparable))
    return DeploymentAnswer(
        label=deployment.label,
        measured=True,
        ranked=max(ranked, key=lambda deployment: deployment.ranking_value, default=None),
        excluded=tuple(excluded),
        incomparable=incomparable,
        unsettled=tuple(search for search in searched if _is_unsettled(search.claim)),
    )


def _is_unsettled(claim: Claim) -> bool:
    return claim.status not in (*SETTLED, "outraced") and not claim.pointless


def _search_found_no_level(
    points: Sequence[StoredPoint], searched: Sequence[SearchedClaim], slo: Slo
) -> Excluded:
    """Why nothing is claimed of a deployment.

    If the probes have a verdict that no other load would change, that is the reason. Where nothing
    holds, the lowest level with requests shows why.
    """
    deployment = points[0].deployment
    statuses = {search.claim.status for search in searched}
    pointless = [
        point for point in points if point.validity in statuses and point.validity in POINTLESS
    ]
    if pointless:
        evidence = pointless[0]
        reason = reason_to_exclude(evidence)
        if reason is not None:
            return Excluded(deployment, reason, evidence=evidence)
    excluded = Excluded(deployment, Exclusion.SEARCH_FOUND_NO_LEVEL, claims=tuple(searched))
    if "nothing_holds" not in statuses:
        return excluded
    judged = [point for point in points if point.tests]
    if not judged:
        return excluded
    lowest = min(judged, key=lambda point: point.head.level)
    return replace(excluded, evidence=lowest, shortfall=shortfall_of(lowest, slo))


def _point_of_claim(points: Sequence[StoredPoint], searched: SearchedClaim) -> StoredPoint:
    """The point whose probes show what is claimed."""
    return next(
        point
        for point in points
        if point.head.control == searched.control and point.head.level == searched.claimed_level
    )


def _ranked_by_claim(
    point: StoredPoint, searched: SearchedClaim, divisor: float, slo: Slo
) -> RankedDeployment:
    claim = searched.claim
    return _ranked(
        point,
        usable=(),
        divisor=divisor,
        lower_bound_only=math.isinf(claim.high),
        claim=claim,
        ranked_level=ranking_level(claim, first_target(slo)),
    )


@dataclass(frozen=True, slots=True)
class _Estimated:
    """The estimate of a search that claims nothing, and the point with which it is ranked."""

    claim: Claim
    estimate: Estimate
    point: StoredPoint


def _estimated(
    points: Sequence[StoredPoint], searched: Sequence[SearchedClaim]
) -> list[_Estimated]:
    """The estimates of searches that could still claim something.

    The point is the highest level at or below the estimate whose probes have figures, else the
    lowest above it.
    """
    estimated: list[_Estimated] = []
    for search in searched:
        claim = search.claim
        estimate = search.claim.estimate
        if estimate is None or claim.status not in _UNFINISHED:
            continue
        probed = [
            point
            for point in points
            if point.head.control == search.control and _has_figures(point)
        ]
        below = [point for point in probed if point.head.level <= estimate.level]
        if below:
            point = max(below, key=lambda point: point.head.level)
        elif probed:
            point = min(probed, key=lambda point: point.head.level)
        else:
            continue
        estimated.append(_Estimated(claim, estimate, point))
    return estimated


def _has_figures(point: StoredPoint) -> bool:
    return point.attainment is not None and point.output_token_throughput() is not None


def _ranked_by_estimate(estimated: _Estimated, divisor: float) -> RankedDeployment:
    """Ranks a deployment by an estimate.

    Throughput is taken to be proportional to the load between the probed and the estimated level.
    """
    estimate = estimated.estimate
    level = estimated.point.head.level
    ranked = _ranked(estimated.point, (), divisor, lower_bound_only=False, claim=estimated.claim)
    rate = estimated.point.output_token_throughput()
    assert rate is not None  # see _has_figures
    per_load = rate.scaled(1 / (divisor * level))
    throughput = replace(
        per_load.scaled(estimate.level),
        lower=per_load.lower * estimate.lower,
        upper=per_load.upper * estimate.upper,
    )
    return replace(
        ranked,
        throughput=throughput,
        ranking_value=throughput.estimate,
        estimate=estimate,
    )


@dataclass(frozen=True, slots=True)
class _LevelsAbove:
    """The levels above the one that holds; see ``DeploymentAnswer``."""

    nothing_missed: bool  # no level above was seen to miss a limit, not even by chance
    open: list[Level]
    lasting: list[LastingVerdict]
    near: list[Level]


def _levels_above(
    control: str,
    points: Sequence[StoredPoint],
    missing: Sequence[MissingLevel],
    best_point: StoredPoint | None,
) -> _LevelsAbove:
    """What is known above the best point, up to the first level that is shown to fail.

    ``best_point``: None: no level holds.
    """
    floor = best_point.head.level if best_point else 0.0
    higher = [
        point for point in points if point.head.control == control and point.head.level > floor
    ]
    failing = [point.head.level for point in higher if is_shown_to_fail(point)]
    ceiling = min(failing, default=None)  # math.inf is a level: all requests at once
    near: list[float] = []
    open_values: set[float] = set()
    lasting: list[LastingVerdict] = []
    for point in higher:
        if ceiling is not None and point.head.level >= ceiling:
            continue
        reason = reason_to_exclude(point)
        if reason is None:
            # the level does not hold, since it is above the best point
            near.append(point.head.level)
        # imported figures without requests leave no level open: no other run would add requests
        elif reason is not Exclusion.ONLY_FIGURES:
            open_values.add(point.head.level)
            if point.validity in LASTING_VERDICTS:
                lasting.append(LastingVerdict(level_of(point), Validity(point.validity)))
    for missing_level in missing:
        level = missing_level.level
        is_below_ceiling = ceiling is None or level.value < ceiling
        if level.control == control and floor < level.value and is_below_ceiling:
            open_values.add(level.value)
    return _LevelsAbove(
        nothing_missed=not failing and not near,
        open=_levels(control, open_values),
        lasting=lasting,
        near=_levels(control, near),
    )


def _levels(control: str, values: Iterable[float]) -> list[Level]:
    return [level_at(control, value) for value in sorted(values)]


def is_shown_to_fail(point: StoredPoint) -> bool:
    """Whether a point shows that its level fails.

    It does if the engine broke, fell behind or answered noise, or if more requests missed a limit
    than chance explains.
    """
    if point.engine_failures or point.validity in (BACKLOG, BROKEN):
        return True
    if reason_to_exclude(point) is not None:
        return False
    return any(test.share.upper < test.target for test in point.tests)


def holds(point: StoredPoint) -> bool:
    """Whether all tests of the SLO hold at a point, by the estimates from its requests."""
    return bool(point.tests) and all(test.share.estimate >= test.target for test in point.tests)


def _margin(test: Attained) -> float:
    """How far a share lies above its target."""
    return test.share.estimate - test.target


def _weakest_test(point: StoredPoint) -> Attained:
    """The test that is furthest below its target, or least above it."""
    return min(point.tests, key=_margin)


def reason_to_exclude(point: StoredPoint) -> Exclusion | None:
    """Why a point cannot be the best; None: it can.

    A point with many failed requests can be the best if the SLO allows that many.
    """
    if point.engine_failures or not point.used_repeats:
        return Exclusion.FAILED
    if point.validity not in ("valid", FAILING, UNCHECKED):
        return Exclusion.NOT_VALID
    if any(repeat.head.ended_early == "fails" for repeat in point.used_repeats):
        return Exclusion.ENDED_EARLY
    if point.attainment is None:
        return Exclusion.NO_REQUESTS if point.source is None else Exclusion.ONLY_FIGURES
    return None


def divisor_of_capacity(deployment: StoredDeployment, per: Per, control: str) -> float | None:
    """What a capacity is divided by; None: unknown, or it would mean nothing.

    Requests in flight are not divided by dollars, since nobody buys them by the dollar.
    """
    if per == "usd" and control == "concurrency":
        return None
    return divisor_of(deployment, per)


def _had_no_room(points: Sequence[StoredPoint]) -> bool:
    """Whether all that is known of these points is that no node could hold their deployment."""
    kinds = {repeat.head.failure_kind for point in points for repeat in point.repeats}
    return kinds == {FailureKind.NO_ROOM}


def _ranked(
    point: StoredPoint,
    usable: Sequence[StoredPoint],
    divisor: float,
    lower_bound_only: bool,
    claim: Claim | None = None,
    ranked_level: float | None = None,
) -> RankedDeployment:
    """Ranks a deployment by one of its points.

    ``ranked_level``: the level by which a search is ranked. None or 0: that of the point.
    """
    rate = point.output_token_throughput()
    attainment = point.attainment
    assert rate is not None
    assert attainment is not None
    throughput = rate.scaled(1 / divisor)
    level = point.head.level
    of_ranked_level = ranked_level / level if ranked_level else 1.0
    return RankedDeployment(
        point=point,
        attainment=attainment,
        throughput=throughput,
        lower_bound_only=lower_bound_only,
        notes=tuple(_notes(point, usable, lower_bound_only, claim is not None)),
        ranking_value=throughput.estimate * of_ranked_level,
        capacity=claim,
        divisor=divisor,
        sends_whole_trace=_sends_whole_trace(point, usable),
    )


def _sends_whole_trace(point: StoredPoint, usable: Sequence[StoredPoint]) -> bool:
    """Whether a point sends all sessions of a trace that other levels thin."""
    factor = point.head.rate_factor
    if factor is None or factor < 1 - RATE_DIFFERS:
        return False
    return any(other.head.thinned_share for other in usable)


def _held_if_slower(
    best_point: StoredPoint, usable: Sequence[StoredPoint], divisor: float
) -> HeldIfSlower | None:
    """See ``RankedDeployment.if_slower``. ``usable``: the points that can be best."""
    if not best_point.simulated:
        return None
    # not true of bounds that are not known (NaN)
    if not any(test.share.lower < test.target for test in best_point.tests):
        return None
    head = best_point.head
    held: StoredPoint | None = None
    for point in usable:
        is_below = point.head.control == head.control and point.head.level < head.level
        if not is_below or not _holds_if_slower(point):
            continue
        if held is None or point.head.level > held.head.level:
            held = point
    if held is None:
        return HeldIfSlower(None, 0.0)
    rate = held.output_token_throughput()
    assert rate is not None
    return HeldIfSlower(level_of(held), rate.lower / divisor)


def _down_to_if_slower(ranked: RankedDeployment, usable: Sequence[StoredPoint]) -> RankedDeployment:
    """The deployment, with an interval down to what it holds if the engine is slower than
    simulated: a lower level, or none. ``usable``: the points that can be best.
    """
    held = _held_if_slower(ranked.point, usable, ranked.divisor)
    if held is None:
        return ranked
    lower = min(ranked.throughput.lower, held.throughput)
    throughput = replace(ranked.throughput, lower=lower)
    return replace(ranked, throughput=throughput, if_slower=held)


def _holds_if_slower(point: StoredPoint) -> bool:
    """Whether all tests hold at a simulated point even where the model is off by its error."""
    return bool(point.tests) and all(test.share.lower >= test.target for test in point.tests)


def _notes(
    point: StoredPoint, usable: Sequence[StoredPoint], lower_bound_only: bool, is_claimed: bool
) -> list[Note]:
    notes: list[Note] = []
    if lower_bound_only:
        notes.append(Note(NoteKind.NO_LEVEL_FAILED))
    head = point.head
    lower_points = [
        other
        for other in usable
        if other.head.control == head.control and other.head.level < head.level
    ]
    if not all(holds(other) for other in lower_points):
        notes.append(Note(NoteKind.NOT_MONOTONIC))
    if not is_claimed:  # a claim was shown by a test of its own
        for test in tests_that_may_miss(point):
            notes.append(Note(NoteKind.MAY_MISS_TARGET, test=test))
    if point.validity == FAILING:
        notes.append(Note(NoteKind.FAILING))
    if len(point.used_repeats) < len(point.repeats):
        notes.append(Note(NoteKind.REPEATS_LEFT_OUT))
    if not all(repeat.valid for repeat in point.used_repeats):
        notes.append(Note(NoteKind.FELL_BEHIND))
    return notes


def tests_that_may_miss(point: StoredPoint) -> list[Attained]:
    """The tests whose interval reaches below the target."""
    return [test for test in point.tests if test.share.lower < test.target]


def per_or_default(per: Per | None, deployments: Sequence[StoredDeployment]) -> Per:
    """What throughputs are divided by.

    ``per``: None: GPUs if all deployments have some, else nothing (``deployment``).
    """
    if per is not None:
        return per
    return "gpu" if all(deployment.devices for deployment in deployments) else "deployment"


def divisor_of(deployment: StoredDeployment, per: Per) -> float | None:
    """What tokens/s are divided by: GPUs, USD per second, or 1; None: unknown.

    Joules per second are not of a deployment but of a point: ``divisor_of_point``.
    """
    if per == "deployment":
        return 1.0
    if per == "joule":
        return None
    if per == "usd":
        return deployment.usd_per_hour / 3600 if deployment.usd_per_hour else None
    return float(deployment.devices) or None


def divisor_of_point(point: StoredPoint, per: Per) -> float | None:
    """What the tokens/s of a point are divided by: what its deployment has, or the joules per
    second that its GPUs used together; None: unknown.
    """
    if per != "joule":
        return divisor_of(point.deployment, per)
    return point.energy.power_w if point.energy is not None else None


def _reason_without_divisor(deployment: StoredDeployment, per: Per) -> Exclusion:
    if per == "joule":
        return Exclusion.ENERGY_UNKNOWN
    # With GPUs, only a price can be missing. Without them both are: prices are per GPU.
    return Exclusion.PRICE_UNKNOWN if deployment.devices else Exclusion.GPUS_UNKNOWN


def _no_level_holds(usable: Sequence[StoredPoint], slo: Slo) -> Excluded:
    """Excludes a deployment at which no level holds; the point that comes nearest shows why."""
    nearest = max(usable, key=lambda point: _margin(_weakest_test(point)))
    return Excluded(
        nearest.deployment,
        Exclusion.NO_LEVEL_HOLDS,
        evidence=nearest,
        shortfall=shortfall_of(nearest, slo),
    )


def shortfall_of(point: StoredPoint, slo: Slo) -> Shortfall:
    """What keeps a point from holding the limits."""
    share_by_name = shares([repeat.verdicts[0] for repeat in point.used_repeats])
    met = {limit: share_by_name[limit.name] for limit in slo.limits if limit.name in share_by_name}
    test = _weakest_test(point)
    percentile = _exceeded_percentile(point, slo, met)
    if percentile is not None:
        return Shortfall(test, percentile)
    missed = tuple(
        MissedLimit(limit, share)
        for limit, share in met.items()
        if _was_missed_by_answers(point, limit, share)
    )
    return Shortfall(test, None, missed)


def _was_missed_by_answers(point: StoredPoint, limit: Limit, share: float) -> bool:
    """Whether some answered request missed a limit, which a share of all requests met.

    Every request that met it was answered, so then fewer met it than were answered. Half a request
    is for the rounding of ``share * scheduled``.
    """
    figures = point.figures_of(limit.part)
    if figures is None:
        return False
    return share * figures.requests.scheduled < figures.requests.ok - 0.5


def _exceeded_percentile(
    point: StoredPoint, slo: Slo, met: Mapping[Limit, float]
) -> ExceededPercentile | None:
    """The percentile of the worst limit, at the share of requests that must meet it.

    None: no latency is limited, the latency has no percentiles, or this one does not exceed the
    limit.
    """
    if not met:
        return None
    worst = min(met, key=lambda limit: met[limit] - slo.to_meet(limit))
    share_to_meet = slo.to_meet(worst)
    quantile = next((quantile for quantile in QUANTILES if quantile >= share_to_meet), 0.99)
    values = getattr(point.figures_of(worst.part), _FIGURE_OF.get(worst.of, ""), None)
    if values is None:
        return None
    name = f"p{quantile * 100:.0f}"
    value_ms = getattr(values, name)
    if value_ms <= worst.seconds * 1e3:
        return None
    return ExceededPercentile(worst, name, value_ms)

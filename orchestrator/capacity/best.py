"""Which deployment gives the most throughput while the limits hold, how sure that is, and what
would settle it.

capacity.py finds what each deployment holds. A level that was asked for and not measured is as much
a doubt as one that was measured badly: nothing is certain while a level that was never judged could
still change the answer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from orchestrator.analysis.answers import NEAR_CHANCE, called, model_of, too_little
from orchestrator.analysis.intervals import exceeds, starts_to_decide
from orchestrator.analysis.measured import Point
from orchestrator.analysis.slo import format_slo
from orchestrator.base.errors import FailureClass
from orchestrator.base.text import listed
from orchestrator.capacity.capacities import (
    Candidate,
    Contender,
    Group,
    LeftOut,
    Missing,
    Searched,
    claims,
    contender,
    holds,
    per_of,
    raced,
    test_text,
)
from orchestrator.capacity.choose_level import SAME, STEPS
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.dominance import SETTLED
from orchestrator.results.validity import MOST_AGAIN, SPOILT, Validity
from orchestrator.spec.load import Per, Slo, load_text

# what to do about verdicts that neither another load nor a repeat changes
MENDS = {one: one.remedy for one in Validity if one.remedy}
RUN_AGAIN = "run the experiment again"  # begins the advice that a command carries out
# why the answer is not certain, and which measurement would settle it
Doubt = tuple[str, str | None]


class _Contending(NamedTuple):
    """What tells the deployments of a comparison apart."""

    deployment_id: str
    label: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ranking of deployments of one model that were asked the same, best first.

    ``decide``: the further measurements that would make it certain, a sentence each. ``content``:
    what was asked, where there is no plan to say it.
    """

    experiment: str
    workload: str
    model: str
    hardware: str
    slo: Slo
    per: Per
    unit: str
    ranking: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    certain: bool
    why: str
    decide: tuple[str, ...]
    emulated: bool
    content: str = ""
    measured: bool = True  # it has a valid measurement, whether or not that holds the limits
    # whether running the same plan again measures something that is in doubt: how often what was
    # spoilt must then be allowed to be measured again (``run --again``); None: it would not
    run_again: int | None = None


def best(
    points: Sequence[Point],
    slo: Slo,
    per: Per | None = None,
    missing: Sequence[Missing] = (),
    searched: Mapping[str, Searched] = MappingProxyType({}),
    full_grid: bool = False,
    may_start: int | None = None,
) -> list[Comparison]:
    """One comparison per experiment, workload, model and hardware; per dollar all hardware is
    compared. Emulated points are compared among themselves.

    ``points``: from ``load_points`` with the same ``slo``; those of one workload name must have the
    same content. ``per`` None: per GPU, or per deployment where a comparison has an endpoint, whose
    GPUs are not known. ``searched``: workloads whose capacity was searched, and how. ``full_grid``:
    the deployments did not race. ``may_start``: how many that were not measured yet may be started;
    None: all.
    """
    groups: dict[Group, tuple[list[Point], list[Missing]]] = {}
    for point in points:
        groups.setdefault(ranked_in(point, per), ([], []))[0].append(point)
    for one in missing:
        groups.setdefault(_in(one.group, per), ([], []))[1].append(one)
    return [
        _comparison(
            group, *groups[group], slo, (per, searched.get(group.workload), full_grid, may_start)
        )
        for group in sorted(groups)
    ]


def group_of(point: Point) -> Group:
    """The group that a point is shown in: all checkpoints of one model stand together."""
    head, deployment = point.head, point.deployment
    return Group(
        head.experiment, head.workload, model_of(deployment), deployment.hardware, point.emulated
    )


def ranked_in(point: Point, per: Per | None) -> Group:
    """The group that a point is ranked in."""
    return _in(group_of(point), per)


def _in(group: Group, per: Per | None) -> Group:
    return group._replace(hardware="") if per == "usd" else group


def _comparison(
    group: Group,
    points: Sequence[Point],
    missing: Sequence[Missing],
    slo: Slo,
    how: tuple[Per | None, Searched | None, bool, int | None],
) -> Comparison:
    asked, searched, full_grid, may_start = how
    per = per_of(asked, [point.deployment for point in points])
    # by label too: two runs of `orchestrator load` may have measured one endpoint
    of_each: dict[_Contending, tuple[list[Point], list[Missing]]] = {}
    for point in points:
        key = _Contending(point.head.deployment_id, point.deployment.label)
        of_each.setdefault(key, ([], []))[0].append(point)
    for one in missing:
        key = _Contending(one.deployment_id, one.label)
        of_each.setdefault(key, ([], []))[1].append(one)
    claimed = _claimed(of_each, slo, searched, None if full_grid else per)
    contenders = [
        _agreeing(contender(*some, slo, per, claimed.get(name)), slo)
        for name, some in of_each.items()
    ]
    found = [one.candidate for one in contenders if one.candidate]
    notes = _near_chance(points)
    found = [
        replace(one, notes=(*one.notes, *notes.get(one.point.head.deployment_id, ())))
        for one in found
    ]
    ranking = sorted(found, key=lambda one: (-one.rank, one.point.deployment.label))
    spoilt = {} if ranking else _spoilt(points)
    unsettled = tuple(_unsettled([one for one in contenders if one.label not in spoilt], may_start))
    beaten = any(claim.status == "outraced" for one in claimed.values() for claim in one.values())
    certain, why, decide = (
        _certainty(unsettled, ranking, beaten)
        if ranking
        else _nothing(unsettled, contenders, points, slo)
    )
    kinds = {point.deployment.hardware for point in points} | {
        one.group.hardware for one in missing
    }
    return Comparison(
        experiment=group.experiment,
        workload=group.workload,
        model=called([point.deployment for point in points]) if points else missing[0].model,
        hardware=", ".join(sorted(kinds)),
        slo=slo,
        per=per,
        unit=_unit(points, per),
        ranking=tuple(ranking),
        left_out=tuple(left for one in contenders for left in one.left_out),
        certain=certain,
        why=why,
        decide=decide,
        emulated=group.emulated,
        measured=any(repeat.counts for point in points for repeat in point.repeats),
        run_again=_run_again(points, missing),
    )


def _run_again(points: Sequence[Point], missing: Sequence[Missing]) -> int | None:
    """See ``Comparison.run_again``."""
    repeats = [repeat for point in points for repeat in point.repeats]
    spoilt = [one.attempts for one in repeats if one.ok and one.point.validity in SPOILT]
    failed = any(
        not one.ok and one.point.failure_class != FailureClass.BAD_CONFIG for one in repeats
    )
    if spoilt:
        return max(MOST_AGAIN, *spoilt)
    return MOST_AGAIN if failed or missing else None


def _agreeing(one: Contender, slo: Slo) -> Contender:
    """The deployment, out of the ranking if its answers agree too little with the reference's. No
    further measurement changes that, so nothing is in doubt about it either.
    """
    if slo.agreement is None or one.candidate is None:
        return one
    point = one.candidate.point
    reason = too_little(point.agreement, slo.agreement)
    if reason is None:
        return one
    left_out = (*one.left_out, LeftOut(point.deployment, None, reason))
    return replace(one, candidate=None, left_out=left_out, open=(), near=(), unsettled=())


def _near_chance(points: Sequence[Point]) -> dict[str, tuple[str]]:
    """By deployment id, a note on answers that hardly equal the reference's, where those of others
    of the model do.
    """
    known = {
        point.head.deployment_id: point for point in points if point.agreement.share is not None
    }
    others = [
        point.deployment.label
        for point in known.values()
        if (point.agreement.share or 0.0) >= NEAR_CHANCE
    ]
    if not others:
        return {}
    return {
        name: (
            f"agreement {point.agreement.share:.3f}: hardly any of its answers equals those of "
            f"{point.agreement.reference}, as those of {listed(others)} do: does it compute the "
            "same model? (a limit: agreement>=0.9)",
        )
        for name, point in known.items()
        if (point.agreement.share or 0.0) < NEAR_CHANCE
    }


def _claimed(
    of_each: Mapping[_Contending, tuple[Sequence[Point], object]],
    slo: Slo,
    searched: Searched | None,
    race: Per | None,
) -> dict[_Contending, dict[str, Claim]]:
    """The claims of searches, by deployment. ``race``: the unit they race in; None: they do not
    race.
    """
    found = {
        name: claims(some, slo, searched)
        for name, (some, _) in of_each.items()
        if some and searched is not None
    }
    if race is None:
        return found
    rows = [(of_each[name][0][0].deployment, one) for name, one in found.items()]
    return dict(zip(found, raced(rows, race), strict=True))


def _unit(points: Sequence[Point], per: Per) -> str:
    if per == "usd":
        return "output tokens/USD"
    cpu = {point.deployment.accelerator for point in points} == {"cpu"}
    return (
        "output tokens/s"
        if per == "deployment"
        else f"output tokens/s per {'core' if cpu else 'GPU'}"
    )


def _certainty(
    unsettled: Sequence[Doubt], ranking: Sequence[Candidate], beaten: bool
) -> tuple[bool, str, tuple[str, ...]]:
    """Whether the first is certain to be the best, why in one sentence, and which measurements
    would settle it. ``beaten``: some were outraced, of which nothing may be claimed.
    """
    doubts = [*unsettled, *_weak(ranking)]
    if doubts:
        why = "; ".join(doubt for doubt, _ in doubts)
        return False, f"not certain: {why}", tuple(text for _, text in doubts if text)
    if len(ranking) == 1 and not beaten:
        return True, "certain: the only deployment that holds the limits", ()
    if all(one.bounds for one in ranking):
        return (
            True,
            "certain: every other was shown to fail at what is claimed of the first, or below",
            (),
        )
    return True, "certain: it is ahead of every other by more than starts differ", ()


def _unsettled(contenders: Sequence[Contender], may_start: int | None) -> Iterator[Doubt]:
    """Doubts about deployments that could still turn out better than all in the ranking."""
    if new := [one.label for one in contenders if not one.measured]:
        ahead = (
            f"it goes on with {listed(new)}"
            if may_start is None
            else f"max_deployments allows {may_start} more"
        )
        larger = "give a larger max_deployments: no more are started"
        again = larger if may_start == 0 else f"{RUN_AGAIN}: {ahead}"
        yield f"{listed(new)} {_are(new)} not measured yet", again
    if unknown := [one for one in contenders if one.measured and one.open]:
        names = [one.label for one in unknown]
        levels = listed([f"{one.label} at {', '.join(one.open)}" for one in unknown])
        yield (
            f"levels of {listed(names)} that could hold have no valid measurement",
            f"{RUN_AGAIN}: it measures {levels} as far as that was spoilt, failed or is missing",
        )
    if near := [one for one in contenders if one.near]:
        names = [one.label for one in near]
        levels = listed([f"{one.label} at {', '.join(one.near)}" for one in near])
        yield f"{listed(names)} could hold more", f"measure {levels} again: more repeats, or longer"
    if unsettled := [one for one in contenders if one.unsettled]:
        known = listed([f"{one.label} {', '.join(one.unsettled)}" for one in unsettled])
        doubt = f"capacities are not settled: {known}"
        yield (
            doubt,
            f"search {listed([one.label for one in unsettled])} on, with more budget or longer probes",
        )
    some = [
        one.candidate for one in contenders if one.candidate and not (one.open or one.unsettled)
    ]
    censored = [one for one in some if one.censored]
    if censored:
        names, loads = (
            [one.point.deployment.label for one in censored],
            dict.fromkeys(one.load for one in censored),
        )
        doubt = f"the capacity of {listed(names)} was not reached"
        yield doubt, f"measure {listed(names)} at higher levels than {', '.join(loads)}"
    if other := [one.label for one in contenders if one.incomparable]:
        yield f"{listed(other)} cannot be compared with the others", None


def _weak(ranking: Sequence[Candidate]) -> Iterator[Doubt]:
    """Doubts about the order of the ranking. Deployments that were outraced need no more measuring,
    unless one of them is first: they failed at a load that another one holds.
    """
    first, *others = ranking
    known = [
        first,
        *(one for one in others if one.capacity is None or one.capacity.status != "outraced"),
    ]
    if unsteady := [
        one.name for one in known if any(repeat.point.steady is False for repeat in one.point.used)
    ]:
        yield f"no part of {listed(unsteady)} was steady", f"measure {listed(unsteady)} longer"
    if partial := [
        _label(one) for one in known if not all(repeat.valid for repeat in one.point.repeats)
    ]:
        yield f"repeats of {listed(partial)} failed or are not valid", None
    single = [one for one in known if one.throughput.starts < 2]
    if single:
        started = [one for one in single if one.point.deployment.launched]
        spoilt = [
            _label(one)
            for one in started
            if len({repeat.point.start for repeat in one.point.repeats}) > 1
        ]
        again = [_label(one) for one in started if _label(one) not in spoilt]
        yield (
            "one start: spread unknown",
            f"start {listed(again)} at least twice (starts: 2)" if again else None,
        )
        if spoilt:
            yield (
                f"one start alone of {listed(spoilt)} is valid",
                f"measure {listed(spoilt)} with more repeats",
            )
    below = [one for one in first.point.tests if one.share.lower < one.target]
    # a claimed capacity was confirmed by a test of its own
    if short := below if first.capacity is None else []:
        doubt = f"the winner's {test_text(short[0]).removeprefix('the ')} could be below the target"
        yield doubt, f"measure {first.name} again: more repeats, or longer"
    yield from _order(first, others, bool(single))


def _order(first: Candidate, others: Sequence[Candidate], single: bool) -> Iterator[Doubt]:
    """Doubts about which one holds most. Request rates that were searched are compared by their
    bounds: the throughput at a rate is what was sent. ``single``: some have one start.
    """
    if more := [_label(one) for one in others if _claims_more(one, first)]:
        doubt = f"more is claimed of {listed(more)}, but the probes of {_label(first)} expect it to hold more"
        yield doubt, f"search {listed([_label(first), *more])} on, with a smaller precision"
    less = [one for one in others if not _claims_more(one, first)]
    yield from _overlapping(
        first, [one for one in less if one.capacity and one.capacity.status in SETTLED]
    )
    told = [one for one in less if one.throughput.starts > 1 and not (first.bounds and one.bounds)]
    near = [] if single else [one for one in told if not exceeds(first.throughput, one.throughput)]
    if near:
        labels = [_label(one) for one in near]
        starts = starts_to_decide(first.throughput, near[0].throughput)
        many = f"about {starts} starts each of" if starts else "many more starts of"
        doubt = f"{listed(labels)} {_are(labels)} behind by less than starts differ"
        yield doubt, f"{many} {first.name} and {near[0].name}"


def _overlapping(first: Candidate, settled: Sequence[Candidate]) -> Iterator[Doubt]:
    """Whose search ended without showing that they fail at what is claimed of the first. Of
    searches that are not settled that is said already.
    """
    if first.bounds is None:
        return
    claim, narrow = first.bounds[0], 2 ** (1 / STEPS)
    over = [
        (_label(one), one.bounds) for one in settled if one.bounds and one.bounds[1] > claim * SAME
    ]
    if not over:
        return
    doubt = f"bounds overlap: {listed([label for label, _ in over])} could hold up to"
    doubt = f"{doubt} {max(high for _, (_, high) in over) / claim - 1:.1%} more than is claimed of {_label(first)}"
    both = [(_label(first), first.bounds), *over]
    wide = [label for label, (low, high) in both if high > low * narrow * SAME]
    if wide:
        yield doubt, f"search {listed(wide)} on, with a smaller precision"
    else:
        yield f"{doubt}, and no search tells more: levels are {narrow - 1:.1%} apart", None


def _claims_more(one: Candidate, first: Candidate) -> bool:
    """Whether more is claimed of ``one``, although the other is first."""
    if one.bounds and first.bounds:
        return one.bounds[0] > first.bounds[0] * SAME
    return one.throughput.estimate > first.throughput.estimate


def _nothing(
    unsettled: Sequence[Doubt], contenders: Sequence[Contender], points: Sequence[Point], slo: Slo
) -> tuple[bool, str, tuple[str, ...]]:
    """The certainty (False), why there is no ranking, and what to measure."""
    decide = [text for _, text in unsettled if text]
    if not points:
        return False, "nothing that the plan asks for here is measured yet", tuple(decide)
    if reasons := [one.incomparable for one in contenders if one.incomparable]:
        return False, f"what holds {format_slo(slo)} cannot be ranked: {reasons[0]}", tuple(decide)
    why = f"no deployment holds {format_slo(slo)} at any level with a valid measurement"
    if not any(repeat.counts for point in points for repeat in point.repeats):
        verdicts = Counter(point.validity if point.repeats[0].ok else "failed" for point in points)
        said = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        why = f"no point has a valid measurement: {said}"
    return False, why, (*decide, *_lower(points), *_mend(_spoilt(points)))


def _label(candidate: Candidate) -> str:
    return candidate.point.deployment.label


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _lower(points: Sequence[Point]) -> tuple[str, ...]:
    """What to measure where nothing holds: below the lowest level that failed, where there is
    anything below.
    """
    judged = [point for point in points if point.tests and not holds(point) and _shows(point)]
    lowest = min(judged, key=lambda one: one.head.level, default=None)
    if lowest is None or (lowest.head.control == "concurrency" and lowest.head.level <= 1):
        return ()
    return (f"measure below {load_text(lowest.head.control, lowest.head.level)}",)


def _shows(point: Point) -> bool:
    """Whether its requests show how the engine did, and another load could do something about it."""
    return point.validity not in MENDS and any(repeat.counts for repeat in point.repeats)


def _spoilt(points: Sequence[Point]) -> dict[str, str]:
    """Deployments all of whose points have the same verdict that no other load or repeat mends,
    with that verdict.
    """
    found: dict[str, set[str]] = {}
    for point in points:
        found.setdefault(point.deployment.label, set()).add(point.validity)
    return {label: of for label, (of, *others) in found.items() if of in MENDS and not others}


def _mend(spoilt: Mapping[str, str]) -> Iterator[str]:
    """What to do about them."""
    for verdict, text in MENDS.items():
        if labels := [label for label, one in spoilt.items() if one == verdict]:
            yield text.format(listed(labels))

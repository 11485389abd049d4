"""What one deployment holds: its best level, why others are not it, and what could still be better.

The candidate is the highest measured level at which every test of the SLO holds (the share of
requests, a point estimate over all repeats that count, is at least its target), with the output
token throughput measured there. Only valid points can be candidates: one that the client slowed
down, or whose engine never came to a steady state, may show that a level fails but not that it
holds; and one repeat that the engine failed is enough for that. A level that was asked and not
measured is as open as one that was measured badly.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.measured import Attained, Point
from orchestrator.analysis.metrics import BACKLOG, BROKEN, FAILING, QUANTILES
from orchestrator.analysis.slo import JOINT, shares
from orchestrator.capacity.choose_level import PRECISION
from orchestrator.capacity.claim import POINTLESS, Claim, Probed, at_levels, claim_of, shown_by
from orchestrator.capacity.dominance import SETTLED, against, lead_of, worth
from orchestrator.capacity.outcomes import targets
from orchestrator.results.records import DeploymentRow
from orchestrator.spec.load import Level, Per, Slo, format_duration, load_text

# itl_ms pools all gaps
_FIGURE_OF = {one: f"{one}_ms" for one in ("ttft", "tpot", "e2e", "normalized_ttft")}


class Group(NamedTuple):
    """What is ranked together. ``model``: as ``ids.one_model`` has it. ``hardware`` is empty where
    dollars make several kinds comparable.
    """

    experiment: str
    workload: str
    model: str
    hardware: str
    emulated: bool


class Searched(NamedTuple):
    """How the capacity under a workload was searched. ``precision``: see ``Known``. ``starts``: of
    the engine.
    """

    precision: float = PRECISION
    starts: int = 1


@dataclass(frozen=True, slots=True)
class Missing:
    """A level that the plan asks of a deployment and of which nothing is stored yet."""

    group: Group
    deployment_id: str
    label: str
    model: str
    level: Level


@dataclass(frozen=True, slots=True)
class Candidate:
    """The best level of one deployment. ``censored``: no higher level was seen to fail, so it may
    hold more. ``capacity``: what a search claims of it. ``rank``: what it is ranked by:
    ``throughput``, of a search at the load that it is expected to hold (``capacity/dominance.py``).
    ``divisor``: what the comparison divides loads by.
    """

    point: Point
    attainment: Interval
    throughput: Interval  # in the comparison's unit
    censored: bool
    notes: tuple[str, ...]
    rank: float
    capacity: Claim | None = None
    divisor: float = 1.0

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The request rate that a search claims, and the lowest that fails, divided; None: there
        was none, or in closed loop, where more in flight is not more throughput.
        """
        claim = self.capacity
        if claim is None or claim.claim is None or self.point.head.control != "request_rate":
            return None
        return claim.claim / self.divisor, claim.high / self.divisor

    @property
    def name(self) -> str:
        return f"{self.point.deployment.label} at {self.load}"

    @property
    def load(self) -> str:
        return load_text(self.point.head.control, self.point.head.level)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A level that is no candidate; with ``point`` None a whole deployment."""

    deployment: DeploymentRow
    point: Point | None
    reason: str


@dataclass(frozen=True, slots=True)
class Contender:
    """One deployment. ``open``: levels that nobody judged and that could hold; ``near``: that
    failed by no more than chance; both above what holds and below what is shown to fail.
    ``incomparable``: why it has no figure to rank by. ``unsettled``: what a search knows of its
    capacity that ended before it knew enough.
    """

    label: str
    measured: bool
    candidate: Candidate | None
    left_out: tuple[LeftOut, ...]
    open: tuple[str, ...]
    near: tuple[str, ...]
    incomparable: str | None
    unsettled: tuple[str, ...] = ()


def contender(
    points: Sequence[Point],
    missing: Sequence[Missing],
    slo: Slo,
    per: Per,
    claimed: Mapping[str, Claim] | None = None,
) -> Contender:
    """The deployment's best level, what was left out on the way, with reasons, and what could be
    better still.

    ``claimed``: what the search for its capacity shows, by control; None: there was none.
    """
    if claimed is not None and points:
        return _claimant(points, slo, per, claimed)
    left_out = [
        LeftOut(point.deployment, point, why) for point in points if (why := _unusable(point))
    ]
    usable = sorted(
        (point for point in points if not _unusable(point)), key=lambda one: one.head.level
    )
    tops = {point.head.control: point for point in usable if holds(point)}  # the highest one stays
    controls = {one.head.control for one in points} | {one.level.control for one in missing}
    above = {name: _above(name, points, missing, tops.get(name)) for name in sorted(controls)}
    divisor = _divisor(points[0].deployment, per) if points else None
    incomparable = _no_divisor(points[0].deployment, per) if tops and divisor is None else None
    if incomparable:
        left_out.append(LeftOut(points[0].deployment, None, incomparable))
    elif usable and not tops:
        left_out.append(_none_passes(usable, slo))
    candidates = [
        _candidate(top, usable, divisor, above[name].censored)
        for name, top in tops.items()
        if divisor
    ]
    return Contender(
        label=points[0].deployment.label if points else missing[0].label,
        measured=bool(points),
        candidate=max(candidates, key=lambda one: one.rank, default=None),
        left_out=tuple(left_out),
        open=tuple(load_text(name, level) for name, one in above.items() for level in one.open),
        near=tuple(load_text(name, level) for name, one in above.items() for level in one.near),
        incomparable=incomparable,
    )


def claims(points: Sequence[Point], slo: Slo, searched: Searched, at: int = 0) -> dict[str, Claim]:
    """What probes of one workload on one deployment show, by control. ``at``: which of the SLOs
    that the points are held against it is.
    """
    probes: dict[str, list[tuple[int, Probed]]] = {}
    for one in (repeat for point in points for repeat in point.repeats):
        met = tuple(test.met for test in one.verdicts[at].tests) if one.verdicts else ()
        ours = points[0].deployment.launched
        probe = shown_by(one.point, one.point.level, met, slo, ours, searched.starts)
        probes.setdefault(one.point.control, []).append((one.point.started_unix_ns, probe))
    (shares,) = targets([slo])
    return {
        control: claim_of(
            at_levels([probe for _, probe in sorted(some, key=lambda one: one[0])], shares),
            shares[0],
            control == "concurrency",
            searched.precision,
        )
        for control, some in probes.items()
    }


def raced(
    found: Sequence[tuple[DeploymentRow, Mapping[str, Claim]]], per: Per
) -> list[dict[str, Claim]]:
    """What searches of deployments that are compared show, as ``claims``, with the status of those
    that are beaten.

    Rates alone: more requests in flight are not more throughput."""
    control = "request_rate"
    divisors = [_divisor(deployment, per) or 0.0 for deployment, _ in found]
    known = [
        (claims.get(control), divisor) for (_, claims), divisor in zip(found, divisors, strict=True)
    ]
    lead = lead_of((claim, divisor) for claim, divisor in known if claim is not None and divisor)
    return [
        {
            **claims,
            **({control: against(claims[control], lead * divisor)} if control in claims else {}),
        }
        for (_, claims), divisor in zip(found, divisors, strict=True)
    ]


def _claimant(points: Sequence[Point], slo: Slo, per: Per, found: Mapping[str, Claim]) -> Contender:
    """A deployment whose capacity was searched: what holds is what is claimed."""
    deployment = points[0].deployment
    tops = {
        control: _at(points, control, one.claim)
        for control, one in found.items()
        if one.claim is not None
    }
    divisor = _divisor(deployment, per)
    incomparable = _no_divisor(deployment, per) if tops and divisor is None else None
    left_out = [LeftOut(deployment, None, incomparable)] if incomparable else []
    ((target, *_),) = targets([slo])
    if not tops:
        said = "; ".join(
            f"{claim_text(control, one)} ({one.status})" for control, one in found.items()
        )
        # at no other load either, however long it is searched
        spoilt = (
            point for point in points if any(one.status == point.validity for one in found.values())
        )
        pointless = next((point for point in spoilt if point.validity in POINTLESS), None)
        why = _unusable(pointless) if pointless is not None else None
        left_out.append(
            LeftOut(deployment, None, why or f"no load was shown to hold the limits: {said}")
        )
    candidates = [
        _candidate(
            top,
            (),
            divisor,
            math.isinf(found[control].high),
            found[control],
            worth(found[control], target),
        )
        for control, top in tops.items()
        if divisor
    ]
    return Contender(
        label=deployment.label,
        measured=True,
        candidate=max(candidates, key=lambda one: one.rank, default=None),
        left_out=tuple(left_out),
        open=(),
        near=(),
        incomparable=incomparable,
        unsettled=tuple(
            f"{claim_text(control, one)} ({one.status})"
            for control, one in found.items()
            if one.status not in (*SETTLED, "outraced") and not one.pointless
        ),
    )


def _at(points: Sequence[Point], control: str, level: float) -> Point:
    return next(one for one in points if (one.head.control, one.head.level) == (control, level))


def claim_text(control: str, claim: Claim) -> str:
    """``between 6.9 and 7.9 req/s``."""
    if math.isinf(claim.high):
        return f"at least {load_text(control, claim.low)}" if claim.low else "unknown"
    return f"between {claim.low:g} and {load_text(control, claim.high)}"


class _Above(NamedTuple):
    """Levels above the one that holds: see ``Contender``. ``censored``: none was seen to fail."""

    censored: bool
    open: list[float]
    near: list[float]


def _above(
    control: str, points: Sequence[Point], missing: Sequence[Missing], top: Point | None
) -> _Above:
    """What is known above ``top`` (None: no level holds), up to the first level that is shown to
    fail.
    """
    floor = top.head.level if top else 0.0
    higher = [one for one in points if one.head.control == control and one.head.level > floor]
    failing = [one.head.level for one in higher if _shown_to_fail(one)]
    ceiling = min(failing, default=float("inf"))
    between = [one for one in higher if one.head.level < ceiling]
    asked = {
        one.level.value
        for one in missing
        if one.level.control == control and floor < one.level.value < ceiling
    }
    # the highest that holds is the top: these do not
    near = [one.head.level for one in between if not _unusable(one)]
    return _Above(
        censored=not failing and not near,
        open=sorted(asked | {one.head.level for one in between if _unusable(one)}),
        near=sorted(near),
    )


def _shown_to_fail(point: Point) -> bool:
    """Whether such a level is too much: the engine broke, fell behind or answered noise, or misses
    are too many to be chance.
    """
    if point.broken or point.validity in (BACKLOG, BROKEN):
        return True
    return not _unusable(point) and any(one.share.upper < one.target for one in point.tests)


def holds(point: Point) -> bool:
    """Whether all tests of the SLO hold at it, as far as its requests say."""
    return bool(point.tests) and all(one.share.estimate >= one.target for one in point.tests)


def _short(point: Point) -> Attained:
    """The test that is furthest below its target, or least above it."""
    return min(point.tests, key=lambda one: one.share.estimate - one.target)


def _unusable(point: Point) -> str | None:
    """Why a point cannot win, in one sentence; None when it can. A failing one wins where the
    attainment allows it.
    """
    if failed := point.broken or (() if point.used else point.repeats):
        head, every = failed[0].point, len(failed) == len(point.repeats)
        reason = head.reason or head.failure_class or "no reason was stored"
        return (
            f"failed: {reason}"
            if every
            else f"{len(failed)} of {len(point.repeats)} repeats failed: {reason}"
        )
    if point.validity not in ("valid", FAILING):
        reasons = "; ".join(point.reasons)
        return f"not a valid measurement: {point.validity}{f' ({reasons})' if reasons else ''}"
    if any(one.point.ended_early == "fails" for one in point.used):
        return "a probe that was ended early, since it did not hold its limits"
    if point.attainment is None:
        return "no request was due in its steady window"
    return None


def divided(deployment: DeploymentRow, per: Per, control: str) -> float | None:
    """What a capacity is divided by; None where that means nothing: requests in flight are not
    bought by the dollar.
    """
    return None if per == "usd" and control == "concurrency" else _divisor(deployment, per)


def _candidate(
    top: Point,
    usable: Sequence[Point],
    divisor: float,
    censored: bool,
    claim: Claim | None = None,
    level: float | None = None,
) -> Candidate:
    """``level``: the one with which a search is ranked."""
    rate, share, head = top.output_token_throughput(), top.attainment, top.head
    assert share is not None
    assert rate is not None
    notes = []
    if censored:
        notes.append("no higher level was seen to fail: its capacity may be higher")
    lower = [
        one for one in usable if one.head.control == head.control and one.head.level < head.level
    ]
    if not all(map(holds, lower)):
        notes.append("not monotonic: a lower level does not hold the limits")
    notes += [
        f"{test_text(one)} {one.share.estimate:.3f} is not certain to be at least {one.target:g}"
        for one in top.tests
        if claim is None and one.share.lower < one.target  # a claim was shown by a test of its own
    ]
    if top.validity == FAILING:
        notes.append(
            f"{FAILING}: {top.figures.requests.failed} of {top.figures.requests.scheduled} requests failed"
        )
    if unused := len(top.repeats) - len(top.used):
        notes.append(f"{unused} of {len(top.repeats)} repeats are left out: failed or not valid")
    if behind := sum(not one.valid for one in top.used):
        notes.append(
            f"in {behind} of {len(top.repeats)} repeats the engine fell behind ({BACKLOG})"
        )
    throughput = rate.scaled(1 / divisor)
    rank = throughput.estimate * (level or head.level) / head.level
    return Candidate(top, share, throughput, censored, tuple(notes), rank, claim, divisor)


def per_of(asked: Per | None, deployments: Sequence[DeploymentRow]) -> Per:
    """What deployments are compared per where nothing is asked for: GPUs, where all have some."""
    return asked or ("gpu" if all(one.devices for one in deployments) else "deployment")


def _divisor(deployment: DeploymentRow, per: Per) -> float | None:
    """What tokens/s are divided by: GPUs, USD per second, or 1; None where it is not known."""
    if per == "deployment":
        return 1.0
    if per == "usd":
        return deployment.usd_per_hour / 3600 if deployment.usd_per_hour else None
    return float(deployment.devices) or None


def _no_divisor(deployment: DeploymentRow, per: Per) -> str:
    if not deployment.devices:
        return "it is not known how many GPUs the endpoint has (`endpoint_gpus`); compare with --per deployment"
    return "its price is not known, or 0: give --price HARDWARE=USD, or usd_per_gpu_hour of its hardware"


def _none_passes(usable: Sequence[Point], slo: Slo) -> LeftOut:
    top = max(usable, key=lambda one: _short(one).share.estimate - _short(one).target)
    level, short = load_text(top.head.control, top.head.level), _short(top)
    said = f"{test_text(short)} is at most {short.share.estimate:.3f} (at {level}), not {short.target:g}"
    reason = f"no level holds the limits: {said}"
    return LeftOut(top.deployment, None, f"{reason}; {binding(top, slo)}")


def test_text(test: Attained) -> str:
    """``attainment``, or ``the share within ttft_p95``."""
    return test.name if test.name == JOINT else f"the share within {test.name}"


def binding(point: Point, slo: Slo) -> str:
    """What keeps a point from holding the limits.

    ``ttft p90 there: 640 ms, limit 500ms`` where the percentile of one limit says it all; else the
    share of requests within each limit that some answered request missed, and how many failed.
    """
    by_name = shares([one.verdicts[0] for one in point.used])
    met = {one: by_name[one.name] for one in slo.limits}
    worst = min(met, key=lambda one: met[one] - (one.share or slo.attainment))
    quantile = min(
        (one for one in QUANTILES if one >= (worst.share or slo.attainment)), default=0.99
    )
    values, percentile = (
        getattr(point.figures, _FIGURE_OF.get(worst.of, ""), None),
        f"p{quantile * 100:.0f}",
    )
    if values is not None and getattr(values, percentile) > worst.seconds * 1e3:
        limit = format_duration(worst.seconds)
        return f"{worst.of} {percentile} there: {getattr(values, percentile):.4g} ms, limit {limit}"
    requests = point.figures.requests
    missed = [one for one, share in met.items() if share * requests.scheduled < requests.ok - 0.5]
    said = [
        f"{one.name}<={format_duration(one.seconds)} was met by {met[one]:.3f} there"
        for one in missed
    ]
    if requests.failed:
        said.append(f"{requests.failed} of {requests.scheduled} requests failed there")
    return "; ".join(said)

"""The answer as it forms: which deployment leads, and which ones may still beat it.

What future measurements can show is bounded by what was measured, never by predictions:

- A search of request rates can show no more than the lowest rate that was shown to fail and, once
  it asks for nothing more, no more than it claims; unless no probe in between was valid.
- In a list of levels, no level above one that was shown to fail can hold, since more load meets no
  more limits. The highest level that holds counts, so levels below it change nothing.
- A request rate that holds is answered in full, so rates are compared as they are. The throughput
  of requests in flight is unknown until it is measured: more of them may bring any throughput.
- A deployment that was not measured may hold anything.

A ranking is *decided* within a precision if no deployment can exceed what the leader was shown to
hold by more than that.
"""

import math
import threading
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.points import StoredPoint
from orchestrator.capacity.answers import level_of
from orchestrator.capacity.capacities import holds, is_shown_to_fail, reason_to_exclude
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.dominance import SETTLED, ranking_level
from orchestrator.capacity.estimate import Estimate
from orchestrator.results.validity import SPOILT
from orchestrator.spec.load import Level


class Precedence(NamedTuple):
    """How high a deployment stands: what was shown ranks above what is estimated."""

    is_shown: bool
    rank: float


@dataclass(frozen=True, slots=True)
class Standing:
    """What one deployment holds under one SLO, and what it may still come to.

    ``rank``: what it is ranked by, over its divisor; 0: nothing holds, as far as is known.
    ``is_shown``: a level was measured to hold, or is claimed; else ``rank`` is from an estimate.
    ``shown``: what it holds whatever future measurements show, over its divisor; 0: nothing.
    ``most``: the most that future measurements could show, over its divisor; infinite: nothing
    bounds it.

    ``level``: the level that ``rank`` stands for. ``throughput``: output tokens/s there, over its
    divisor. ``claim``, ``estimate``: those of a search, as loads of the whole deployment.
    """

    rank: float = 0.0
    is_shown: bool = False
    shown: float = 0.0
    most: float = math.inf
    level: Level | None = None
    throughput: Interval | None = None
    claim: float | None = None
    estimate: Estimate | None = None

    @property
    def precedence(self) -> Precedence:
        """How high it stands among others."""
        return Precedence(self.is_shown, self.rank)

    @property
    def ended(self) -> "Standing":
        """The same standing if nothing more will be measured."""
        if not self.is_shown:
            return OUT
        final = self.shown or self.rank
        return replace(self, shown=final, most=final)


# statuses of a search that asks for nothing more
_FINAL = (*SETTLED, "unresolved", "nothing_holds", "outraced")
UNKNOWN = Standing()
OUT = Standing(most=0.0)  # the deployment holds nothing, and nothing is left to measure


def standing_of_rates(claim: Claim, target: float, divisor: float, is_over: bool) -> Standing:
    """Where a search of request rates stands.

    ``target``: the share of requests that must meet the first test. ``is_over``: the search asks
    for nothing more.
    """
    if claim.pointless:
        return OUT
    ranked = ranking_level(claim, target) or 0.0
    if is_over and _is_final(claim):
        shown = most = ranked
    else:
        shown = claim.claim or 0.0
        most = claim.high
    standing = Standing(
        rank=ranked / divisor,
        is_shown=claim.claim is not None,
        shown=shown / divisor,
        most=most / divisor,
        level=_rate(claim.claim),
        claim=claim.claim,
        estimate=claim.estimate,
    )
    if claim.claim is None and claim.estimate is not None:
        expected = claim.estimate.level
        return replace(standing, rank=expected / divisor, level=_rate(expected))
    return standing


def _rate(requests_per_s: float | None) -> Level | None:
    """The level of a rate; None where there is none."""
    return Level(control="request_rate", value=requests_per_s) if requests_per_s else None


def standing_of_concurrency(
    claim: Claim, points: Sequence[StoredPoint], divisor: float, is_over: bool
) -> Standing:
    """Where a search of requests in flight stands.

    ``points``: the points that it measured. ``is_over``: the search asks for nothing more.
    """
    if claim.pointless:
        return OUT
    at_claim = [point for point in points if point.head.level == claim.claim]
    throughput = at_claim[0].output_token_throughput() if at_claim else None
    ends = is_over and _is_final(claim)
    if throughput is None:
        return OUT if ends else Standing(estimate=claim.estimate)
    throughput = throughput.scaled(1 / divisor)
    return Standing(
        rank=throughput.estimate,
        is_shown=True,
        shown=throughput.estimate if ends else 0.0,
        most=throughput.estimate if ends else math.inf,
        level=level_of(at_claim[0]),
        throughput=throughput,
        claim=claim.claim,
        estimate=claim.estimate,
    )


def _is_final(claim: Claim) -> bool:
    """Whether another run would not change what a search that asks for nothing more claims."""
    return claim.status in _FINAL and not claim.lacks_valid_probes


def standing_of_levels(
    points: Sequence[StoredPoint],
    open_levels: Collection[Level],
    divisor: float,
    compares_rates: bool,
) -> Standing:
    """Where a deployment stands that measures a list of levels.

    ``points``: its measured levels of one workload, judged by one SLO. ``open_levels``: the levels
    that are still to be measured, for the first time or again. ``compares_rates``: all levels of
    its comparison are finite request rates.
    """
    best = _best_point(points)
    settled = [point for point in points if level_of(point) not in open_levels]
    best_settled = _best_point(settled)
    shown = most = 0.0
    if best_settled is not None:
        shown = most = _value(best_settled, divisor, compares_rates)
    for level in open_levels:
        if not _may_count(level, points, settled):
            continue
        may_hold = level.value / divisor if compares_rates else math.inf
        most = max(most, may_hold)
        if level.control == "concurrency":
            shown = 0.0  # the highest that holds counts, and it may give less
    if best is None:
        return Standing(most=most)
    rate = best.output_token_throughput()
    throughput = rate.scaled(1 / divisor) if rate is not None else None
    return Standing(
        rank=throughput.estimate if throughput is not None else 0.0,
        is_shown=True,
        shown=shown,
        most=most,
        level=level_of(best),
        throughput=throughput,
    )


def is_measured_again(point: StoredPoint) -> bool:
    """Whether another run measures a level again, as its repeats do not show how the engine did."""
    if point.used_repeats:
        return point.validity in SPOILT
    return not point.engine_failures


def _best_point(points: Iterable[StoredPoint]) -> StoredPoint | None:
    """The level that counts: the highest that holds; of two controls, that with more tokens/s."""
    highest: dict[str, StoredPoint] = {}
    for point in points:
        if not _is_held(point):
            continue
        control = point.head.control
        if control not in highest or highest[control].head.level < point.head.level:
            highest[control] = point
    return max(highest.values(), key=_tokens_per_s, default=None)


def _is_held(point: StoredPoint) -> bool:
    """Whether the point may be the best of its deployment."""
    return reason_to_exclude(point) is None and holds(point)


def _tokens_per_s(point: StoredPoint) -> float:
    rate = point.output_token_throughput()
    return rate.estimate if rate is not None else 0.0


def _value(point: StoredPoint, divisor: float, compares_rates: bool) -> float:
    """The value by which a level that holds is compared."""
    if compares_rates:
        return point.head.level / divisor
    return _tokens_per_s(point) / divisor


def _may_count(level: Level, points: Iterable[StoredPoint], settled: Iterable[StoredPoint]) -> bool:
    """Whether a level that is still to be measured may become the one that counts.

    It may if it lies below all levels that were shown to fail, and is not below a settled level
    that holds.
    """
    for point in points:
        is_same_kind = point.head.control == level.control
        if is_same_kind and point.head.level <= level.value and is_shown_to_fail(point):
            return False
    for point in settled:
        is_same_kind = point.head.control == level.control
        if is_same_kind and point.head.level > level.value and _is_held(point):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Contest:
    """A comparison of the deployments of one group, for one workload under one SLO."""

    workload: str
    slo: str
    group: Hashable


@dataclass(frozen=True, slots=True)
class Lead:
    """How one contest stands.

    ``leader``: the name of the deployment that leads; None: nothing is known to hold. ``standing``:
    where the leader stands. ``bar``: the most that any deployment was shown to hold. ``rivals``:
    how many of the other ``deployments`` may still exceed the bar. ``decisive``: how many of them
    may exceed what the leader was shown to hold by more than the precision.
    """

    contest: Contest
    leader: str | None
    standing: Standing
    bar: float
    rivals: int
    decisive: int
    deployments: int


class Standings:
    """Where all deployments stand, by contest and name. Thread-safe.

    ``within``: the precision within which a ranking is decided, as a share.
    """

    def __init__(self, within: float) -> None:
        self.within = within
        self._contests: dict[Contest, dict[str, Standing]] = {}
        self._of_deployment: dict[str, set[Contest]] = {}
        self._leads: dict[Contest, Lead] = {}  # cached until the contest changes
        self._lock = threading.Lock()

    def put(self, contest: Contest, name: str, standing: Standing) -> None:
        """Notes where a deployment stands."""
        with self._lock:
            self._contests.setdefault(contest, {})[name] = standing
            self._of_deployment.setdefault(name, set()).add(contest)
            self._changed(contest)

    def remove(self, name: str) -> None:
        """Takes a deployment out of all its contests, because it will not be measured."""
        with self._lock:
            for contest in self._of_deployment.pop(name, ()):
                del self._contests[contest][name]
                self._changed(contest)

    def at(self, contest: Contest, name: str) -> Standing:
        """Where a deployment stands; UNKNOWN if nothing was noted."""
        with self._lock:
            return self._contests.get(contest, {}).get(name, UNKNOWN)

    def lead(self, contest: Contest) -> Lead:
        """How a contest stands."""
        with self._lock:
            return self._lead(contest)

    def leads(self) -> list[Lead]:
        """How all contests stand."""
        with self._lock:
            return [self._lead(contest) for contest in self._contests]

    @property
    def are_decided(self) -> bool:
        """Whether all contests are decided."""
        with self._lock:
            return all(self._is_decided(contest) for contest in self._contests)

    def needs(self, name: str) -> bool:
        """Whether more measurements of a deployment may change who is best in an open contest."""
        with self._lock:
            for contest in self._of_deployment.get(name, ()):
                if self._is_decided(contest):
                    continue
                lead = self._lead(contest)
                most = self._contests[contest][name].most
                if name == lead.leader or most > max(self._enough(lead), lead.bar):
                    return True
            return False

    def _is_decided(self, contest: Contest) -> bool:
        lead = self._lead(contest)
        return lead.standing.shown > 0 and not lead.decisive

    def _enough(self, lead: Lead) -> float:
        """What another deployment may come to while the leader counts as the best one."""
        return lead.standing.shown * (1 + self.within)

    def _changed(self, contest: Contest) -> None:
        self._leads.pop(contest, None)

    def _lead(self, contest: Contest) -> Lead:
        lead = self._leads.get(contest)
        if lead is None:
            lead = self._leads[contest] = self._compute_lead(contest)
        return lead

    def _compute_lead(self, contest: Contest) -> Lead:
        standings = self._contests[contest]
        bar = max((standing.shown for standing in standings.values()), default=0.0)
        leader = max(standings, key=lambda name: standings[name].precedence, default=None)
        if leader is not None and not standings[leader].rank:
            leader = None
        leading = standings[leader] if leader is not None else UNKNOWN
        lead = Lead(contest, leader, leading, bar, 0, 0, len(standings))
        others = [standing for name, standing in standings.items() if name != leader]
        rivals = sum(standing.most > bar for standing in others)
        decisive = sum(standing.most > self._enough(lead) for standing in others)
        return replace(lead, rivals=rivals, decisive=decisive)

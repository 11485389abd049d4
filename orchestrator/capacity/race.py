"""Many deployments, one winner: which to search first, which can no longer win, and which may wait.

Every deployment is probed, first at the level at which it would equal the leader. A deployment that
is shown to fail there is dominated, and its search is over (``capacity/dominance.py``). Predictions
set the order and the first levels; they exclude no deployment. A deployment that holds more than
the leader is searched until its bounds are close. It is searched to the end only once all others
have been probed, because most leaders are overtaken before that.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from types import MappingProxyType
from typing import Any

from orchestrator.capacity.claim import Claim
from orchestrator.capacity.dominance import expected, leading_level
from orchestrator.spec.load import Objective

# Deployments are first probed at this share of the level that a rival could hold. With 1, races of
# 24 took 30.2 engine starts instead of 27.7, for the same load (benchmarks/search/RESULTS.md).
CAUTION = 0.9
# A search lets others that may hold more be probed first, and does so again each time that the upper
# bound of its estimate comes below its lower bound times the next of these factors.
KNOWN_WITHIN = (1.25, 1.12, 1.06)
# a deployment without a level that fails may come to its upper estimate times this, at most
FURTHEST = 2.0


@dataclass(frozen=True, slots=True)
class Entrant:
    """One deployment of a race.

    It is compared with others of its ``group``, by levels divided by ``divisor``: what the
    deployment takes, in the unit ``per``.
    """

    group: Hashable
    divisor: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    per: Objective = "gpu"


@dataclass(frozen=True, slots=True)
class LevelsToEqual:
    """What a deployment has to equal, as levels of its own; 0: there is nothing to equal.

    ``lead``: at this level it would equal the best that the others were shown to hold.
    ``leader_estimate``: at this level it would equal what the best of the others holds by a
    cautious estimate, which is never below the lead. Where the lead alone counted, races took 76 %
    more load.
    """

    lead: float = 0.0
    leader_estimate: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupClaims:
    """What is known of all deployments that are compared for one workload and SLO, by name."""

    slo: str
    claims: dict[str, Claim]


@dataclass(frozen=True, slots=True)
class _SearchProgress:
    """State of one search.

    ``lead``: the level that counts as held. ``reach``: the highest level that could hold; 0 once
    the search is over. ``reach_counts``: whether others take ``reach`` into account. ``asks``:
    whether the search asks for a level now. ``expected``: the level that all its probes together
    expect to hold; None: they tell nothing.
    """

    claim: Claim
    lead: float
    reach: float
    reach_counts: bool
    asks: bool
    expected: float | None

    def is_alike_for_rivals(self, other: _SearchProgress) -> bool:
        """Whether rivals see no difference. They see neither claims nor whether a search asks."""
        return (
            self.lead == other.lead
            and self.reach == other.reach
            and self.reach_counts == other.reach_counts
        )

    @property
    def upper_estimate(self) -> float:
        """The level that the search may come to, by a cautious estimate."""
        return max(self.lead, CAUTION * self.reach)

    @property
    def most(self) -> float:
        """The level that the search may come to; 0: nothing is known, or it is over.

        Where the capacity is estimated, it is halfway (in logarithms) between what is expected and
        the upper bound.
        """
        estimate = self.claim.estimate
        if estimate is not None and self.expected:
            return min(self.claim.high, math.sqrt(self.expected * estimate.upper))
        if self.upper_estimate:
            return min(self.claim.high, FURTHEST * self.upper_estimate)
        return self.claim.high if self.asks and math.isfinite(self.claim.high) else 0.0

    @property
    def leader_estimate(self) -> float:
        """The level that others must equal to be as good, as far as is known."""
        return self.upper_estimate if self.reach_counts else self.lead


@dataclass(frozen=True, slots=True, order=True)
class _RivalValue:
    """What a deployment holds, over its divisor."""

    value: float
    name: str


class _Field:
    """The deployments that are compared, by name, and which of them have the highest values."""

    def __init__(self) -> None:
        self.progress: dict[str, _SearchProgress] = {}
        # the best two, since the best of the others may be either
        self._leads: list[_RivalValue] = []
        self._estimates: list[_RivalValue] = []

    def put(self, name: str, progress: _SearchProgress, entrants: Mapping[str, Entrant]) -> None:
        """Notes the progress of one search, and which two deployments are the best now."""
        self.progress[name] = progress
        leads: list[_RivalValue] = []
        estimates: list[_RivalValue] = []
        for other, other_progress in self.progress.items():
            divisor = entrants[other].divisor
            leads.append(_RivalValue(other_progress.lead / divisor, other))
            estimates.append(_RivalValue(other_progress.leader_estimate / divisor, other))
        self._leads = nlargest(2, leads)
        self._estimates = nlargest(2, estimates)

    def to_equal(self, name: str, divisor: float) -> LevelsToEqual:
        """What the best of the others hold, as levels of the deployment ``name``."""
        return LevelsToEqual(
            _best_of_others(self._leads, name) * divisor,
            _best_of_others(self._estimates, name) * divisor,
        )


class Race:
    """What the searches of a sweep know of each other, by name of deployment. Thread-safe.

    The *lead* was shown to hold: a deployment that fails there is dominated. The *leader estimate*
    is a cautious guess of what the best of the others holds, never below the lead: a deployment
    that was not shown to hold as much probes no lower level. ``full_grid``: no deployment is ever
    dominated; a search still begins at what its nearest neighbour holds. ``targets``: the share of
    requests that must meet the first test of each SLO, by its name.
    """

    def __init__(
        self,
        entrants: Mapping[str, Entrant],
        full_grid: bool = False,
        targets: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.full_grid = full_grid
        self.targets = targets
        self.version = 0  # rises whenever the next level of some search may have changed
        self.entrants = entrants
        # by workload, SLO and group
        self._fields: defaultdict[tuple[str, str, Hashable], _Field] = defaultdict(_Field)
        self._lock = threading.Lock()

    def tell(
        self, name: str, workload: str, slo: str, claim: Claim, reach: float, asks: bool = True
    ) -> None:
        """Notes what is known of a deployment.

        ``reach``: the highest level that could hold; 0 once its search is over: then only its claim
        counts as its lead. ``asks``: whether the search asks for a level now.
        """
        entrant = self.entrants.get(name)
        if entrant is None:
            return
        target = self.targets.get(slo)
        expected_level = None if target is None else expected(claim, target)
        with self._lock:
            rivals = self._fields[workload, slo, entrant.group]
            before = rivals.progress.get(name)
            now = _progress(before, claim, reach, asks, expected_level)
            if before is not None and before.is_alike_for_rivals(now):
                rivals.progress[name] = now
            else:
                self.version += 1
                rivals.put(name, now, self.entrants)

    def to_equal(self, name: str, workload: str, slo: str) -> LevelsToEqual:
        """What a deployment has to equal to be as good as the best of the others."""
        with self._lock:
            return self._to_equal(name, workload, slo)

    def claims_in(self, group: Hashable) -> list[GroupClaims]:
        """What is known of all deployments that are compared, for each workload and SLO."""
        with self._lock:
            return [
                GroupClaims(
                    slo, {name: progress.claim for name, progress in rivals.progress.items()}
                )
                for (_, slo, of_group), rivals in self._fields.items()
                if of_group == group
            ]

    def neighbour(self, name: str, workload: str, slo: str) -> float | None:
        """The level that a deployment holds if it is as good as its nearest neighbour.

        The neighbour is the deployment with the nearest settings of those that hold a level; None:
        no deployment holds any.
        """
        entrant = self.entrants.get(name)
        if entrant is None:
            return None
        with self._lock:
            progress = dict(self._fields[workload, slo, entrant.group].progress)
        leads: dict[str, float] = {}
        for other, other_progress in progress.items():
            if other != name and other_progress.lead:
                leads[other] = other_progress.lead
        nearest = min(
            leads,
            key=lambda other: distance(self.entrants[other].settings, entrant.settings),
            default=None,
        )
        if nearest is None:
            return None
        return leads[nearest] / self.entrants[nearest].divisor * entrant.divisor

    def priority(self, name: str) -> float:
        """The most that a deployment may still hold, over what the best of all is expected to hold.

        It is the largest over all searches of the deployment; 0: nothing is known of it. Without
        this order, races took 15 % more load. When each was compared with the best of the others
        instead, the leader always came first, and after 2 hours only 19 of 24 races had found the
        best within 5 %, not 23.
        """
        if name not in self.entrants:
            return 0.0
        group = self.entrants[name].group
        highest = 0.0
        with self._lock:
            for (workload, slo, of_group), rivals in self._fields.items():
                progress = rivals.progress.get(name)
                if of_group != group or progress is None:
                    continue
                to_equal = self._to_equal(name, workload, slo).leader_estimate
                best = max(to_equal, progress.upper_estimate)
                highest = max(highest, progress.most / (best or 1.0))
        return highest

    def rivals(self, name: str, workload: str) -> Rivals:
        """The race as the search of one workload on a deployment sees it."""
        return Rivals(self, name, workload)

    def _to_equal(self, name: str, workload: str, slo: str) -> LevelsToEqual:
        """As ``to_equal``, for callers that have the lock."""
        entrant = self.entrants.get(name)
        if entrant is None or self.full_grid:
            return LevelsToEqual()
        return self._fields[workload, slo, entrant.group].to_equal(name, entrant.divisor)


@dataclass(frozen=True, slots=True)
class _RaceView:
    """What a search saw of the race for one SLO.

    ``neighbour``: see ``Race.neighbour``; set only in a full grid, because otherwise the leader
    estimate says where to begin.
    """

    to_equal: LevelsToEqual
    neighbour: float | None


class Rivals:
    """The race as one search sees it, by name of SLO.

    It shows the race as it was when the search last looked, so that all answers of the search are
    consistent until it looks again.
    """

    def __init__(self, race: Race, name: str, workload: str) -> None:
        self._race = race
        self._name = name
        self._workload = workload
        self._seen: dict[str, _RaceView] = {}

    def look(self, begun: bool) -> bool:
        """Takes in the race as it is now. Returns whether anything changed.

        ``begun``: the search has chosen where to begin.
        """
        if begun and self._race.full_grid:
            return False
        before = self._seen
        self._seen = {slo: self._look(slo) for slo in before}
        return before != self._seen

    def lead(self, slo: str) -> float:
        """``LevelsToEqual.lead`` for one SLO."""
        return self._at(slo).to_equal.lead

    def leader_estimate(self, slo: str) -> float:
        """``LevelsToEqual.leader_estimate`` for one SLO."""
        return self._at(slo).to_equal.leader_estimate

    def neighbour(self, slo: str) -> float | None:
        """``Race.neighbour`` for one SLO; None unless the whole grid is searched."""
        return self._at(slo).neighbour

    def _at(self, slo: str) -> _RaceView:
        if slo not in self._seen:
            self._seen[slo] = self._look(slo)
        return self._seen[slo]

    def _look(self, slo: str) -> _RaceView:
        neighbour = None
        if self._race.full_grid:
            neighbour = self._race.neighbour(self._name, self._workload, slo)
        return _RaceView(self._race.to_equal(self._name, self._workload, slo), neighbour)


def _progress(
    before: _SearchProgress | None,
    claim: Claim,
    reach: float,
    asks: bool,
    expected_level: float | None,
) -> _SearchProgress:
    """The progress of a search that was at ``before`` and now knows ``claim``.

    While it asks, a level that was once shown to hold and not to fail since remains its lead, or
    rivals would come back at every doubt. When it stops asking, its reach no longer counts until it
    is probed again. So of two deployments that wait for each other one goes on, and the two cannot
    take turns at waiting without a probe in between.
    """
    lead = leading_level(claim, is_over=not reach)
    reach_counts = asks
    if before is not None and asks:
        is_doubted = lead < before.lead < claim.high
        if reach and is_doubted:
            lead = before.lead
        was_probed_again = _bounds(before.claim) != _bounds(claim)
        reach_counts = before.reach_counts or was_probed_again
    return _SearchProgress(
        claim=claim,
        lead=lead,
        reach=reach,
        reach_counts=reach_counts,
        asks=asks,
        expected=expected_level,
    )


def precision_reached(claim: Claim) -> int:
    """How many factors of ``KNOWN_WITHIN`` the bounds of the estimate lie within."""
    estimate = claim.estimate
    if estimate is None:
        return 0
    return sum(estimate.upper < factor * estimate.lower for factor in KNOWN_WITHIN)


def distance(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """The distance between settings, summed over their names.

    Two positive numbers are as far apart as doublings lie between them; other values that differ
    are 1 apart.
    """
    return sum(
        _distance_between(first.get(name), second.get(name))
        for name in first.keys() | second.keys()
    )


def _distance_between(value: Any, other: Any) -> float:
    if value == other:
        return 0.0
    if _is_positive_number(value) and _is_positive_number(other):
        return abs(math.log2(value / other))
    return 1.0


def _is_positive_number(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def _best_of_others(best: list[_RivalValue], name: str) -> float:
    return next((other.value for other in best if other.name != name), 0.0)


def _bounds(claim: Claim) -> tuple[object, ...]:
    """The parts of a claim that another probe changes."""
    return claim.low, claim.high, claim.levels

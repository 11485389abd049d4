"""Many deployments, one winner: where to search first, which can no longer win, and which may wait
for the others.

Every deployment is probed, first at the level at which it would equal the leader; one that is shown
to fail there is finished (``capacity/dominance.py``). Predictions set the order and the first levels;
they exclude no deployment. One that holds more is searched until its bounds are close, and to the
end once all others have been probed, because most leaders are beaten before that.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import Any

from orchestrator.capacity.claim import Claim
from orchestrator.capacity.dominance import shown

CAUTION = 0.9  # share of the level that a rival could hold, at which others are probed first


@dataclass(frozen=True, slots=True)
class Entrant:
    """One deployment. It is compared with others of its ``group``, by levels divided by
    ``divisor``.
    """

    group: Hashable
    divisor: float
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Known:
    """State of one search. ``lead``: the level it counts as holding; ``reach``: the level it could
    hold, 0 once it is over; ``counts``: whether others look at that.
    """

    claim: Claim
    lead: float
    reach: float
    counts: bool

    @property
    def hope(self) -> float:
        """The level it may come to, as far as is known."""
        return max(self.lead, CAUTION * self.reach)

    @property
    def front(self) -> float:
        """The level that others must hold to be as good, as far as is known."""
        return self.hope if self.counts else self.lead


class _Field:
    """What is known of the deployments that are compared, by name, and which of them have the
    highest values.
    """

    def __init__(self) -> None:
        self.known: dict[str, _Known] = {}
        # the best two: whoever asks, one of them is another
        self.leads: list[tuple[float, str]] = []
        self.fronts: list[tuple[float, str]] = []

    def put(self, name: str, one: _Known, entrants: Mapping[str, Entrant]) -> None:
        self.known[name] = one
        by_name = [(other, entrants[name].divisor, name) for name, other in self.known.items()]
        self.leads = nlargest(2, ((other.lead / divisor, name) for other, divisor, name in by_name))
        self.fronts = nlargest(
            2, ((other.front / divisor, name) for other, divisor, name in by_name)
        )


class Race:
    """What the searches of a sweep know of each other, by name of deployment. Thread-safe.

    The *lead* was shown to hold: a deployment that fails there is beaten. The *front* is a cautious
    estimate of what the best of the others holds, never below the lead: a deployment that was not
    shown to hold as much asks for no lower level. ``full_grid``: none is ever beaten; searches
    still begin at what their nearest neighbour holds.
    """

    def __init__(self, entrants: Mapping[str, Entrant], full_grid: bool = False) -> None:
        self.full_grid = full_grid
        self.version = 0  # rises whenever the next level of some search may have changed
        self.entrants = entrants
        # workload, SLO, group
        self._fields: defaultdict[tuple[str, str, Hashable], _Field] = defaultdict(_Field)
        self._lock = threading.Lock()

    def tell(
        self, name: str, workload: str, slo: str, claim: Claim, reach: float, asks: bool = True
    ) -> None:
        """Note what is known of a deployment. ``reach``: the highest level that could hold; 0 once
        its search is over, and then only its claim counts as its lead. ``asks``: whether it asks
        for a level now.

        While it asks, a level that once held and was not shown to fail remains its lead, or others
        would return at every doubt. When it stops asking, its reach no longer counts until it is
        probed again: of two deployments that wait for each other one goes on, and no such change is
        followed by another before something is probed.
        """
        if (me := self.entrants.get(name)) is None:
            return
        with self._lock:
            rivals = self._fields[workload, slo, me.group]
            before, lead = rivals.known.get(name), shown(claim, over=not reach)
            if before is not None and asks:
                if reach and lead < before.lead < claim.high:
                    lead = before.lead
                if not before.counts and _bounds(before.claim) == _bounds(claim):
                    asks = False  # it returned and has not been probed since
            now = _Known(claim, lead, reach, counts=asks)
            if before is None or replace(before, claim=claim) != now:
                self.version += 1
                rivals.put(name, now, self.entrants)
            else:
                rivals.known[name] = now

    def view(self, name: str, workload: str, slo: str) -> tuple[float, float]:
        """The levels at which a deployment equals the lead and the front of the others; 0: there is
        none.
        """
        with self._lock:
            return self._view(name, workload, slo)

    def claims(self, group: Hashable) -> list[tuple[str, dict[str, Claim]]]:
        """SLO and what is known of it, by name of deployment, for each workload; of all that are
        compared.
        """
        with self._lock:
            return [
                (slo, {name: one.claim for name, one in some.known.items()})
                for (_, slo, of), some in self._fields.items()
                if of == group
            ]

    def neighbour(self, name: str, workload: str, slo: str) -> float | None:
        """The level it holds if it is as good as the deployment with the nearest settings; None:
        none holds any.
        """
        if (me := self.entrants.get(name)) is None:
            return None
        with self._lock:
            known = [*self._fields[workload, slo, me.group].known.items()]
        found = [
            (self.entrants[other], one.lead) for other, one in known if other != name and one.lead
        ]
        near = min(found, key=lambda pair: distance(pair[0].settings, me.settings), default=None)
        return near[1] / near[0].divisor * me.divisor if near is not None else None

    def standing(self, name: str) -> float:
        """The most that a deployment may still hold, divided by the front of the others; 0: it can
        hold nothing.
        """
        group = self.entrants[name].group if name in self.entrants else None
        with self._lock:
            fields = [
                (key, some.known.get(name)) for key, some in self._fields.items() if key[2] == group
            ]
            found = [
                (one, self._view(name, *key[:2])[1])
                for key, one in fields
                if one is not None and one.hope
            ]
        return max(
            (min(one.claim.high, 2 * one.hope) / (front or one.hope) for one, front in found),
            default=0.0,
        )

    def rivals(self, name: str, workload: str) -> Rivals:
        """The race as the search of one workload on a deployment sees it."""
        return Rivals(self, name, workload)

    def _view(self, name: str, workload: str, slo: str) -> tuple[float, float]:
        me = self.entrants.get(name)
        if me is None or self.full_grid:
            return 0.0, 0.0
        some = self._fields[workload, slo, me.group]
        lead, front = (
            next((one for one, by in best if by != name), 0.0) for best in (some.leads, some.fronts)
        )
        return lead * me.divisor, front * me.divisor


class Rivals:
    """The race as one search sees it, by name of SLO: as it was when the search last looked, so
    that all its answers until it looks again are consistent.
    """

    def __init__(self, race: Race, name: str, workload: str) -> None:
        self._race, self._of = race, (name, workload)
        self._seen: dict[str, tuple[float, float, float | None]] = {}

    def look(self, begun: bool) -> bool:
        """Update to the race as it is now; whether anything changed. ``begun``: it has chosen where
        to begin.
        """
        if begun and self._race.full_grid:
            return False
        before, self._seen = self._seen, {slo: self._look(slo) for slo in self._seen}
        return before != self._seen

    def lead(self, slo: str) -> float:
        """See ``Race``."""
        return self._at(slo)[0]

    def front(self, slo: str) -> float:
        """See ``Race``."""
        return self._at(slo)[1]

    def neighbour(self, slo: str) -> float | None:
        """See ``Race``; only where none is ahead, because otherwise the front says where to begin."""
        return self._at(slo)[2]

    def _at(self, slo: str) -> tuple[float, float, float | None]:
        if slo not in self._seen:
            self._seen[slo] = self._look(slo)
        return self._seen[slo]

    def _look(self, slo: str) -> tuple[float, float, float | None]:
        neighbour = self._race.neighbour(*self._of, slo) if self._race.full_grid else None
        return *self._race.view(*self._of, slo), neighbour


def _bounds(claim: Claim) -> tuple[object, ...]:
    """What another probe changes."""
    return claim.low, claim.high, claim.levels


def distance(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """Between settings: doublings where both are numbers, 1 where they differ in kind."""

    def between(one: Any, other: Any) -> float:
        if one == other:
            return 0.0
        numbers = all(isinstance(value, int | float) and value > 0 for value in (one, other))
        return abs(math.log2(one / other)) if numbers else 1.0

    return sum(between(first.get(name), second.get(name)) for name in first.keys() | second.keys())

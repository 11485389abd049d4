"""Many deployments, one winner: whom to search first, from where, and who can no longer win.

Predictions order and seed, they never exclude: everybody is probed, the first time at the load at which he would equal
the leader, and who is shown to fail there is done after that one probe. Values are levels over ``divisor``: per GPU,
per USD an hour, or per deployment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.analysis.claim import Claim


@dataclass(frozen=True, slots=True)
class Entrant:
    """One deployment. ``predicted``: the level up to which it is thought to hold, where anything is."""

    name: str
    divisor: float = 1.0
    predicted: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


class Race:
    """Told the claim of each that was searched, or given up. ``full_grid``: everybody is searched to his end."""

    def __init__(self, entrants: Sequence[Entrant], full_grid: bool = False) -> None:
        self._left = sorted(entrants, key=lambda one: -(one.predicted or math.inf) / one.divisor)
        self._full_grid = full_grid
        self._done: list[tuple[Entrant, Claim]] = []

    @property
    def leader(self) -> tuple[Entrant, float] | None:
        """Who has the highest confirmed value until now, and that value."""
        values = [(one, claim.claim / one.divisor) for one, claim in self._done if claim.claim is not None]
        return max(values, key=lambda found: found[1], default=None)

    def next(self) -> tuple[Entrant, float | None] | None:
        """Whom to search now, and the first level to probe; None: everybody was."""
        if not self._left:
            return None
        entrant, leader = self._left[0], self.leader
        if leader is not None and not self._full_grid:
            return entrant, leader[1] * entrant.divisor
        near = min(self._done, key=lambda one: _distance(one[0].settings, entrant.settings), default=None)
        known = near[1].claim / near[0].divisor * entrant.divisor if near and near[1].claim else None
        return entrant, entrant.predicted or known

    def lost(self, entrant: Entrant, claim: Claim) -> bool:
        """Whether it is shown to hold no more than the leader does."""
        leader = self.leader
        return not self._full_grid and leader is not None and claim.high / entrant.divisor <= leader[1]

    def tell(self, entrant: Entrant, claim: Claim) -> None:
        """What came of the search of one."""
        self._left.remove(entrant)
        self._done.append((entrant, claim))


def _distance(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    """Between settings: doublings where both are numbers, 1 where they differ in kind."""

    def between(one: Any, other: Any) -> float:
        if one == other:
            return 0.0
        numbers = all(isinstance(value, int | float) and value > 0 for value in (one, other))
        return abs(math.log2(one / other)) if numbers else 1.0

    return sum(between(first.get(name), second.get(name)) for name in first.keys() | second.keys())

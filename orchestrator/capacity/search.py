"""The highest load that holds the limits: one level after the other is probed until that is known
(docs/search.md).

What is asked next follows from what was told alone, in whatever order (``capacity/choose_level.py``).
Tiers of limits share probes: the one that knows least is asked for first. One that is beaten in a
race (``capacity/race.py``), or whose probes have a verdict that no other load changes, asks no
more. Where the deployment is started more than once, all is
searched on one start and what it found is confirmed on the second one, on which the search then
stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.base.errors import FailureClass
from orchestrator.capacity.choose_level import LOWEST, PRECISION
from orchestrator.capacity.claim import Claim, Probed, at_levels, before, claim_of, known_of, probed
from orchestrator.capacity.dominance import against, beaten
from orchestrator.capacity.outcomes import targets
from orchestrator.capacity.sequential_test import Before
from orchestrator.capacity.strategy import Question
from orchestrator.spec.load import Level, Slo

if TYPE_CHECKING:
    from orchestrator.capacity.choose_level import Known
    from orchestrator.results.records import Committed

MOST_PROBES = 64  # of one run; another one goes on
EXPECTED, BEHIND = 12, 2  # probes of one search, and of one that others are ahead of, for estimates
_Wanted = list[tuple[float, float, str]]


class Capacity:
    """One search, of all tiers. Its points are probes: each ends as soon as it is known whether it
    holds every SLO.

    Until ``look``, ``tell`` or ``hurry`` change what is known, all answers follow from the same.
    """

    needs_figures = True

    def __init__(self, question: Question) -> None:
        assert question.control is not None
        self._control, self._guess, self._starts = (
            question.control,
            question.first_guess,
            question.starts,
        )
        self._rivals, self._follows = question.rivals, question.follows
        precision, whole = question.precision or PRECISION, question.control == "concurrency"
        self._tiers = [Tier(whole, slo, precision) for slo in question.slos]
        self._left_s = math.inf
        # probes, and how many of them earlier runs made; -1: nothing was asked yet
        self._told, self._before = 0, -1
        self._refused, self._confirms = False, False
        self._wants: tuple[_Wanted, _Wanted] | None = None  # until it hears more

    @staticmethod
    def problem(question: Question) -> str | None:
        if question.levels:
            return "it finds levels by itself; leave out `levels` (or use search: levels)"
        if question.control is None:
            return "say what is searched: control: request_rate or control: concurrency"
        if any(one >= 1 for tier in targets(question.slos) for one in tier):
            return "no load can be shown to hold for every request: give an attainment below 1"
        return (
            None
            if question.slos
            else "it needs limits: slos: {interactive: {ttft: 500ms, attainment: 0.95}}"
        )

    def ask(self) -> Level | None:
        if self._before < 0:
            self._before = self._told
        if self._ended:
            return None
        explored, confirmed = self._wanted()
        wanted = explored or confirmed
        # of the tier that knows least
        return Level(control=self._control, value=max(wanted)[1]) if wanted else None

    def look(self) -> bool:
        """See what rivals hold now; whether that is anything else."""
        if self._rivals is None or not self._rivals.look(self._told > 0):
            return False
        self._wants = None
        return True

    def hurry(self, left_s: float) -> None:
        """So many seconds are left: ask for what they suffice to show, if anything."""
        self._left_s, self._wants = left_s, None

    @property
    def _ended(self) -> bool:
        """Whether nothing is asked any more in this run, whatever is known."""
        return self._refused or (self._before >= 0 and self._told - self._before >= MOST_PROBES)

    def _wanted(self) -> tuple[_Wanted, _Wanted]:
        """How little tiers know, what they would have probed next, and their names. What the second
        start of the engine is to confirm comes last, and apart.
        """
        if self._wants is None:
            self._wants = self._by_tier()
        return self._wants

    def _by_tier(self) -> tuple[_Wanted, _Wanted]:
        explored, confirmed = _Wanted(), _Wanted()
        for tier in self._tiers:
            if tier.claim.pointless:
                continue
            known, front, guess = tier.known, 0.0, self._guess
            if self._rivals is not None:
                if beaten(tier.claim, self._lead(tier)):
                    continue
                front, guess = (
                    self._rivals.front(tier.slo.name),
                    guess or self._rivals.neighbour(tier.slo.name),
                )
            levels = (
                known.explored(guess or front or None, self._starts > 1, self._left_s),
                known.confirmed(self._starts),
            )
            asked = [known.from_front(front, level) if front else level for level in levels]
            if self._starts == 1:
                asked = [asked[0] or asked[1], None]
            for level, wanted in zip(asked, (explored, confirmed), strict=True):
                if level is not None:
                    wanted.append((tier.width, level, tier.slo.name))
        return explored, confirmed

    def tell(self, level: Level, attempt: Committed) -> None:
        self._told, self._wants = self._told + 1, None
        self._refused |= attempt.failure_class == FailureClass.BAD_CONFIG  # nothing can come of it
        for tier in self._tiers:
            tier.tell(told := probed(attempt, level.value, tier.slo, starts=self._starts))
            self._confirms |= told.start > 0

    def ahead(self) -> Sequence[Level]:
        level = self.ask()
        rivals, behind = self._rivals, self._follows and not self._told
        if rivals is not None and not behind:
            behind = all(one.known.reach < rivals.front(one.slo.name) for one in self._tiers)
        return (
            ()
            if level is None
            else (level,) * max((BEHIND if behind else EXPECTED) - self._told, 1)
        )

    @property
    def before(self) -> tuple[tuple[Before, ...], ...]:
        """Of each tier's tests, for the next probe (``capacity/sequential_test.py: Probe``)."""
        level = self.ask()
        return (
            tuple(tier.before(level.value, self.start) for tier in self._tiers)
            if level is not None
            else ()
        )

    @property
    def expected(self) -> float:
        """Requests that the next probe should take, for the tier that needs most
        (``capacity/sequential_test.py: Probe``).
        """
        level = self.ask()
        return (
            max(tier.known.expected(level.value) for tier in self._tiers)
            if level is not None
            else math.inf
        )

    @property
    def start(self) -> int:
        """Of the deployment, that the next probe belongs to: once turned to, the second one stays."""
        return int(self._starts > 1 and (self._confirms or not self._wanted()[0]))

    def claims(self) -> dict[str, Claim]:
        """What is known so far, by name of SLO."""
        return {tier.slo.name: against(tier.claim, self._lead(tier)) for tier in self._tiers}

    def reaches(self) -> dict[str, float]:
        """The highest level that could hold, as far as is known, by name of SLO; 0: none, or its
        search is over.
        """
        over = {tier.slo.name: self._ended or tier.over(self._starts) for tier in self._tiers}
        return {
            tier.slo.name: 0.0 if over[tier.slo.name] else tier.known.reach for tier in self._tiers
        }

    def asking(self) -> set[str]:
        """The SLOs, by name, that a level is asked for now: others may be over, beaten, or wait for
        rivals.
        """
        explored, confirmed = self._wanted()
        return set() if self._ended else {name for *_, name in explored + confirmed}

    @property
    def may_wait(self) -> bool:
        """Whether enough is known to ask other deployments first."""
        return all(
            tier.known.may_wait or tier.claim.pointless or beaten(tier.claim, self._lead(tier))
            for tier in self._tiers
        )

    def _lead(self, tier: Tier) -> float:
        return self._rivals.lead(tier.slo.name) if self._rivals is not None else 0.0


class Tier:
    """What is known of one tier."""

    def __init__(self, whole_numbers: bool, slo: Slo, precision: float = PRECISION) -> None:
        self.slo, self._whole, self._precision = slo, whole_numbers, precision
        (self._targets,) = targets([slo])
        self._probes: list[Probed] = []
        self._claim: Claim | None = None
        self._over: bool | None = None

    def tell(self, probe: Probed) -> None:
        self._probes.append(probe)
        self._claim = self._over = None

    @property
    def claim(self) -> Claim:
        """As far as it is known."""
        if self._claim is None:
            levels = at_levels(self._probes, self._targets)
            self._claim = claim_of(levels, self._targets[0], self._whole, self._precision)
        return self._claim

    @property
    def known(self) -> Known:
        """What says which level is probed next."""
        return known_of(self.claim.levels, self._targets[0], self._whole, self._precision)

    def over(self, starts: int = 1) -> bool:
        """Whether it would ask for nothing more if nobody else were there."""
        if self._over is None:
            self._over = self.claim.pointless or (
                self.known.explored(None, starts > 1) is None
                and self.known.confirmed(starts) is None
            )
        return self._over

    @property
    def width(self) -> float:
        """Of the bracket: how little is known."""
        return self.claim.high / max(self.claim.low, LOWEST)

    def before(self, level: float, start: int = 0) -> tuple[Before, ...]:
        """What the next probe of a level begins with, for each test. The first one of a level is
        quick while it shall only be known whether to go up or down.
        """
        there = next((one for one in self.claim.levels if one.level == level), None)
        if there is None and self.known.screening:
            return (Before(quick=True),) * len(self._targets)
        return before(self._probes, level, there, self._targets, start)

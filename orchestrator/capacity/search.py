"""Finds the highest load that holds the limits, by probing one level after the other.

docs/explained/capacity-search.md has the method. The next level depends only on the outcomes that
the search was told, not on their order (``capacity/choose_level.py``). A tier is the search under
one SLO. Tiers share probes; the level of the tier about which least is known is probed first. A
tier asks for nothing more once it is dominated in a race (``capacity/race.py``), or once one of its
probes has a verdict that no other load can change. Where the deployment is started more than once,
the search explores on the first start, confirms what it found on the second, and stays on the
second from then on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.analysis.slo import targets_of
from orchestrator.base.errors import FailureClass
from orchestrator.capacity.choose_level import (
    level_among_rivals,
    level_to_confirm,
    level_to_explore,
    probe_only_screens,
    probe_size,
)
from orchestrator.capacity.claim import Claim, claim_of
from orchestrator.capacity.dominance import among_rivals, is_dominated
from orchestrator.capacity.levels import (
    ANY_LEVEL,
    LOWEST,
    LevelRange,
    SearchState,
    at_levels,
    earlier_probes,
    search_state,
)
from orchestrator.capacity.probe_outcome import ProbeOutcome, outcome_of_attempt
from orchestrator.capacity.sequential_test import EarlierProbes, ProbeSize
from orchestrator.capacity.strategy import SearchQuestion
from orchestrator.results.records import Committed
from orchestrator.spec.load import PRECISION, Level, Slo

MOST_PROBES = 64  # of one run; another run goes on with the search
# for estimates of time: how many probes a search takes
EXPECTED_PROBES = 12
EXPECTED_PROBES_BEHIND = 2  # the same while others of the race are expected to hold more


@dataclass(frozen=True, slots=True, order=True)
class WantedLevel:
    """A level that a tier wants to have probed next.

    ``width``: of the tier's bracket. The wider the bracket, the less is known of the tier; the
    widest comes first.
    """

    width: float
    level: float
    slo: str


@dataclass(frozen=True, slots=True)
class WantedLevels:
    """The levels that all tiers want to have probed next.

    ``to_confirm``: levels for the second start of the engine, which are probed once nothing is left
    in ``to_explore``; empty where the engine is started only once.
    """

    to_explore: list[WantedLevel]
    to_confirm: list[WantedLevel]


@dataclass(frozen=True, slots=True)
class TierLevels:
    """The levels that one tier wants to have probed next; None: it needs none."""

    to_explore: float | None
    to_confirm: float | None


class Capacity:
    """The search for the capacities of all tiers of one workload on one deployment.

    Its points are probes: each ends as soon as every SLO has its verdict. What it asks for changes
    only after ``look``, ``tell`` or ``hurry``.
    """

    needs_figures = True

    def __init__(self, question: SearchQuestion) -> None:
        assert question.control is not None
        self._control = question.control
        self._guess = question.first_guess
        self._starts = question.starts
        self._rivals = question.rivals
        self._follows = question.follows
        precision = question.precision or PRECISION
        whole_numbers = question.control == "concurrency"
        self._tiers = [
            Tier(slo, whole_numbers, precision, question.starts, question.sendable)
            for slo in question.slos
        ]
        self._left_s = math.inf
        self._probes = 0  # of which the search was told
        self._earlier_probes: int | None = None  # of earlier runs; None: nothing was asked yet
        self._refused = False  # the engine cannot run this configuration
        self._is_on_second_start = False  # a probe ran on the second start
        self._wanted: WantedLevels | None = None  # None: compute them again

    @staticmethod
    def problem(question: SearchQuestion) -> str | None:
        if question.levels:
            return "it finds levels by itself; leave out `levels` (or use search: levels)"
        if question.control is None:
            return "say what is searched: control: request_rate or control: concurrency"
        if any(max(targets_of(slo)) >= 1 for slo in question.slos):
            return "no load can be shown to hold for every request: give an attainment below 1"
        if not question.slos:
            return "it needs limits: slos: {interactive: {ttft: 500ms, attainment: 0.95}}"
        return None

    def ask(self) -> Level | None:
        if self._earlier_probes is None:
            # before its first question, a search is told of the probes of earlier runs alone
            self._earlier_probes = self._probes
        if self._ended:
            return None
        wanted = self._wanted_levels()
        levels = wanted.to_explore or wanted.to_confirm
        if not levels:
            return None
        return Level(control=self._control, value=max(levels).level)

    def look(self) -> bool:
        """Takes in what rivals hold now. Returns whether that has changed."""
        if self._rivals is None:
            return False
        has_changed = self._rivals.look(begun=self._probes > 0)
        if has_changed:
            self._wanted = None
        return has_changed

    def hurry(self, left_s: float) -> None:
        """From now on, asks only for what can be shown in ``left_s`` seconds of load."""
        self._left_s = left_s
        self._wanted = None

    @property
    def _ended(self) -> bool:
        """Whether this run asks for nothing more, whatever is known."""
        if self._refused:
            return True
        if self._earlier_probes is None:
            return False
        return self._probes - self._earlier_probes >= MOST_PROBES

    def _wanted_levels(self) -> WantedLevels:
        """What all tiers want, as far as is known now."""
        if self._wanted is None:
            self._wanted = self._compute_wanted_levels()
        return self._wanted

    def _compute_wanted_levels(self) -> WantedLevels:
        wanted = WantedLevels([], [])
        for tier in self._tiers:
            if tier.claim.pointless or self._is_dominated(tier):
                continue
            levels = self._levels_wanted_by(tier)
            if self._starts == 1:  # there is no second start to confirm on
                levels = TierLevels(levels.to_explore or levels.to_confirm, None)
            if levels.to_explore is not None:
                wanted.to_explore.append(WantedLevel(tier.width, levels.to_explore, tier.slo.name))
            if levels.to_confirm is not None:
                wanted.to_confirm.append(WantedLevel(tier.width, levels.to_confirm, tier.slo.name))
        return wanted

    def _levels_wanted_by(self, tier: Tier) -> TierLevels:
        """What a tier wants: no level below what the leader of the race is expected to hold."""
        leader_estimate = 0.0  # there is no leader
        if self._rivals is not None:
            leader_estimate = self._rivals.leader_estimate(tier.slo.name)
        to_explore = level_to_explore(
            tier.state,
            self._guess_for(tier, leader_estimate),
            confirms_last=self._starts > 1,
            left_s=self._left_s,
        )
        to_confirm = level_to_confirm(tier.state, self._starts)
        if leader_estimate:
            to_explore = level_among_rivals(tier.state, leader_estimate, to_explore)
            to_confirm = level_among_rivals(tier.state, leader_estimate, to_confirm)
        return TierLevels(to_explore, to_confirm)

    def _guess_for(self, tier: Tier, leader_estimate: float) -> float | None:
        """The level at which a tier begins: what is predicted, else what its neighbour in the race
        holds, else what the leader is expected to hold. None: nothing of this is known.
        """
        if self._guess:
            return self._guess
        if self._rivals is not None:
            neighbour = self._rivals.neighbour(tier.slo.name)
            if neighbour:
                return neighbour
        return leader_estimate or None

    def tell(self, level: Level, attempt: Committed) -> None:
        self._probes += 1
        self._wanted = None
        if attempt.failure_class == FailureClass.BAD_CONFIG:
            self._refused = True  # nothing can come of it
        for tier in self._tiers:
            outcome = outcome_of_attempt(attempt, level.value, tier.slo, self._starts)
            tier.tell(outcome)
            if outcome.start > 0:
                self._is_on_second_start = True

    def ahead(self) -> Sequence[Level]:
        level = self.ask()
        if level is None:
            return ()
        probes = EXPECTED_PROBES_BEHIND if self._is_behind() else EXPECTED_PROBES
        return (level,) * max(probes - self._probes, 1)

    def _is_behind(self) -> bool:
        """Whether others of the race are expected to hold more: then a probe or two are enough."""
        if self._follows and not self._probes:  # nothing is known but the predictions
            return True
        if self._rivals is None:
            return False
        return all(
            tier.state.reach < self._rivals.leader_estimate(tier.slo.name) for tier in self._tiers
        )

    @property
    def before(self) -> tuple[tuple[EarlierProbes, ...], ...]:
        """What earlier probes say of each test of each tier, for the next probe.

        See ``capacity/sequential_test.py: Probe``.
        """
        level = self.ask()
        if level is None:
            return ()
        return tuple(tier.before(level.value, self.start, self._left_s) for tier in self._tiers)

    @property
    def size(self) -> ProbeSize:
        """How many requests the next probe should take, by the tier that needs most.

        See ``capacity/sequential_test.py: Probe``.
        """
        level = self.ask()
        if level is None:
            return ProbeSize()
        sizes = [probe_size(tier.state, level.value, self._left_s) for tier in self._tiers]
        return ProbeSize(max(size.expected for size in sizes), max(size.most for size in sizes))

    @property
    def start(self) -> int:
        """The start of the deployment on which the next probe runs: 0: the first, 1: the second.

        A search that has probed on the second start stays there.
        """
        if self._starts == 1:
            return 0
        if self._is_on_second_start:
            return 1
        return 0 if self._wanted_levels().to_explore else 1

    def claims(self) -> dict[str, Claim]:
        """What is known so far, by name of SLO."""
        return {tier.slo.name: among_rivals(tier.claim, self._lead(tier)) for tier in self._tiers}

    def reaches(self) -> dict[str, float]:
        """By name of SLO, the highest level that could hold, as far as is known.

        0: no level could, or the search of this SLO is over.
        """
        reaches: dict[str, float] = {}
        for tier in self._tiers:
            is_over = self._ended or tier.is_over
            reaches[tier.slo.name] = 0.0 if is_over else tier.state.reach
        return reaches

    def over(self) -> set[str]:
        """Names of the SLOs for which nothing more is asked, whatever rivals hold."""
        return {tier.slo.name for tier in self._tiers if self._ended or tier.is_over}

    def asking(self) -> set[str]:
        """Names of the SLOs for which a level is wanted now.

        The others are over or dominated, or wait for rivals.
        """
        wanted = self._wanted_levels()
        if self._ended:
            return set()
        return {level.slo for level in wanted.to_explore + wanted.to_confirm}

    @property
    def may_wait(self) -> bool:
        """Whether enough is known to ask other deployments first."""
        return all(
            tier.state.can_wait or tier.claim.pointless or self._is_dominated(tier)
            for tier in self._tiers
        )

    def _is_dominated(self, tier: Tier) -> bool:
        return is_dominated(tier.claim, self._lead(tier))

    def _lead(self, tier: Tier) -> float:
        return self._rivals.lead(tier.slo.name) if self._rivals is not None else 0.0


class Tier:
    """What is known of one tier: of the capacity under one SLO.

    ``whole_numbers``, ``precision``, ``sendable``: see ``SearchState``. ``starts``: how often the
    engine is started for its search.
    """

    def __init__(
        self,
        slo: Slo,
        whole_numbers: bool = False,
        precision: float = PRECISION,
        starts: int = 1,
        sendable: LevelRange = ANY_LEVEL,
    ) -> None:
        self.slo = slo
        self._whole_numbers = whole_numbers
        self._precision = precision
        self._starts = starts
        self._sendable = sendable
        self._targets = targets_of(slo)
        self._probes: list[ProbeOutcome] = []
        self._claim: Claim | None = None
        self._is_over: bool | None = None

    def tell(self, probe: ProbeOutcome) -> None:
        """Add a probe that ended."""
        self._probes.append(probe)
        self._claim = None
        self._is_over = None

    @property
    def claim(self) -> Claim:
        """What the probes so far show of the tier."""
        if self._claim is None:
            levels = at_levels(self._probes, self._targets)
            self._claim = claim_of(
                levels, self._targets[0], self._whole_numbers, self._precision, self._sendable
            )
        return self._claim

    @property
    def state(self) -> SearchState:
        """Where the search of the tier stands, from which the next level follows."""
        return search_state(
            self.claim.levels,
            self._targets[0],
            self._whole_numbers,
            self._precision,
            self._sendable,
        )

    @property
    def is_over(self) -> bool:
        """Whether the search of the tier would ask for nothing more if there were no rivals."""
        if self._is_over is None:
            self._is_over = self.claim.pointless or self._has_nothing_to_ask()
        return self._is_over

    def _has_nothing_to_ask(self) -> bool:
        to_explore = level_to_explore(self.state, None, confirms_last=self._starts > 1)
        return to_explore is None and level_to_confirm(self.state, self._starts) is None

    @property
    def width(self) -> float:
        """The bracket's upper bound over its lower one: the wider, the less is known."""
        return self.claim.high / max(self.claim.low, LOWEST)

    def before(
        self, level: float, start: int = 0, left_s: float = math.inf
    ) -> tuple[EarlierProbes, ...]:
        """What the next probe of a level begins with, for each test.

        While the search only needs to know whether to go up or down, the first probe of a level is
        quick. Without that, searches took 17 % more load.
        """
        evidence = self.state.at(level)
        if evidence is None and probe_only_screens(self.state, left_s):
            return (EarlierProbes(quick=True),) * len(self._targets)
        return earlier_probes(self._probes, level, evidence, self._targets, start)

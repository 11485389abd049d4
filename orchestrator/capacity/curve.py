"""Measures the curve from idle to saturation: a ladder of levels, each twice the one below.

The ladder goes up from the start until a level is *saturated*: twice the load gave less than GROWTH
times the output tokens per second, or the level failed, or under every SLO fewer than BROKEN of the
requests were within the limits. A ladder of request rates also goes down from the start until the
engine is *idle*: on average less than one request is open (Little's law: rate times mean end-to-end
time). Then comes one level where the curve bends, and then everything again for each repeat. The
search ends at once at a verdict that no other load changes. Where only some levels can be sent, the
rungs are halves of the highest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.analysis.slo import LimitValues, judge, stored_values
from orchestrator.base.arrays import Bools
from orchestrator.capacity.levels import ANY_LEVEL
from orchestrator.capacity.strategy import SearchQuestion
from orchestrator.results.records import AttemptData, Committed
from orchestrator.results.validity import EndsSearch, Validity
from orchestrator.spec.load import MOST_IN_FLIGHT, Level, Slo

GROWTH = 1.1
# the curve bends between two loads if twice the load gave less than this many times the throughput
BENT = 1.7
BROKEN = 0.5  # share of the requests
# requests/s, where nothing is predicted; a closed loop starts with one request in flight
START = 1.0
BELOW_GUESS = 8.0  # the start is the predicted capacity divided by this
MOST_STEPS = 12  # in each direction from the start
EXPECTED = 8  # levels that a curve is taken to have before any is measured


@dataclass(frozen=True, slots=True)
class _LadderLevel:
    """What was measured at one level of the ladder.

    ``throughput``: output tokens per second; None: unknown. ``is_too_much``: the level failed or is
    far beyond every limit. ``open_requests``: how many were open on average.
    """

    throughput: float | None
    is_too_much: bool
    open_requests: float


class Curve:
    """Asks for the levels of one curve, under one control."""

    needs_figures = True

    def __init__(self, question: SearchQuestion) -> None:
        self._control = question.control or "request_rate"
        self._slos = question.slos
        self._repeats = question.repeats
        self._sendable = question.sendable
        guess = question.first_guess
        self._start = float(f"{guess / BELOW_GUESS:.3g}") if guess else START
        if self._control == "concurrency":
            self._start = 1.0
        if self._sendable != ANY_LEVEL:
            self._start = self._halved_from_highest(self._start)
        self._measured: dict[float, _LadderLevel] = {}  # by level, its first measurement
        self._attempts: Counter[float] = Counter()
        self._is_pointless = False  # a verdict came that no other load would change

    @staticmethod
    def problem(question: SearchQuestion) -> str | None:
        if question.levels:
            return "it finds levels by itself: leave 'levels' out, or use search: levels"
        return None

    def ask(self) -> Level | None:
        if self._is_pointless:
            return None
        rung = self._next_rung()
        if rung is not None:
            return Level(control=self._control, value=rung)
        repeats = self._repeats_left()
        return Level(control=self._control, value=repeats[0]) if repeats else None

    def tell(self, level: Level, attempt: Committed) -> None:
        self._attempts[level.value] += 1
        if _ends_search(attempt):
            self._is_pointless = True
        self._measured.setdefault(level.value, _ladder_level(attempt, level, self._slos))

    def ahead(self) -> Sequence[Level]:
        """The levels that will probably be asked for, with repeats.

        While the ladder is climbed, a curve is taken to have EXPECTED levels: those that it lacks
        follow the next rung, each twice the one before.
        """
        if self._is_pointless:
            return []
        rung = self._next_rung()
        if rung is None:
            values = self._repeats_left()
        else:
            count = max(EXPECTED - len(self._measured), 1)
            rungs = [rung * 2**step for step in range(count)]
            values = rungs * self._repeats
        possible = [value for value in values if value <= self._sendable.highest]
        return [Level(control=self._control, value=value) for value in possible]

    def _halved_from_highest(self, level: float) -> float:
        """The rung nearest to a level, of those that are the highest level halved again and again."""
        highest = self._sendable.highest
        halvings = max(round(math.log2(highest / level)), 0)
        while halvings and highest / 2.0**halvings < self._sendable.lowest:
            halvings -= 1
        return highest / 2.0**halvings

    def _repeats_left(self) -> list[float]:
        """The levels that lack repeats, in the order in which they are asked for.

        First come all levels for their second attempt, then all for their third, and so on.
        """
        repeats: list[float] = []
        for attempt in range(2, self._repeats + 1):
            repeats += [
                level for level in sorted(self._measured) if self._attempts[level] < attempt
            ]
        return repeats

    def _next_rung(self) -> float | None:
        """The next level of the ladder, upwards, then downwards, then where the curve bends.

        None: all of them were measured once.
        """
        top = self._top()
        if top <= MOST_IN_FLIGHT and top not in self._measured:
            return top
        low = self._low()
        if low not in self._measured:
            return low
        if top not in self._measured:
            # The top is more than a client can hold. No bend is measured below it, because the
            # curve may go on above.
            return None
        bend = self._bend(low, top)
        if bend is not None and low < bend and bend not in self._measured:
            return bend
        return None

    def _top(self) -> float:
        """The highest level of the ladder, as far as is known."""
        top = self._start
        highest = min(self._start * 2**MOST_STEPS, self._highest_rung)
        while top in self._measured and top < highest and self._gain(top) >= GROWTH:
            top *= 2
        return top

    @property
    def _highest_rung(self) -> float:
        """Infinite where any level can be sent."""
        return math.inf if self._sendable == ANY_LEVEL else self._sendable.highest

    def _low(self) -> float:
        """The lowest level of the ladder, as far as is known."""
        low = self._start
        if self._control != "request_rate":
            return low
        while low in self._measured and not self._is_idle(low) and low / 2 >= self._sendable.lowest:
            low /= 2
        return low

    def _bend(self, low: float, top: float) -> float | None:
        """The level between two rungs where the curve bends; None: it does not bend."""
        lowest_bent: float | None = None
        rung = top
        # from the top, since gains at lower levels vary by chance
        while rung >= low and self._gain(rung) < BENT:
            lowest_bent = rung
            rung /= 2
        if lowest_bent is None:
            return None
        middle = lowest_bent / math.sqrt(2)
        if self._control == "concurrency":
            return float(round(middle))
        return float(f"{middle:.3g}")

    def _gain(self, level: float) -> float:
        """The throughput of a level divided by that of half the load.

        0: the level is too much. 2, as of an idle engine: one of the throughputs is unknown.
        """
        measured = self._measured[level]
        below = self._measured.get(level / 2)
        if measured.is_too_much:
            return 0.0
        if below is not None and below.throughput and measured.throughput:
            return measured.throughput / below.throughput
        return 2.0

    def _is_idle(self, level: float) -> bool:
        """Whether the engine was idle at this level, or the level is too far below the start."""
        if level <= self._start / 2**MOST_STEPS:
            return True
        measured = self._measured[level]
        return not measured.is_too_much and measured.open_requests < 1


def _ends_search(attempt: Committed) -> bool:
    """Whether an attempt has a verdict that no other load changes.

    A verdict that this version does not know does not count.
    """
    if not isinstance(attempt, AttemptData) or attempt.point.validity not in list(Validity):
        return False
    return Validity(attempt.point.validity).ends_search is EndsSearch.YES


def _ladder_level(attempt: Committed, level: Level, slos: Sequence[Slo]) -> _LadderLevel:
    """What an attempt shows of its level. A level that failed is too much."""
    if attempt.status != "ok":
        return _LadderLevel(throughput=None, is_too_much=True, open_requests=0.0)
    if not isinstance(attempt, AttemptData):
        return _LadderLevel(throughput=None, is_too_much=False, open_requests=0.0)
    figures = attempt.figures
    open_requests = 0.0
    if figures.e2e_ms is not None:
        # Little's law. Only a ladder of request rates asks whether its engine is idle.
        open_requests = level.value * figures.e2e_ms.mean / 1e3
    shares = _shares(stored_values(attempt), slos)
    is_too_much = figures.requests.ok == 0 or (bool(shares) and max(shares) < BROKEN)
    return _LadderLevel(figures.output_token_throughput, is_too_much, open_requests)


def _shares(values: LimitValues, slos: Sequence[Slo]) -> list[float]:
    """For each SLO, the share of requests that met the test which the fewest met.

    SLOs on values that are not stored are left out.
    """
    shares: list[float] = []
    for slo in slos:
        if not all(limit.of in values.seconds for limit in slo.limits):
            continue
        shares.append(min(_share_met(test.met) for test in judge(values, slo).tests))
    return shares


def _share_met(met: Bools) -> float:
    """The share of requests that met a test; 1 without requests."""
    return float(met.mean()) if met.size else 1.0

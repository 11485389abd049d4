"""The curve from idle to saturation: a ladder of levels, each twice the one below, as far as more
load gives more.

Up from the start until a level is *saturated*: twice the load gave less than GROWTH times the
output tokens per second, or the level failed, or under every SLO fewer than BROKEN of the requests
were within the limits. Of rates also down from the start until the engine is *idle*: on average
less than one request is open (Little's law: rate times mean end-to-end time). Then one level where
the curve bends, and everything again for each repeat. It ends at once at a verdict that no other
load changes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

from orchestrator.analysis.slo import judge, stored_values
from orchestrator.capacity.strategy import Question
from orchestrator.results.records import AttemptData, Committed
from orchestrator.results.validity import EndsSearch, Validity
from orchestrator.spec.load import MOST_IN_FLIGHT, Level, Slo

GROWTH = 1.1
# the curve bends between two loads if doubling the load gave less than this many times the throughput
BENT = 1.7
BROKEN = 0.5
# requests/s, where nothing is predicted; a closed loop starts with one request in flight
START = 1.0
BELOW_GUESS = 8.0  # times under the capacity that is predicted
MOST_STEPS = 12  # up, and down
EXPECTED = 8  # levels that are counted on before any is known


@dataclass(frozen=True, slots=True)
class _MeasuredLevel:
    """One level. ``throughput``: output tokens per second, None: not known; ``over``: the level
    failed or is far beyond every limit; ``open``: requests on average.
    """

    throughput: float | None
    over: bool
    open: float


class Curve:
    """One ladder of one control."""

    needs_figures = True

    def __init__(self, question: Question) -> None:
        self._control, self._slos, self._repeats = (
            question.control or "request_rate",
            question.slos,
            question.repeats,
        )
        guess = question.first_guess
        self._start = float(f"{guess / BELOW_GUESS:.3g}") if guess else START
        if self._control == "concurrency":
            self._start = 1.0
        self._seen: dict[float, _MeasuredLevel] = {}  # the first time
        self._told: Counter[float] = Counter()
        self._is_pointless = False  # a verdict came that no other load would change

    @staticmethod
    def problem(question: Question) -> str | None:
        return (
            "it finds levels by itself: leave 'levels' out, or use search: levels"
            if question.levels
            else None
        )

    def ask(self) -> Level | None:
        if self._is_pointless:
            return None
        value = next(chain(self._ladder(), self._again()), None)
        return None if value is None else Level(control=self._control, value=value)

    def tell(self, level: Level, attempt: Committed) -> None:
        self._told[level.value] += 1
        self._is_pointless |= _ends_search(attempt)
        self._seen.setdefault(level.value, _seen(attempt, level, self._slos))

    def ahead(self) -> Sequence[Level]:
        """The next level. At first, as many levels as a curve usually has, each twice the one before."""
        if self._is_pointless:
            return []
        values = list(self._again())
        rung = next(self._ladder(), None)
        if rung is not None:
            count = max(EXPECTED - len(self._seen), 1)
            values = [rung * 2**step for step in range(count)] * self._repeats
        return [Level(control=self._control, value=one) for one in values if one <= MOST_IN_FLIGHT]

    def _again(self) -> Iterator[float]:
        """Repeats that are left of what was measured once."""
        yield from [
            one
            for done in range(1, self._repeats)
            for one in sorted(self._seen)
            if self._told[one] <= done
        ]

    def _ladder(self) -> Iterator[float]:
        """What is still to be measured once."""
        top = low = self._start
        while top in self._seen and self._gain(top) >= GROWTH and top < self._start * 2**MOST_STEPS:
            top *= 2
        if top <= MOST_IN_FLIGHT and top not in self._seen:
            yield top
        while self._control == "request_rate" and low in self._seen and not self._idle(low):
            low /= 2
        if low not in self._seen:
            yield low
        if top not in self._seen:
            return
        rungs = [top / 2**step for step in range(round(math.log2(top / low)) + 1)]
        # from the top: lower gains vary by chance
        bent = list(takewhile(lambda one: self._gain(one) < BENT, rungs))
        between = bent[-1] / math.sqrt(2) if bent else 0.0
        between = (
            float(round(between)) if self._control == "concurrency" else float(f"{between:.3g}")
        )
        if low < between and between not in self._seen:
            yield between

    def _gain(self, level: float) -> float:
        """Throughput over that of half the load; 2, as of an idle engine, where that is not known;
        0 at levels that are too much.
        """
        seen, below = self._seen[level], self._seen.get(level / 2)
        if seen.over:
            return 0.0
        if below and below.throughput and seen.throughput:
            return seen.throughput / below.throughput
        return 2.0

    def _idle(self, level: float) -> bool:
        """Whether the server was idle at this level, or it is too far below the start to go on."""
        seen = self._seen[level]
        return (not seen.over and seen.open < 1) or level <= self._start / 2**MOST_STEPS


def _ends_search(attempt: Committed) -> bool:
    """Whether a verdict came that no other load changes. Other programs may know more verdicts."""
    if not isinstance(attempt, AttemptData) or attempt.point.validity not in list(Validity):
        return False
    return Validity(attempt.point.validity).ends_search is EndsSearch.YES


def _seen(attempt: Committed, level: Level, slos: Sequence[Slo]) -> _MeasuredLevel:
    if not isinstance(attempt, AttemptData) or attempt.status != "ok":
        return _MeasuredLevel(None, attempt.status != "ok", 0.0)
    found, values = attempt.figures, stored_values(attempt)
    open_ = level.value * found.e2e_ms.mean / 1e3 if found.e2e_ms is not None else 0.0
    judged = [
        judge(values, slo).tests
        for slo in slos
        if {one.of for one in slo.limits} <= values.seconds.keys()
    ]
    held = [
        min(float(test.met.mean()) if test.met.size else 1.0 for test in tests) for tests in judged
    ]
    over = found.requests.ok == 0 or (bool(held) and max(held) < BROKEN)
    return _MeasuredLevel(found.output_token_throughput, over, open_)

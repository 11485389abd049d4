"""What all probes of each level show together, and where a search stands.

A level is *shown to hold* or *shown to fail* where the evidence of all its probes, taken together
(``capacity/sequential_test.py``), says so with 95 % confidence; else it is undecided. A single long
run of misses is not enough to fail a level, since levels that hold have such runs too. It takes 20
independent requests, or a share far below the target and two probes that were far below it by
themselves. How long runs of misses are is learned from all levels that are near the target.

A level that was shown to hold is *confirmed* where later probes, each with a seed of its own, show
it once more. The earlier ones do not count for this: the level was chosen because of them.

Not every probe counts for everything (``Shows``). A verdict takes all *evidence probes* together.
That the level holds must be shown by the *any-verdict probes* among them alone as well; that it
fails may be shown by either. The share that met the limits is that of all probes with figures,
except interrupted ones.

Levels lie on a geometric grid, so that the same ones come up again and their evidence adds up.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.base.arrays import Bools
from orchestrator.base.grouping import values_by_key
from orchestrator.capacity.design_effect import MissRuns, miss_runs, usual_effect
from orchestrator.capacity.probe_outcome import ProbeOutcome, Shows
from orchestrator.capacity.sequential_test import (
    ALPHA,
    CONFIRM_ALPHA,
    FAR_BELOW,
    EarlierProbes,
    Evidence,
    LevelVerdict,
    evidence_from,
    far_below,
    together,
)
from orchestrator.results.validity import Validity
from orchestrator.spec.load import MOST_IN_FLIGHT, PRECISION

STEPS = 48  # steps of the grid from a level to twice that level: 1.5 % each
SAME = 1.001  # levels within this factor are the same: they are written with four digits
LOWEST, HIGHEST = 2.0**-12, float(MOST_IN_FLIGHT)
# A level whose share is below this part of the target has collapsed: no level near it holds. Where
# it lies just above the claim, the claim's status is "cliff".
COLLAPSED = 0.5
# Into how many parts a probe is cut, and the fewest requests of a part. Parts should be longer than
# runs of misses, which last for some hundred requests where there is a queue.
PARTS, LEAST_PART = 4, 100
MOST_SCREENING = 3  # the most probes of a level that only say whether to go up or down
MOST_INVALID = 2  # a level is given up after so many invalid probes


@dataclass(frozen=True, slots=True)
class LevelRange:
    """The lowest and the highest level that can be sent, both included."""

    lowest: float = LOWEST
    highest: float = HIGHEST


ANY_LEVEL = LevelRange()


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive requests of a probe.

    ``missed_share``: the share of ``requests`` that missed the test of ``LevelEvidence.share``, scaled by
    ``_scale``.
    """

    requests: int
    missed_share: float


@dataclass(frozen=True, slots=True)
class LevelEvidence:
    """What all probes of one level show of a tier.

    - ``verdict``: of all evidence probes; None: undecided
    - ``confirmed``: the level was shown to hold, and the probes after that showed it once more.
      Once the search probes on a second start of the engine, only those of that start count.
    - ``share``: how many of ``requests`` met the test that was missed most, scaled by ``_scale``;
      None: no probe has figures
    - ``requests``: of all probes that count in ``share``
    - ``tests``: the evidence on each test
    - ``whole``: how many any-verdict probes ran their time
    - ``blocked``: the level cannot be measured, because clients are too slow or because something
      else made its probes invalid
    - ``client_bound``: clients were too slow for a probe
    - ``collapsed``: of one test, not even half the target was met
    - ``usual_effect``: the design effect that was learned
    - ``proof``: how many evidence probes it took to show first that the level holds
    - ``start``: the last start of the engine on which an any-verdict probe ran
    - ``final_validity``: a verdict on one of its probes that no other load changes, so that no
      other probe would tell more; None: there is none
    - ``parts``: of all probes that count in ``share``
    - ``seconds``: for how long requests were due in these probes
    """

    level: float
    probes: int
    verdict: LevelVerdict | None
    confirmed: bool
    share: float | None
    requests: int
    tests: tuple[Evidence, ...]
    whole: int
    blocked: bool
    client_bound: bool
    collapsed: bool
    usual_effect: float
    proof: int = 0
    start: int = 0
    final_validity: Validity | None = None
    parts: tuple[Part, ...] = ()
    seconds: float = 0.0

    def log_evidence(self, holds: bool) -> float:
        """Logarithm of the evidence so far that the level holds (else: that it fails).

        0 where there is no evidence, or a verdict already.
        """
        if self.verdict is not None or not self.tests:
            return 0.0
        if holds:  # all tests must hold
            return max(min(test.holds for test in self.tests), 0.0)
        return max(max(test.fails for test in self.tests), 0.0)

    @property
    def effective(self) -> float:
        """How many independent requests would say as much, for the test that has fewest."""
        return min((test.effective for test in self.tests), default=0.0)


@dataclass(frozen=True, slots=True)
class SearchState:
    """Where the search for one tier stands.

    ``levels``: the levels that were probed, the lowest first. ``high``: the lowest level that was
    shown to fail; infinite: none was. ``low``: the highest level below it that was shown to hold;
    0: none was. ``target``: the share of requests that must meet the tier's first test.
    ``whole_numbers``: levels are whole numbers: there is none between 8 and 9. ``precision``: how
    far ``high`` may lie above the claim when the search ends, as a share of the claim.
    ``sendable``: no other levels are probed.
    """

    levels: Sequence[LevelEvidence]
    low: float
    high: float
    target: float
    whole_numbers: bool
    precision: float = PRECISION
    sendable: LevelRange = ANY_LEVEL

    @property
    def confirmed_level(self) -> float:
        """The highest level that was confirmed, which is what is claimed; 0: none was."""
        return max(
            (
                evidence.level
                for evidence in self.levels
                if evidence.confirmed and evidence.level <= self.low
            ),
            default=0.0,
        )

    def is_precise(self, level: float) -> bool:
        """Whether a level that holds is as close to one that fails as was asked for, or the highest
        that can be sent.

        ``level``: 0: no level holds.
        """
        if level <= 0:
            return False
        if level >= self.sendable.highest:
            return True
        is_next_number = self.whole_numbers and self.high <= level + 1
        return is_next_number or self.high <= level * (1 + self.precision)

    @property
    def is_screening(self) -> bool:
        """Whether no level is known yet that fails, or no level that could hold."""
        return math.isinf(self.ceiling) or not self._levels_that_could_hold

    @property
    def can_wait(self) -> bool:
        """Whether other searches may be asked first.

        They may where this search knows where to look, or where a whole probe, or
        ``MOST_SCREENING`` shorter ones, left a level undecided. Where no search waited, races took
        63 % more load.
        """
        if not self.is_screening:
            return True
        return any(
            evidence.verdict is None and (evidence.whole or evidence.probes >= MOST_SCREENING)
            for evidence in self.levels
        )

    @property
    def reach(self) -> float:
        """The highest level probed that could hold, as far as is known; 0: none could."""
        return max(self._levels_that_could_hold, default=0.0)

    @property
    def ceiling(self) -> float:
        """The level from which on nothing is probed: it fails, or cannot be measured, or lies above
        the highest that can be sent, once that was probed.
        """
        blocked = (
            evidence.level
            for evidence in self.levels
            if evidence.blocked and evidence.level > self.low
        )
        ceiling = min(self.high, *blocked, math.inf)
        highest = self.sendable.highest
        if math.isinf(ceiling) and self.at(highest) is not None:
            return highest * SAME
        return ceiling

    @property
    def _levels_that_could_hold(self) -> list[float]:
        """The levels probed below the ceiling that could hold, the lowest first."""
        ceiling = self.ceiling
        return [
            evidence.level
            for evidence in self.levels
            if evidence.level < ceiling and _could_hold(evidence, self.target)
        ]

    def at(self, level: float) -> LevelEvidence | None:
        """What is known of a level; None: it was not probed."""
        return next((evidence for evidence in self.levels if evidence.level == level), None)

    def requests_per_s(self, level: float) -> float | None:
        """How many requests a probe of the level sends per second; None: unknown.

        Of a level in requests in flight, it is what was sent at the nearest level probed.
        """
        if not self.whole_numbers:
            return level
        timed = [evidence for evidence in self.levels if evidence.requests and evidence.seconds]
        if not timed:
            return None
        nearest = min(timed, key=lambda evidence: abs(math.log(evidence.level / level)))
        return nearest.requests / nearest.seconds

    def is_shown_to_hold(self, level: float) -> bool:
        """Whether probes showed that the level holds, confirmed or not."""
        evidence = self.at(level)
        return evidence is not None and evidence.verdict == "holds"

    def on_grid(self, level: float) -> float:
        """The nearest level of the grid that can be sent, which is one that may be probed."""
        lowest = 1.0 if self.whole_numbers else self.sendable.lowest
        highest = self.sendable.highest
        level = min(max(level, lowest), highest)
        near = 2.0 ** (round(math.log2(level) * STEPS) / STEPS)
        if max(level, near) * SAME >= highest:  # the highest need not lie on the grid
            return highest
        rounded = float(round(near)) if self.whole_numbers else float(f"{near:.4g}")
        return max(rounded, lowest)


def search_state(
    levels: Sequence[LevelEvidence],
    target: float,
    whole_numbers: bool = False,
    precision: float = PRECISION,
    sendable: LevelRange = ANY_LEVEL,
) -> SearchState:
    """Where a search with these levels stands. The arguments are the fields of ``SearchState``."""
    high = min(
        (evidence.level for evidence in levels if evidence.verdict == "fails"), default=math.inf
    )
    low = max(
        (
            evidence.level
            for evidence in levels
            if evidence.verdict == "holds" and evidence.level < high
        ),
        default=0.0,
    )
    return SearchState(levels, low, high, target, whole_numbers, precision, sendable)


def at_levels(probes: Iterable[ProbeOutcome], targets: Sequence[float]) -> list[LevelEvidence]:
    """The evidence on each level that was probed, the lowest first.

    ``targets``: the share of requests that must meet each test of the tier.
    """
    by_level = values_by_key((probe.level, probe) for probe in probes)
    judge = _LevelJudge(
        tests=_tier_tests(by_level, targets),
        second_start=any(probe.start for of_level in by_level.values() for probe in of_level),
        client_limit=_client_limit(by_level),
    )
    return [_evidence_on(level, by_level[level], judge) for level in sorted(by_level)]


def earlier_probes(
    probes: Sequence[ProbeOutcome],
    level: float,
    shown: LevelEvidence | None,
    targets: Sequence[float],
    start: int,
) -> tuple[EarlierProbes, ...]:
    """What the next probe of ``level`` begins with, for each test.

    ``probes``: all probes of the tier. ``shown``: the evidence on ``level``; None: it was not
    probed. ``start``: the start of the engine on which the probe will run. To confirm a level, only
    probes after those that first showed that it holds count, and on the second start only those of
    that start.
    """
    by_level = values_by_key((probe.level, probe) for probe in probes)
    probes_with_figures = [probe for probe in by_level.pop(level, []) if probe.met]
    counting = [probe for probe in probes_with_figures if probe.shows.is_evidence]
    confirms = shown is not None and shown.verdict == "holds"
    if shown is not None and confirms:
        counting = counting[shown.proof :]
        if start:
            counting = [probe for probe in counting if probe.start]
    counting_ids = {id(probe) for probe in counting}
    # the others do not count, but show how long runs of misses are
    others = [probe for probe in probes_with_figures if id(probe) not in counting_ids]
    return tuple(
        EarlierProbes(
            counting=tuple(probe.met[test] for probe in counting),
            not_counting=tuple(probe.met[test] for probe in others),
            at_other_levels=tuple(_miss_runs(by_level, test, target)),
            confirms=confirms,
        )
        for test, target in enumerate(targets)
    )


@dataclass(frozen=True, slots=True)
class _TierTest:
    """One test of the tier.

    ``column``: its place in ``ProbeOutcome.met``. ``usual_effect``: the design effect that was
    learned for it.
    """

    column: int
    target: float
    usual_effect: float


@dataclass(frozen=True, slots=True)
class _LevelJudge:
    """Judges one level after the other, with what the probes of all levels tell.

    ``second_start``: a second start of the engine was probed, at whatever level. ``client_limit``:
    the highest level at or above which MOST_INVALID probes were client-bound; 0: fewer were. Up to
    this level, one such probe is enough to give a level up: it is hardly chance.
    """

    tests: tuple[_TierTest, ...]
    second_start: bool
    client_limit: float

    def evidence(self, probes: Sequence[ProbeOutcome]) -> tuple[Evidence, ...]:
        """The evidence of these probes, taken together, on each test."""
        return tuple(
            evidence_from(
                [probe.met[test.column] for probe in probes], test.target, test.usual_effect
            )
            for test in self.tests
        )

    def verdict(
        self, probes: Sequence[ProbeOutcome], alpha_to_hold: float = ALPHA
    ) -> LevelVerdict | None:
        """The verdict of these probes, taken together, on the tier; None: undecided."""
        return together([test.verdict(ALPHA, alpha_to_hold) for test in self.evidence(probes)])

    def holds(self, probes: Sequence[ProbeOutcome], alpha: float = ALPHA) -> bool:
        """Whether these probes show that their level holds.

        All of them together must show it, and so must the any-verdict probes without the others: to
        leave out the probes that missed would be to choose the lucky ones.
        """
        if self.verdict(probes, alpha) != "holds":
            return False
        any_verdict = _any_verdict_probes(probes)
        return len(any_verdict) == len(probes) or self.verdict(any_verdict, alpha) == "holds"

    def is_far_below(self, probe: ProbeOutcome) -> bool:
        """Whether a probe by itself misses the target of a test by far."""
        return any(far_below(probe.met[test.column], test.target) for test in self.tests)


def _tier_tests(
    by_level: Mapping[float, Sequence[ProbeOutcome]], targets: Sequence[float]
) -> tuple[_TierTest, ...]:
    return tuple(
        _TierTest(column, target, usual_effect(_miss_runs(by_level, column, target), target))
        for column, target in enumerate(targets)
    )


def _client_limit(by_level: Mapping[float, Sequence[ProbeOutcome]]) -> float:
    """See ``_LevelJudge.client_limit``."""
    slowed = sorted(
        probe.level
        for of_level in by_level.values()
        for probe in of_level
        if probe.shows is Shows.CLIENT_BOUND
    )
    return slowed[-MOST_INVALID] if len(slowed) >= MOST_INVALID else 0.0


def _evidence_on(level: float, probes: Sequence[ProbeOutcome], judge: _LevelJudge) -> LevelEvidence:
    """What the ``probes`` of one level show."""
    evidence_probes = _evidence_probes(probes)
    any_verdict_probes = _any_verdict_probes(probes)
    tests = judge.evidence(evidence_probes)
    # each share as a part of its target; a part of a mix may have had no requests
    attained = [
        shown.share / test.target
        for shown, test in zip(tests, judge.tests, strict=True)
        if shown.requests
    ]
    least_attained = min(attained, default=0.0)
    verdict = _verdict_on(probes, least_attained, judge)
    proof = _proof(evidence_probes, judge)
    client_bound = any(probe.shows is Shows.CLIENT_BOUND for probe in probes)
    cannot_be_measured = _has_most_invalid(probes)
    if client_bound and level <= judge.client_limit:
        cannot_be_measured = True
    met = _met_share(probes, judge.tests)
    return LevelEvidence(
        level=level,
        probes=len(probes),
        verdict=verdict,
        confirmed=verdict == "holds" and _is_confirmed(evidence_probes[proof:], judge),
        share=met.share,
        requests=met.requests,
        tests=tests,
        whole=sum(probe.whole for probe in any_verdict_probes),
        blocked=verdict is None and cannot_be_measured,
        client_bound=client_bound,
        usual_effect=max(test.usual_effect for test in judge.tests),
        proof=proof,
        start=max((probe.start for probe in any_verdict_probes), default=0),
        collapsed=met.requests > 0 and least_attained < COLLAPSED,
        final_validity=_final_validity(probes),
        parts=met.parts,
        seconds=met.seconds,
    )


def _verdict_on(
    probes: Sequence[ProbeOutcome], least_attained: float, judge: _LevelJudge
) -> LevelVerdict | None:
    """The verdict of all ``probes`` of a level; None: undecided.

    ``least_attained``: the lowest share that met a test, each as a part of that test's target.
    """
    evidence_probes = _evidence_probes(probes)
    if _fails_outright(probes):
        return "fails"
    probes_far_below = sum(judge.is_far_below(probe) for probe in evidence_probes)
    if probes_far_below > 1 and least_attained < FAR_BELOW:
        return "fails"
    if "fails" in (judge.verdict(evidence_probes), judge.verdict(_any_verdict_probes(probes))):
        return "fails"
    return "holds" if judge.holds(evidence_probes) else None


def _final_validity(probes: Sequence[ProbeOutcome]) -> Validity | None:
    """The first verdict on a probe that no other load changes; None: there is none."""
    for probe in probes:
        if probe.shows is Shows.POINTLESS:
            return Validity(probe.validity)
    return None


def _evidence_probes(probes: Iterable[ProbeOutcome]) -> list[ProbeOutcome]:
    """The probes whose requests are evidence on their level."""
    return [probe for probe in probes if probe.shows.is_evidence]


def _any_verdict_probes(probes: Iterable[ProbeOutcome]) -> list[ProbeOutcome]:
    """The probes that may show that a level holds."""
    return [probe for probe in probes if probe.shows is Shows.ANY_VERDICT]


def _fails_outright(probes: Sequence[ProbeOutcome]) -> bool:
    """Whether the level fails whatever its requests say.

    It does if the engine died of it, or if two probes were ended because requests came in faster
    than they were answered.
    """
    diverged = sum(probe.shows is Shows.DIVERGED and not probe.whole for probe in probes)
    return diverged > 1 or any(probe.shows is Shows.ENGINE_DIED for probe in probes)


def _proof(evidence_probes: Sequence[ProbeOutcome], judge: _LevelJudge) -> int:
    """How many probes, from the first on, it takes to show that the level holds, or else all."""
    for count in range(1, len(evidence_probes)):
        if judge.holds(evidence_probes[:count]):
            return count
    return len(evidence_probes)


def _is_confirmed(later: Sequence[ProbeOutcome], judge: _LevelJudge) -> bool:
    """Whether the probes after the proof show once more that the level holds.

    Once a second start was probed, only its probes count.
    """
    confirming = [probe for probe in later if probe.start or not judge.second_start]
    return judge.holds(confirming, CONFIRM_ALPHA)


def _has_most_invalid(probes: Sequence[ProbeOutcome]) -> bool:
    return (
        sum(probe.shows in (Shows.CLIENT_BOUND, Shows.NOTHING) for probe in probes) >= MOST_INVALID
    )


@dataclass(frozen=True, slots=True)
class _MetShare:
    """The share of requests that met the test that was missed most.

    ``share``: scaled by ``_scale``; None without requests. ``parts``: of the probes. ``seconds``:
    for how long requests were due.
    """

    requests: int
    share: float | None
    parts: tuple[Part, ...] = ()
    seconds: float = 0.0


def _met_share(probes: Sequence[ProbeOutcome], tests: Sequence[_TierTest]) -> _MetShare:
    """The requests of all probes that have figures, and the share of them that met the tests."""
    counting = [probe for probe in probes if probe.met and probe.shows is not Shows.INTERRUPTED]
    by_test: list[_Missed] = []
    for test in tests:
        flags = [probe.met[test.column] for probe in counting]
        requests = sum(map(len, flags))
        missed = requests - sum(int(met.sum()) for met in flags)
        if requests:
            by_test.append(_Missed(test, requests, missed * _scale(test, tests[0]) / requests))
    if not by_test:
        return _MetShare(0, None)
    most_missed = max(by_test, key=lambda missed: missed.share)
    parts: list[Part] = []
    for probe in counting:
        parts += _parts(probe.met[most_missed.test.column], _scale(most_missed.test, tests[0]))
    share = max(1 - most_missed.share, 0.0)
    seconds = sum(probe.seconds for probe in counting)
    return _MetShare(most_missed.requests, share, tuple(parts), seconds)


@dataclass(frozen=True, slots=True)
class _Missed:
    """What share of ``requests`` missed a test, scaled by ``_scale``."""

    test: _TierTest
    requests: int
    share: float


def _scale(test: _TierTest, first: _TierTest) -> float:
    """How many misses of the first test weigh as much as one miss of ``test``.

    Misses scaled by it reach what the first test allows where ``test`` reaches what it allows.
    """
    return (1 - first.target) / max(1 - test.target, 1e-9)


def _parts(met: Bools, scale: float) -> list[Part]:
    """Cuts a probe into PARTS equal parts, or into fewer where they would be too short."""
    count = min(PARTS, max(len(met) // LEAST_PART, 1))
    parts: list[Part] = []
    for flags in np.array_split(met, count):
        if len(flags):
            parts.append(Part(len(flags), min(scale * float(1 - flags.mean()), 1.0)))
    return parts


def _could_hold(evidence: LevelEvidence, target: float) -> bool:
    return evidence.verdict == "holds" or (evidence.share or 0.0) >= target


def _miss_runs(
    by_level: Mapping[float, Sequence[ProbeOutcome]], test: int, target: float
) -> list[MissRuns]:
    """What each level tells of runs of misses; levels that tell nothing are left out."""
    runs_by_level: list[MissRuns] = []
    for probes in by_level.values():
        of_level = miss_runs([probe.met[test] for probe in probes if probe.met], target)
        if of_level is not None:
            runs_by_level.append(of_level)
    return runs_by_level

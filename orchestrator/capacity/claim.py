"""The capacity that probes show: the highest load at which a tier of limits holds, with bounds, for
any limits.

Of every level the evidence of all its probes is taken together (``capacity/sequential_test.py``). A level is
*shown to hold* or
*shown to fail* where that evidence says so with 95 % confidence, and is undecided else. One long
run of misses comes at levels that hold, too: a level fails by 20 independent requests, or where it
is far below the target and so were two probes by themselves, one of them at that level and the
other at that one or lower. What is claimed was shown to hold once more by the probes after those,
each with a seed of its own: the first ones were why it was chosen. How long runs of misses are is
learned from all levels that are near the target.

``low`` and ``high`` bound the capacity: the highest level that is shown to hold below the lowest
one that is shown to fail. A probe that was saturated, or ended before its time because it failed,
never shows that a level holds.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.analysis.metrics import BACKLOG
from orchestrator.analysis.requests import Bools
from orchestrator.analysis.slo import format_limits, stored_values, tests
from orchestrator.base.errors import FailureClass
from orchestrator.base.text import grouped
from orchestrator.capacity.choose_level import PRECISION, Known
from orchestrator.capacity.design_effect import Clumps, clumps, usual_effect
from orchestrator.capacity.sequential_test import (
    ALPHA,
    CONFIRM_ALPHA,
    FAR_BELOW,
    FEWEST,
    Before,
    Evidence,
    Outcome,
    evidence,
    far_below,
    together,
)
from orchestrator.results.records import AttemptData, Committed, PointHead
from orchestrator.results.validity import EndsSearch, Validity
from orchestrator.spec.load import Slo

COLLAPSED = 0.5  # times the target: below it nothing is near; just above the claim it is a cliff
MOST_INVALID = 2  # probes of a level, before it is given up
SEPARATOR = "; "  # between the limits of several SLOs that a probe ended for
# of the requests of a probe that shows that a level holds, that waited under max_in_flight
MOST_CAPPED = 0.01
Status = Literal[
    "converged",
    "cliff",
    "unresolved",
    "nothing_holds",
    "client_bound",
    "non_monotonic",
    "outraced",
    "budget",
    # verdicts that no other load changes end a search, and are its status
    "broken_output",
    "invalid",
    "stream_buffered",
]
# what a probe can show: anything, only that its level fails, that requests came in faster than they
# were answered, only that its level fails and no share (the slowest answers were not waited for),
# that the level fails, that the client is too slow, nothing, that no level shows anything
Shows = Literal[
    "all",
    "misses",
    "diverged",
    "interrupted",
    "fails",
    "client_bound",
    "nothing",
    "pointless",
]
# statuses that are verdicts which no other load changes
POINTLESS: tuple[Status, ...] = ("broken_output", "invalid", "stream_buffered")
# whose requests say something of their level
EVIDENCE = ("all", "misses", "diverged", "interrupted")


@dataclass(frozen=True, slots=True)
class Probed:
    """One ended probe under one tier. ``met``: of each of its tests, flags in order of when
    requests were due. ``whole``: it ran its time, and more of that level takes another one.
    ``start``: of the engine. ``validity``: the verdict on it.
    """

    level: float
    met: tuple[Bools, ...] = ()
    shows: Shows = "all"
    whole: bool = True
    start: int = 0
    validity: str = Validity.VALID


@dataclass(frozen=True, slots=True)
class AtLevel:
    """What all probes of one level show of a tier. ``tests``: evidence on each.

    ``confirmed``: shown to hold again by the probes after those that first showed it, on the second
    start of the engine where the search has come to it; ``proof``: how many first did, of those
    that say something of it; ``start``: the last one that any of them ran on. ``share``: of
    ``requests``, of the test that is worst off, scaled to the target of the first; None where no
    probe has figures. ``whole``: probes that ran their time. ``blocked``: it cannot be measured, by
    clients that are too slow (``client_bound``) or whatever made its probes invalid. ``collapsed``:
    not even half of the target was met. ``usual_effect``: the design effect that was learned.
    ``far_below``: all its requests are, and those of some probe by itself (``capacity/sequential_test.py``).
    """

    level: float
    probes: int
    verdict: Outcome | None
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
    far_below: bool = False
    # the verdict on one of its probes that no other load changes
    pointless: Validity | None = None

    def lean(self, holds: bool) -> float:
        """Evidence so far (a logarithm) that it holds, or that it fails; 0 where a verdict says it."""
        found = [one.holds if holds else one.fails for one in self.tests]
        return (
            max(min(found) if holds else max(found), 0.0) if found and self.verdict is None else 0.0
        )

    @property
    def effective(self) -> float:
        """Independent requests that would say as much."""
        return min((one.effective for one in self.tests), default=0.0)


@dataclass(frozen=True, slots=True)
class Claim:
    """``claim``: load that holds the tier, confirmed; None: nothing is. ``high`` is infinite where
    no level was shown to fail.

    ``passed``: the highest level below ``high`` whose probes met the limits, confirmed or not.

    Statuses: ``converged``, ``high`` is as near above it as was asked for; ``cliff``, so it is and
    attainment is less than half the target there; ``unresolved``, more probes would hardly tell
    which of the levels in between hold; ``nothing_holds``, not even the lowest at which a probe has
    enough requests; ``client_bound``, the clients cannot load those in between; ``non_monotonic``,
    a level holds above one that fails; ``outraced``, another deployment holds as much as this one
    fails at (``capacity/dominance.py``); ``budget``, it ended before it knew what it could; the
    verdicts of ``POINTLESS``, probes of no load would tell anything.
    """

    claim: float | None
    low: float
    high: float
    status: Status
    levels: tuple[AtLevel, ...]
    passed: float | None = None

    @property
    def pointless(self) -> bool:
        """Whether no other load changes what is wrong with its probes."""
        return self.status in POINTLESS


def probed(attempt: Committed, level: float, slo: Slo, starts: int = 1) -> Probed:
    """One attempt under one tier. ``starts``: see ``shown_by``."""
    if not isinstance(attempt, AttemptData):
        return Probed(level, shows="nothing")
    met = (
        tuple(one.met for one in tests(stored_values(attempt), slo))
        if attempt.status == "ok"
        else ()
    )
    ours = attempt.deployment is None or attempt.deployment.launched
    return shown_by(attempt.point, level, met, slo, ours, starts)


def shown_by(
    point: PointHead,
    level: float,
    met: tuple[Bools, ...],
    slo: Slo,
    ours: bool = True,
    starts: int = 1,
) -> Probed:
    """``probed``, of a row and what came of each test of the tier ``slo``. ``ours``: the engine was
    started for it. Whether the load killed the server behind an endpoint nobody knows. ``starts``:
    of the engine, that the file asks for now; of one, it does not matter which start a probe ran
    on.
    """
    shows = _shows(point, slo, ours, any(test.size for test in met))
    met = met if shows in EVIDENCE else ()
    return Probed(
        level,
        met,
        shows,
        whole=point.ended_early is None,
        start=point.start if starts > 1 else 0,
        validity=point.validity,
    )


def no_load_changes(validity: str, slo: Slo) -> bool:
    """Whether a probe with this verdict tells that probes of every load will have it."""
    if validity not in list(Validity):
        return False  # of another version
    ends = Validity(validity).ends_search
    return ends is EndsSearch.YES or (ends is EndsSearch.PARTLY and _limits_tokens(slo))


def _limits_tokens(slo: Slo) -> bool:
    """Whether it limits times between tokens, which nobody knows of a stream that came in lumps."""
    return any(one.of in ("tpot", "itl_p99") for one in slo.limits)


def _shows(point: PointHead, slo: Slo, ours: bool, has_requests: bool) -> Shows:
    valid = ("valid",) if _limits_tokens(slo) else ("valid", "stream_buffered")
    if point.validity == "client_bound" or point.failure_class == FailureClass.CLIENT_BOUND:
        return "client_bound"
    died = point.failure_class in (FailureClass.ENGINE_CRASH, FailureClass.TIMEOUT)
    if died and ours and point.clients:  # under load, and not before
        return "fails"
    ended = point.ended_early
    # a window without requests, or whose requests were aborted, is its load's doing
    of_the_load = point.validity == Validity.INVALID and (ended == "fails" or not has_requests)
    judged = point.status == "ok" or point.validity == Validity.BROKEN_OUTPUT
    if judged and not of_the_load and no_load_changes(point.validity, slo):
        return "pointless"
    # no answer came in time
    told = (*valid, BACKLOG, "interrupted", *(("invalid",) if ended == "fails" else ()))
    # what ended because it failed its limits, perhaps with requests open, tells nothing about
    # others
    others = ended == "fails" and format_limits(slo) not in (point.ended_for or "").split(SEPARATOR)
    if point.status != "ok" or point.validity not in told or others:
        return "nothing"
    if point.validity == "interrupted":
        return "interrupted"
    if point.validity in valid and ended != "fails" and (point.capped_share or 0.0) <= MOST_CAPPED:
        return "all"
    return "diverged" if ended in ("fails", "mixed") and point.validity == BACKLOG else "misses"


def at_levels(probes: Iterable[Probed], targets: Sequence[float]) -> list[AtLevel]:
    """By level, the lowest first. ``targets``: of each test of the tier."""
    by_level = grouped((one.level, one) for one in probes)
    learned = (_clumps(by_level, test, target) for test, target in enumerate(targets))
    priors = [
        usual_effect(seen.values(), target) for seen, target in zip(learned, targets, strict=True)
    ]
    asked = list(zip(range(len(targets)), targets, priors, strict=True))
    again = any(one.start for some in by_level.values() for one in some)
    slow = sorted(
        level for level, some in by_level.items() for one in some if one.shows == "client_bound"
    )
    too_slow = slow[-MOST_INVALID] if len(slow) >= MOST_INVALID else 0.0
    levels, lower = list[AtLevel](), False
    for level in sorted(by_level):
        levels.append(_at_level(level, by_level[level], asked, again, level <= too_slow, lower))
        lower = levels[-1].verdict != "holds" and (lower or levels[-1].far_below)
    return levels


def _at_level(
    level: float,
    probes: Sequence[Probed],
    asked: Sequence[tuple[int, float, float]],
    again: bool,
    slow: bool,
    lower: bool,
) -> AtLevel:
    """``again``: a second start of the engine was probed, at whatever level. ``slow``: at this
    level or above it, as many probes were slowed down by clients as give a level up; one of them is
    then enough here. ``lower``: a lower level is far below the target, and none in between holds.
    """
    some = [one for one in probes if one.shows in EVIDENCE]
    full = _full(some)

    def shown(of: Sequence[Probed]) -> tuple[Evidence, ...]:
        return tuple(
            evidence([one.met[test] for one in of], target, prior) for test, target, prior in asked
        )

    def verdict_of(of: Sequence[Probed], to_hold: float = ALPHA) -> Outcome | None:
        return together([one.verdict(ALPHA, to_hold) for one in shown(of)])

    def holds(of: Sequence[Probed], alpha: float = ALPHA) -> bool:
        # with those that ended because they missed, too: without them the lucky ones would be
        # chosen
        able = _full(of)
        return verdict_of(of, alpha) == "holds" and (
            len(able) == len(of) or verdict_of(able, alpha) == "holds"
        )

    found = shown(some)
    verdict: Outcome | None = "holds" if holds(some) else None
    flags = [
        [one.met[test] for one in probes if one.met and one.shows != "interrupted"]
        for test, _, _ in asked
    ]
    met, requests = (
        [sum(int(one.sum()) for one in runs) for runs in flags],
        sum(len(one) for one in flags[0]),
    )
    targets = [target for _, target, _ in asked]
    worst = min(one.share / of for one, of in zip(found, targets, strict=True))
    apart = sum(any(far_below(one.met[test], target) for test, target, _ in asked) for one in some)
    hopeless = worst < FAR_BELOW and apart > 0 and apart + lower > 1
    hopeless |= [one.shows for one in some if not one.whole].count("diverged") > 1
    hopeless |= any(one.shows == "fails" for one in probes)
    if hopeless or "fails" in (verdict_of(some), verdict_of(full)):
        verdict = "fails"
    first = next((end for end in range(1, len(some)) if holds(some[:end])), len(some))
    later = [one for one in some[first:] if one.start or not again]
    client_bound = any(one.shows == "client_bound" for one in probes)
    invalid = sum(one.shows in ("client_bound", "nothing") for one in probes)
    # over what may be
    most = max((requests - one) / max(1 - of, 1e-9) for one, of in zip(met, targets, strict=True))
    return AtLevel(
        level=level,
        probes=len(probes),
        verdict=verdict,
        confirmed=verdict == "holds" and holds(later, CONFIRM_ALPHA),
        share=max(1 - (1 - targets[0]) * most / requests, 0.0) if requests else None,
        requests=requests,
        tests=found,
        whole=sum(one.whole for one in full),
        blocked=verdict is None and (invalid >= MOST_INVALID or (client_bound and slow)),
        client_bound=client_bound,
        usual_effect=max(prior for _, _, prior in asked),
        proof=first,
        start=max((one.start for one in full), default=0),
        collapsed=bool(requests) and worst < COLLAPSED,
        far_below=apart > 0 and worst < FAR_BELOW,
        pointless=next(
            (Validity(one.validity) for one in probes if one.shows == "pointless"), None
        ),
    )


def _full(probes: Iterable[Probed]) -> list[Probed]:
    """Those that may show that a level holds."""
    return [one for one in probes if one.shows == "all"]


def _clumps(
    by_level: Mapping[float, Sequence[Probed]], test: int, target: float
) -> dict[float, Clumps]:
    """What runs of misses are learned from, by level."""
    found = (
        (level, clumps([one.met[test] for one in some if one.met], target))
        for level, some in by_level.items()
    )
    return {level: one for level, one in found if one is not None}


def before(
    probes: Sequence[Probed], at: float, there: AtLevel | None, targets: Sequence[float], start: int
) -> tuple[Before, ...]:
    """What the next probe of the level ``at`` begins with, for each test. ``there``: what is known
    of that level, with all ``probes`` of the tier. ``start``: of the engine.
    """
    by_level = grouped((one.level, one) for one in probes)
    here = [one for one in by_level.pop(at, []) if one.met]
    confirms = there is not None and there.verdict == "holds"
    first = there.proof if there is not None and confirms else 0
    count = [one for one in here if one.shows in EVIDENCE][first:]
    count = [one for one in count if one.start or not (start and confirms)]
    others = [one for one in here if not any(one is other for other in count)]
    return tuple(
        Before(
            tuple(one.met[test] for one in count),
            tuple(one.met[test] for one in others),
            tuple(_clumps(by_level, test, target).values()),
            confirms,
        )
        for test, target in enumerate(targets)
    )


def known_of(
    levels: Sequence[AtLevel],
    target: float,
    whole_numbers: bool = False,
    precision: float = PRECISION,
) -> Known:
    """Where these levels, the lowest first, hold and fail. ``target``: of the first test of the
    tier. ``precision``: see ``Known``.
    """
    high = min((one.level for one in levels if one.verdict == "fails"), default=math.inf)
    low = max(
        (one.level for one in levels if one.verdict == "holds" and one.level < high), default=0.0
    )
    return Known(levels, low, high, target, whole_numbers, precision)


def claim_of(
    levels: Sequence[AtLevel],
    target: float,
    whole_numbers: bool = False,
    precision: float = PRECISION,
) -> Claim:
    """What is claimed of these levels. Arguments as of ``known_of``."""
    known = known_of(levels, target, whole_numbers, precision)
    pointless = {one.pointless for one in levels}
    if Validity.BROKEN_OUTPUT in pointless:  # whatever was measured was no output
        return Claim(None, 0.0, math.inf, "broken_output", tuple(levels))
    status = next((one for one in POINTLESS if one in pointless), None) or _status(known)
    return Claim(
        known.claim or None, known.low, known.high, status, tuple(levels), known.reach or None
    )


def _status(known: Known) -> Status:
    high = known.high
    if any(one.verdict == "holds" and one.level > high for one in known.levels):
        return "non_monotonic"
    if known.precise(known.claim):
        return (
            "cliff"
            if any(one.level == high and one.collapsed for one in known.levels)
            else "converged"
        )
    if known.wanted() is not None:
        return "budget"
    between = [one for one in known.levels if known.claim < one.level < high]
    if any(one.blocked and one.client_bound for one in between):
        return "client_bound"
    tells_nothing = all(
        one.verdict is None and one.requests < FEWEST and not one.blocked for one in between
    )
    return (
        "nothing_holds" if math.isfinite(high) and not known.low and tells_nothing else "unresolved"
    )

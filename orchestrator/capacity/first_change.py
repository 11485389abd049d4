"""Finds what to change first where a search ended without an answer.

These are facts that ``report/words.py`` puts into sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.analysis.points import Repeat
from orchestrator.analysis.slo import first_target
from orchestrator.capacity.attainment_fit import AttainmentFit
from orchestrator.capacity.choose_level import MOST_REPEATS, MOST_REQUESTS
from orchestrator.capacity.claim import Claim
from orchestrator.spec.load import Limit, Slo

# a claim may be taken as it is if the level that fails is above it by at most this share
NEAR_ENOUGH = 0.25
WIDEST_PRECISION = 1.0  # the largest ``precision`` that an experiment file may give


@dataclass(frozen=True, slots=True)
class WidestMiss:
    """The limit that the requests of a level missed by most.

    ``needed``: the share of requests that must meet it. ``met``: the share that did. ``value_s``:
    the value (seconds) within which the needed share stayed; infinite where fewer were answered.
    """

    level: float
    limit: Limit
    needed: float
    met: float
    value_s: float

    @property
    def shortfall(self) -> float:
        """How many more requests must meet it than did, as a share."""
        return self.needed - self.met


@dataclass(frozen=True, slots=True)
class LongerProbes:
    """How long probes must at least be, in seconds, to be expected to decide an open level."""

    level: float
    seconds: float


@dataclass(frozen=True, slots=True)
class WiderPrecision:
    """The smallest ``precision`` with which the claim would have been the answer."""

    precision: float


FirstChange = WidestMiss | LongerProbes | WiderPrecision


def first_change(claim: Claim, probes: Sequence[Repeat], slo: Slo) -> FirstChange | None:
    """What to change first.

    ``probes``: all of the search, judged by ``slo`` first; those of one level, the oldest first.
    None: nothing needs a change with this status, or the probes do not tell what would help.
    """
    if claim.status == "nothing_holds":
        return _widest_miss(probes, slo)
    if claim.status != "unresolved":
        return None
    wider = _wider_precision(claim)
    if wider is not None and wider.precision <= NEAR_ENOUGH:
        return wider
    return _longer_probes(claim, probes, first_target(slo)) or wider


def _wider_precision(claim: Claim) -> WiderPrecision | None:
    """The precision with which the claim is the answer; None: what fails is too far above it, or
    nothing is known to hold or to fail.
    """
    if claim.claim is None or math.isinf(claim.high):
        return None
    needed = claim.high / claim.claim - 1
    if needed > WIDEST_PRECISION:
        return None
    return WiderPrecision(math.ceil(needed * 100) / 100)


def _longer_probes(claim: Claim, probes: Sequence[Repeat], target: float) -> LongerProbes | None:
    """The probes that would decide a level between the claim and what fails: of all such levels,
    the one that takes the shortest probes. None: no level would be decided.
    """
    open_levels = [
        evidence
        for evidence in claim.levels
        if evidence.verdict is None
        and evidence.requests
        and not evidence.blocked
        and (claim.claim or 0.0) < evidence.level < claim.high
    ]
    if not open_levels:
        return None
    fit = AttainmentFit(claim.levels, target)
    longer: list[LongerProbes] = []
    for evidence in open_levels:
        requests = evidence.requests + fit.requests(evidence.level)
        rate = _requests_per_second(probes, evidence.level)
        if requests <= MOST_REQUESTS and rate:
            requests_of_probe = requests / MOST_REPEATS  # a level gets so many probes at most
            longer.append(LongerProbes(evidence.level, requests_of_probe / rate))
    return min(longer, key=lambda probe: probe.seconds, default=None)


def _requests_per_second(probes: Sequence[Repeat], level: float) -> float:
    """How many requests were due per second in the probes of a level; 0: it has no requests."""
    at_level = [probe for probe in probes if probe.head.level == level]
    seconds = sum(probe.figures.window_s for probe in at_level)
    requests = sum(probe.requests.scheduled for probe in at_level)
    return requests / seconds if seconds else 0.0


def _widest_miss(probes: Sequence[Repeat], slo: Slo) -> WidestMiss | None:
    """The widest miss at the lowest level where too few requests met some limit.

    None: at each level, enough requests met each limit taken alone. The level may fail all the
    same: not enough of them met all limits together.
    """
    for probe in sorted(probes, key=lambda probe: probe.head.level):
        misses = _misses(probe, slo)
        if misses:
            return max(misses, key=lambda miss: miss.shortfall)
    return None


def _misses(probe: Repeat, slo: Slo) -> list[WidestMiss]:
    """The limits that too few of a probe's requests met."""
    if not probe.verdicts:
        return []
    misses: list[WidestMiss] = []
    for limit in slo.limits:
        count = probe.verdicts[0].by_limit[limit.name]
        if not count.requests:
            continue
        met = count.met / count.requests
        needed = slo.to_meet(limit)
        if met < needed:
            misses.append(WidestMiss(probe.head.level, limit, needed, met, count.needed_s))
    return misses

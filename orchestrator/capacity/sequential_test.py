"""Does a load level hold a latency target? A sequential test, for a probe that still runs and for
stored ones.

A request meets a test or misses it; errors are misses. A *test* has a target: the share of requests
that must meet it. A *tier* (an SLO) is one or more tests, and holds when all of them do. Requests
that have not ended count as soon as they are certain misses.

Evidence is a likelihood ratio mixed over all shares on one side of the target (Robbins 1970,
"Statistical methods related to the law of the iterated logarithm"). Where the truth is on the other
side, the ratio passes 1/alpha with probability alpha at most, however often it is looked at (Ville
1939). So a probe may stop at any instant, and repeats of a level, each with a seed of its own, are
simply taken together.

That holds for independent requests, but failures come in runs. So counts are first divided by the
design effect (``capacity/design_effect.py``): how many times the variance of batch means is above
that of independent requests. A lucky probe sees fewer and shorter runs of misses than there are, so
the effect is never taken to be less than what other levels say of a level that just meets the
target. Where no level tells, it is ``PRIOR_EFFECT``: no miss in 60 requests is no evidence for 95 %
where misses come 20 at a time.

Used while a probe runs (``Probe``), and by ``capacity/levels.py`` over what is stored
(``evidence``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestrator.analysis.steady import RequestSpans, steady_from
from orchestrator.base.arrays import Bools, Floats
from orchestrator.capacity.design_effect import (
    PRIOR_EFFECT,
    MissRuns,
    design_effect,
    miss_runs,
    usual_effect,
)

ALPHA = 0.05  # how often one verdict may be wrong
# the same for probes that confirm: their level was shown to hold before, and they only have to say
# that this was no luck
CONFIRM_ALPHA = 0.2
# a running probe gets this part of alpha: its stored rows, which are cut a little differently, must
# lead to the same verdict later
LIVE = 0.6
PRIOR_MISSES = 6  # independent misses that weigh as much as the design effect that was assumed
# standard deviations by which a backlog grows, in each of the last two quarters of a run
GROWTH = 3.0
MOSTLY = 0.8  # share of the requests of the last quarter that miss
SLOWER = 2.0  # the last requests take so many times as long as the first ones
FEWEST = 30  # requests that a verdict needs: two slow ones of a cold engine show nothing
# independent requests that "fails" needs: one long run of misses happens at good levels, too
FEWEST_TO_FAIL = 20.0
# times the target: a running probe that falls so far fails, and two such probes, which began apart,
# show that their level fails; with evidence alone, searches took 8 % more load, at a cliff 67 %
FAR_BELOW = 0.7
# between two looks at a running probe: the longer of this and this share of how long it has run
LOOK_S = 0.5
LOOK_SHARE = 0.1
# evidence (a logarithm) that is expected at the end of a probe, with what the mixture costs
NEEDED = -np.log(ALPHA) + 2.0
# a probe may be judged to take far more requests than expected after 1 / PATIENT of those expected
PATIENT = 4.0
FAR_MORE = 2.0  # times the expected requests
FEWEST_LATE = 8  # requests of the last quarter whose fate is known, before they are judged
LevelVerdict = Literal["holds", "fails"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence on one test at one level. ``share``: of ``requests`` that met it. ``holds``,
    ``fails``: logarithms of the evidence that the true share is above, below the target.
    ``effective``: independent requests that would say as much.
    """

    requests: int
    share: float
    effective: float
    design_effect: float
    holds: float
    fails: float

    def verdict(self, alpha: float = ALPHA, to_hold: float | None = None) -> LevelVerdict | None:
        """What this evidence shows; None: undecided, more requests would tell. ``to_hold``:
        ``alpha`` of "holds", where that is another one.
        """
        alpha_to_hold = alpha if to_hold is None else to_hold
        if self.holds >= -np.log(alpha_to_hold):
            return "holds"
        # one long run of misses comes at good levels, too; where every request must meet the test,
        # one miss is enough
        is_enough = self.effective >= FEWEST_TO_FAIL or np.isinf(self.fails)
        return "fails" if is_enough and self.fails >= -np.log(alpha) else None


@dataclass(frozen=True, slots=True)
class EarlierProbes:
    """What earlier probes say of one test when a probe begins.

    ``runs``: flags of earlier probes of its level that count as evidence, in any order.
    ``learned``: flags of those that only tell how misses run. ``seen``: how misses run at other
    levels. ``confirms``: its level was shown to hold. ``quick``: the probe only has to tell whether
    to go up or down, which proves nothing, so requests are taken to be independent.
    """

    runs: tuple[Bools, ...] = ()
    learned: tuple[Bools, ...] = ()
    seen: tuple[MissRuns, ...] = ()
    confirms: bool = False
    quick: bool = False

    def evidence(self, met: Bools, target: float) -> Evidence:
        """The evidence of earlier probes together with that of the running one. ``met``: whether
        each of its requests so far met the test.
        """
        runs = [*self.runs, met]
        if self.quick:
            return evidence_from(runs, target, 1.0)
        here = miss_runs([*self.learned, *runs], target)
        seen = self.seen if here is None else (*self.seen, here)
        return evidence_from(runs, target, usual_effect(seen, target))


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """Requests of a probe. ``expected``: to its verdict. ``most``: after which it ends without
    one.
    """

    expected: float = np.inf
    most: float = np.inf


ANY_SIZE = ProbeSize()


def requests_needed(share: float, target: float, effect: float, shown: float = 0.0) -> float:
    """How many requests are expected to show on which side of the target this share of them lies:
    the evidence that is needed over what one request brings (the Kullback-Leibler divergence of
    the share from the target), times the design effect. ``shown``: evidence that is there, a
    logarithm.
    """
    from scipy.special import rel_entr  # imported late: most sweeps search nothing

    divergence = rel_entr(share, target) + rel_entr(1 - share, 1 - target)
    return float(effect * max(NEEDED - shown, 1.0) / max(divergence, 1e-9))


def next_look_s(now_s: float) -> float:
    """When a running probe is looked at again. A look costs what all its requests cost, and may
    come as late as a tenth of the probe.
    """
    return now_s + max(LOOK_S, LOOK_SHARE * now_s)


def evidence_from(
    runs: Sequence[Bools], target: float, prior_effect: float = PRIOR_EFFECT
) -> Evidence:
    """How much the probes say for and against a test.

    ``runs``: per probe whether each request met the test, in order of when they were due.
    ``target``: in (0, 1]. ``prior_effect``: the least design effect.

    The share of misses q has the density of Jeffreys, Beta(1/2, 1/2), cut at the target's q0 =
    1 - target: below it for "holds", above it for "fails". With n independent requests of which m
    missed, a = m + 1/2 and b = n - m + 1/2, and I the regularized incomplete beta function:

        holds = B(a, b) / B(1/2, 1/2) * I(q0; a, b) / I(q0; 1/2, 1/2) / (q0^m * (1 - q0)^(n - m))
    """
    from scipy.special import betainc, betaln  # imported late, as above

    count = sum(len(run) for run in runs)
    met = sum(int(np.count_nonzero(run)) for run in runs)
    if not count:
        return Evidence(0, 0.0, 0.0, prior_effect, 0.0, 0.0)
    q = 1.0 - target
    # every request must: nothing short of all of them shows that it holds, one miss that it does
    # not
    if q <= 0:
        return Evidence(count, met / count, count, 1.0, 0.0, np.inf if met < count else 0.0)
    effect = _effect_of(runs, count - met, prior_effect)
    n = count / effect
    missed = (count - met) / effect
    a = missed + 0.5
    b = n - missed + 0.5
    at_target = missed * np.log(q) + (n - missed) * np.log1p(-q)
    whole = betaln(a, b) - betaln(0.5, 0.5) - at_target
    with np.errstate(divide="ignore"):  # no weight at all on one side
        below = np.log(betainc(a, b, q))
        above = np.log(betainc(b, a, 1 - q))
    holds = whole + below - np.log(betainc(0.5, 0.5, q))
    fails = whole + above - np.log(betainc(0.5, 0.5, 1 - q))
    return Evidence(count, met / count, n, effect, float(holds), float(fails))


def _effect_of(runs: Sequence[Bools], missed: int, prior_effect: float) -> float:
    """The design effect that these probes show, and ``prior_effect`` with the weight of
    ``PRIOR_MISSES`` independent misses; never less than what they show.
    """
    shown = design_effect(runs)
    independent_misses = missed / prior_effect
    weighted = independent_misses * shown + PRIOR_MISSES * prior_effect
    return max(shown, weighted / (independent_misses + PRIOR_MISSES))


def far_below(met: Bools, target: float) -> bool:
    """Whether so many requests of a probe miss that it should end. Whether they were one long run
    of misses is told sooner by another probe than by the rest of this one.
    """
    return len(met) >= FEWEST and bool(met.mean() < FAR_BELOW * target)


@dataclass(frozen=True, slots=True)
class _EndedRequests:
    """Requests that ended, in any order. ``met`` [n, tests]: which tests each of them met."""

    due_s: Floats
    done_s: Floats
    met: Bools


def _joined(parts: Sequence[_EndedRequests], tests: int) -> _EndedRequests:
    """Several parts as one."""
    if not parts:
        return _EndedRequests(np.zeros(0), np.zeros(0), np.zeros((0, tests), bool))
    return _EndedRequests(
        np.concatenate([part.due_s for part in parts]),
        np.concatenate([part.done_s for part in parts]),
        np.concatenate([part.met for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class _Requests:
    """Requests that were due by an instant, in that order. Open ones are done at infinity.

    ``certain`` [n, tests]: whether it is certain that each request meets or misses each test.
    ``met`` [n, tests]: whether it meets it.
    """

    due_s: Floats
    done_s: Floats
    certain: Bools
    met: Bools


@dataclass(frozen=True, slots=True)
class _TestLook:
    """What a look at a running probe finds of one test. ``independent``: requests of the probe that
    were judged, over their design effect. ``needed``: requests of this probe that a verdict is
    expected to take; 0 where there is one.
    """

    verdict: LevelVerdict | None
    independent: float
    needed: float


class Probe:
    """One running probe: tell it what ended, look when you like, stop when every tier has a
    verdict.

    ``tiers``: the targets of each tier's tests; columns of all ``met`` arrays are these tests, tier
    after tier. Instants are seconds since the probe's start, in any order. With several tests each
    has its share of ``alpha``. ``before``: of each tier's tests; empty: nothing is known.
    ``size``: how long it should take.
    """

    def __init__(
        self,
        tiers: Sequence[Sequence[float]],
        before: Sequence[Sequence[EarlierProbes]] = (),
        size: ProbeSize = ANY_SIZE,
    ) -> None:
        self._tiers = tiers
        self._size = size
        self._targets = [float(target) for tier in tiers for target in tier]
        self._before = [of_test for tier in before for of_test in tier]
        if not self._before:
            self._before = [EarlierProbes()] * len(self._targets)
        self._alpha = LIVE / max(1, len(self._targets))  # times that of a verdict
        self._ended: list[_EndedRequests] = []
        # a tier keeps its first verdict, but fails as soon as the probe diverges
        self.verdicts: tuple[LevelVerdict | None, ...] = (None,) * len(tiers)
        # at the last look: to a verdict it would take far more requests than expected, or more than
        # it may have
        self.takes_longer = False
        self.diverging = False  # at the last look: requests come in faster than they are answered

    def tell(self, due_s: Floats, done_s: Floats, met: Bools) -> None:
        """Requests that ended since the last call: [n], [n], [n, tests]."""
        self._ended.append(_EndedRequests(due_s, done_s, met))

    def look(
        self, now_s: float, open_due_s: Floats, open_missed: Bools, saturated: bool = False
    ) -> tuple[LevelVerdict | None, ...]:
        """The verdict on every tier now; None: go on. What was due later than that is not judged
        yet.

        ``open_due_s`` [m]: requests that were due and have not ended; ``open_missed`` [m, tests]:
        which of them are certain to miss, however they end. ``saturated``: the client or its limits
        slow the load down, so it may show that a level fails, never that it holds.
        """
        requests = self._requests(now_s, open_due_s, open_missed)
        self.diverging = _diverging(requests, now_s) and _late(requests, now_s)
        begin_s = steady_from(lambda: [RequestSpans(requests.due_s, requests.done_s)], now_s)
        looks = [
            self._look_at(column, requests, begin_s, saturated)
            for column in range(len(self._targets))
        ]
        self.takes_longer = self._takes_longer(looks, len(requests.due_s))
        self.verdicts = self._tier_verdicts([look.verdict for look in looks])
        return self.verdicts

    def _tier_verdicts(
        self, of_tests: Sequence[LevelVerdict | None]
    ) -> tuple[LevelVerdict | None, ...]:
        verdicts: list[LevelVerdict | None] = []
        begin = 0
        for tier, before in zip(self._tiers, self.verdicts, strict=True):
            end = begin + len(tier)
            now = together(of_tests[begin:end])
            verdicts.append("fails" if self.diverging else before or now)
            begin = end
        return tuple(verdicts)

    def _requests(self, now_s: float, open_due_s: Floats, open_missed: Bools) -> _Requests:
        """All requests that were due until now."""
        ended = _joined(self._ended, len(self._targets))
        self._ended = [ended]
        due_s = np.concatenate([ended.due_s, open_due_s])
        done_s = np.concatenate([ended.done_s, np.full(len(open_due_s), np.inf)])
        certain = np.concatenate([np.ones_like(ended.met), open_missed])
        met = np.concatenate([ended.met, np.zeros_like(open_missed)])
        order = np.argsort(due_s, kind="stable")
        due_by_now = int(np.searchsorted(due_s[order], now_s, "right"))
        order = order[:due_by_now]
        return _Requests(due_s[order], done_s[order], certain[order], met[order])

    def _look_at(
        self, column: int, requests: _Requests, begin_s: float | None, saturated: bool
    ) -> _TestLook:
        """Look at one test. ``begin_s``: when cold starts and the burst that begins a closed loop
        were over, which do not belong to the level; None: they are not over yet.
        """
        target = self._targets[column]
        before = self._before[column]
        # requests are judged up to the first one whose fate is unknown: of those due later only
        # the fast ones have ended
        unknown = np.flatnonzero(~requests.certain[:, column])
        until_s = requests.due_s[unknown[0]] if unknown.size else np.inf
        from_s = 0.0 if begin_s is None else begin_s
        judged = requests.met[(requests.due_s >= from_s) & (requests.due_s < until_s), column]
        shown = before.evidence(judged, target)
        alpha_to_hold = CONFIRM_ALPHA if before.confirms else ALPHA
        verdict = shown.verdict(self._alpha * ALPHA, self._alpha * alpha_to_hold)
        if far_below(judged, target):
            verdict = "fails"
        if begin_s is None or len(judged) < FEWEST or (verdict == "holds" and saturated):
            verdict = None
        needed = 0.0
        if verdict is None:
            of_earlier_probes = shown.requests - len(judged)
            all_needed = requests_needed(shown.share, target, shown.design_effect)
            needed = all_needed - of_earlier_probes
        return _TestLook(verdict, len(judged) / shown.design_effect, needed)

    def _takes_longer(self, looks: Sequence[_TestLook], requests: int) -> bool:
        """Whether a verdict takes far more requests than expected, so that another level may tell
        more for its load; not before the probe saw enough itself to say that. Without this, searches
        took 10 % more load.
        """
        if requests >= self._size.most:
            return True
        independent = min((look.independent for look in looks), default=np.inf)
        if independent < FEWEST or requests <= self._size.expected / PATIENT:
            return False
        needed = max((look.needed for look in looks), default=0.0)
        return bool(max(needed, requests) > FAR_MORE * self._size.expected)


def together(verdicts: Sequence[LevelVerdict | None]) -> LevelVerdict | None:
    """The verdict on a tier: it fails with one of its tests and holds with all of them."""
    if "fails" in verdicts:
        return "fails"
    return None if None in verdicts else "holds"


def _diverging(requests: _Requests, now_s: float) -> bool:
    """Whether more is in flight at every quarter of the last half, by more than chance (two Poisson
    counts) brings.
    """
    edges_s = now_s * np.array([0.5, 0.75, 1.0])
    came = np.searchsorted(requests.due_s, edges_s, "right")
    went = np.searchsorted(np.sort(requests.done_s), edges_s, "right")
    growth = np.diff(came - went)
    noise = np.sqrt(np.diff(came) + np.diff(went))
    return bool(np.all(growth > GROWTH * noise) and np.all(noise > 0))


def _late(requests: _Requests, now_s: float) -> bool:
    """Whether the last quarter misses mostly, or takes far longer than the first requests did: an
    engine that only fills up with long answers does neither.
    """
    return _misses_mostly(requests, now_s) or _is_slower(requests, now_s)


def _misses_mostly(requests: _Requests, now_s: float) -> bool:
    """Whether the requests of the last quarter mostly miss a test, as far as that is known.

    This ends a probe of a server that answers nothing, where no steady part ever begins.
    """
    last = requests.due_s >= 0.75 * now_s
    certain = requests.certain[last]
    decided = certain.sum(0)
    missed = (certain & ~requests.met[last]).sum(0)
    return bool(np.any((decided >= FEWEST_LATE) & (missed > MOSTLY * decided)))


def _is_slower(requests: _Requests, now_s: float) -> bool:
    """Whether the last tenth of the requests that had time to end takes ``SLOWER`` times as long as
    the first tenth, in medians; open ones are as old as they are now.

    This ends a probe under limits that a backlog does not miss: 8 slots of 400 ms at twice to five
    times what they can do, under a limit of 1000 s, after 3 to 10 s; without it, it runs its time.
    """
    tenth = max(len(requests.due_s) // 10, FEWEST_LATE)
    if len(requests.due_s) < 4 * tenth:
        return False
    stay_s = np.minimum(requests.done_s, now_s) - requests.due_s
    first_s = np.median(stay_s[:tenth])
    if now_s <= 4 * first_s:
        return False
    had_time = requests.due_s < now_s - SLOWER * first_s
    return bool(np.median(stay_s[had_time][-tenth:]) > SLOWER * first_s)

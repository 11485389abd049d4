"""A sequential test whether a load level holds latency targets, for running and stored probes.

A request meets a *test* or misses it; an error is a miss. A test has a target: the share of
requests that must meet it. A *tier* (an SLO) is one or more tests, and holds where all of them do.
Requests that have not ended count as soon as it is certain that they miss.

Evidence is a likelihood ratio mixed over all shares on one side of the target (Robbins 1970,
"Statistical methods related to the law of the iterated logarithm"). Where the truth is on the other
side, the ratio passes 1/alpha with probability alpha at most, however often it is looked at (Ville
1939). So a probe may stop at any instant, and repeats of a level, each with a seed of its own, are
simply taken together.

That holds for independent requests, but failures come in runs. So counts are first divided by the
design effect (``capacity/design_effect.py``): the variance of batch means over that of independent
requests. A lucky probe sees fewer and shorter runs of misses than there are, so the effect is never
taken to be less than what other levels say of a level that just meets the target. Where no level
tells anything, it is ``PRIOR_EFFECT``: no miss in 60 requests is no evidence for 95 % where misses
come 20 at a time.

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

ALPHA = 0.05  # probability with which a verdict may be wrong
# The same for probes that confirm: their level was shown to hold before, and they only have to show
# that this was no luck.
CONFIRM_ALPHA = 0.2
# A running probe gets this share of alpha, because its stored rows, which are cut a little
# differently, must lead to the same verdict later.
LIVE = 0.6
PRIOR_MISSES = 6  # the assumed design effect weighs as much as so many independent misses
# A backlog diverges if it grows by so many standard deviations in each of the last two quarters of
# a run.
GROWTH = 3.0
MOSTLY = 0.8  # the last quarter mostly misses if more than this share of its requests does
SLOWER = 2.0  # the last requests are slower if they take so many times as long as the first ones
FEWEST_REQUESTS = 30  # requests that a verdict needs: two slow ones of a cold engine show nothing
# independent requests that "fails" needs: one long run of misses happens at good levels too
FEWEST_TO_FAIL = 20.0
# A running probe fails if its share falls below this part of the target. Two such probes, which
# began apart, show that their level fails. With evidence alone, searches took 8 % more load, at a
# cliff 67 %.
FAR_BELOW = 0.7
# The time between two looks at a running probe is the longer of so many seconds and this share of
# how long it has run.
LOOK_S = 0.5
LOOK_SHARE = 0.1
# evidence (a logarithm) that a probe is expected to end with: that of alpha, and 2 for the mixture
NEEDED = -np.log(ALPHA) + 2.0
# only after 1 / PATIENT of the expected requests may a probe be judged to take far more of them
PATIENT = 4.0
FAR_MORE = 2.0  # far more requests are more than so many times the expected ones
FEWEST_LATE = 8  # requests of the last quarter whose fate must be known before they are judged
LevelVerdict = Literal["holds", "fails"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence on one test at one level.

    ``share``: of ``requests``, the share that met the test. ``effective``: how many independent
    requests would say as much. ``holds``, ``fails``: logarithms of the evidence that the true share
    is above or below the target.
    """

    requests: int
    share: float
    effective: float
    design_effect: float
    holds: float
    fails: float

    def verdict(self, alpha: float = ALPHA, to_hold: float | None = None) -> LevelVerdict | None:
        """What this evidence shows; None: it is undecided, and more requests would tell.

        ``to_hold``: the alpha of "holds"; None: the same as ``alpha``.
        """
        alpha_to_hold = alpha if to_hold is None else to_hold
        if self.holds >= -np.log(alpha_to_hold):
            return "holds"
        # Good levels have a long run of misses too, so one is not enough. Where every request must
        # meet the test, a single miss is enough.
        is_enough = self.effective >= FEWEST_TO_FAIL or np.isinf(self.fails)
        return "fails" if is_enough and self.fails >= -np.log(alpha) else None


@dataclass(frozen=True, slots=True)
class EarlierProbes:
    """What earlier probes say of one test when a probe begins.

    ``counting``: the flags of the earlier probes of its level that count as evidence, in any order.
    ``not_counting``: the flags of those that only tell how misses come in runs.
    ``at_other_levels``: the runs of misses at other levels. ``confirms``: the level was shown to
    hold. ``quick``: the probe only has to tell whether to go up or down; that proves nothing, so
    requests are taken to be independent.
    """

    counting: tuple[Bools, ...] = ()
    not_counting: tuple[Bools, ...] = ()
    at_other_levels: tuple[MissRuns, ...] = ()
    confirms: bool = False
    quick: bool = False

    def evidence(self, met: Bools, target: float) -> Evidence:
        """The evidence of the earlier probes and the running one together.

        ``met``: whether each request of the running probe met the test.
        """
        counting = [*self.counting, met]
        if self.quick:
            return evidence_from(counting, target, 1.0)
        at_all_levels = list(self.at_other_levels)
        at_this_level = miss_runs([*self.not_counting, *counting], target)
        if at_this_level is not None:
            at_all_levels.append(at_this_level)
        return evidence_from(counting, target, usual_effect(at_all_levels, target))


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """How many requests a probe takes.

    ``expected``: until it has its verdict. ``most``: after so many it ends without a verdict.
    """

    expected: float = np.inf
    most: float = np.inf


ANY_SIZE = ProbeSize()


def requests_needed(share: float, target: float, effect: float, shown: float = 0.0) -> float:
    """How many requests are expected to show on which side of the target a share lies.

    This is the evidence that is needed, over what one request brings (the Kullback-Leibler
    divergence of the share from the target), times the design effect. ``shown``: the evidence that
    there is already, a logarithm.
    """
    from scipy.special import rel_entr  # imported late: most sweeps search nothing

    divergence = rel_entr(share, target) + rel_entr(1 - share, 1 - target)
    return float(effect * max(NEEDED - shown, 1.0) / max(divergence, 1e-9))


def next_look_s(now_s: float) -> float:
    """When a running probe is looked at again.

    A look takes time in proportion to all requests so far, so the wait grows with the probe.
    """
    return now_s + max(LOOK_S, LOOK_SHARE * now_s)


def evidence_from(
    runs: Sequence[Bools], target: float, prior_effect: float = PRIOR_EFFECT
) -> Evidence:
    """The evidence of some probes for and against a test.

    ``runs``: for each probe, whether each request met the test, in order of when they were due.
    ``target``: in (0, 1]. ``prior_effect``: the design effect that is assumed before these probes.

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
    # Every request must meet the test: no number of them shows that it holds, and a single miss
    # shows that it does not.
    if q <= 0:
        return Evidence(count, met / count, count, 1.0, 0.0, np.inf if met < count else 0.0)
    effect = _effect_of(runs, count - met, prior_effect)
    n = count / effect
    missed = (count - met) / effect
    a = missed + 0.5
    b = n - missed + 0.5
    at_target = missed * np.log(q) + (n - missed) * np.log1p(-q)
    whole = betaln(a, b) - betaln(0.5, 0.5) - at_target
    with np.errstate(divide="ignore"):  # log(0): one side may have no weight at all
        below = np.log(betainc(a, b, q))
        above = np.log(betainc(b, a, 1 - q))
    holds = whole + below - np.log(betainc(0.5, 0.5, q))
    fails = whole + above - np.log(betainc(0.5, 0.5, 1 - q))
    return Evidence(count, met / count, n, effect, float(holds), float(fails))


def _effect_of(runs: Sequence[Bools], missed: int, prior_effect: float) -> float:
    """The design effect of these probes, never less than what they show.

    It is the mean of what they show and of ``prior_effect``, which weighs as much as
    ``PRIOR_MISSES`` independent misses.
    """
    shown = design_effect(runs)
    independent_misses = missed / prior_effect
    weighted = independent_misses * shown + PRIOR_MISSES * prior_effect
    return max(shown, weighted / (independent_misses + PRIOR_MISSES))


def far_below(met: Bools, target: float) -> bool:
    """Whether so many requests of a probe miss that it should end.

    They may be one long run of misses; another probe tells that sooner than the rest of this one.
    """
    return len(met) >= FEWEST_REQUESTS and bool(met.mean() < FAR_BELOW * target)


@dataclass(frozen=True, slots=True)
class _EndedRequests:
    """Requests that ended, in any order. ``met`` [n, tests]: which tests each of them met.
    ``counts`` [n, tests]: which tests are about them.
    """

    due_s: Floats
    done_s: Floats
    met: Bools
    counts: Bools


def _joined(parts: Sequence[_EndedRequests], tests: int) -> _EndedRequests:
    """Several parts as one."""
    if not parts:
        none = np.zeros((0, tests), bool)
        return _EndedRequests(np.zeros(0), np.zeros(0), none, none)
    return _EndedRequests(
        np.concatenate([part.due_s for part in parts]),
        np.concatenate([part.done_s for part in parts]),
        np.concatenate([part.met for part in parts]),
        np.concatenate([part.counts for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class _Requests:
    """Requests that were due by an instant, in order of when they were due.

    ``done_s``: infinite for open requests. ``certain`` [n, tests]: whether it is certain that each
    request meets, or misses, each test. ``met`` [n, tests]: whether each request meets each test.
    ``counts`` [n, tests]: whether each test is about each request.
    """

    due_s: Floats
    done_s: Floats
    certain: Bools
    met: Bools
    counts: Bools


@dataclass(frozen=True, slots=True)
class _TestLook:
    """What a look at a running probe finds for one test.

    ``independent``: how many requests of the probe were judged, over their design effect.
    ``needed``: how many requests of this probe a verdict is expected to take; 0 where there is a
    verdict.
    """

    verdict: LevelVerdict | None
    independent: float
    needed: float


class Probe:
    """Judges one running probe, which may end when every tier has a verdict.

    It is told which requests ended (``tell``), and may be asked at any time (``look``). Instants
    are seconds since the probe's start. ``tiers``: the targets of each tier's tests; the columns of
    all ``met`` arrays are these tests, tier after tier. With several tests, each gets its part of
    alpha. ``before``: what earlier probes say of each tier's tests; empty: nothing is known.
    ``size``: how many requests the probe should take.
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
        self._alpha = LIVE / max(1, len(self._targets))  # by which each alpha is multiplied
        self._ended: list[_EndedRequests] = []
        # a tier keeps its first verdict, but fails as soon as the probe diverges
        self.verdicts: tuple[LevelVerdict | None, ...] = (None,) * len(tiers)
        # as of the last look: a verdict would take far more requests than expected, or more than
        # the probe may have
        self.takes_longer = False
        self.diverging = False  # as of the last look: requests come in faster than answers go out

    def tell(self, due_s: Floats, done_s: Floats, met: Bools, counts: Bools | None = None) -> None:
        """Adds requests that ended since the last call, in any order: [n], [n], [n, tests].

        ``counts`` [n, tests]: which tests are about each of them; None: all tests are.
        """
        self._ended.append(_EndedRequests(due_s, done_s, met, _or_all(counts, met)))

    def look(
        self,
        now_s: float,
        open_due_s: Floats,
        open_missed: Bools,
        saturated: bool = False,
        open_counts: Bools | None = None,
    ) -> tuple[LevelVerdict | None, ...]:
        """The verdict on every tier at ``now_s``; None: the probe must go on.

        Requests that were due later than ``now_s`` are not judged yet. ``open_due_s`` [m]: when the
        requests that have not ended were due. ``open_missed`` [m, tests]: which of them are certain
        to miss, however they end. ``saturated``: the client or its limits slow the load down, so
        the probe may show that the level fails, but never that it holds. ``open_counts``: as
        ``counts`` of ``tell``.
        """
        requests = self._requests(now_s, open_due_s, open_missed, _or_all(open_counts, open_missed))
        self.diverging = _is_diverging(requests, now_s) and _is_late(requests, now_s)
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

    def _requests(
        self, now_s: float, open_due_s: Floats, open_missed: Bools, open_counts: Bools
    ) -> _Requests:
        """All requests that were due until now."""
        ended = _joined(self._ended, len(self._targets))
        self._ended = [ended]
        due_s = np.concatenate([ended.due_s, open_due_s])
        done_s = np.concatenate([ended.done_s, np.full(len(open_due_s), np.inf)])
        certain = np.concatenate([np.ones_like(ended.met), open_missed])
        met = np.concatenate([ended.met, np.zeros_like(open_missed)])
        counts = np.concatenate([ended.counts, open_counts])
        order = np.argsort(due_s, kind="stable")
        due_by_now = int(np.searchsorted(due_s[order], now_s, "right"))
        order = order[:due_by_now]
        return _Requests(due_s[order], done_s[order], certain[order], met[order], counts[order])

    def _look_at(
        self, column: int, requests: _Requests, begin_s: float | None, saturated: bool
    ) -> _TestLook:
        """Looks at one test.

        ``begin_s``: when the cold start, or the burst with which a closed loop begins, was over,
        since neither belongs to the level; None: it is not over yet.
        """
        target = self._targets[column]
        before = self._before[column]
        # requests are judged up to the first one whose fate is unknown: of those due later only
        # the fast ones have ended
        counts = requests.counts[:, column]
        unknown = np.flatnonzero(counts & ~requests.certain[:, column])
        until_s = requests.due_s[unknown[0]] if unknown.size else np.inf
        from_s = 0.0 if begin_s is None else begin_s
        is_in_time = (requests.due_s >= from_s) & (requests.due_s < until_s)
        judged = requests.met[counts & is_in_time, column]
        shown = before.evidence(judged, target)
        alpha_to_hold = CONFIRM_ALPHA if before.confirms else ALPHA
        verdict = shown.verdict(self._alpha * ALPHA, self._alpha * alpha_to_hold)
        if far_below(judged, target):
            verdict = "fails"
        if begin_s is None or len(judged) < FEWEST_REQUESTS or (verdict == "holds" and saturated):
            verdict = None
        needed = 0.0
        if verdict is None:
            of_earlier_probes = shown.requests - len(judged)
            needed_in_all = requests_needed(shown.share, target, shown.design_effect)
            needed = needed_in_all - of_earlier_probes
        return _TestLook(verdict, len(judged) / shown.design_effect, needed)

    def _takes_longer(self, looks: Sequence[_TestLook], requests: int) -> bool:
        """Whether a verdict takes far more requests than expected, or more than the probe may have.

        Another level may then tell more for its load. False until the probe itself has seen enough
        to say so. Without this, searches took 10 % more load.
        """
        if requests >= self._size.most:
            return True
        independent = min((look.independent for look in looks), default=np.inf)
        if independent < FEWEST_REQUESTS or requests <= self._size.expected / PATIENT:
            return False
        needed = max((look.needed for look in looks), default=0.0)
        return bool(max(needed, requests) > FAR_MORE * self._size.expected)


def _or_all(counts: Bools | None, like: Bools) -> Bools:
    """Which tests are about each request; all of them where nothing else is said."""
    return np.ones_like(like) if counts is None else counts


def together(verdicts: Sequence[LevelVerdict | None]) -> LevelVerdict | None:
    """The verdict on a tier: it fails if one of its tests fails, and holds if all of them hold."""
    if "fails" in verdicts:
        return "fails"
    return None if None in verdicts else "holds"


def _is_diverging(requests: _Requests, now_s: float) -> bool:
    """Whether the number in flight grew in both of the last two quarters, by more than chance.

    Chance is that of two Poisson counts: the requests that came and those that went.
    """
    edges_s = now_s * np.array([0.5, 0.75, 1.0])
    came = np.searchsorted(requests.due_s, edges_s, "right")
    went = np.searchsorted(np.sort(requests.done_s), edges_s, "right")
    growth = np.diff(came - went)
    noise = np.sqrt(np.diff(came) + np.diff(went))
    return bool(np.all(growth > GROWTH * noise) and np.all(noise > 0))


def _is_late(requests: _Requests, now_s: float) -> bool:
    """Whether the last requests mostly miss, or take far longer than the first ones did.

    Neither is so for an engine that only fills up with long answers.
    """
    return _misses_mostly(requests, now_s) or _is_slower(requests, now_s)


def _misses_mostly(requests: _Requests, now_s: float) -> bool:
    """Whether the requests of the last quarter mostly miss a test, as far as that is known.

    This ends a probe of a server that answers nothing, where no steady part ever begins.
    """
    last = requests.due_s >= 0.75 * now_s
    certain = requests.certain[last] & requests.counts[last]
    decided = certain.sum(0)
    missed = (certain & ~requests.met[last]).sum(0)
    return bool(np.any((decided >= FEWEST_LATE) & (missed > MOSTLY * decided)))


def _is_slower(requests: _Requests, now_s: float) -> bool:
    """Whether the last tenth of the requests takes ``SLOWER`` times as long as the first tenth.

    Medians are compared, and only requests that had time to end count; an open request takes as
    long as it is old. This ends a probe whose limits a backlog does not miss: with 8 slots of
    400 ms, at two to five times the load that they can serve and under a limit of 1000 s, it ends
    after 3 to 10 s. Without it, such a probe runs its full time.
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

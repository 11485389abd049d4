"""Does a load level hold a latency target? A sequential test, for a probe that still runs and for
stored ones.

A request meets a test or misses it; errors are misses. A *test* has a target: the share of requests
that must meet it. A *tier* (an SLO) is one or more tests, and holds when all of them do. Requests
that have not ended count as soon as they are certain misses.

Evidence is a likelihood ratio mixed over all shares on one side of the target (Robbins 1970,
"Statistical methods related to the law of the iterated logarithm"): where the truth is on the other
side it passes 1/alpha with probability alpha at most, however often one looks (Ville 1939), so a
probe may stop at any instant, and repeats of a level, each with a seed of its own, are simply taken
together. That holds for independent requests. Failures come in runs, so counts are first divided by
the design effect: how many times the variance of batch means (Schmeiser 1982) is above that of
independent requests, the largest over batches of several sizes. A probe that was lucky sees fewer
runs of misses than there are, and shorter ones, so the effect is never taken to be less than what
other levels say of one at which just so many miss as may. Where nobody can tell it is
``PRIOR_EFFECT``: no miss in 60 requests is no evidence for 95 % where misses come 20 at a time.

Used by whoever runs a probe (``Probe``), and by ``capacity/claim.py`` over what is stored
(``evidence``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestrator.analysis.requests import Bools, Floats
from orchestrator.analysis.steady import steady_from
from orchestrator.capacity.design_effect import (
    PRIOR_EFFECT,
    MissRuns,
    design_effect,
    miss_runs,
    usual_effect,
)

ALPHA = 0.05  # of one verdict: how often it may be wrong
# of the probes that confirm a level: that it was shown to hold has been seen, and they say that
# this was no luck
CONFIRM_ALPHA = 0.2
# part of it, for a running probe: what is stored of it, cut a little differently, shall say the
# same
LIVE = 0.6
PRIOR_MISSES = 6  # independent ones, that weigh as much as what was assumed
# standard deviations by which a backlog grows, in each of the last two quarters of a run
GROWTH = 3.0
MOSTLY = 0.8  # of the requests of the last quarter, that miss
SLOWER = 2.0  # times: what is due last takes longer than what was due first
FEWEST = 30  # requests that a verdict rests on: two slow ones of a cold engine are none
# independent ones that "fails" rests on: one long run of misses comes at good levels, too
FEWEST_TO_FAIL = 20.0
# times the target: two probes that began apart and fell so far show that a level fails
FAR_BELOW = 0.7
# between two looks at a running probe, or so much of how long it runs
LOOK_S, LOOK_SHARE = 0.5, 0.1
# evidence that is expected at the end of a probe; what the mixture costs is in it
NEEDED = -np.log(ALPHA) + 2.0
# parts of the expected requests after which a probe may be found to take far more than expected
PATIENT = 4.0
FAR_MORE = 2.0  # times the expected requests
FEWEST_LATE = 8  # requests of the last quarter whose fate is known, before it is judged
Outcome = Literal["holds", "fails"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of one test at one level. ``holds``, ``fails``: logarithms of the evidence that the share of
    requests that meet it is above, below the target. ``effective``: independent requests that would
    say as much.
    """

    requests: int
    share: float
    effective: float
    design_effect: float
    holds: float
    fails: float

    def verdict(self, alpha: float = ALPHA, to_hold: float | None = None) -> Outcome | None:
        """None: undecided, more requests would tell. ``to_hold``: ``alpha`` of "holds", where it is
        another.
        """
        if self.holds >= -np.log(alpha if to_hold is None else to_hold):
            return "holds"
        enough = self.effective >= FEWEST_TO_FAIL or np.isinf(self.fails)
        return "fails" if self.fails >= -np.log(alpha) and enough else None


@dataclass(frozen=True, slots=True)
class EarlierProbes:
    """What earlier probes say of one test when a probe begins. ``runs``: those of its level that
    count with it, in any order; ``learned``: those that only tell how misses run; ``seen``: the
    same of other levels. ``confirms``: its level was shown to hold. ``quick``: it shall only be
    known whether to go up or down, which proves nothing.
    """

    runs: tuple[Bools, ...] = ()
    learned: tuple[Bools, ...] = ()
    seen: tuple[MissRuns, ...] = ()
    confirms: bool = False
    quick: bool = False

    def evidence(self, met: Bools, target: float) -> Evidence:
        """With what the running probe saw so far."""
        runs = [*self.runs, met]
        here = miss_runs([*self.learned, *runs], target)
        effect = (
            1.0 if self.quick else usual_effect([*self.seen, *([here] if here else [])], target)
        )
        return evidence(runs, target, effect)


def requests_needed(share: float, target: float, effect: float, shown: float = 0.0) -> float:
    """How many requests are expected to show on which side of the target this share of them lies.
    ``shown``: evidence that is there.
    """
    from scipy.special import rel_entr  # imported late: most sweeps search nothing

    divergence = rel_entr(share, target) + rel_entr(1 - share, 1 - target)
    return float(effect * max(NEEDED - shown, 1.0) / max(divergence, 1e-9))


def next_look_s(now_s: float) -> float:
    """When a running probe is looked at again. A look costs what all its requests cost, and may
    come as late as a tenth of the probe.
    """
    return now_s + max(LOOK_S, LOOK_SHARE * now_s)


def evidence(runs: Sequence[Bools], target: float, prior_effect: float = PRIOR_EFFECT) -> Evidence:
    """``runs``: per probe whether each request met the test, in order of when they were due.
    ``target``: in (0, 1].

    ``prior_effect``: the least design effect.
    """
    from scipy.special import betainc, betaln  # imported late, as above

    count, met = sum(len(run) for run in runs), sum(int(np.count_nonzero(run)) for run in runs)
    if not count:
        return Evidence(0, 0.0, 0.0, prior_effect, 0.0, 0.0)
    found, weight = design_effect(runs), (count - met) / prior_effect
    effect = max(found, (weight * found + PRIOR_MISSES * prior_effect) / (weight + PRIOR_MISSES))
    n, missed, q = count / effect, (count - met) / effect, 1.0 - target
    # every request must: nothing short of all of them shows that it holds, one miss that it does
    # not
    if q <= 0:
        return Evidence(count, met / count, count, 1.0, 0.0, np.inf if met < count else 0.0)
    a, b = missed + 0.5, n - missed + 0.5
    at_target = missed * np.log(q) + (n - missed) * np.log1p(-q)
    whole = betaln(a, b) - betaln(0.5, 0.5) - at_target
    with np.errstate(divide="ignore"):  # no weight at all on one side
        below, above = np.log(betainc(a, b, q)), np.log(betainc(b, a, 1 - q))
    holds = whole + below - np.log(betainc(0.5, 0.5, q))
    fails = whole + above - np.log(betainc(0.5, 0.5, 1 - q))
    return Evidence(count, met / count, n, effect, float(holds), float(fails))


def far_below(met: Bools, target: float) -> bool:
    """Whether so many requests of a probe miss that another probe tells sooner than the rest of
    this one whether that was one long run of misses.
    """
    return len(met) >= FEWEST and bool(met.mean() < FAR_BELOW * target)


class Probe:
    """One running probe: tell it what ended, look when you like, stop when every tier has a
    verdict.

    ``tiers``: the targets of each tier's tests; columns of all ``met`` arrays are these tests, tier
    after tier. Instants are seconds since the probe's start, in any order. With several tests each
    has its share of ``alpha``. ``before``: of each tier's tests; empty: nothing is known.
    ``expected``: requests that it should take to a verdict.
    """

    def __init__(
        self,
        tiers: Sequence[Sequence[float]],
        before: Sequence[Sequence[EarlierProbes]] = (),
        expected: float = np.inf,
    ) -> None:
        self._tiers, self._expected = tiers, expected
        self._tests = [float(target) for tier in tiers for target in tier]
        self._before = [one for tier in before for one in tier] or [EarlierProbes()] * len(
            self._tests
        )
        self._alpha = LIVE / max(1, len(self._tests))  # times that of a verdict
        self._told: list[tuple[Floats, Floats, Bools]] = []
        # the first one of a tier stays
        self.verdicts: tuple[Outcome | None, ...] = (None,) * len(tiers)
        # at the last look: to a verdict it would take far more requests than expected
        self.takes_longer = False
        self.diverging = False  # at the last look: requests come in faster than they are answered

    def tell(self, due_s: Floats, done_s: Floats, met: Bools) -> None:
        """Requests that ended since the last call: [n], [n], [n, tests]."""
        self._told.append((due_s, done_s, met))

    def look(
        self, now_s: float, open_due_s: Floats, open_missed: Bools, saturated: bool = False
    ) -> tuple[Outcome | None, ...]:
        """The verdict on every tier now; None: go on. What was due later than that is not judged
        yet.

        ``open_due_s`` [m]: requests that were due and have not ended; ``open_missed`` [m, tests]:
        which of them are certain to miss, however they end. ``saturated``: the client or its limits
        slow the load down, so it may show that a level fails, never that it holds.
        """
        ended = (
            [np.concatenate(parts) for parts in zip(*self._told, strict=True)] if self._told else []
        )
        due, done, met = ended or (np.zeros(0), np.zeros(0), np.zeros((0, len(self._tests)), bool))
        self._told = [(due, done, met)]
        due = np.concatenate([due, open_due_s])
        done = np.concatenate([done, np.full(len(open_due_s), np.inf)])
        known = np.concatenate([np.ones_like(met), open_missed])
        met = np.concatenate([met, np.zeros_like(open_missed)])
        order = np.argsort(due, kind="stable")
        order = order[: np.searchsorted(due[order], now_s, "right")]
        due, done, known, met = due[order], done[order], known[order], met[order]
        self.diverging = _diverging(due, done, now_s) and _late(due, done, known, met, now_s)
        begin = steady_from(lambda: [(due, done)], now_s)
        verdicts, longest, least = list[Outcome | None](), 0.0, np.inf
        for column, (target, before) in enumerate(zip(self._tests, self._before, strict=True)):
            # the first whose fate is unknown ends what may be judged: those that ended early are
            # the fast ones
            unknown = np.flatnonzero(~known[:, column])
            until = due[unknown[0]] if unknown.size else np.inf
            ours = met[(due >= (begin if begin is not None else 0.0)) & (due < until), column]
            shown = before.evidence(ours, target)
            verdict = shown.verdict(
                self._alpha * ALPHA, self._alpha * (CONFIRM_ALPHA if before.confirms else ALPHA)
            )
            least = min(least, len(ours) / shown.design_effect)
            if far_below(ours, target):
                verdict = "fails"
            if begin is None or len(ours) < FEWEST or (verdict == "holds" and saturated):
                # cold starts and the burst that begins a closed loop are not the level
                verdict = None
            if verdict is None:
                needed = requests_needed(shown.share, target, shown.design_effect)
                longest = max(longest, needed - (shown.requests - len(ours)))
            verdicts.append("fails" if self.diverging else verdict)
        far, enough = (
            FAR_MORE * self._expected,
            least >= FEWEST and len(due) > self._expected / PATIENT,
        )
        self.takes_longer = enough and max(longest, len(due)) > far
        ends = np.cumsum([len(tier) for tier in self._tiers])
        now = [
            together(verdicts[end - len(tier) : end])
            for tier, end in zip(self._tiers, ends, strict=True)
        ]
        stay = zip(self.verdicts, now, strict=True)
        self.verdicts = tuple("fails" if self.diverging else before or new for before, new in stay)
        return self.verdicts


def together(verdicts: Sequence[Outcome | None]) -> Outcome | None:
    """Of a tier: it fails with one of its tests and holds with all of them."""
    return "fails" if "fails" in verdicts else None if None in verdicts else "holds"


def _diverging(due_s: Floats, done_s: Floats, now_s: float) -> bool:
    """Whether more is in flight at every quarter of the last half, by more than chance (two Poisson
    counts) brings.
    """
    edges = now_s * np.array([0.5, 0.75, 1.0])
    came, went = (
        np.searchsorted(due_s, edges, "right"),
        np.searchsorted(np.sort(done_s), edges, "right"),
    )
    growth, noise = np.diff(came - went), np.sqrt(np.diff(came) + np.diff(went))
    return bool(np.all(growth > GROWTH * noise) and np.all(noise > 0))


def _late(due_s: Floats, done_s: Floats, known: Bools, met: Bools, now_s: float) -> bool:
    """Whether the last quarter misses mostly, or takes far longer than the first requests did: an
    engine that only fills up with long answers does neither.
    """
    last = due_s >= 0.75 * now_s
    decided = known[last]
    if np.any(
        (decided.sum(0) >= FEWEST_LATE) & ((decided & ~met[last]).sum(0) > MOSTLY * decided.sum(0))
    ):
        return True
    tenth = max(len(due_s) // 10, FEWEST_LATE)
    if len(due_s) < 4 * tenth:
        return False
    stay = np.minimum(done_s, now_s) - due_s
    first, before = np.median(stay[:tenth]), due_s < now_s - np.median(stay[:tenth]) * SLOWER
    return bool(now_s > 4 * first and np.median(stay[before][-tenth:]) > SLOWER * first)

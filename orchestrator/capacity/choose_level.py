"""Which load level a capacity search probes next, and when more probes would tell nothing.

A function of what all probes of a tier have shown (``capacity/claim.py``), in whatever order they
came, so that a search that was interrupted goes on by it, and a claim says by it whether its search
had ended (docs/search.md).

1. Screening: double or halve the load from the first guess until one level passes and a higher one
   fails.
2. Attainment is fitted over the levels (isotonic regression, pool adjacent violators: Ayer et al.
   1955). Of all levels in between, the one is probed whose verdict is expected to narrow the
   bracket most for the load that it takes: first levels well below the expected capacity, which are
   proved quickly, then levels nearer to it.
3. A level that was shown to hold is probed again, with fresh seeds, until it is confirmed.

Levels lie on a geometric grid, so that the same ones come up again and their evidence adds up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from orchestrator.capacity.design_effect import PRIOR_EFFECT, falling
from orchestrator.capacity.sequential_test import FEWEST, FEWEST_TO_FAIL, PATIENT, requests_needed
from orchestrator.spec.load import MOST_IN_FLIGHT

if TYPE_CHECKING:
    from orchestrator.capacity.claim import AtLevel

STEPS = 48  # of the grid, from a level to twice that: 1.5 % each
# where nothing is predicted: too high is known in seconds, too low takes as long as a hundred
# requests do
FIRST_RATE, FIRST_IN_FLIGHT = 16.0, 8.0
# where a file says none: who is within it of the best of a race cannot be told from the best
# a search ends when the lowest level that fails is at most so much above the claim
PRECISION = 0.05
WORTHLESS = 1.5  # a claim is of use from the expected capacity divided by this
LOWEST, HIGHEST = 2.0**-12, float(MOST_IN_FLIGHT)
SAME = 1.001  # times: levels are written with four digits
SCREENING = 1000.0  # requests that should be enough to say whether to go up or down
# times as high is the next level of which something is known: a gap that is looked into
WIDE = 1.12
# times as much counts what raises the claim, which is what was asked for, as what lowers ``high``
RAISE = 3.0
# of the load, with which misses are expected to rise from below the lowest level that was probed
LEAST_POWER = 3.0


@dataclass(frozen=True, slots=True)
class Effort:
    """What is spent at most to decide one level, and as much again to confirm it: ``repeats``,
    probes of full length; ``requests``, that a verdict may be expected to take.
    """

    repeats: int
    requests: float


FIRST_EFFORT = Effort(3, 50_000.0)
# the second once the first tells nothing more of any level
EFFORTS = (FIRST_EFFORT, Effort(8, 130_000.0))


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one tier.

    ``levels``: what was probed, the lowest first. ``low``, ``high``: bounds as of a claim.
    ``target``: share of requests, of the tier's first test. ``whole_numbers``: there is no level
    between 8 and 9. ``precision``: how far, relative to the claim, ``high`` may lie above it when
    the search ends.
    """

    levels: Sequence[AtLevel]
    low: float
    high: float
    target: float
    whole_numbers: bool
    precision: float = PRECISION

    @property
    def claim(self) -> float:
        """The highest level that was confirmed; 0: none was."""
        return max(
            (one.level for one in self.levels if one.confirmed and one.level <= self.low),
            default=0.0,
        )

    def precise(self, held: float) -> bool:
        """Whether the level ``held`` is as near to one that fails as is asked for."""
        near = self.high <= held * (1 + self.precision) or (
            self.whole_numbers and self.high <= held + 1
        )
        return held > 0 and near

    @property
    def screening(self) -> bool:
        """Whether no level is known yet that fails, or none that could hold."""
        return math.isinf(self._ceiling) or not self._passing

    @property
    def may_wait(self) -> bool:
        """Whether others may be asked first: it is known where to look, or a whole probe did not
        tell.
        """
        return not self.screening or any(one.whole and one.verdict is None for one in self.levels)

    @property
    def reach(self) -> float:
        """The highest level that could hold, as far as is known; 0: none."""
        return max(self._passing, default=0.0)

    def from_front(self, front: float, level: float | None) -> float | None:
        """``level``, that would be asked for, unless it lies below ``front``: then that one, until
        it is confirmed or fails, or as much was done for it as is done. Whoever races does not hold
        less in order to win.
        """
        at = self.on_grid(front)
        at = at if at <= front * SAME else self.on_grid(front * 2.0 ** (-1 / STEPS))
        if not self.levels:
            return at
        if level is None or level >= at:
            return level
        there = self._at(at)
        known = there is not None and (
            there.confirmed or there.verdict == "fails" or spent(there, EFFORTS[-1])
        )
        return None if known or at >= self._ceiling else at

    @property
    def _ceiling(self) -> float:
        """Below which all that is asked lies."""
        blocked = (one.level for one in self.levels if one.blocked and one.level > self.low)
        return min(self.high, *blocked, math.inf)

    @property
    def _passing(self) -> list[float]:
        """Levels that could hold, the lowest first."""
        some = [one for one in self.levels if one.level < self._ceiling]
        return [
            one.level for one in some if (one.share or 0.0) >= self.target or one.verdict == "holds"
        ]

    def _at(self, level: float) -> AtLevel | None:
        return next((one for one in self.levels if one.level == level), None)

    def wanted(self, guess: float | None = None) -> float | None:
        """The level to be probed next; None: it is known what can be."""
        starts = 1 + any(one.start for one in self.levels)
        return self.explored(guess, starts > 1) or self.confirmed(starts)

    def explored(
        self, guess: float | None, confirms_last: bool = False, left_s: float = math.inf
    ) -> float | None:
        """A level whose verdict is still open; None: there is none worth its load, or it is time to
        confirm one.

        ``guess``: up to where the tier is expected to hold. ``confirms_last``: that is done on
        another start of the engine, when nothing is left to explore on this one. ``left_s``:
        seconds of load.
        """
        if not self.levels:
            return self.on_grid(guess or (FIRST_IN_FLIGHT if self.whole_numbers else FIRST_RATE))
        if invalid := [
            one.level for one in self.levels if not (one.requests or one.verdict or one.blocked)
        ]:
            return invalid[0]
        if self.screening:
            return self._outside(guess)
        if self.precise(self.low if confirms_last else self.claim):
            return None
        left_s = math.inf if self.whole_numbers else left_s
        for effort in EFFORTS:
            best = self._inside(confirms_last, left_s, effort)
            if best is not None:
                there = self._at(best)
                return None if there is not None and there.verdict == "holds" else best
            if not confirms_last and self._unconfirmed(1, effort) is not None:
                return None
        return None if self.low else self._outside(guess)

    def confirmed(self, starts: int = 1) -> float | None:
        """The highest level that holds and was not found wanting when it was asked again; one that
        was confirmed ends it. ``starts``: of the engine, that a claim shall be confirmed on.
        """
        if starts == 1 and self.precise(self.claim):
            return None
        found = (self._unconfirmed(starts, effort) for effort in EFFORTS)
        return next((one for one in found if one is not None), None)

    def _unconfirmed(self, starts: int, effort: Effort) -> float | None:
        """``confirmed``, with so much effort."""
        for one in reversed(
            [at for at in self.levels if at.verdict == "holds" and at.level < self.high]
        ):
            if one.confirmed and (starts == 1 or one.start):
                return None
            if not spent(one, effort):
                return one.level
        return None

    def expected(self, level: float) -> float:
        """Requests that a probe of it should take: to a verdict, or where that is out of reach to
        know its share.
        """
        if self.screening:
            return SCREENING
        fit = Fit(self.levels, self.target)
        found = (fit.requests(level, effort) for effort in EFFORTS)
        return next((one for one in found if one is not None), PATIENT * FEWEST * fit.effect)

    def on_grid(self, level: float) -> float:
        """The nearest level that may be probed."""
        level = min(max(level, 1.0 if self.whole_numbers else LOWEST), HIGHEST)
        near = 2.0 ** (round(math.log2(level) * STEPS) / STEPS)
        return float(max(1, round(near))) if self.whole_numbers else float(f"{near:.4g}")

    def _outside(self, guess: float | None) -> float | None:
        """The bracket is open at one end: further out. From a guess in steps that grow, else by
        two.
        """
        tried, up = [one.level for one in self.levels], math.isinf(self._ceiling)
        top = self.levels[-1]
        if (
            up
            and (top.share or 0.0) < self.target
            and top.requests
            and top.probes < FIRST_EFFORT.repeats
        ):
            return top.level  # it misses, and not clearly
        step = 2.0 if guess is None else 2.0 ** min(1.0, 0.25 * len(tried))
        further = self.on_grid(max(tried) * step if up else min(tried) / step)
        if self.whole_numbers:  # a small step from a small number is none
            further = max(further, max(tried) + 1) if up else max(1.0, min(further, min(tried) - 1))
        lowest = self.levels[0]
        pointless = (lowest.blocked and not lowest.client_bound) or 0 < lowest.requests < FEWEST
        ends = not up and lowest.verdict is None and pointless
        if not ends and further not in tried and LOWEST < further < HIGHEST:
            return further
        # nothing is lower: levels that one probe did not decide, because it was short or alone
        undecided = (
            one for one in self.levels if one.verdict is None and one.level < self._ceiling
        )
        again = (one for one in undecided if not one.whole or one.requests >= FEWEST)
        return next(
            (one.level for one in again if not up and one.probes < FIRST_EFFORT.repeats), None
        )

    def _inside(self, confirms_last: bool, left_s: float, effort: Effort) -> float | None:
        """The level, between what is held and what fails, whose verdict narrows that bracket most
        for its load.

        How much a verdict narrows it is divided by the square root of the expected load: to decide
        a level at half the distance from the capacity takes four times the load. To claim a level
        takes two proofs. What raises the claim counts ``RAISE`` times as much. Until there is a
        claim, one far below the expected capacity counts for nothing. What ``left_s`` does not
        suffice for comes last.
        """
        fit = Fit(self.levels, self.target)
        held = (self.low if confirms_last else self.claim) or fit.level_of(self.target) / WORTHLESS
        worth = dict[float, tuple[bool, float]]()
        for level in (one for one in self._between(held, self._ceiling) if one >= self.low):
            there, requests = self._at(level), fit.requests(level, effort)
            shown = there is not None and there.verdict == "holds"
            if (
                requests is None
                or (there is not None and spent(there, effort))
                or (shown and confirms_last)
            ):
                continue
            if shown or fit.share(level) > self.target:
                gain, proofs = RAISE * math.log(level / held), 1 if shown or confirms_last else 2
            else:
                gain, proofs = math.log(self._ceiling / level), 1
            worth[level] = proofs * requests <= left_s * level, gain / math.sqrt(proofs * requests)
        return max(worth, key=worth.__getitem__, default=None) or self._widest_gap(
            max(held, self.low), effort
        )

    def _widest_gap(self, held: float, effort: Effort) -> float | None:
        """The middle of the widest gap between levels of which something is known; None: all gaps
        are narrow.
        """
        known = [
            one.level
            for one in self.levels
            if held < one.level < self._ceiling and one.effective >= FEWEST
        ]
        gaps = [(high / low, low * high) for low, high in pairwise([held, *known, self._ceiling])]
        gap, square = max(gaps)
        middle = self.on_grid(math.sqrt(square))
        there = self._at(middle)
        return (
            middle
            if gap > WIDE and held < middle < self._ceiling and not (there and spent(there, effort))
            else None
        )

    def _between(self, low: float, high: float) -> list[float]:
        """Levels of the grid in between, and those that were probed."""
        steps = range(math.ceil(math.log2(low) * STEPS), math.floor(math.log2(high) * STEPS) + 1)
        found = {self.on_grid(2.0 ** (step / STEPS)) for step in steps} | {
            one.level for one in self.levels
        }
        return sorted(one for one in found if low < one < high)


def spent(one: AtLevel, effort: Effort) -> bool:
    """Whether so much was done to decide it, or to confirm it once it was shown to hold."""
    most = effort.repeats * (2 if one.verdict == "holds" else 1)
    return one.whole >= most or one.probes >= 2 * most


class Fit:
    """Attainment over levels, falling: pooled where neighbours disagree, straight between them
    (logit over log).

    Below the lowest level that was probed the odds of a miss fall with the third power of the load.
    A level without figures that failed, or could not be measured, counts as one where ``FEWEST``
    requests missed.
    """

    def __init__(self, levels: Sequence[AtLevel], target: float) -> None:
        from scipy.special import logit  # imported late, here and below: most sweeps search nothing

        known = [
            (one, one.share or 0.0)
            for one in levels
            if one.requests or one.verdict == "fails" or one.blocked
        ]
        shares = [
            (share * one.requests + 0.5) / ((one.requests or FEWEST) + 1) for one, share in known
        ]
        weights = [max(one.effective, one.requests / PRIOR_EFFECT, 1.0) for one, _ in known]
        at, logits = np.log([one.level for one, _ in known]), logit(falling(shares, weights))
        self._at = np.concatenate([[at[0] - 1.0], at])
        self._logits = np.concatenate([[logits[0] + LEAST_POWER], logits])
        self._target, self.effect = target, levels[0].usual_effect
        self._by_level = {one.level: one for one in levels}
        undecided = [
            one.requests / one.probes for one in levels if one.verdict is None and one.whole
        ]
        # requests of a probe of full length, as far as is known
        self._longest = max(undecided, default=math.inf)

    def level_of(self, share: float) -> float:
        """Where attainment is expected to be that."""
        from scipy.special import logit

        return float(np.exp(np.interp(-logit(share), -self._logits, self._at)))

    def share(self, level: float) -> float:
        """Attainment that is expected there."""
        from scipy.special import expit

        return float(expit(np.interp(math.log(level), self._at, self._logits)))

    def requests(self, level: float, effort: Effort) -> float | None:
        """How many are expected to show on which side of the target a level is; None: more than are
        spent on one.
        """
        share, there = self.share(level), self._by_level.get(level)
        shown = there.lean(share > self._target) if there is not None else 0.0
        known = there.requests / self.effect if there is not None else 0.0
        if known >= FEWEST:  # nothing is known to be nearer to the target than its standard error
            error = math.sqrt(self._target * (1 - self._target) / known)
            share = self._target + math.copysign(
                max(error, abs(share - self._target)), share - self._target
            )
        found = requests_needed(share, self._target, self.effect, shown)
        if share <= self._target:
            effective = there.effective if there is not None else 0.0
            found = max(found, self.effect * (FEWEST_TO_FAIL - effective))
        return found if found <= min(effort.requests, effort.repeats * self._longest) else None

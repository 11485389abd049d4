"""The highest load that holds the limits: one level after the other is probed until that is known (docs/search.md).

What is asked next follows from what was told alone, in whatever order: levels on a geometric grid, so that they repeat,
and of each what all its probes show (``analysis/claim.py``). Per tier of limits: double or halve from the first guess
until a level holds and one fails; then, on an isotonic fit of attainment over levels (pool adjacent violators: Ayer et
al. 1955), the highest level that so many more probes could show to hold, then the lowest that they could show to fail;
then the highest that holds again, with a seed of its own. Where it does not hold again, the next lower one.
Tiers share probes: the one that knows least is asked for first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit, rel_entr

from orchestrator.analysis.claim import AtLevel, Claim, Probed, at_levels, claim_of, probed
from orchestrator.analysis.outcomes import targets
from orchestrator.analysis.probe import ALPHA, PRIOR_EFFECT
from orchestrator.errors import FailureClass
from orchestrator.search.base import Question
from orchestrator.spec.load import MOST_IN_FLIGHT, Level, Slo

if TYPE_CHECKING:
    from orchestrator.results.records import Committed

STEPS = 24  # of the grid, from a level to twice that: 3 % each
# where nothing is predicted: too high is known in seconds, too low takes as long as a hundred requests do
FIRST = {"request_rate": 16.0, "concurrency": 8.0}
WIDE = 1.12  # times as high is the next level that was probed: so wide a gap is halved, whatever is expected there
LOWEST, HIGHEST = 2.0**-12, float(MOST_IN_FLIGHT)
MOST_PROBES = 48  # of one search
EXPECTED = 12  # probes of one search, for estimates
MOST_REPEATS = 3  # probes that are spent to decide one level, and as many to confirm it
FEWEST = 30  # requests of a probe: a lower level would tell nothing
NEEDED = -math.log(ALPHA) + 2.0  # evidence; what the mixture costs comes on top


class Capacity:
    """One search, of all tiers."""

    needs_figures = True

    def __init__(self, question: Question) -> None:
        assert question.control is not None
        self._control = question.control
        self._guess = question.first_guess
        self._tiers = [Tier(question.control == "concurrency", slo) for slo in question.slos]
        self._told = 0

    @staticmethod
    def problem(question: Question) -> str | None:
        if question.levels:
            return "it finds levels by itself; leave out `levels` (or use search: levels)"
        if question.control is None:
            return "say what is searched: control: request_rate or control: concurrency"
        if any(one >= 1 for tier in targets(question.slos) for one in tier):
            return "no load can be shown to hold for every request: give an attainment below 1"
        return None if question.slos else "it needs limits: slos: {interactive: {ttft: 500ms, attainment: 0.95}}"

    def ask(self) -> Level | None:
        wanted = [(tier.width, level) for tier in self._tiers if (level := tier.wanted(self._guess)) is not None]
        if not wanted or self._told >= MOST_PROBES:
            return None
        return Level(control=self._control, value=max(wanted)[1])  # of the tier that knows least

    def tell(self, level: Level, attempt: Committed) -> None:
        self._told += 1 if attempt.failure_class != FailureClass.BAD_CONFIG else MOST_PROBES  # nothing can come of it
        for tier in self._tiers:
            tier.tell(probed(attempt, level.value, tier.slo))

    def ahead(self) -> Sequence[Level]:
        level = self.ask()
        return () if level is None else (level,) * max(EXPECTED - self._told, 1)

    @property
    def prior_effect(self) -> float:
        """Of the next probe (``analysis/probe.py: Probe``)."""
        return max(tier.prior_effect for tier in self._tiers)

    def claims(self) -> dict[str, Claim]:
        """By name of tier."""
        return {tier.slo.name: tier.claim for tier in self._tiers}


class Tier:
    """What is known of one tier, and which level it would have probed next."""

    def __init__(self, whole_numbers: bool, slo: Slo) -> None:
        self.slo, self._whole = slo, whole_numbers
        (self._targets,) = targets([slo])
        self._probes: list[Probed] = []
        self._claim: Claim | None = None

    def tell(self, probe: Probed) -> None:
        self._probes.append(probe)
        self._claim = None

    @property
    def claim(self) -> Claim:
        """As far as it is known."""
        if self._claim is None:
            self._claim = claim_of(at_levels(self._probes, self._targets), self._whole)
        return self._claim

    @property
    def levels(self) -> Sequence[AtLevel]:
        """What was probed, the lowest first."""
        return self.claim.levels

    @property
    def width(self) -> float:
        """Of the bracket: how little is known."""
        return self.claim.high / max(self.claim.low, LOWEST)

    @property
    def screening(self) -> bool:
        """Whether no level is known yet that fails, or none that could hold."""
        return math.isinf(self._ceiling) or not self._passing

    @property
    def prior_effect(self) -> float:
        """None while it shall only be known whether to go up or down; then what was learned."""
        return 1.0 if self.screening or not self.levels else self.levels[0].usual_effect

    @property
    def _ceiling(self) -> float:
        """Below which all that is asked lies."""
        blocked = (one.level for one in self.levels if one.blocked and one.level > self.claim.low)
        return min(self.claim.high, *blocked, math.inf)

    @property
    def _passing(self) -> list[float]:
        """Levels that could hold, the lowest first."""
        some = [one for one in self.levels if one.level < self._ceiling]
        return [one.level for one in some if (one.share or 0.0) >= self._targets[0] or one.verdict == "holds"]

    def wanted(self, guess: float | None) -> float | None:
        """The next level; None: it knows what it can."""
        if not self.levels:
            return self.on_grid(guess or FIRST["concurrency" if self._whole else "request_rate"])
        if invalid := [one.level for one in self.levels if not (one.requests or one.verdict or one.blocked)]:
            return invalid[0]
        if self.screening:
            return self._outside(guess) or self._confirm()
        return self._inside() or self._confirm() or (None if self.claim.low else self._outside(guess))

    def on_grid(self, level: float) -> float:
        """The nearest level that may be probed."""
        level = min(max(level, 1.0 if self._whole else LOWEST), HIGHEST)
        near = 2.0 ** (round(math.log2(level) * STEPS) / STEPS)
        return float(max(1, round(near))) if self._whole else float(f"{near:.4g}")

    def _outside(self, guess: float | None) -> float | None:
        """The bracket is open at one end: further out. From a guess in steps that grow, else by two."""
        tried, up = [one.level for one in self.levels], math.isinf(self._ceiling)
        top = self.levels[-1]
        if up and (top.share or 0.0) < self._targets[0] and top.requests and top.probes < MOST_REPEATS:
            return top.level  # it misses, and not clearly
        step = 2.0 if guess is None else 2.0 ** min(1.0, 0.25 * len(tried))
        further = self.on_grid(max(tried) * step if up else min(tried) / step)
        if self._whole:  # a small step from a small number is none
            further = max(further, max(tried) + 1) if up else max(1.0, min(further, min(tried) - 1))
        lowest = self.levels[0]
        pointless = (lowest.blocked and not lowest.client_bound) or 0 < lowest.requests < FEWEST
        if not up and lowest.verdict is None and pointless:
            return None
        return further if further not in tried and LOWEST < further < HIGHEST else None

    def _inside(self) -> float | None:
        """What so many more probes of a level between one that holds and one that does not could show."""
        low, high = self.claim.low or self._passing[-1] / 2, self._ceiling
        fit = Fit(self.levels, self._targets[0], low)
        spent = {one.level for one in self.levels if one.whole >= MOST_REPEATS or one.probes >= 2 * MOST_REPEATS}
        grid = [one for one in self._between(low, high) if one not in spent]
        if not grid:
            return None
        if fit.reach is None:  # nothing was undecided yet: where it is expected, but not too near to what is known
            share = min(max(math.log(fit.level_of(self._targets[0]) / low) / math.log(high / low), 0.2), 0.8)
            return min(grid, key=lambda one: abs(math.log(one / low) - share * math.log(high / low)))
        undecided = min([high, *(one.level for one in self.levels if one.level > low and one.whole)])
        if undecided > low * WIDE and (middle := self.on_grid(math.sqrt(low * undecided))) in grid:
            return middle
        higher = [one for one in grid if fit.shows(one, "holds")]
        lower = [one for one in grid if fit.shows(one, "fails")]
        if higher or lower:
            return max(higher) if higher else min(lower)
        return None if self.claim.low else max((one for one in self._passing if one not in spent), default=None)

    def _between(self, low: float, high: float) -> list[float]:
        """Levels of the grid in between, apart enough to tell."""
        steps = range(math.ceil(math.log2(low) * STEPS), math.floor(math.log2(high) * STEPS) + 1)
        return sorted({one for step in steps if low < (one := self.on_grid(2.0 ** (step / STEPS))) < high})

    def _confirm(self) -> float | None:
        """The highest level that holds and was not found wanting when it was asked again; one that was confirmed ends
        it."""
        for one in reversed([at for at in self.levels if at.verdict == "holds" and at.level < self.claim.high]):
            if one.confirmed:
                return None
            if one.whole < 2 * MOST_REPEATS and one.probes < 4 * MOST_REPEATS:
                return one.level
        return None


class Fit:
    """Attainment over levels, falling: pooled where neighbours disagree, straight between them (logit over log2)."""

    def __init__(self, levels: Sequence[AtLevel], target: float, low: float) -> None:
        known = [(one, one.share) for one in levels if one.share is not None]
        shares = [(share * one.requests + 0.5) / (one.requests + 1) for one, share in known]
        weights = [max(one.effective, one.requests / PRIOR_EFFECT, 1.0) for one, _ in known]
        falling = _falling(list(zip(np.multiply(shares, weights).tolist(), weights, strict=True)))
        self._at, self._shares, self._target = np.log2([one.level for one, _ in known]), logit(falling), target
        undecided = [
            one.effective / one.probes for one in levels if one.verdict is None and one.whole and one.level > low
        ]
        # independent requests that as many probes as are spent on a level are worth
        self.reach = MOST_REPEATS * max(undecided) if undecided else None

    def level_of(self, share: float) -> float:
        """Where attainment is expected to be that."""
        return float(2 ** np.interp(-logit(share), -self._shares, self._at))

    def shows(self, level: float, outcome: str) -> bool:
        """Whether that much more load would be expected to show it."""
        share = float(expit(np.interp(math.log2(level), self._at, self._shares)))
        divergence = rel_entr(share, self._target) + rel_entr(1 - share, 1 - self._target)
        return (share > self._target) == (outcome == "holds") and divergence * (self.reach or 0.0) >= NEEDED


def _falling(counts: Sequence[tuple[float, float]]) -> list[float]:
    """Shares of (met, requests) that do not rise from one to the next."""
    blocks: list[list[float]] = []  # met, requests, levels
    for met, requests in counts:
        blocks.append([met, requests, 1])
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] < blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [one + other for one, other in zip(blocks[-1], last, strict=True)]
    return [met / requests for met, requests, levels in blocks for _ in range(int(levels))]

"""Attainment over load levels, fitted to all probes: what a level is expected to hold, and how much
load it takes to prove it.
"""

import math
from collections.abc import Sequence

import numpy as np

from orchestrator.capacity.design_effect import PRIOR_EFFECT, isotonic
from orchestrator.capacity.levels import LevelEvidence
from orchestrator.capacity.sequential_test import FEWEST, FEWEST_TO_FAIL, requests_needed

# of the load: the power with which misses are expected to rise below the lowest level probed
LEAST_POWER = 3.0


class AttainmentFit:
    """The share of requests that meet the limits, which never rises with the level: isotonic
    regression (pool adjacent violators: Ayer et al. 1955) at the levels that were probed, straight
    between them in logit over log.

    Below the lowest of them the odds of a miss fall with the third power of the load. A level
    without figures that failed, or could not be measured, counts as one where ``FEWEST`` requests
    missed.
    """

    def __init__(self, levels: Sequence[LevelEvidence], target: float) -> None:
        from scipy.special import logit  # imported late, here and below: most sweeps search nothing

        usable = [evidence for evidence in levels if is_known(evidence)]
        shares = [_smoothed_share(evidence) for evidence in usable]
        weights = [
            max(evidence.effective, evidence.requests / PRIOR_EFFECT, 1.0) for evidence in usable
        ]
        logits = logit(isotonic(shares, weights))
        log_levels = np.log([evidence.level for evidence in usable])
        self._log_levels = np.concatenate([[log_levels[0] - 1.0], log_levels])
        self._logits = np.concatenate([[logits[0] + LEAST_POWER], logits])
        self._target = target
        self.effect = levels[0].usual_effect  # the design effect that was learned
        self._by_level = {evidence.level: evidence for evidence in levels}
        undecided = [
            evidence.requests / evidence.probes
            for evidence in levels
            if evidence.verdict is None and evidence.whole
        ]
        # requests of a probe of full length, as far as is known
        self.longest_probe = max(undecided, default=math.inf)

    def level_of(self, share: float) -> float:
        """The level at which this attainment is expected."""
        from scipy.special import logit

        # np.interp wants rising values, and logits fall with the level
        log_level = np.interp(-logit(share), -self._logits, self._log_levels)
        return float(np.exp(log_level))

    def share(self, level: float) -> float:
        """Attainment that is expected at a level."""
        from scipy.special import expit

        log_odds = np.interp(math.log(level), self._log_levels, self._logits)
        return float(expit(log_odds))

    def requests(self, level: float) -> float:
        """Requests that are expected to show on which side of the target a level is, beside those
        that it had.

        No level is taken to be nearer to the target than the standard error of what is known of
        it: a share that happens to lie on the target would take for ever. A verdict that a level
        fails takes ``FEWEST_TO_FAIL`` independent requests at least.
        """
        share = self.share(level)
        evidence = self._by_level.get(level)
        if evidence is None:
            shown = independent = effective = 0.0
        else:
            shown = evidence.log_evidence(share > self._target)
            independent = evidence.requests / self.effect
            effective = evidence.effective
        if independent >= FEWEST:
            share = self._off_target(share, independent)
        needed = requests_needed(share, self._target, self.effect, shown)
        if share <= self._target:
            needed = max(needed, self.effect * (FEWEST_TO_FAIL - effective))
        return needed

    def _off_target(self, share: float, independent: float) -> float:
        """``share``, or one that is a standard error (binomial) of so many requests away from the
        target, on the same side. Without this, 22 of 128 searches ended unresolved, with it 5.
        """
        error = math.sqrt(self._target * (1 - self._target) / independent)
        distance = share - self._target
        return self._target + math.copysign(max(error, abs(distance)), distance)


def is_known(evidence: LevelEvidence) -> bool:
    """Whether anything is known of the level that a fit can use."""
    return bool(evidence.requests) or evidence.verdict == "fails" or evidence.blocked


def _smoothed_share(evidence: LevelEvidence) -> float:
    """The share at a level with half a request added that met the limits, and half a request that
    missed them, so that its logit is finite.
    """
    met = (evidence.share or 0.0) * evidence.requests
    return (met + 0.5) / ((evidence.requests or FEWEST) + 1)

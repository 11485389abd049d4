"""Fits attainment over load levels to all probes.

The fit says which attainment is expected at a level, and how many requests it takes to prove on
which side of the target the level is.
"""

import math
from collections.abc import Sequence

import numpy as np

from orchestrator.capacity.design_effect import PRIOR_EFFECT, not_rising
from orchestrator.capacity.levels import LevelEvidence
from orchestrator.capacity.sequential_test import FEWEST_REQUESTS, FEWEST_TO_FAIL, requests_needed

# below the lowest level probed, the odds of a miss are expected to rise with this power of the load
MISS_ODDS_POWER = 3.0


class AttainmentFit:
    """The share of requests that meet the limits, which never rises with the level.

    At the levels that were probed it is found by isotonic regression (pool adjacent violators: Ayer
    et al. 1955). Between two of them the logit of the share is linear in the logarithm of the
    level. Below the lowest of them the odds of a miss fall with the third power of the load, down
    to 1/e of that level. Below that the share stays the same, and so it does above the highest
    level that was probed.

    A level without figures that failed, or could not be measured, counts as one where
    ``FEWEST_REQUESTS`` requests missed.
    """

    def __init__(self, levels: Sequence[LevelEvidence], target: float) -> None:
        from scipy.special import logit  # imported late, here and below: most sweeps search nothing

        usable = [evidence for evidence in levels if is_known(evidence)]
        shares = [_smoothed_share(evidence) for evidence in usable]
        logits = logit(not_rising(shares, [_weight(evidence) for evidence in usable]))
        log_levels = np.log([evidence.level for evidence in usable])
        self._log_levels = np.concatenate([[log_levels[0] - 1.0], log_levels])
        self._logits = np.concatenate([[logits[0] + MISS_ODDS_POWER], logits])
        self._target = target
        self.effect = levels[0].usual_effect  # the design effect that was learned
        self._by_level = {evidence.level: evidence for evidence in levels}
        # a probe ends at its verdict, so levels with a verdict do not show how long one may run
        requests_per_probe = [
            evidence.requests / evidence.probes
            for evidence in levels
            if evidence.verdict is None and evidence.whole
        ]
        # requests of a probe that runs its time; infinite where that is not known
        self.requests_of_whole_probe = max(requests_per_probe, default=math.inf)

    def level_of(self, share: float) -> float:
        """The level at which this attainment is expected."""
        from scipy.special import logit

        # np.interp wants rising values, and logits fall with the level
        log_level = np.interp(-logit(share), -self._logits, self._log_levels)
        return float(np.exp(log_level))

    def share(self, level: float) -> float:
        """The attainment that is expected at a level."""
        from scipy.special import expit

        log_odds = np.interp(math.log(level), self._log_levels, self._logits)
        return float(expit(log_odds))

    def requests(self, level: float) -> float:
        """How many more requests are expected to show on which side of the target a level is.

        No level is taken to be nearer to the target than the standard error of what is known of
        it: a share that happens to lie on the target would take for ever. A verdict that a level
        fails takes at least ``FEWEST_TO_FAIL`` independent requests.
        """
        share = self.share(level)
        evidence = self._by_level.get(level)
        shown = 0.0  # evidence so far (a logarithm) for the side on which the level is expected
        effective = 0.0  # requests that count for FEWEST_TO_FAIL
        if evidence is not None:
            shown = evidence.log_evidence(share > self._target)
            effective = evidence.effective
            # how well the share is known: by all requests, and the design effect of all levels
            independent_requests = evidence.requests / self.effect
            if independent_requests >= FEWEST_REQUESTS:
                share = self._off_target(share, independent_requests)
        needed = requests_needed(share, self._target, self.effect, shown)
        if share <= self._target:
            needed = max(needed, self.effect * (FEWEST_TO_FAIL - effective))
        return needed

    def _off_target(self, share: float, independent_requests: float) -> float:
        """Moves a share away from the target, so that it is a standard error away at least.

        The standard error is the binomial one of so many independent requests; the share stays on
        its side. Without this, 22 of 128 searches ended unresolved, with it 5.
        """
        error = math.sqrt(self._target * (1 - self._target) / independent_requests)
        distance = share - self._target
        moved = self._target + math.copysign(max(error, abs(distance)), distance)
        return min(max(moved, 0.0), 1.0)


def is_known(evidence: LevelEvidence) -> bool:
    """Whether a fit can use what is known of the level."""
    return bool(evidence.requests) or evidence.verdict == "fails" or evidence.blocked


def _weight(evidence: LevelEvidence) -> float:
    """How much a level weighs: as much as its independent requests.

    No design effect counts as larger than PRIOR_EFFECT, and levels without requests have a weight
    too.
    """
    return max(evidence.effective, evidence.requests / PRIOR_EFFECT, 1.0)


def _smoothed_share(evidence: LevelEvidence) -> float:
    """The share at a level, with half a request added that met the limits and half that missed.

    With these two halves its logit is finite.
    """
    met = (evidence.share or 0.0) * evidence.requests
    return (met + 0.5) / ((evidence.requests or FEWEST_REQUESTS) + 1)

"""The capacity that probes show: the highest load at which a tier of limits holds, with bounds, for
any limits.

``low`` and ``high`` bound the capacity: the highest level that is shown to hold below the lowest
one that is shown to fail (``capacity/levels.py``). The claim is the highest level that was
confirmed. A status says why the search ended, or that it has not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.capacity.choose_level import next_level
from orchestrator.capacity.estimate import Estimate, estimate_of
from orchestrator.capacity.levels import PRECISION, LevelEvidence, SearchState, search_state
from orchestrator.capacity.sequential_test import FEWEST
from orchestrator.results.validity import Validity

ClaimStatus = Literal[
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
# statuses that are verdicts which no other load changes
POINTLESS: tuple[ClaimStatus, ...] = ("broken_output", "invalid", "stream_buffered")


@dataclass(frozen=True, slots=True)
class Claim:
    """``claim``: load that holds the tier, confirmed; None: nothing is. ``high`` is infinite where
    no level was shown to fail.

    ``passed``: the highest level below ``high`` whose probes met the limits, confirmed or not.
    ``estimate``: what the load that holds is expected to be; None: too little is known.

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
    status: ClaimStatus
    levels: tuple[LevelEvidence, ...]
    passed: float | None = None
    estimate: Estimate | None = None

    @property
    def pointless(self) -> bool:
        """Whether no other load changes what is wrong with its probes."""
        return self.status in POINTLESS


def claim_of(
    levels: Sequence[LevelEvidence],
    target: float,
    whole_numbers: bool = False,
    precision: float = PRECISION,
) -> Claim:
    """What is claimed of these levels, the lowest first. Arguments as of ``search_state``."""
    state = search_state(levels, target, whole_numbers, precision)
    verdicts = {evidence.pointless for evidence in levels}
    if Validity.BROKEN_OUTPUT in verdicts:  # whatever was measured was no output
        return Claim(None, 0.0, math.inf, "broken_output", tuple(levels))
    pointless = [status for status in POINTLESS if status in verdicts]
    status = pointless[0] if pointless else _status(state)
    claim = state.confirmed_level or None
    return Claim(
        claim,
        state.low,
        state.high,
        status,
        tuple(levels),
        passed=state.reach or None,
        estimate=None if pointless else estimate_of(levels, target, whole_numbers),
    )


def claim_document(claim: Claim) -> dict[str, float | str | None]:
    """In JSON values. ``high`` is null where no level was shown to fail, the estimate where there is
    none.
    """
    high = claim.high if math.isfinite(claim.high) else None
    estimate = claim.estimate
    return {
        "claim": claim.claim,
        "low": claim.low,
        "high": high,
        "status": claim.status,
        "estimate": estimate.level if estimate else None,
        "estimate.lower": estimate.lower if estimate else None,
        "estimate.upper": estimate.upper if estimate else None,
        "safe": estimate.safe if estimate else None,
    }


def _status(state: SearchState) -> ClaimStatus:
    """Why a search would end here, if no verdict of a probe ended it."""
    if any(
        evidence.verdict == "holds" and evidence.level > state.high for evidence in state.levels
    ):
        return "non_monotonic"
    if state.is_precise(state.confirmed_level):
        above = state.at(state.high)
        return "cliff" if above is not None and above.collapsed else "converged"
    if next_level(state) is not None:
        return "budget"
    between = [
        evidence for evidence in state.levels if state.confirmed_level < evidence.level < state.high
    ]
    if any(evidence.blocked and evidence.client_bound for evidence in between):
        return "client_bound"
    nothing_holds = math.isfinite(state.high) and not state.low
    if nothing_holds and all(_tells_nothing(evidence) for evidence in between):
        return "nothing_holds"
    return "unresolved"


def _tells_nothing(evidence: LevelEvidence) -> bool:
    """Whether a level is so low that its probes get too few requests."""
    return evidence.verdict is None and evidence.requests < FEWEST and not evidence.blocked

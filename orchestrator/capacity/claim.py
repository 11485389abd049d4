"""The capacity that probes show: the highest load at which a tier of limits holds, with bounds.

It can be computed for any limits. ``high``, the lowest level that is shown to fail, and ``low``,
the highest level below it that is shown to hold, bound the capacity (``capacity/levels.py``). The
claim is the highest level that was confirmed. A status says why the search ended, or that it has
not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.capacity.choose_level import next_level
from orchestrator.capacity.estimate import Estimate, estimate_of
from orchestrator.capacity.levels import (
    ANY_LEVEL,
    PRECISION,
    LevelEvidence,
    LevelRange,
    SearchState,
    search_state,
)
from orchestrator.capacity.sequential_test import FEWEST
from orchestrator.results.validity import Validity

ClaimStatus = Literal[
    "converged",
    "cliff",
    "not_the_limit",
    "unresolved",
    "nothing_holds",
    "client_bound",
    "non_monotonic",
    "outraced",
    "budget",
    # verdicts on a probe that no other load changes: they end a search and become its status
    "broken_output",
    "invalid",
    "stream_buffered",
]
# the statuses that are such verdicts
POINTLESS: tuple[ClaimStatus, ...] = ("broken_output", "invalid", "stream_buffered")


@dataclass(frozen=True, slots=True)
class Claim:
    """What the probes of a search show of the capacity.

    ``claim``: the load at which the tier is confirmed to hold; None: none is. ``low``: the highest
    level below ``high`` that was shown to hold; 0: none was. ``high``: the lowest level that was
    shown to fail; infinite: none was. ``levels``: what the probes of each level show, the lowest
    level first. ``passed``: the highest level below ``high`` whose probes met
    the limits, confirmed or not. ``estimate``: the load that is expected to hold; None: too little
    is known. ``missed``: the lowest level above ``passed`` and below ``high`` whose probes missed the
    limits, with too few requests to show that it fails.

    ``status``:

    - ``converged``: ``high`` is as close above the claim as was asked for
    - ``cliff``: the same, and less than half the target is attained at ``high``
    - ``not_the_limit``: the highest load that can be sent holds
    - ``unresolved``: more probes would hardly tell which of the levels in between hold
    - ``nothing_holds``: not even the lowest level at which a probe has enough requests holds
    - ``client_bound``: the clients are too slow for the levels in between
    - ``non_monotonic``: a level holds above one that fails
    - ``outraced``: another deployment holds a load at which this one fails
      (``capacity/dominance.py``)
    - ``budget``: it ended before it knew what more probes could tell
    - a verdict of ``POINTLESS``: no probe of any load would tell anything
    """

    claim: float | None
    low: float
    high: float
    status: ClaimStatus
    levels: tuple[LevelEvidence, ...]
    passed: float | None = None
    estimate: Estimate | None = None
    missed: LevelEvidence | None = None

    @property
    def search_is_over(self) -> bool:
        """Whether the search knows all that more probes could tell."""
        return self.status != "budget"

    @property
    def pointless(self) -> bool:
        """Whether its probes have a verdict that no other load changes."""
        return self.status in POINTLESS

    @property
    def lacks_valid_probes(self) -> bool:
        """Whether it is unresolved because no level between the claim and what fails has a valid
        probe: probes on a quiet machine, or by faster clients, could tell.
        """
        between = [
            evidence for evidence in self.levels if (self.claim or 0.0) < evidence.level < self.high
        ]
        is_blocked = bool(between) and all(evidence.blocked for evidence in between)
        return self.status == "unresolved" and is_blocked


def claim_of(
    levels: Sequence[LevelEvidence],
    target: float,
    whole_numbers: bool = False,
    precision: float = PRECISION,
    sendable: LevelRange = ANY_LEVEL,
) -> Claim:
    """What these levels, the lowest first, show. The arguments are those of ``search_state``."""
    state = search_state(levels, target, whole_numbers, precision, sendable)
    final_validities = {evidence.final_validity for evidence in levels}
    if Validity.BROKEN_OUTPUT in final_validities:  # nothing that was measured counts
        return Claim(None, 0.0, math.inf, "broken_output", tuple(levels))
    # the names of these statuses are those of the verdicts
    pointless = [status for status in POINTLESS if status in final_validities]
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
        missed=_first_missed(state),
    )


def _first_missed(state: SearchState) -> LevelEvidence | None:
    """The lowest level above all that could hold whose probes missed the limits, and which is not
    shown to fail.
    """
    for evidence in state.levels:
        is_undecided = evidence.verdict is None
        has_missed = evidence.share is not None and evidence.share < state.target
        if is_undecided and has_missed and state.reach < evidence.level < state.high:
            return evidence
    return None


def claim_document(claim: Claim) -> dict[str, float | str | None]:
    """The claim as JSON values.

    ``high`` is null where no level was shown to fail, and the estimate where there is none.
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
    """Why a search would end here if no verdict on a probe ended it."""
    if any(
        evidence.verdict == "holds" and evidence.level > state.high for evidence in state.levels
    ):
        return "non_monotonic"
    if state.confirmed_level >= state.sendable.highest:
        return "not_the_limit"
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

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
    LevelEvidence,
    LevelRange,
    SearchState,
    search_state,
)
from orchestrator.capacity.sequential_test import FEWEST_REQUESTS
from orchestrator.spec.load import PRECISION

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
    # of POINTLESS
    "broken_output",
    "invalid",
    "stream_buffered",
]
# Statuses that are the validity of a probe. No other load would change it, so that it makes more
# probes pointless and ends the search.
POINTLESS: tuple[ClaimStatus, ...] = ("broken_output", "invalid", "stream_buffered")


@dataclass(frozen=True, slots=True)
class Claim:
    """What the probes of a search show of the capacity.

    ``claim``: the load at which the tier is confirmed to hold; None: none is. ``high``: the lowest
    level that was shown to fail; infinite: none was. ``low``: the highest level below ``high`` that
    was shown to hold; 0: none was. ``levels``: what the probes of each level show, the lowest
    level first. ``estimate``: the load that is expected to hold; None: too little is known.

    ``passed`` and ``missed`` are levels below ``high`` by the share of their requests that met the
    limits, be that enough for a verdict or not. ``passed``: the highest level whose probes met the
    limits. ``missed``: the lowest level above ``passed`` whose probes missed them, with too few
    requests to show that it fails. None: there is no such level.

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
    - one of ``POINTLESS``: no probe of any load would tell anything
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
        """Whether no probe of any load would tell more."""
        return self.status in POINTLESS

    @property
    def lacks_valid_probes(self) -> bool:
        """Whether it is unresolved because no level between the claim and what fails has a valid
        probe: probes on a quiet machine, or by faster clients, could tell.
        """
        if self.status != "unresolved":
            return False
        between = _levels_between(self.levels, self.claim or 0.0, self.high)
        return bool(between) and all(evidence.blocked for evidence in between)


def claim_of(
    levels: Sequence[LevelEvidence],
    target: float,
    whole_numbers: bool = False,
    precision: float = PRECISION,
    sendable: LevelRange = ANY_LEVEL,
) -> Claim:
    """What these levels, the lowest first, show. The arguments are those of ``search_state``."""
    pointless = _pointless_status(levels)
    if pointless == "broken_output":  # nothing that was measured counts
        return Claim(claim=None, low=0.0, high=math.inf, status=pointless, levels=tuple(levels))
    state = search_state(levels, target, whole_numbers, precision, sendable)
    return Claim(
        claim=state.confirmed_level or None,
        low=state.low,
        high=state.high,
        status=_status(state) if pointless is None else pointless,
        levels=tuple(levels),
        passed=state.reach or None,
        estimate=estimate_of(levels, target, whole_numbers) if pointless is None else None,
        missed=_first_missed(state),
    )


def _pointless_status(levels: Sequence[LevelEvidence]) -> ClaimStatus | None:
    """The status of POINTLESS that a probe of these levels has as its validity; None: none has.
    Where probes differ, the first status in the order of POINTLESS counts.
    """
    final_validities = {evidence.final_validity for evidence in levels}
    for status in POINTLESS:
        if status in final_validities:
            return status
    return None


def _first_missed(state: SearchState) -> LevelEvidence | None:
    """See ``Claim.missed``."""
    for evidence in _levels_between(state.levels, state.reach, state.high):
        is_undecided = evidence.verdict is None
        has_missed = evidence.share is not None and evidence.share < state.target
        if is_undecided and has_missed:
            return evidence
    return None


def _levels_between(
    levels: Sequence[LevelEvidence], lower: float, upper: float
) -> list[LevelEvidence]:
    """The evidence on the levels above ``lower`` and below ``upper``."""
    return [evidence for evidence in levels if lower < evidence.level < upper]


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
    above_high = _levels_between(state.levels, state.high, math.inf)
    if any(evidence.verdict == "holds" for evidence in above_high):
        return "non_monotonic"
    if state.confirmed_level >= state.sendable.highest:
        return "not_the_limit"
    if state.is_precise(state.confirmed_level):
        failing = state.at(state.high)
        return "cliff" if failing is not None and failing.collapsed else "converged"
    if next_level(state) is not None:
        return "budget"
    between = _levels_between(state.levels, state.confirmed_level, state.high)
    if any(evidence.blocked and evidence.client_bound for evidence in between):
        return "client_bound"
    nothing_holds = math.isfinite(state.high) and not state.low
    if nothing_holds and all(_tells_nothing(evidence) for evidence in between):
        return "nothing_holds"
    return "unresolved"


def _tells_nothing(evidence: LevelEvidence) -> bool:
    """Whether a level was not decided because its probes sent fewer requests than a verdict needs:
    so it is at low rates.
    """
    return evidence.verdict is None and evidence.requests < FEWEST_REQUESTS and not evidence.blocked

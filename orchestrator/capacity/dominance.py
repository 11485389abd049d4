"""When a deployment whose capacity is searched can no longer be the best: one rule, while searches
run and afterwards.

A value is a level divided by what the deployment takes: its GPUs, its USD an hour, or 1. The lead is the
highest value that any of those that are compared was shown to hold, or claims, once its search is
over; a deployment that is shown to fail there, or below, is dominated, and its status is
``outraced``. Nothing else about it changes: its bounds stay, and so does its claim if it had one.

Claims lie on a grid and end where more probes hardly tell, so near ones say little of which
deployment is better: those that have one are ranked by what all their probes together expect them
to hold.
"""

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.capacity.attainment_fit import AttainmentFit, is_known
from orchestrator.capacity.choose_level import is_spent
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.levels import SAME, STEPS, LevelEvidence

SETTLED = ("converged", "cliff")
NEAR = 1.1  # expectations count up to this many times a claim: more than that was never shown


def lead_of(claims: Iterable[tuple[Claim, float]]) -> float:
    """The highest value of any of the claims, each with what it is divided by; 0: none holds."""
    return max(
        (leading_level(claim, claim.status != "budget") / divisor for claim, divisor in claims),
        default=0.0,
    )


def leading_level(claim: Claim, is_over: bool) -> float:
    """The level with which a deployment leads: what was shown once, and when its search is over
    what it claims.
    """
    if is_over:
        return claim.claim or 0.0
    return claim.low


def is_dominated(claim: Claim, lead: float) -> bool:
    """Whether it fails at ``lead`` or below, a level (the lead times what the deployment takes),
    and was not shown to hold that much.
    """
    if claim.high > lead * SAME:
        return False
    return not any(
        evidence.verdict == "holds" and evidence.level * SAME >= lead for evidence in claim.levels
    )


def expected(claim: Claim, target: float) -> float | None:
    """The level that is expected to hold, within the bounds; None: no probe tells. A dominated
    deployment has no claim, and how far it missed at the leader's level tells it from others.
    """
    if not any(is_known(evidence) for evidence in claim.levels):
        return None
    level = AttainmentFit(claim.levels, target).level_of(target)
    return min(max(level, claim.low), claim.high)


def worth(claim: Claim, target: float) -> float:
    """The level with which it is ranked; 0: nothing is claimed."""
    if claim.claim is None:
        return 0.0
    return min(expected(claim, target) or 0.0, NEAR * claim.claim)


def among_rivals(claim: Claim, lead: float) -> Claim:
    """The claim with its status among others.

    ``outraced`` where nothing more is probed because it is dominated; ``client_bound`` or
    ``unresolved`` where probes at the lead do not tell, or cannot be made there: levels below are
    not probed.
    """
    if claim.status in (*SETTLED, "non_monotonic") or claim.pointless:
        return claim
    if is_dominated(claim, lead):
        return replace(claim, status="outraced")
    open_levels = [evidence for evidence in claim.levels if _is_open(evidence, claim, lead)]
    if claim.status != "budget" or not open_levels:
        return claim
    if any(evidence.blocked and evidence.client_bound for evidence in open_levels):
        return replace(claim, status="client_bound")
    if any(_is_tied(evidence, lead) for evidence in open_levels):
        return replace(claim, status="unresolved")
    return claim


def _is_open(evidence: LevelEvidence, claim: Claim, lead: float) -> bool:
    """Whether the level could still be claimed, and lies at the lead or below."""
    if evidence.level > lead * SAME or evidence.verdict == "fails" or evidence.confirmed:
        return False
    return evidence.level > claim.low or evidence.verdict == "holds"


def _is_tied(evidence: LevelEvidence, lead: float) -> bool:
    """Whether more probes of the level would not tell it from the lead."""
    near_the_lead = lead / 2 ** (1.5 / STEPS)
    return evidence.blocked or (is_spent(evidence) and evidence.level > near_the_lead)

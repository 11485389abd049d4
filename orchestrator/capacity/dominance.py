"""When a deployment whose capacity is searched can no longer be the best: one rule, while searches
run and afterwards.

Values are levels over what the deployment takes: its GPUs, USD an hour, or 1. The lead is the
highest value that any of those that are compared was shown to hold, or claims, once its search is
over; who is shown to fail there, or below, is outraced. That is all that is said of it: its bounds
stay as they are, and so does a claim where it had one.

Claims lie on a grid and end where more probes hardly tell, so near ones say little of who is
better: those that have one are ranked by what all their probes together expect them to hold.
"""

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.capacity.choose_level import EFFORTS, SAME, STEPS, Fit, spent
from orchestrator.capacity.claim import Claim

SETTLED = ("converged", "cliff")
NEAR = 1.1  # times a claim: more does not count, whatever is expected, because nobody showed it


def lead_of(found: Iterable[tuple[Claim, float]]) -> float:
    """The highest value that was shown to hold, of claims and what they are divided by; 0: none
    was.
    """
    return max(
        (shown(claim, over=claim.status != "budget") / divisor for claim, divisor in found),
        default=0.0,
    )


def shown(claim: Claim, over: bool) -> float:
    """The level with which it leads: what was shown once, and once its search is ``over`` what it
    claims.
    """
    return claim.claim or 0.0 if over else claim.low


def beaten(claim: Claim, lead: float) -> bool:
    """Whether it fails at ``lead`` or below, a level (the lead times what the deployment takes),
    and was not shown to hold as much all the same.
    """
    return claim.high <= lead * SAME and not any(
        one.verdict == "holds" and one.level * SAME >= lead for one in claim.levels
    )


def expected(claim: Claim, target: float) -> float | None:
    """The level that is expected to hold, within the bounds; None: no probe tells. Who was beaten
    has no claim, and how far it missed at the leader's level tells it from others.
    """
    if not any(one.requests or one.blocked or one.verdict == "fails" for one in claim.levels):
        return None
    return min(max(Fit(claim.levels, target).level_of(target), claim.low), claim.high)


def estimate(claim: Claim, target: float) -> float | None:
    """``expected``, where probes lie on both sides of the target; None: it would be a guess."""
    judged = [one for one in claim.levels if one.requests and one.share is not None]
    above = any((one.share or 0.0) >= target for one in judged)
    below = any((one.share or 0.0) < target for one in judged)
    return expected(claim, target) if above and below and not claim.pointless else None


def worth(claim: Claim, target: float) -> float:
    """The level with which it is ranked; 0: nothing is claimed."""
    return (
        min(expected(claim, target) or 0.0, NEAR * claim.claim) if claim.claim is not None else 0.0
    )


def against(claim: Claim, lead: float) -> Claim:
    """Its status among others: ``outraced`` where nothing more is asked because it is beaten;
    ``client_bound`` or ``unresolved`` where probes at the lead do not tell, or cannot be made
    there: levels below are not asked for.
    """
    if claim.status in (*SETTLED, "non_monotonic") or claim.pointless:
        return claim
    if beaten(claim, lead):
        return replace(claim, status="outraced")
    below = [
        one
        for one in claim.levels
        if one.level <= lead * SAME and one.verdict != "fails" and not one.confirmed
    ]
    open_ones = [one for one in below if one.level > claim.low or one.verdict == "holds"]
    if claim.status != "budget" or not open_ones:
        return claim
    if any(one.blocked and one.client_bound for one in open_ones):
        return replace(claim, status="client_bound")
    near = lead / 2 ** (1.5 / STEPS)
    tied = any(one.blocked or (spent(one, EFFORTS[-1]) and one.level > near) for one in open_ones)
    return replace(claim, status="unresolved") if tied else claim

"""Says when a deployment whose capacity is searched can no longer be the best.

The rule is the same while searches run and afterwards. A *value* is a level divided by what the
deployment takes: its GPUs, its price (USD per second), or 1. The *lead* is the highest value of all
deployments that are compared: what one was shown to hold or, once its search is over, claims.

An example per GPU: deployment A holds 80 requests/s on 8 GPUs, so the lead is a value of 10. For B,
with 2 GPUs, the lead is a level of 20 requests/s. If B is shown to fail at 20 or less, it can no
longer be the best: it is *dominated*, and its status is ``outraced``. Nothing else about B changes:
its bounds stay, and so does its claim if it had one.

Claims lie on a grid and end where more probes would hardly tell anything. So claims that are close
to each other say little about which deployment is better, and deployments that have one are ranked
by what all their probes together expect them to hold.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orchestrator.capacity.attainment_fit import AttainmentFit, is_known
from orchestrator.capacity.choose_level import is_spent
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.levels import SAME, STEPS, LevelEvidence

SETTLED = ("converged", "cliff", "not_the_limit")
# An expectation counts up to this many times the claim: more than that was never shown.
NEAR = 1.1
# A level may tie with the lead if it is less than one and a half steps of the grid below it.
TIED = 2 ** (1.5 / STEPS)


@dataclass(frozen=True, slots=True)
class RivalClaim:
    """The claim of one deployment. ``divisor``: what the deployment takes."""

    claim: Claim
    divisor: float

    @property
    def leading_value(self) -> float:
        """The value with which the deployment may lead; 0: none."""
        return leading_level(self.claim, self.claim.search_is_over) / self.divisor


def lead_of(rivals: Iterable[RivalClaim]) -> float:
    """The highest value of all claims; 0: nothing holds."""
    return max((rival.leading_value for rival in rivals), default=0.0)


def leading_level(claim: Claim, is_over: bool) -> float:
    """The level with which a deployment may lead; 0: none.

    It is the highest that was shown to hold or, once its search is over, what it claims.
    """
    if is_over:
        return claim.claim or 0.0
    return claim.low


def is_dominated(claim: Claim, lead_level: float) -> bool:
    """Whether a deployment fails at the lead or below, and was not shown to hold as much.

    ``lead_level``: the lead as a level of this deployment: the lead times what it takes.
    """
    if claim.high > lead_level * SAME:
        return False
    return not any(
        evidence.verdict == "holds" and evidence.level * SAME >= lead_level
        for evidence in claim.levels
    )


def expected(claim: Claim, target: float) -> float | None:
    """The level that is expected to hold, within the bounds; None: no probe tells anything.

    Dominated deployments have one too, even if they have no claim: how far they missed the limits
    at the leader's level tells them apart.
    """
    if not any(is_known(evidence) for evidence in claim.levels):
        return None
    level = AttainmentFit(claim.levels, target).level_of(target)
    return min(max(level, claim.low), claim.high)


def ranking_level(claim: Claim, target: float) -> float | None:
    """The level with which a deployment is ranked; None: it claims or expects nothing."""
    if claim.claim is None:
        return None
    expected_level = expected(claim, target)
    if expected_level is None:
        return None
    return min(expected_level, NEAR * claim.claim)


def among_rivals(claim: Claim, lead_level: float) -> Claim:
    """The claim with the status that it has among rivals.

    It becomes ``outraced`` if the deployment is dominated. The status of a search that is not over
    becomes ``client_bound`` if the clients are too slow for a level, at the lead or below, that
    could still be claimed. It becomes ``unresolved`` if more probes of such a level would not tell
    it apart from the lead. ``lead_level``: as in ``is_dominated``.
    """
    if claim.status in (*SETTLED, "non_monotonic") or claim.pointless:
        return claim
    if is_dominated(claim, lead_level):
        return replace(claim, status="outraced")
    open_levels = [evidence for evidence in claim.levels if _is_open(evidence, claim, lead_level)]
    if claim.search_is_over or not open_levels:
        return claim
    if any(evidence.blocked and evidence.client_bound for evidence in open_levels):
        return replace(claim, status="client_bound")
    if any(_is_tied(evidence, lead_level) for evidence in open_levels):
        return replace(claim, status="unresolved")
    return claim


def _is_open(evidence: LevelEvidence, claim: Claim, lead_level: float) -> bool:
    """Whether the level could still be claimed, and lies at the lead or below."""
    if evidence.level > lead_level * SAME or evidence.verdict == "fails" or evidence.confirmed:
        return False
    return evidence.level > claim.low or evidence.verdict == "holds"


def _is_tied(evidence: LevelEvidence, lead_level: float) -> bool:
    """Whether more probes of the level could not tell it apart from the lead."""
    is_near = evidence.level > lead_level / TIED
    return evidence.blocked or (is_spent(evidence) and is_near)

"""Which deployments can no longer be the best, and what their status says."""

from __future__ import annotations

import math

import pytest

from orchestrator.capacity.choose_level import (
    level_among_rivals,
    level_to_confirm,
    level_to_explore,
)
from orchestrator.capacity.claim import Claim, ClaimStatus
from orchestrator.capacity.dominance import (
    RivalClaim,
    among_rivals,
    expected,
    is_dominated,
    lead_of,
)
from orchestrator.capacity.levels import LevelEvidence, SearchState
from orchestrator.capacity.sequential_test import LevelVerdict
from tests.unit.capacity.builders import at, blocked, claim


def test_a_deployment_that_fails_at_the_lead_is_dominated() -> None:
    lead = lead_of([RivalClaim(claim(80.0), 8.0), RivalClaim(claim(9.0), 1.0)])
    assert lead == 10.0
    assert is_dominated(claim(0.0, 10.0), lead)
    assert not is_dominated(claim(0.0, 10.3), lead)
    assert not is_dominated(claim(9.0), lead)


def test_a_dominated_deployment_keeps_its_bounds_and_a_settled_one_its_status() -> None:
    found = among_rivals(claim(4.0, 9.0), 10.0)
    assert (found.claim, found.low, found.high, found.status) == (None, 4.0, 9.0, "outraced")
    assert among_rivals(claim(4.0, 9.0, "converged"), 10.0).status == "converged"
    assert among_rivals(claim(4.0, 11.0), 10.0).status == "budget"
    assert among_rivals(claim(4.0, 11.0), 0.0).status == "budget"


def test_a_deployment_that_held_the_lead_is_not_dominated() -> None:
    hiccup = claim(0.0, 8.0, "non_monotonic", at(8.0, "fails"), at(16.0, "holds"))
    assert not is_dominated(hiccup, 10.0)
    assert not is_dominated(hiccup, 16.0)
    assert is_dominated(hiccup, 17.0)
    assert among_rivals(hiccup, 10.0).status == among_rivals(hiccup, 17.0).status == "non_monotonic"


@pytest.mark.parametrize(
    ("client_bound", "status"), [(True, "client_bound"), (False, "unresolved")]
)
def test_a_deployment_blocked_at_the_lead_says_why_it_ends(
    client_bound: bool, status: ClaimStatus
) -> None:
    levels = at(8.0, "holds"), blocked(9.792, client_bound)
    known = SearchState(levels, 8.0, math.inf, 0.95, False)
    assert [
        level_among_rivals(known, 10.0, one)
        for one in (level_to_explore(known, 10.0), level_to_confirm(known))
    ] == [
        None,
        None,
    ]
    assert among_rivals(claim(8.0, math.inf, "budget", *levels), 10.0).status == status
    above = at(8.0, "holds"), blocked(16.0, client_bound)
    assert among_rivals(claim(8.0, math.inf, "budget", *above), 10.0).status == "budget"


def test_a_deployment_too_near_to_the_leader_is_unresolved() -> None:
    tied = claim(4.0, 11.0, "budget", at(10.0, whole=8))
    assert among_rivals(tied, 10.0).status == "unresolved"
    assert among_rivals(claim(4.0, 11.0, "budget", at(10.0)), 10.0).status == "budget"


def test_an_unconfirmed_lead_is_unresolved() -> None:
    held = claim(10.0, 11.0, "budget", at(10.0, "holds", whole=16))
    assert among_rivals(held, 10.0).status == "unresolved"
    assert (
        among_rivals(claim(10.0, 11.0, "budget", at(10.0, "holds", whole=6)), 10.0).status
        == "budget"
    )


def judged(level: float, verdict: LevelVerdict | None, share: float) -> LevelEvidence:
    return LevelEvidence(level, 1, verdict, False, share, 1000, (), 1, False, False, False, 20.0)


def test_a_dominated_deployment_is_expected_to_hold_more_the_nearer_it_came() -> None:
    def is_dominated(share: float) -> float:
        value = expected(Claim(None, 0.0, 8.0, "outraced", (judged(8.0, "fails", share),)), 0.95)
        assert value is not None
        return value

    assert 0 < is_dominated(0.2) < is_dominated(0.8) < is_dominated(0.9) < 8.0
    assert (
        expected(
            Claim(
                6.0, 6.0, 6.3, "converged", (judged(6.0, "holds", 1.0), judged(6.3, "fails", 0.1))
            ),
            0.95,
        )
        >= 6.0
    )
    assert expected(Claim(None, 0.0, math.inf, "budget", ()), 0.95) is None

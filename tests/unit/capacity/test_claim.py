"""Every status with which a search can end."""

from __future__ import annotations

import math

import pytest

from benchmarks.search.servers import TARGET
from orchestrator.capacity.choose_level import next_level
from orchestrator.capacity.claim import claim_of
from orchestrator.capacity.levels import LevelRange, at_levels
from orchestrator.capacity.probe_outcome import ProbeOutcome, Shows
from orchestrator.capacity.search import MOST_PROBES, Tier
from tests.unit.capacity.builders import AT_TARGET, SLO, ended, flags


def test_converged_where_a_little_more_fails() -> None:
    claim = ended(lambda level: ProbeOutcome(level, flags(0.99 if level < 10 else 0.85))).claim
    assert claim.status == "converged"
    assert claim.claim is not None
    assert round(claim.claim) == 10


@pytest.mark.parametrize("whole_numbers", [False, True])
@pytest.mark.parametrize("guess", [None, 3.0])
def test_nothing_holds_where_brief_probes_miss_all_the_way_down(
    whole_numbers: bool, guess: float | None
) -> None:
    tier = Tier(SLO, whole_numbers)
    for _ in range(MOST_PROBES):
        if (level := next_level(tier.state, guess)) is None:
            break
        count = 31 if whole_numbers else min(31, int(600 * level))
        tier.tell(
            ProbeOutcome(
                level,
                flags(0.2, count),
                Shows.FAILURE_ONLY if count == 31 else Shows.ANY_VERDICT,
                whole=count < 31,
            )
        )
    assert tier.claim.status == "nothing_holds"
    assert tier.claim.high <= (1 if whole_numbers else 0.11)


def test_cliff_where_a_little_more_is_a_collapse() -> None:
    assert (
        ended(lambda level: ProbeOutcome(level, flags(0.99 if level < 10 else 0.1))).claim.status
        == "cliff"
    )


@pytest.mark.parametrize(
    ("holds_below", "status", "claim_is"),
    [(100.0, "not_the_limit", 5.1), (3.0, "converged", 3.0), (4.9, "converged", 4.9)],
)
def test_no_level_is_probed_that_cannot_be_sent(
    holds_below: float, status: str, claim_is: float
) -> None:
    tier = ended(
        lambda level: ProbeOutcome(level, flags(0.99 if level < holds_below else 0.85)),
        sendable=LevelRange(0.5, 5.1),
    )
    claim = tier.claim
    assert max(evidence.level for evidence in claim.levels) <= 5.1
    assert claim.status == status
    assert claim.claim == pytest.approx(claim_is, rel=0.05)
    assert math.isinf(claim.high) == (status == "not_the_limit")
    assert tier.is_over


def test_the_highest_level_that_can_be_sent_is_claimed_exactly_and_soon() -> None:
    claim = ended(
        lambda level: ProbeOutcome(level, flags(0.99)), sendable=LevelRange(0.5, 5.1)
    ).claim
    assert claim.claim == 5.1
    assert [evidence.level for evidence in claim.levels] == [5.1], "16 requests/s come first"


def test_a_search_stays_above_the_lowest_level_that_can_be_sent() -> None:
    claim = ended(
        lambda level: ProbeOutcome(level, flags(0.2)), sendable=LevelRange(0.5, 5.1)
    ).claim
    assert min(evidence.level for evidence in claim.levels) == 0.5
    assert claim.claim is None


def undecided_from_8_to_30(level: float) -> ProbeOutcome:
    if level < 8:
        return ProbeOutcome(level, flags(0.99))
    if level < 30:
        return ProbeOutcome(level, AT_TARGET)
    return ProbeOutcome(level, flags(0.5))


def test_unresolved_where_many_levels_lie_on_the_target() -> None:
    claim = ended(undecided_from_8_to_30).claim
    assert claim.status == "unresolved"
    assert claim.claim is not None
    assert claim.claim < 8 < 30 <= claim.high


def test_client_bound_where_clients_can_do_no_more() -> None:
    claim = ended(
        lambda level: (
            ProbeOutcome(level, flags(0.99))
            if level < 10
            else ProbeOutcome(level, (), Shows.CLIENT_BOUND)
        )
    ).claim
    assert claim.status == "client_bound"
    assert claim.claim is not None
    assert 8 <= claim.claim < 10
    assert math.isinf(claim.high)


def test_non_monotonic_where_a_level_holds_above_one_that_fails() -> None:
    levels = at_levels(
        [ProbeOutcome(level, flags(share)) for level, share in ((4, 0.99), (8, 0.8), (16, 0.99))],
        [TARGET],
    )
    claim = claim_of(levels, TARGET)
    assert (claim.status, claim.low, claim.high) == ("non_monotonic", 4, 8)


def test_budget_where_a_search_ended_before_its_claim_was_precise() -> None:
    levels = at_levels(
        [
            ProbeOutcome(4.0, flags(0.99)),
            ProbeOutcome(4.0, flags(0.991)),
            ProbeOutcome(16.0, flags(0.5)),
        ],
        [TARGET],
    )
    claim = claim_of(levels, TARGET)
    assert (claim.status, claim.claim, claim.low, claim.high) == ("budget", 4, 4, 16)


def test_a_level_that_was_shown_once_is_not_claimed() -> None:
    claim = claim_of(at_levels([ProbeOutcome(4.0, flags(0.99))], [TARGET]), TARGET)
    assert (claim.claim, claim.low) == (None, 4)


def test_whole_numbers_converge_at_neighbours() -> None:
    claim = ended(
        lambda level: ProbeOutcome(level, flags(0.995 if level < 4 else 0.7)), whole_numbers=True
    ).claim
    assert (claim.status, claim.claim, claim.high) == ("converged", 3, 4)


def test_nothing_holds_where_one_in_flight_is_too_much() -> None:
    claim = ended(lambda level: ProbeOutcome(level, flags(0.2)), whole_numbers=True).claim
    assert (claim.claim, claim.low, claim.high, claim.status) == (None, 0, 1, "nothing_holds")


def test_nothing_holds_down_to_a_rate_with_too_few_requests() -> None:
    claim = ended(lambda level: ProbeOutcome(level, flags(0.2, int(600 * level)))).claim
    lowest = min(one.level for one in claim.levels if one.verdict == "fails")
    assert (claim.claim, claim.low, claim.high, claim.status) == (None, 0, lowest, "nothing_holds")
    assert lowest * 600 < 150


def test_a_probe_cut_short_does_not_say_that_nothing_holds() -> None:
    tier = Tier(SLO)
    failed = ProbeOutcome(16.0, flags(0.01, 60), whole=False)
    for one in (failed, failed, ProbeOutcome(8.0, flags(0.01, 4), whole=False)):
        tier.tell(one)
    assert (tier.claim.status, next_level(tier.state)) == ("budget", 8.0)
    tier.tell(ProbeOutcome(8.0, flags(0.01, 4), whole=True))
    assert tier.claim.status == "nothing_holds"
    assert next_level(tier.state) is None


def test_unresolved_is_not_said_while_a_search_goes_on() -> None:
    told: list[ProbeOutcome] = []

    def answer(level: float) -> ProbeOutcome:
        if told:
            assert claim_of(at_levels(told, [TARGET]), TARGET).status in ("budget", "converged")
        told.append(undecided_from_8_to_30(level))
        return told[-1]

    assert ended(answer).claim.status == "unresolved"


def test_a_level_that_missed_with_too_few_requests_is_named_until_it_is_shown_to_fail() -> None:
    tier = Tier(SLO)
    tier.tell(ProbeOutcome(16.0, flags(0.0), Shows.FAILURE_ONLY))
    tier.tell(ProbeOutcome(8.0, flags(0.5, 12)))
    claim = tier.claim
    assert (claim.high, claim.passed) == (16.0, None)
    assert claim.missed is not None
    assert (claim.missed.level, claim.missed.requests) == (8.0, 12)
    tier.tell(ProbeOutcome(8.0, flags(0.0)))
    assert (tier.claim.high, tier.claim.missed) == (8.0, None)


def test_a_level_that_met_the_limits_but_cannot_be_measured_is_not_said_to_have_missed() -> None:
    slowed = ProbeOutcome(16.0, (), Shows.CLIENT_BOUND)
    levels = at_levels(
        [ProbeOutcome(8.0, flags(0.99)), ProbeOutcome(16.0, flags(0.99, 40)), slowed, slowed],
        [TARGET],
    )
    assert (levels[1].verdict, levels[1].blocked) == (None, True)
    claim = claim_of(levels, TARGET)
    assert (claim.passed, claim.missed) == (8.0, None)

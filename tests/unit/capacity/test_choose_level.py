"""Which level is probed next, and when more probes would tell nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.search.servers import TARGET
from orchestrator.capacity.attainment_fit import AttainmentFit
from orchestrator.capacity.choose_level import (
    MOST_REPEATS,
    level_among_rivals,
    level_to_confirm,
    level_to_explore,
    next_level,
    probe_size,
)
from orchestrator.capacity.estimate import estimate_of
from orchestrator.capacity.levels import SearchState, at_levels, search_state
from orchestrator.capacity.probe_outcome import ProbeOutcome, Shows
from orchestrator.capacity.search import MOST_PROBES, Tier
from tests.unit.capacity.builders import SLO, at, ended, flags

FIRST_START, SECOND_START = 0, 1


def searched(*told: ProbeOutcome) -> SearchState:
    return search_state(at_levels(told, [TARGET]), TARGET)


def probed(level: float, share: float, requests: int = 4000) -> ProbeOutcome:
    return ProbeOutcome(level, flags(share, requests))


def test_a_level_a_little_below_the_estimate_comes_first_where_time_is_limited() -> None:
    known = searched(probed(8.0, 0.999), probed(16.0, 0.7))
    estimate = estimate_of(known.levels, TARGET)
    assert estimate is not None
    level = level_to_explore(known, None, left_s=300.0)
    assert level == pytest.approx(0.9 * estimate.level, rel=0.02)


def test_a_level_that_cannot_be_measured_is_not_asked_for_again_where_time_is_limited() -> None:
    told = [probed(8.0, 0.999), probed(16.0, 0.7)]
    level = level_to_explore(searched(*told), None, left_s=300.0)
    assert level is not None
    told += [ProbeOutcome(level, (), Shows.NOTHING)] * 2
    assert searched(*told).levels[1].blocked
    assert level_to_explore(searched(*told), None, left_s=300.0) != level


def test_what_is_left_is_spent_near_the_estimate() -> None:
    known = searched(probed(8.0, 0.999), probed(12.5, 0.975, 900), probed(16.0, 0.8, 200))
    estimate = estimate_of(known.levels, TARGET)
    assert estimate is not None
    level = level_to_explore(known, None, left_s=100.0)
    assert level is not None
    assert estimate.lower < level < estimate.upper


def test_a_level_is_proved_where_that_takes_a_small_part_of_the_time() -> None:
    known = searched(probed(8.0, 0.999), probed(12.5, 0.975, 900), probed(16.0, 0.8, 200))
    level = level_to_explore(known, None, left_s=7200.0)
    assert level is not None
    size = probe_size(known, level, 7200.0)
    assert 0 < size.expected <= 0.25 * 7200 * level
    assert math.isinf(size.most)


def test_a_probe_near_the_estimate_takes_a_part_of_the_time_or_all_of_a_short_rest() -> None:
    known = searched(probed(8.0, 0.999), probed(12.5, 0.975, 900), probed(16.0, 0.8, 200))
    assert probe_size(known, 14.0, 240.0).most == pytest.approx(240 * 14 / 5, rel=0.2)
    assert math.isinf(probe_size(known, 14.0, 30.0).most)


def test_a_level_that_missed_by_far_is_not_probed_again_where_time_is_limited() -> None:
    known = searched(probed(16.0, 0.1, 60), probed(8.0, 0.999, 1500))
    assert known.is_screening
    level = level_to_explore(known, None, left_s=300.0)
    assert level is not None
    assert 8.0 < level < 16.0


def test_time_left_counts_for_requests_in_flight_once_their_rate_is_known() -> None:
    told = [
        ProbeOutcome(8.0, flags(0.999, count=4000), seconds=100.0),
        ProbeOutcome(16.0, flags(0.7, count=4000), seconds=100.0),
    ]
    levels = at_levels(told, [TARGET])
    known = search_state(levels, TARGET, whole_numbers=True)
    assert known.requests_per_s(15.0) == 4000 / 100
    level = level_to_explore(known, None, left_s=60.0)
    assert level in range(9, 16)
    assert search_state([], TARGET, whole_numbers=True).requests_per_s(8.0) is None


def test_raising_the_claim_counts_more_than_lowering_high() -> None:
    """8 is claimed, 11 fails, and the capacity is expected in the middle."""
    twice = [
        ProbeOutcome(level, flags(share, count))
        for level, share, count in ((8.0, 0.985, 4000), (11.0, 0.85, 600))
    ] * 2
    known = search_state(at_levels(twice, [TARGET]), TARGET)
    assert (known.confirmed_level, known.high) == (8.0, 11.0)
    level = level_to_explore(known, None)
    assert level is not None
    assert level < AttainmentFit(known.levels, TARGET).level_of(TARGET)


@pytest.mark.parametrize("shows", [Shows.ENGINE_DIED, Shows.CLIENT_BOUND, Shows.NOTHING])
@pytest.mark.parametrize(("edge", "whole_numbers"), [(17.0, False), (30.0, False), (200.0, True)])
def test_levels_without_figures_are_bracketed_from_both_sides(
    shows: Shows, edge: float, whole_numbers: bool
) -> None:
    """The engine dies there, the clients are too slow, or nothing that is measured there is valid."""
    claim = ended(
        lambda level: (
            ProbeOutcome(level, flags(0.999)) if level < edge else ProbeOutcome(level, (), shows)
        ),
        whole_numbers,
    ).claim
    assert sum(one.probes for one in claim.levels) <= 20
    assert claim.claim is not None
    assert claim.claim >= edge / 1.2


def test_one_client_bound_probe_does_not_give_a_level_up() -> None:
    was_client_bound = False

    def answer(level: float) -> ProbeOutcome:
        nonlocal was_client_bound
        if level >= 9 and not was_client_bound:
            was_client_bound = True
            return ProbeOutcome(level, (), Shows.CLIENT_BOUND)
        return ProbeOutcome(level, flags(0.99 if level < 20 else 0.5))

    claim = ended(answer).claim
    assert claim.status in ("converged", "cliff")
    assert claim.claim is not None
    assert 17 < claim.claim < 20


def test_a_search_ends_where_nothing_can_be_measured() -> None:
    tier = ended(lambda level: ProbeOutcome(level, (), Shows.NOTHING))
    assert next_level(tier.state) is None
    assert sum(one.probes for one in tier.claim.levels) <= 4


@pytest.mark.parametrize(
    ("starts_of_probes", "is_confirmed", "to_confirm"),
    [
        ([SECOND_START], False, 12.0),  # one probe only shows that the level holds
        ([SECOND_START, SECOND_START], True, None),
        ([FIRST_START, FIRST_START], True, 12.0),  # the second start was not asked
    ],
)
def test_a_level_is_confirmed_on_the_second_start(
    starts_of_probes: list[int], is_confirmed: bool, to_confirm: float | None
) -> None:
    rng = np.random.default_rng(0)
    failed = ProbeOutcome(16.0, (rng.random(3000) < 0.5,), start=FIRST_START)
    held = [
        ProbeOutcome(12.0, (rng.random(3000) < 0.999,), start=start) for start in starts_of_probes
    ]
    levels = at_levels([failed, *held], [TARGET])
    assert levels[0].confirmed == is_confirmed
    assert level_to_confirm(search_state(levels, TARGET), starts=2) == to_confirm


@pytest.mark.parametrize(
    ("guess", "holds", "claim"), [(1.0, 5, 5.0), (2.0, 9, 9.0), (3.0, 1, 1.0), (2.0, 1, 1.0)]
)
def test_small_whole_numbers_are_probed_one_by_one(guess: float, holds: int, claim: float) -> None:
    """A small step from 2 in flight is 2 again."""
    tier = Tier(SLO, whole_numbers=True)
    for _ in range(MOST_PROBES):
        if (level := next_level(tier.state, guess)) is None:
            break
        tier.tell(ProbeOutcome(level, flags(0.99 if level <= holds else 0.5)))
    assert tier.claim.claim == claim


def test_no_level_below_the_leader_estimate_is_probed() -> None:
    nothing_probed = search_state([], TARGET)
    assert level_among_rivals(nothing_probed, leader_estimate=8.0, level=None) == 8.0
    assert level_among_rivals(nothing_probed, leader_estimate=8.05, level=None) == 8.0
    # the nearest level of the grid is above the estimate
    assert level_among_rivals(nothing_probed, leader_estimate=8.2, level=None) == 8.116
    failed = search_state([at(8.0, "fails")], TARGET)
    assert level_among_rivals(failed, leader_estimate=8.0, level=4.0) is None
    undecided = search_state([at(8.0, whole=1)], TARGET)
    assert level_among_rivals(undecided, leader_estimate=8.0, level=4.0) == 8.0
    assert level_among_rivals(undecided, leader_estimate=8.0, level=9.0) == 9.0
    had_all_its_probes = search_state([at(8.0, whole=MOST_REPEATS)], TARGET)
    assert level_among_rivals(had_all_its_probes, leader_estimate=8.0, level=4.0) is None

"""Which deployment leads, and which ones can still beat it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.points import StoredPoint, load_points
from orchestrator.capacity.claim import Claim, ClaimStatus
from orchestrator.capacity.estimate import Estimate
from orchestrator.capacity.standing import (
    OUT,
    Contest,
    Standing,
    Standings,
    is_measured_again,
    standing_of_concurrency,
    standing_of_levels,
    standing_of_rates,
)
from orchestrator.spec.load import Level
from tests.unit.capacity.builders import at
from tests.unit.capacity.stored_levels import SLO, StoredLevels

HERE = Contest("chat", "fast", "all")


def rate(value: float) -> Level:
    return Level(control="request_rate", value=value)


def searched(
    claimed: float | None, high: float, status: ClaimStatus, over: bool, divisor: float = 1.0
) -> Standing:
    levels = (at(claimed or 1.0, "holds"), at(high, "fails")) if math.isfinite(high) else ()
    return standing_of_rates(Claim(claimed, 8.0, high, status, levels), 0.95, divisor, over)


def listed(folder: Path, holding: list[float], failing: list[float]) -> list[StoredPoint]:
    stored = StoredLevels(folder)
    stored.deployment("d")
    for level in holding:
        stored.level("d", level)
    for level in failing:
        stored.level("d", level, good=0.3)
    return load_points(stored.store, SLO)


# Searches


def test_a_search_may_come_to_the_lowest_rate_that_fails() -> None:
    standing = searched(None, 12.0, "budget", over=False, divisor=2.0)
    assert (standing.shown, standing.most) == (0.0, 6.0)


def test_a_search_with_a_claim_keeps_it() -> None:
    standing = searched(8.0, math.inf, "budget", over=False)
    assert (standing.shown, standing.most) == (8.0, math.inf)
    assert standing.is_shown


def test_a_search_that_is_over_comes_to_what_it_is_ranked_with() -> None:
    standing = searched(8.0, 8.4, "converged", over=True)
    assert 8.0 <= standing.most <= 8.4
    assert standing.shown == standing.most == standing.rank


@pytest.mark.parametrize("status", ["budget", "client_bound", "non_monotonic"])
def test_a_search_that_another_run_could_take_further_may_come_further(
    status: ClaimStatus,
) -> None:
    assert searched(8.0, 12.0, status, over=True).most == 12.0


def unresolved(claimed: float | None, is_blocked: bool) -> Claim:
    """A search that knows of 12 requests/s that they fail, and probed 10 in between."""
    between = replace(at(10.0, "unclear"), blocked=is_blocked)
    below = () if claimed is None else (at(claimed, "holds"),)
    levels = (*below, between, at(12.0, "fails"))
    return Claim(claimed, claimed or 0.0, 12.0, "unresolved", levels)


def test_a_search_whose_probes_were_all_spoilt_may_come_to_the_lowest_rate_that_fails() -> None:
    for claimed in (None, 8.0):
        claim = unresolved(claimed, is_blocked=True)
        standing = standing_of_rates(claim, 0.95, 1.0, is_over=True)
        assert (standing.shown, standing.most) == (claimed or 0.0, 12.0)
        assert standing_of_concurrency(claim, [], 1.0, is_over=True).most == math.inf


def test_a_search_that_valid_probes_leave_unresolved_comes_to_what_it_is_ranked_with() -> None:
    claim = unresolved(8.0, is_blocked=False)
    standing = standing_of_rates(claim, 0.95, 1.0, is_over=True)
    assert standing.most == standing.rank < 12.0
    assert standing_of_concurrency(claim, [], 1.0, is_over=True) == OUT


def test_an_estimate_ranks_below_every_claim() -> None:
    expected = Estimate(16.0, 14.0, 18.0, None)
    claim = replace(Claim(None, 0.0, 20.0, "budget", ()), estimate=expected)
    estimated = standing_of_rates(claim, 0.95, 1.0, is_over=False)
    assert (estimated.rank, estimated.is_shown) == (16.0, False)
    assert estimated.precedence < searched(8.0, 12.0, "budget", over=False).precedence


def test_a_search_that_no_load_helps_is_out() -> None:
    assert searched(None, math.inf, "broken_output", over=True) == OUT


def test_the_throughput_of_more_requests_in_flight_is_not_known_before() -> None:
    claim = Claim(8.0, 8.0, 12.0, "budget", ())
    assert standing_of_concurrency(claim, [], 1.0, is_over=False).most == math.inf


# Lists of levels


def test_a_level_above_one_that_fails_cannot_hold(tmp_path: Path) -> None:
    points = listed(tmp_path, [2, 4], [8])
    standing = standing_of_levels(points, [rate(16)], 2.0, compares_rates=True)
    assert (standing.shown, standing.most) == (2.0, 2.0)
    assert standing.level == rate(4)


def test_a_level_between_the_best_and_one_that_fails_may_hold(tmp_path: Path) -> None:
    points = listed(tmp_path, [2, 4], [8])
    standing = standing_of_levels(points, [rate(6), rate(16)], 2.0, compares_rates=True)
    assert (standing.shown, standing.most) == (2.0, 3.0)


def test_a_level_below_the_best_one_changes_nothing(tmp_path: Path) -> None:
    points = listed(tmp_path, [4], [8])
    standing = standing_of_levels(points, [rate(2)], 1.0, compares_rates=False)
    assert standing.most == standing.shown == pytest.approx(standing.rank)


def test_a_level_with_repeats_left_is_ranked_and_not_yet_shown(tmp_path: Path) -> None:
    points = listed(tmp_path, [2, 4], [])
    standing = standing_of_levels(points, [rate(4)], 1.0, compares_rates=True)
    assert standing.level == rate(4)
    assert (standing.shown, standing.most) == (2.0, 4.0)


def test_where_throughputs_count_an_open_level_may_bring_any(tmp_path: Path) -> None:
    points = listed(tmp_path, [4], [])
    standing = standing_of_levels(points, [rate(8)], 1.0, compares_rates=False)
    assert standing.most == math.inf
    assert standing.shown == pytest.approx(40.0, rel=0.1)  # 10 tokens a request


def test_more_requests_in_flight_may_hold_and_give_less(tmp_path: Path) -> None:
    """The highest level that holds counts, so nothing is shown while a higher one is open."""
    stored = StoredLevels(tmp_path)
    stored.deployment("d")
    stored.level("d", 4, control="concurrency")
    points = load_points(stored.store, SLO)
    more = Level(control="concurrency", value=8)
    standing = standing_of_levels(points, [more], 1.0, compares_rates=False)
    assert standing.is_shown
    assert (standing.shown, standing.most) == (0.0, math.inf)
    final = standing_of_levels(points, [], 1.0, compares_rates=False)
    assert final.shown == final.most == pytest.approx(40.0, rel=0.1)  # 10 tokens a request


def test_what_holds_nothing_and_has_nothing_left_is_out(tmp_path: Path) -> None:
    standing = standing_of_levels(listed(tmp_path, [], [2]), [], 1.0, compares_rates=True)
    assert standing == OUT


def test_what_was_not_measured_may_hold_anything() -> None:
    standing = standing_of_levels([], [rate(2)], 1.0, compares_rates=False)
    assert standing.most == math.inf


@pytest.mark.parametrize(
    ("of_point", "again"),
    [
        ({"validity": "disturbed"}, True),
        ({"validity": "valid"}, False),
        ({"validity": "engine_bound_backlog"}, False),
        ({"status": "failed", "failure_class": "infra"}, True),
        ({"status": "failed", "failure_class": "engine_crash"}, False),
    ],
)
def test_another_run_measures_again_what_says_nothing_of_the_engine(
    tmp_path: Path, of_point: dict[str, str], again: bool
) -> None:
    stored = StoredLevels(tmp_path)
    stored.deployment("d")
    stored.level("d", 4, **of_point)
    (point,) = load_points(stored.store, SLO)
    assert is_measured_again(point) is again


# All of them


def standings(within: float = 0.05, **of_deployment: Standing) -> Standings:
    every = Standings(within)
    for name, standing in of_deployment.items():
        every.put(HERE, name, standing)
    return every


def holding(value: float, most: float | None = None) -> Standing:
    return Standing(value, True, value, value if most is None else most, rate(value))


def test_the_leader_and_how_many_can_still_beat_it_are_known() -> None:
    every = standings(a=holding(8.0), b=holding(6.0, most=9.0), c=holding(5.0, most=7.0))
    lead = every.lead(HERE)
    assert (lead.leader, lead.rivals, lead.deployments) == ("a", 1, 3)
    assert [every.needs(name) for name in "abc"] == [True, True, False]
    assert not every.are_decided


def test_what_is_better_by_less_than_the_precision_need_not_be_measured() -> None:
    every = standings(a=holding(8.0, most=math.inf), b=holding(6.0, most=8.3))
    assert every.lead(HERE).rivals == 1
    assert every.are_decided
    assert not any(every.needs(name) for name in "ab")


def test_a_second_one_that_was_shown_to_hold_more_does_not_soften_the_precision() -> None:
    leader = Standing(8.4, True, 8.0, math.inf, rate(8.4))
    every = standings(a=leader, b=holding(8.3, most=8.6))
    assert not every.are_decided
    assert every.needs("b")


def test_nothing_is_decided_while_the_leader_is_only_estimated() -> None:
    every = standings(a=Standing(rank=8.0, most=9.0), b=OUT)
    assert not every.are_decided
    assert every.needs("a")


def test_what_another_one_was_shown_to_hold_counts_while_the_leader_has_repeats_left() -> None:
    leader = Standing(8.0, True, 0.0, 8.0, rate(8.0))
    every = standings(a=leader, b=holding(6.0), c=holding(2.0, most=5.0))
    assert [every.needs(name) for name in "abc"] == [True, False, False]
    assert not every.are_decided


def test_a_deployment_that_is_left_out_counts_no_more() -> None:
    every = standings(a=holding(8.0), b=Standing())
    every.remove("b")
    assert every.are_decided
    assert every.lead(HERE).deployments == 1


def test_a_deployment_is_needed_as_long_as_one_contest_needs_it() -> None:
    every = standings(a=holding(8.0), b=holding(6.0))
    other = Contest("chat", "slow", "all")
    every.put(other, "a", holding(8.0))
    every.put(other, "b", holding(6.0, most=9.0))
    assert every.needs("b")
    assert not every.are_decided


def test_a_search_that_is_given_up_keeps_what_it_claimed() -> None:
    assert holding(8.0, most=math.inf).ended == holding(8.0)
    assert Standing(rank=8.0).ended == OUT


@st.composite
def trials(draw: st.DrawFn) -> tuple[Standing, float]:
    """Where a deployment stands, and what it comes to in the end: what was shown at least, and no
    more than the most.
    """
    values = st.floats(0, 100)
    shown, rank, most = sorted(draw(st.tuples(values, values, values)))
    if draw(st.booleans()):
        shown = 0.0
    is_shown = shown > 0 or draw(st.booleans())
    end = draw(st.floats(shown, most))
    return Standing(rank, is_shown, shown, most), end


@given(st.lists(trials(), min_size=1, max_size=8), st.floats(0, 0.3))
def test_what_is_decided_is_the_best_in_the_end_within_the_precision(
    ends: list[tuple[Standing, float]], within: float
) -> None:
    every = Standings(within)
    for number, (standing, _) in enumerate(ends):
        every.put(HERE, str(number), standing)
    if not every.are_decided:
        return
    leader = every.lead(HERE).leader
    assert leader is not None
    best = max(end for _, end in ends)
    assert ends[int(leader)][1] * (1 + within) >= best * (1 - 1e-12)


@given(st.lists(trials(), min_size=1, max_size=8), st.floats(0, 0.3))
def test_while_nothing_is_decided_one_with_something_left_is_needed(
    ends: list[tuple[Standing, float]], within: float
) -> None:
    every = Standings(within)
    for number, (standing, _) in enumerate(ends):
        every.put(HERE, str(number), standing)
    has_left = [str(number) for number, (one, _) in enumerate(ends) if one.most > one.shown]
    if has_left and not every.are_decided:
        assert any(every.needs(name) for name in has_left)

"""Searches for capacities that are known, in virtual time; every way in which one can end; and what
a kill costs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search.claims import Spent, probe, search
from benchmarks.search.servers import (
    SERVERS,
    Server,
    batches,
    curve,
    exponential_capacity,
    exponential_slots,
    slots,
)
from orchestrator.capacity import search as capacity
from orchestrator.capacity.choose_level import level_to_confirm, level_to_explore, next_level
from orchestrator.capacity.estimate import Estimate
from orchestrator.capacity.probe_outcome import ProbeOutcome, Shows
from orchestrator.capacity.search import MOST_PROBES, Capacity, Tier
from orchestrator.capacity.strategy import SearchQuestion
from orchestrator.results.records import AttemptData
from orchestrator.spec.load import Level, Slo
from tests.unit.capacity.builders import LOOSE, SLO, attempt, flags

# sojourn times of an M/M/1 queue are exponential: exp(-(mu - lambda) t)
CLOSED_FORM = 20 - math.log(20) / 0.5
MM1 = Server("M/M/1", exponential_slots(1, 0.05, 0.5), 0.5, (5.0, 20.0), exact=CLOSED_FORM)
MM8 = next(one for one in SERVERS if one.exact)
MD8 = Server("M/D/8", slots(8, 0.4, 0.5), 0.5, (4.0, 20.0))
BATCHES = Server("batches", batches(16, 0.2, 0.02, 1.0), 1.0, (5.0, 40.0))
CLOSED = Server("closed", curve(40.0, 6.0, 1), 0.5, (10.0, 120.0), closed=True)


def test_simulated_servers_have_the_capacity_that_theory_gives() -> None:
    assert exponential_capacity(1, 0.05, 0.5, 5.0) == pytest.approx(CLOSED_FORM)
    assert replace(MM8, exact=None).capacity == pytest.approx(MM8.exact, rel=0.02)


@pytest.mark.parametrize(
    ("server", "guess"),
    [(MM1, 3.0), (MD8, None), (BATCHES, 3.0), (CLOSED, None)],
    ids=lambda value: value.name if isinstance(value, Server) else f"guess {value}",
)
def test_the_claim_is_below_the_truth_and_near_it(server: Server, guess: float | None) -> None:
    first_guess = guess and guess * server.capacity
    found = search(server, np.random.default_rng(2), Spent(), first_guess)
    assert found.claim is not None
    assert 0.8 * server.capacity <= found.claim <= 1.03 * server.capacity
    assert found.low <= server.capacity * 1.03
    assert found.high >= server.capacity * 0.97
    assert found.status in ("converged", "unresolved", "cliff")


def test_half_an_hour_is_enough_for_a_claim() -> None:
    claims: list[float] = []
    for seed in range(3):
        spent = Spent()
        found = search(MD8, np.random.default_rng(seed), spent, None, 1800.0)
        claims.append((found.claim or 0.0) / MD8.capacity)
        assert spent.seconds <= 1800.0
        assert found.estimate is not None
        assert found.estimate.half_width < 0.08
    assert max(claims) <= 1.005
    assert min(claims) >= 0.7


def test_ten_minutes_are_enough_for_an_estimate_and_a_safe_level() -> None:
    estimates: list[Estimate] = []
    for seed in range(5):
        found = search(MD8, np.random.default_rng(seed), Spent(), None, 600.0)
        assert found.estimate is not None
        estimates.append(found.estimate)
    covering = [one for one in estimates if one.lower <= MD8.capacity <= one.upper]
    assert len(covering) >= 4
    assert np.median([one.half_width for one in estimates]) <= 0.09
    safe = [(one.safe or 0.0) / MD8.capacity for one in estimates]
    assert np.median(safe) >= 0.85
    assert max(safe) <= 1.005


def server_named(part: str) -> Server:
    return next(server for server in SERVERS if part in server.name)


@pytest.mark.parametrize(
    "server",
    [MD8, MM8, server_named("runs of 20"), server_named("cliff")],
    ids=lambda server: server.name,
)
def test_nothing_is_probed_far_above_the_estimate_twice(server: Server) -> None:
    """A short search that begins at twice what the server holds."""
    tier = Tier(SLO)
    rng = np.random.default_rng(1)
    first_guess = 2 * server.capacity
    spent = Spent()
    levels: list[float] = []
    while spent.seconds < 600.0:
        left_s = 600.0 - spent.seconds
        level = level_to_explore(tier.state, first_guess, left_s=left_s)
        level = level or level_to_confirm(tier.state)
        if level is None:
            break
        levels.append(level)
        tier.tell(probe(server, level, rng, spent, tier, left_s, left_s))
    far_above = [level for level in levels if level > 1.3 * server.capacity]
    assert len(far_above) == len(set(far_above))
    assert len(far_above) <= 2


def test_a_search_ends_at_the_precision_that_was_asked_for() -> None:
    probes = list[int]()
    for precision in (0.5, 0.1):
        tier = Tier(SLO, precision=precision)
        probes.append(0)
        while (level := next_level(tier.state)) is not None:
            tier.tell(ProbeOutcome(level, flags(0.99 if level < 10 else 0.85)))
            probes[-1] += 1
        assert tier.claim.status == "converged"
        assert tier.claim.claim is not None
        assert tier.claim.high / tier.claim.claim <= 1 + precision
    assert probes[0] < probes[1]


def test_only_the_first_probe_of_a_level_is_quick() -> None:
    """Others of it are to decide it: their runs of misses count."""
    tier = Tier(SLO)
    assert [one.quick for one in tier.before(16.0)] == [True]
    tier.tell(ProbeOutcome(16.0, flags(0.8, 40), Shows.FAILURE_ONLY, whole=False))
    assert tier.claim.levels[0].verdict is None
    assert [one.quick for level in (16.0, 8.0) for one in tier.before(level)] == [False, True]


def test_non_monotonic_where_one_probe_was_late_and_higher_levels_hold() -> None:
    """All answers of the first probe are late, and the levels above are probed for other limits."""
    strategy, asked = Capacity(replace(QUESTION, precision=0.3)), list[Level]()
    while (level := strategy.ask()) is not None:
        late = attempt(level.value, [3.0] * 1500)
        strategy.tell(level, answered(level, len(asked), (40.0, 80.0)) if asked else late)
        asked.append(level)
    fast, loose = strategy.claims().values()
    assert fast.status == "non_monotonic"
    assert fast.high == asked[0].value
    assert loose.status == "converged"
    assert fast.claim is not None
    assert fast.claim < fast.high < max(one.level for one in fast.levels if one.verdict == "holds")


def test_a_search_ends_where_the_second_start_cannot_confirm() -> None:
    """A level that holds on the first start is not looked for again between what the second one
    confirmed and that.
    """
    tier = Tier(SLO, precision=0.15, starts=2)
    for level, share, requests, start in (
        *(
            (8.0, 0.99, 4000, 0),
            (8.0, 0.991, 4000, 1),
            (10.08, 0.98, 16_000, 0),
            (11.31, 0.5, 4000, 0),
        ),
        *[(10.08, 0.95, 200, 1)] * 15,
    ):
        tier.tell(ProbeOutcome(level, flags(share, requests), start=start))
    assert (tier.claim.claim, tier.claim.low, tier.claim.high) == (8.0, 10.08, 11.31)
    assert level_to_explore(tier.state, None, confirms_last=True) is None
    assert level_to_confirm(tier.state, 2) is None
    assert tier.is_over
    assert tier.claim.status == "unresolved"


def answered(level: Level, repeat: int, ends: tuple[float, float] = (12.0, 40.0)) -> AttemptData:
    """Two tiers, each with the requests/s at which it ends."""
    rng = np.random.default_rng([round(level.value * 1e4), repeat])
    drawn = rng.random(1500)
    met, loosely = (1 - 0.05 * (level.value / edge) ** 6 for edge in ends)
    return attempt(
        level.value, np.where(drawn < met, 0.3, np.where(drawn < loosely, 3.0, 9.0)).tolist()
    )


def whole(strategy: Capacity, told: list[tuple[Level, int]]) -> list[tuple[Level, int]]:
    """All probes of a search, each a level and its repeat, that goes on after ``told``."""
    for level, repeat in told:
        strategy.tell(level, answered(level, repeat))
    found = list(told)
    while (asked := strategy.ask()) is not None:
        found.append((asked, sum(one == asked for one, _ in found)))
        strategy.tell(asked, answered(*found[-1]))
    return found


QUESTION = SearchQuestion(control="request_rate", slos=(SLO, LOOSE), precision=0.1)
COARSE = replace(QUESTION, precision=0.3)


def test_tiers_share_probes() -> None:
    strategy = Capacity(QUESTION)
    probes = whole(strategy, [])
    claims = strategy.claims()
    assert claims["fast"].claim == pytest.approx(11, rel=0.15)
    assert claims["loose"].claim == pytest.approx(37, rel=0.15)
    alone = sum(len(whole(Capacity(replace(QUESTION, slos=(slo,))), [])) for slo in QUESTION.slos)
    assert len(probes) < alone


@cache
def uninterrupted() -> list[tuple[Level, int]]:
    return whole(Capacity(COARSE), [])


def test_a_search_killed_at_any_probe_asks_the_same_next() -> None:
    asked, goes_on = uninterrupted(), Capacity(COARSE)
    for killed_at, (level, repeat) in enumerate(asked):
        strategy = Capacity(COARSE)
        for one in asked[:killed_at]:
            strategy.tell(one[0], answered(*one))
        assert strategy.ask() == goes_on.ask() == level
        assert strategy.claims() == goes_on.claims()
        goes_on.tell(level, answered(level, repeat))


@pytest.mark.parametrize(("guess", "first_kill"), [(None, 0), (3.0, 1), (40.0, 2)])
def test_a_search_killed_at_any_probe_makes_the_same_ones_after_it(
    guess: float | None, first_kill: int
) -> None:
    question = replace(COARSE, first_guess=guess)
    probes = whole(Capacity(question), [])
    assert len(set(probes)) == len(probes) > 10
    for killed_at in range(first_kill, len(probes) + 1, 3):
        assert whole(Capacity(question), probes[:killed_at]) == probes


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 16), st.one_of(st.none(), st.floats(0.5, 200.0)))
def test_a_search_killed_at_any_probe_repeats_none_with_any_guess(
    killed_at: int, guess: float | None
) -> None:
    before = uninterrupted()[:killed_at]
    strategy = Capacity(replace(COARSE, first_guess=guess))
    after = whole(strategy, before)
    assert len(set(after)) == len(after) <= MOST_PROBES
    assert strategy.claims()["fast"].claim == pytest.approx(11, rel=0.3)


def test_another_run_goes_on_after_the_most_probes_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = uninterrupted()[:6]
    monkeypatch.setattr(capacity, "MOST_PROBES", 3)
    first = whole(Capacity(COARSE), [])
    second = whole(Capacity(COARSE), first)
    assert (len(first), len(second)) == (3, 6)
    assert second == asked


def test_claims_of_several_tiers_are_confirmed_on_the_second_start() -> None:
    strategy, starts = Capacity(replace(COARSE, starts=2)), list[int]()
    while (asked := strategy.ask()) is not None:
        starts.append(strategy.start)
        told = answered(asked, len(starts))
        strategy.tell(asked, replace(told, point=replace(told.point, start=starts[-1])))
    assert starts == sorted(starts)
    assert set(starts) == {0, 1}
    claims = strategy.claims().values()
    assert all(one.claim in [level.level for level in one.levels if level.start] for one in claims)


def test_probes_of_both_starts_confirm_where_the_file_asks_for_one() -> None:
    strategies = [
        Capacity(SearchQuestion(control="request_rate", slos=(SLO,), starts=starts))
        for starts in (2, 1)
    ]
    for level, start in ((12.0, 1), (12.0, 0), (12.0, 0), (16.0, 0)):
        ttft_s = [0.1 if level == 12.0 else 0.9] * 3000
        for one in strategies:
            one.tell(
                Level(control="request_rate", value=level), attempt(level, ttft_s, start=start)
            )
    assert [one.claims()["fast"].claim for one in strategies] == [None, 12.0]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (SearchQuestion(slos=(SLO,)), "control"),
        (SearchQuestion(control="request_rate"), "limits"),
        (
            SearchQuestion((Level(control="request_rate", value=1),), "request_rate", (SLO,)),
            "levels",
        ),
    ],
)
def test_a_question_that_it_cannot_answer_is_refused(question: SearchQuestion, said: str) -> None:
    assert said in str(Capacity.problem(question))


def test_a_limit_that_every_request_must_meet_cannot_be_searched() -> None:
    question = SearchQuestion(
        control="request_rate", slos=(Slo(name="all", ttft=0.5, attainment=1.0),)
    )
    assert "an attainment below 1" in (Capacity.problem(question) or "")

"""Searches for capacities that are known, in virtual time; every way in which one can end; and what
a kill costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search.claims import Spent, search
from benchmarks.search.servers import (
    SERVERS,
    TARGET,
    Server,
    batches,
    curve,
    exponential_capacity,
    exponential_slots,
    slots,
)
from orchestrator.analysis.requests import Bools
from orchestrator.analysis.slo import format_slo
from orchestrator.capacity import search as capacity
from orchestrator.capacity.attainment_fit import AttainmentFit
from orchestrator.capacity.choose_level import level_to_confirm, level_to_explore, next_level
from orchestrator.capacity.claim import claim_of
from orchestrator.capacity.levels import at_levels, search_state
from orchestrator.capacity.probe_outcome import ProbeOutcome, outcome_of_attempt, outcome_of_point
from orchestrator.capacity.search import MOST_PROBES, Capacity, Tier
from orchestrator.capacity.sequential_test import FEWEST_TO_FAIL, evidence
from orchestrator.capacity.strategy import Question
from orchestrator.results.records import AttemptData, PointHead
from orchestrator.spec.load import Level, Slo

SLO = Slo(name="fast", ttft=0.5, attainment=TARGET)
LOOSE = Slo(name="loose", ttft=5.0, attainment=TARGET)


def attempt(
    level: float, ttft_s: list[float], validity: str = "valid", status: str = "ok", **more: Any
) -> AttemptData:
    point = PointHead(
        measurement_id="m", attempt_id="a", point_id="p", deployment_id="d", launch_id="l", experiment="x",
        workload="w", control="request_rate", level=level, arrivals="poisson", repeat=0, seed=0, status=status,  # type: ignore[arg-type]
        validity=validity, validity_reasons=(), clients=1, window_start_ns=0, window_end_ns=1, started_unix_ns=0,
        emulated=False, failure_class=more.get("failure_class"), capped_share=more.pop("capped_share", None),
        start=more.pop("start", 0), ended_early=more.pop("ended_early", None), ended_for=more.pop("ended_for", None),
    )  # fmt: skip
    values = np.array(ttft_s)
    return AttemptData(
        measurement_id="m", attempt_id="a", created_unix_ns=0, status=status, data_bytes=0, metrics_version=0,  # type: ignore[arg-type]
        point=point, deployment=None, figures=None, batch_tokens=(), batch_s=(), request_ok=np.isfinite(values),  # type: ignore[arg-type]
        request_ttft_s=values, request_tpot_s=values, request_e2e_s=values, request_normalized_ttft_s=values, **more,
    )  # fmt: skip


MM1 = Server("M/M/1", exponential_slots(1, 0.05, 0.5), 0.5, (5.0, 20.0))
MM8 = next(one for one in SERVERS if one.exact)
# sojourn times of an M/M/1 queue are exponential: exp(-(mu - lambda) t)
CLOSED_FORM = 20 - math.log(20) / 0.5


def test_simulated_servers_have_the_capacity_that_theory_gives() -> None:
    assert MM1.capacity == pytest.approx(CLOSED_FORM, rel=0.02)
    assert exponential_capacity(1, 0.05, 0.5, 5.0) == pytest.approx(CLOSED_FORM)
    assert replace(MM8, exact=None).capacity == pytest.approx(MM8.exact, rel=0.02)


@pytest.mark.parametrize(
    "server",
    [
        MM1,
        MM8,
        Server("M/D/1", slots(1, 0.05, 0.2), 0.2, (4.0, 20.0)),
        Server("M/D/8", slots(8, 0.4, 0.5), 0.5, (4.0, 20.0)),
        Server("batches", batches(16, 0.2, 0.02, 1.0), 1.0, (5.0, 40.0)),
        Server("closed", curve(40.0, 6.0, 1), 0.5, (10.0, 120.0), closed=True),
    ],
    ids=lambda server: server.name,
)
@pytest.mark.parametrize("guess", [None, 3.0])
def test_the_claim_is_below_the_truth_and_near_it(server: Server, guess: float | None) -> None:
    found = search(server, np.random.default_rng(2), Spent(), guess and guess * server.capacity)
    assert found.claim is not None
    assert 0.8 * server.capacity <= found.claim <= 1.03 * server.capacity
    assert found.low <= server.capacity * 1.03
    assert found.high >= server.capacity * 0.97
    assert found.status in ("converged", "unresolved", "cliff")


def test_half_an_hour_of_eight_slots_is_enough_for_a_claim_that_is_of_use() -> None:
    server, claims = Server("M/D/8", slots(8, 0.4, 0.5), 0.5, (4.0, 20.0)), list[float]()
    for seed in range(5):
        spent = Spent()
        claims.append(search(server, np.random.default_rng(seed), spent, None, 1800.0).claim or 0.0)
        assert spent.seconds <= 1800.0
    assert max(claims) <= 1.005 * server.capacity
    assert np.median(claims) >= 0.85 * server.capacity


def test_where_less_time_is_left_a_lower_level_is_to_be_shown() -> None:
    told = [
        ProbeOutcome(8.0, flags(0.995)),
        ProbeOutcome(11.31, flags(0.955)),
        ProbeOutcome(11.65, flags(0.9)),
    ]
    known = search_state(at_levels(told, [TARGET]), TARGET)
    long, short = (level_to_explore(known, None, left_s=left_s) for left_s in (math.inf, 100.0))
    assert long is not None
    assert short is not None
    assert 8.0 < short < long < 11.31


def test_a_search_ends_at_the_precision_that_was_asked_for() -> None:
    probes = list[int]()
    for precision in (0.5, 0.1):
        tier = Tier(False, SLO, precision)
        probes.append(0)
        while (level := next_level(tier.state)) is not None:
            tier.tell(ProbeOutcome(level, flags(0.99 if level < 10 else 0.85)))
            probes[-1] += 1
        assert tier.claim.status == "converged"
        assert tier.claim.claim is not None
        assert tier.claim.high / tier.claim.claim <= 1 + precision
    assert probes[0] < probes[1]


def ended(answer: Callable[[float], ProbeOutcome], whole_numbers: bool = False) -> Tier:
    tier = Tier(whole_numbers, SLO)
    for _ in range(MOST_PROBES):
        if (level := next_level(tier.state)) is None:
            break
        tier.tell(answer(level))
    return tier


def flags(share: float, count: int = 4000) -> tuple[Bools]:
    rng = np.random.default_rng(round(share * 1e6))
    return (rng.random(count) < share,)


def test_what_raises_the_claim_counts_more_than_a_level_that_fails() -> None:
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


def test_a_level_that_fails_is_expected_to_take_as_many_requests_as_a_verdict_rests_on() -> None:
    levels = at_levels(
        [ProbeOutcome(8.0, flags(0.985)), ProbeOutcome(16.0, flags(0.3, 600))], [TARGET]
    )
    fit = AttainmentFit(levels, TARGET)
    assert fit.requests(15.0) == pytest.approx(FEWEST_TO_FAIL * fit.effect)


def test_a_level_that_seems_near_the_target_is_asked_again_as_if_it_were_a_standard_error_away() -> (
    None
):
    near = (np.arange(1000) % 20 > 0,)
    fit = AttainmentFit(
        at_levels(
            [ProbeOutcome(8.0, near, whole=False), ProbeOutcome(16.0, flags(0.3, 600))], [TARGET]
        ),
        TARGET,
    )
    assert fit.share(8.0) == pytest.approx(TARGET, abs=0.001)
    # without it: hundreds of thousands
    assert fit.requests(8.0) == pytest.approx(10 * 1000, rel=0.1)


def test_the_next_probe_of_a_level_begins_with_what_those_before_it_saw() -> None:
    """Of a level that was shown to hold only those after that count, and on the second start only
    those of that one.
    """
    tier, open_, good = Tier(False, SLO), flags(0.95, 300)[0], flags(0.99)[0]
    tier.tell(ProbeOutcome(16.0, flags(0.5, 600), "misses", whole=False))
    tier.tell(ProbeOutcome(8.0, (open_,)))
    (before,) = tier.before(8.0)
    assert (len(before.runs), len(before.learned), before.confirms) == (1, 0, False)
    tier.tell(ProbeOutcome(8.0, (good,)))
    tier.tell(ProbeOutcome(8.0, (open_,)))
    (before,) = tier.before(8.0)
    assert (len(before.runs), len(before.learned), before.confirms) == (1, 2, True)
    (second,) = tier.before(8.0, start=1)
    assert (len(second.runs), len(second.learned), second.confirms) == (0, 3, True)


@pytest.mark.parametrize("shows", ["all", "misses", "diverged", "interrupted"])
def test_a_running_probe_says_what_will_be_stored_of_it_whatever_came_of_those_before_it(
    shows: Any,
) -> None:
    """Whatever ended one, its requests count: to leave those out that missed would be to choose the
    lucky ones.
    """
    tier, burst, met = Tier(False, SLO), (np.abs(np.arange(600) - 130) >= 30,), flags(0.98, 1500)
    for told in (
        ProbeOutcome(4.0, flags(0.99)),
        ProbeOutcome(16.0, flags(0.5, 600), "misses"),
        ProbeOutcome(8.0, burst, shows),
    ):
        tier.tell(told)
    (before,) = tier.before(8.0)
    running = before.evidence(met[0], TARGET)
    tier.tell(ProbeOutcome(8.0, met))
    (stored,) = next(one for one in tier.claim.levels if one.level == 8.0).tests
    assert astuple(running) == pytest.approx(astuple(stored))


AT_TARGET = (np.arange(4000) % 20 > 0,)  # 95 % to the last request: no number of them tells


def test_converged_where_a_little_more_fails() -> None:
    claim = ended(lambda level: ProbeOutcome(level, flags(0.99 if level < 10 else 0.85))).claim
    assert (claim.status, claim.claim and round(claim.claim)) == ("converged", 10)


def test_one_long_run_of_misses_fails_no_level_and_two_probes_that_mostly_miss_do() -> None:
    """Misses that came one after the other are one piece of evidence, however many they are."""
    burst = ProbeOutcome(8.0, (np.arange(80) > 50,), "misses", whole=False)
    for probes, verdict in (
        ([burst], None),
        ([ProbeOutcome(8.0, flags(0.99)), burst], "holds"),
        ([ProbeOutcome(8.0, flags(0.98))], "holds"),
        (
            [
                ProbeOutcome(8.0, flags(0.98)),
                ProbeOutcome(8.0, flags(0.85, 900), "misses", whole=False),
            ],
            None,
        ),
        ([ProbeOutcome(8.0, flags(0.96)), burst, burst], None),
        ([burst, burst], "fails"),
        ([ProbeOutcome(8.0, (np.ones(20, bool),), whole=False), burst], None),
        ([ProbeOutcome(8.0, (np.arange(30) > 15,))], None),
        ([ProbeOutcome(8.0, flags(0.6, 400), "misses", whole=False)], "fails"),
    ):
        (level,) = at_levels(probes, [TARGET])
        assert level.verdict == verdict


def test_a_probe_far_below_the_target_is_borne_out_by_one_at_a_lower_level() -> None:
    brief = [
        ProbeOutcome(level, (np.arange(31) > 20,), "misses", whole=False)
        for level in (4.0, 8.0, 16.0)
    ]
    assert [one.verdict for one in at_levels(brief, [TARGET])] == [None, "fails", "fails"]
    held = [brief[0], ProbeOutcome(6.0, flags(0.99)), brief[1]]
    assert [one.verdict for one in at_levels(held, [TARGET])] == [None, "holds", None]


@pytest.mark.parametrize("whole_numbers", [False, True])
@pytest.mark.parametrize("guess", [None, 3.0])
def test_nothing_holds_where_brief_probes_miss_all_the_way_down(
    whole_numbers: bool, guess: float | None
) -> None:
    tier = Tier(whole_numbers, SLO)
    for _ in range(MOST_PROBES):
        if (level := next_level(tier.state, guess)) is None:
            break
        count = 31 if whole_numbers else min(31, int(600 * level))
        tier.tell(
            ProbeOutcome(
                level, flags(0.2, count), "misses" if count == 31 else "all", whole=count < 31
            )
        )
    assert tier.claim.status == "nothing_holds"
    assert tier.claim.high <= (1 if whole_numbers else 0.11)


def test_the_first_probe_of_a_level_alone_says_only_whether_to_go_up_or_down() -> None:
    """Others of it are to decide it: their runs of misses count."""
    tier = Tier(False, SLO)
    assert [one.quick for one in tier.before(16.0)] == [True]
    tier.tell(ProbeOutcome(16.0, flags(0.8, 40), "misses", whole=False))
    assert tier.claim.levels[0].verdict is None
    assert [one.quick for level in (16.0, 8.0) for one in tier.before(level)] == [False, True]


def test_one_miss_shows_that_not_every_request_meets_the_limits() -> None:
    assert at_levels([ProbeOutcome(8.0, (np.arange(12) > 0,))], [1.0])[0].verdict == "fails"


def test_fresh_probes_confirm_with_less_evidence_than_shows_a_level_to_hold() -> None:
    shown = ProbeOutcome(8.0, flags(0.99))
    for count in range(100, 4000, 50):
        (level,) = at_levels([shown, ProbeOutcome(8.0, flags(0.99, count))], [TARGET])
        if level.confirmed:
            break
    assert level.confirmed
    assert evidence([flags(0.99, count)[0]], TARGET, level.usual_effect).verdict() is None


def test_cliff_where_a_little_more_is_a_collapse() -> None:
    assert (
        ended(lambda level: ProbeOutcome(level, flags(0.99 if level < 10 else 0.1))).claim.status
        == "cliff"
    )


def test_unresolved_where_many_levels_are_as_good_as_the_target() -> None:
    claim = ended(
        lambda level: ProbeOutcome(
            level, flags(0.99) if level < 8 else AT_TARGET if level < 30 else flags(0.5)
        )
    ).claim
    assert claim.status == "unresolved"
    assert claim.claim is not None
    assert claim.claim < 8 < 30 <= claim.high


def test_client_bound_where_clients_can_do_no_more() -> None:
    claim = ended(
        lambda level: (
            ProbeOutcome(level, flags(0.99))
            if level < 10
            else ProbeOutcome(level, (), "client_bound")
        )
    ).claim
    assert claim.status == "client_bound"
    assert claim.claim is not None
    assert 8 <= claim.claim < 10
    assert math.isinf(claim.high)


@pytest.mark.parametrize("shows", ["fails", "client_bound", "nothing"])
@pytest.mark.parametrize(("edge", "whole_numbers"), [(17.0, False), (30.0, False), (200.0, True)])
def test_levels_without_figures_are_closed_in_on_from_both_sides(
    shows: Any, edge: float, whole_numbers: bool
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


def test_a_level_is_not_given_up_for_one_probe_that_a_client_slowed_down() -> None:
    slowed = [True]

    def answer(level: float) -> ProbeOutcome:
        if level >= 9 and slowed and slowed.pop():
            return ProbeOutcome(level, (), "client_bound")
        return ProbeOutcome(level, flags(0.99 if level < 20 else 0.5))

    claim = ended(answer).claim
    assert claim.status in ("converged", "cliff")
    assert claim.claim is not None
    assert 17 < claim.claim < 20


def test_non_monotonic_where_a_level_holds_above_one_that_fails() -> None:
    levels = at_levels(
        [ProbeOutcome(level, flags(share)) for level, share in ((4, 0.99), (8, 0.8), (16, 0.99))],
        [TARGET],
    )
    claim = claim_of(levels, TARGET)
    assert (claim.status, claim.low, claim.high) == ("non_monotonic", 4, 8)


def test_non_monotonic_where_the_server_hiccups_once_and_holds_more_whenever_else_it_is_asked() -> (
    None
):
    """All answers of the first probe are late, and the levels above are probed for other limits."""
    strategy, asked = Capacity(replace(QUESTION, precision=0.3)), list[Level]()
    while (level := strategy.ask()) is not None:
        late = attempt(level.value, [3.0] * 1500)
        strategy.tell(level, answered(level, len(asked), (40.0, 80.0)) if asked else late)
        asked.append(level)
    fast, loose = strategy.claims().values()
    assert (fast.status, fast.high, loose.status) == ("non_monotonic", asked[0].value, "converged")
    assert fast.claim is not None
    assert fast.claim < fast.high < max(one.level for one in fast.levels if one.verdict == "holds")


def test_budget_where_it_ended_before_it_knew() -> None:
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


def test_a_search_of_two_starts_is_over_where_the_second_one_cannot_confirm_the_highest() -> None:
    """A level that holds on the first start is not looked for again between what the second one
    confirmed and that.
    """
    tier = Tier(False, SLO, precision=0.15)
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
    assert (
        level_to_explore(tier.state, None, confirms_last=True),
        level_to_confirm(tier.state, 2),
    ) == (None, None)
    assert tier.is_over(2)
    assert tier.claim.status == "unresolved"


def test_a_tier_of_several_tests_holds_where_all_of_them_do() -> None:
    p99 = Slo.model_validate({"ttft": 0.5, "ttft_p99": 5.0})
    stored = outcome_of_attempt(attempt(4.0, [*[0.1] * 49, 6.0] * 160), 4.0, p99)
    assert len(stored.met) == 2
    (level,) = at_levels([stored], [TARGET, 0.99])
    assert [one.verdict() for one in level.tests] == ["holds", "fails"]
    assert level.verdict == "fails"
    assert level.share is not None
    assert level.share < TARGET


def test_a_level_that_held_once_is_no_claim() -> None:
    claim = claim_of(at_levels([ProbeOutcome(4.0, flags(0.99))], [TARGET]), TARGET)
    assert (claim.claim, claim.low) == (None, 4)


def test_whole_numbers_end_at_neighbours() -> None:
    claim = ended(
        lambda level: ProbeOutcome(level, flags(0.995 if level < 4 else 0.7)), whole_numbers=True
    ).claim
    assert (claim.status, claim.claim, claim.high) == ("converged", 3, 4)


def test_nothing_holds_where_one_in_flight_is_too_much() -> None:
    claim = ended(lambda level: ProbeOutcome(level, flags(0.2)), whole_numbers=True).claim
    assert (claim.claim, claim.low, claim.high, claim.status) == (None, 0, 1, "nothing_holds")


def test_nothing_holds_down_to_a_rate_that_gives_a_probe_too_few_requests() -> None:
    claim = ended(lambda level: ProbeOutcome(level, flags(0.2, int(600 * level)))).claim
    lowest = min(one.level for one in claim.levels if one.verdict == "fails")
    assert (claim.claim, claim.low, claim.high, claim.status) == (None, 0, lowest, "nothing_holds")
    assert lowest * 600 < 150


def test_a_probe_that_was_too_young_when_its_search_ended_does_not_say_that_nothing_holds() -> None:
    tier = Tier(False, SLO)
    failed = ProbeOutcome(16.0, flags(0.01, 60), whole=False)
    for one in (failed, failed, ProbeOutcome(8.0, flags(0.01, 4), whole=False)):
        tier.tell(one)
    assert (tier.claim.status, next_level(tier.state)) == ("budget", 8.0)
    tier.tell(ProbeOutcome(8.0, flags(0.01, 4), whole=True))
    assert (tier.claim.status, next_level(tier.state)) == ("nothing_holds", None)


def test_unresolved_is_said_by_a_search_that_ended_alone() -> None:
    told: list[ProbeOutcome] = []

    def answer(level: float) -> ProbeOutcome:
        if told:
            assert claim_of(at_levels(told, [TARGET]), TARGET).status in ("budget", "converged")
        told.append(
            ProbeOutcome(
                level, flags(0.99) if level < 8 else AT_TARGET if level < 30 else flags(0.5)
            )
        )
        return told[-1]

    assert ended(answer).claim.status == "unresolved"


@pytest.mark.parametrize(
    "shows", ["misses", "diverged", "interrupted", "fails", "client_bound", "nothing"]
)
def test_what_was_saturated_aborted_or_slowed_down_never_holds(shows: Any) -> None:
    assert at_levels([ProbeOutcome(4.0, flags(0.999), shows)] * 9, [TARGET])[0].verdict in (
        None,
        "fails",
    )


def test_a_saturated_probe_may_show_that_a_level_fails() -> None:
    assert at_levels([ProbeOutcome(4.0, flags(0.5), "misses")], [TARGET])[0].verdict == "fails"


def test_a_probe_whose_slowest_answers_were_not_waited_for_shows_that_a_level_fails_or_nothing() -> (
    None
):
    good, bad = (([0.1] * (100 - many) + [6.0] * many) * 8 for many in (1, 50))
    told = [
        outcome_of_attempt(attempt(level, ttft_s, "interrupted"), level, SLO)
        for level, ttft_s in ((4.0, good), (8.0, bad))
    ]
    held, failed = at_levels(told, [TARGET])
    assert (held.verdict, held.share, held.requests) == (None, None, 0)
    assert (failed.verdict, failed.share) == ("fails", None)
    assert next_level(search_state([held, failed], TARGET)) == 4.0, "it is asked again"


def test_a_search_ends_where_nothing_can_be_measured() -> None:
    tier = ended(lambda level: ProbeOutcome(level, (), "nothing"))
    assert next_level(tier.state) is None
    assert sum(one.probes for one in tier.claim.levels) <= 4


def test_a_probe_that_failed_early_tells_nothing_of_limits_that_the_file_has_only_since_then() -> (
    None
):
    early = {"ended_early": "fails", "ended_for": f"e2e<=9s; {format_slo(SLO)}"}
    for validity, shows in (("engine_bound_backlog", "diverged"), ("valid", "misses")):
        stored = attempt(4.0, [0.6, math.nan], validity, **early)  # the second was aborted
        assert [outcome_of_attempt(stored, 4.0, slo).shows for slo in (SLO, LOOSE)] == [
            shows,
            "nothing",
        ]


def test_stored_attempts_are_judged_by_any_limits() -> None:
    stored = attempt(4.0, [0.1, 0.6, 6.0, math.nan])
    assert [one.sum() for one in outcome_of_attempt(stored, 4.0, SLO).met] == [1]
    assert [one.sum() for one in outcome_of_attempt(stored, 4.0, LOOSE).met] == [2]
    assert (
        outcome_of_attempt(attempt(4.0, [0.1], "engine_bound_backlog"), 4.0, SLO).shows == "misses"
    )
    assert outcome_of_attempt(attempt(4.0, [0.1], "client_bound"), 4.0, SLO).shows == "client_bound"
    assert (
        outcome_of_attempt(
            attempt(4.0, [], status="failed", failure_class="engine_crash"), 4.0, SLO
        ).shows
        == "fails"
    )
    assert (
        outcome_of_attempt(attempt(4.0, [], status="failed", failure_class="infra"), 4.0, SLO).shows
        == "nothing"
    )
    between = Slo.model_validate({"ttft": 0.5, "tpot": 0.5, "attainment": TARGET})
    lumps = [
        outcome_of_attempt(attempt(4.0, [0.1], "stream_buffered"), 4.0, slo).shows
        for slo in (SLO, between)
    ]
    assert lumps == ["all", "pointless"], "when the first token came is known"
    died = attempt(4.0, [], status="failed", failure_class="engine_crash")
    assert outcome_of_point(died.point, 4.0, (), SLO, launched=False).shows == "nothing", (
        "nobody knows why an endpoint answers nothing"
    )
    assert [
        outcome_of_attempt(attempt(4.0, [0.1], capped_share=one), 4.0, SLO).shows
        for one in (0.005, 0.5)
    ] == ["all", "misses"]


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


QUESTION = Question(control="request_rate", slos=(SLO, LOOSE))


def test_tiers_share_probes() -> None:
    strategy = Capacity(QUESTION)
    probes = whole(strategy, [])
    claims = strategy.claims()
    assert claims["fast"].claim == pytest.approx(11, rel=0.15)
    assert claims["loose"].claim == pytest.approx(37, rel=0.15)
    alone = sum(
        len(whole(Capacity(Question(control="request_rate", slos=(slo,))), []))
        for slo in QUESTION.slos
    )
    assert len(probes) < alone


@cache
def uninterrupted() -> list[tuple[Level, int]]:
    return whole(Capacity(QUESTION), [])


def test_a_search_killed_at_any_probe_asks_next_what_it_would_have_asked() -> None:
    asked, goes_on = uninterrupted(), Capacity(QUESTION)
    for killed_at, (level, repeat) in enumerate(asked):
        strategy = Capacity(QUESTION)
        for one in asked[:killed_at]:
            strategy.tell(one[0], answered(*one))
        assert strategy.ask() == goes_on.ask() == level
        assert strategy.claims() == goes_on.claims()
        goes_on.tell(level, answered(level, repeat))


@pytest.mark.parametrize("guess", [None, 3.0, 40.0])
def test_a_search_killed_at_any_probe_makes_the_same_ones_after_it_and_repeats_none(
    guess: float | None,
) -> None:
    question = replace(QUESTION, first_guess=guess, precision=0.3)
    probes = whole(Capacity(question), [])
    assert len(set(probes)) == len(probes) > 10
    for killed_at in range(len(probes) + 1):
        assert whole(Capacity(question), probes[:killed_at]) == probes


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 40), st.one_of(st.none(), st.floats(0.5, 200.0)))
def test_a_search_killed_at_any_probe_repeats_none_whatever_it_is_told_to_begin_with(
    killed_at: int, guess: float | None
) -> None:
    before = uninterrupted()[:killed_at]
    strategy = Capacity(Question(control="request_rate", slos=(SLO, LOOSE), first_guess=guess))
    after = whole(strategy, before)
    assert len(set(after)) == len(after) <= MOST_PROBES
    assert strategy.claims()["fast"].claim == pytest.approx(11, rel=0.2)


def test_another_run_goes_on_where_the_most_probes_of_one_were_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "MOST_PROBES", 3)
    first = whole(Capacity(QUESTION), [])
    second = whole(Capacity(QUESTION), first)
    assert (len(first), len(second)) == (3, 6)
    assert second == uninterrupted()[:6]


def test_what_several_tiers_hold_is_confirmed_on_the_second_start_whatever_they_share() -> None:
    strategy, starts = Capacity(Question(control="request_rate", slos=(SLO, LOOSE), starts=2)), []
    while (asked := strategy.ask()) is not None:
        starts.append(strategy.start)
        told = answered(asked, len(starts))
        strategy.tell(asked, replace(told, point=replace(told.point, start=starts[-1])))
    assert starts == sorted(starts)
    assert set(starts) == {0, 1}
    claims = strategy.claims().values()
    assert all(one.claim in [level.level for level in one.levels if level.start] for one in claims)


def test_a_level_that_only_the_second_start_was_asked_for_is_confirmed_there_too() -> None:
    rng = np.random.default_rng(0)

    def shown(level: float, share: float, *starts: int) -> list[ProbeOutcome]:
        return [ProbeOutcome(level, (rng.random(3000) < share,), start=start) for start in starts]

    failed = shown(16.0, 0.5, 0)
    levels = at_levels([*failed, *shown(12.0, 0.999, 1)], (0.95,))
    assert level_to_confirm(search_state(levels, 0.95), 2) == 12.0  # once is not enough
    levels = at_levels([*failed, *shown(12.0, 0.999, 1, 1)], (0.95,))
    assert levels[0].confirmed
    assert level_to_confirm(search_state(levels, 0.95), 2) is None
    levels = at_levels([*failed, *shown(12.0, 0.999, 0, 0)], (0.95,))
    assert levels[0].confirmed
    assert level_to_confirm(search_state(levels, 0.95), 2) == 12.0  # the second start was not asked


def test_where_the_file_asks_for_one_start_again_probes_of_both_confirm() -> None:
    strategies = [
        Capacity(Question(control="request_rate", slos=(SLO,), starts=starts)) for starts in (2, 1)
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
        (Question(slos=(SLO,)), "control"),
        (Question(control="request_rate"), "limits"),
        (Question((Level(control="request_rate", value=1),), "request_rate", (SLO,)), "levels"),
    ],
)
def test_a_question_that_it_cannot_answer_is_said_to_be_one(question: Question, said: str) -> None:
    assert said in str(Capacity.problem(question))


@pytest.mark.parametrize(
    ("guess", "holds", "claim"), [(1.0, 5, 5.0), (2.0, 9, 9.0), (3.0, 1, 1.0), (2.0, 1, 1.0)]
)
def test_small_whole_numbers_are_gone_through(guess: float, holds: int, claim: float) -> None:
    """A small step from 2 in flight is 2 again."""
    tier = Tier(True, SLO)
    for _ in range(MOST_PROBES):
        if (level := next_level(tier.state, guess)) is None:
            break
        tier.tell(ProbeOutcome(level, flags(0.99 if level <= holds else 0.5)))
    assert tier.claim.claim == claim


def test_a_limit_that_every_request_must_meet_cannot_be_searched() -> None:
    question = Question(control="request_rate", slos=(Slo(name="all", ttft=0.5, attainment=1.0),))
    assert "an attainment below 1" in (Capacity.problem(question) or "")

"""Why an answer is not certain, as facts; ``test_best`` has whole answers of stored points."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.points import Attained
from orchestrator.capacity.answers import (
    DeploymentAnswer,
    Exclusion,
    LastingVerdict,
    RankedDeployment,
    SearchedClaim,
)
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.doubts import (
    DoubtKind,
    Remedy,
    lasting_verdicts,
    longest_probes,
    nearest_miss,
    no_level_doubts,
    pooled_spread,
    ranking_doubts,
    refusing_labels,
    unsettled_doubts,
    widest_precision,
)
from orchestrator.capacity.first_change import LongerProbes, WiderPrecision, WidestMiss
from orchestrator.results.validity import Validity
from orchestrator.spec.load import Level, Limit
from tests.unit.capacity.builders import at, blocked

LEVEL = Level(control="request_rate", value=8)


def answer(label: str, **changes: Any) -> DeploymentAnswer:
    fields: dict[str, Any] = {"measured": True, "ranked": None, "excluded": ()}
    return DeploymentAnswer(label, **fields | changes)


def ranked(
    label: str, rate: float, starts: int = 2, tests: tuple[Attained, ...] = (), **changes: Any
) -> RankedDeployment:
    point: Any = SimpleNamespace(
        deployment=SimpleNamespace(label=label, launched=True),
        head=SimpleNamespace(control="request_rate", level=8.0),
        repeats=[repeat(start) for start in range(starts)],
        used_repeats=[repeat(start) for start in range(starts)],
        tests=tests,
    )
    throughput = Interval(rate, rate - 1, rate + 1, starts=starts, standard_error=0.1)
    share = Interval(1.0, 1.0, 1.0)
    fields: dict[str, Any] = {"lower_bound_only": False, "notes": (), "ranking_value": rate}
    return RankedDeployment(point, share, throughput, **fields | changes)


def repeat(start: int, **changes: Any) -> Any:
    return SimpleNamespace(head=SimpleNamespace(steady=True, start=start), valid=True, **changes)


def claim(status: Any, level: float = 8.0, high: float = 9.0) -> Claim:
    return Claim(level, level, high, status, ())


def kinds(doubts: Any) -> list[DoubtKind]:
    return [doubt.kind for doubt in doubts]


def test_nothing_is_in_doubt_where_all_is_measured() -> None:
    assert list(unsettled_doubts([answer("a")], None)) == []


def test_an_unmeasured_deployment_is_run_if_it_may_be_started() -> None:
    for startable in (None, 1):
        (doubt,) = unsettled_doubts([answer("a", measured=False)], startable)
        assert doubt.kind is DoubtKind.NOT_MEASURED
        assert doubt.remedy is Remedy.RUN_AGAIN
    (doubt,) = unsettled_doubts([answer("a", measured=False)], 0)
    assert doubt.remedy is Remedy.MORE_DEPLOYMENTS


def test_open_and_near_levels_are_named_with_their_deployment() -> None:
    answers = [answer("a", open_levels=(LEVEL,)), answer("b", near_levels=(LEVEL,))]
    open_doubt, near_doubt = unsettled_doubts(answers, None)
    assert open_doubt.kind is DoubtKind.OPEN_LEVELS
    assert open_doubt.levels[0].label == "a"
    assert near_doubt.kind is DoubtKind.NEAR_THE_LIMIT
    assert near_doubt.levels[0].levels == (LEVEL,)


def test_a_level_whose_verdict_lasts_is_repaired_and_not_run_again() -> None:
    lasting = (LastingVerdict(LEVEL, Validity.STREAM_BUFFERED),)
    (doubt,) = unsettled_doubts([answer("a", open_levels=(LEVEL,), lasting_levels=lasting)], None)
    assert doubt.kind is DoubtKind.OPEN_LEVELS
    assert doubt.remedy is Remedy.REPAIR
    assert doubt.validity is Validity.STREAM_BUFFERED


def test_levels_of_a_deployment_without_room_are_not_run_again() -> None:
    answers = [
        answer("a", open_levels=(LEVEL,)),
        answer("b", open_levels=(LEVEL,), had_no_room=True),
    ]
    remedies = [(doubt.deployments, doubt.remedy) for doubt in unsettled_doubts(answers, None)]
    assert remedies == [(("a",), Remedy.RUN_AGAIN), (("b",), Remedy.MORE_ROOM)]


def test_of_open_levels_only_those_without_a_lasting_verdict_are_run_again() -> None:
    other = Level(control="request_rate", value=9)
    lasting = (LastingVerdict(LEVEL, Validity.INVALID),)
    answers = [answer("a", open_levels=(LEVEL, other), lasting_levels=lasting)]
    to_measure, to_repair = unsettled_doubts(answers, None)
    assert to_measure.levels[0].levels == (other,)
    assert to_repair.levels[0].levels == (LEVEL,)
    assert to_repair.validity is Validity.INVALID


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("budget", Remedy.SEARCH_LONGER),
        ("unresolved", Remedy.LONGER_PROBES),
        ("client_bound", Remedy.MORE_CLIENTS),
        ("nothing_holds", Remedy.OTHER_LIMITS),
        ("non_monotonic", None),
    ],
)
def test_why_a_search_ended_says_what_takes_it_further(status: str, remedy: Remedy | None) -> None:
    unsettled = (SearchedClaim("request_rate", claim(status)),)
    (doubt,) = unsettled_doubts([answer("a", unsettled=unsettled)], None)
    assert doubt.kind is DoubtKind.NOT_SETTLED
    assert doubt.remedy is remedy


def test_a_search_whose_open_levels_have_no_valid_probe_needs_valid_ones() -> None:
    for levels, remedy in (
        ((blocked(10.0, client_bound=False),), Remedy.VALID_PROBES),
        ((blocked(10.0, client_bound=False), at(11.0)), Remedy.LONGER_PROBES),
    ):
        unresolved = Claim(None, 0.0, 16.0, "unresolved", levels)
        unsettled = (SearchedClaim("request_rate", unresolved),)
        (doubt,) = unsettled_doubts([answer("a", unsettled=unsettled)], None)
        assert doubt.remedy is remedy


def test_a_claim_that_a_wider_precision_makes_the_answer_needs_no_longer_probes() -> None:
    unresolved = claim("unresolved")
    answers = [
        answer(label, unsettled=(SearchedClaim("request_rate", unresolved, change),))
        for label, change in (
            ("a", WiderPrecision(0.2)),
            ("b", LongerProbes(8.0, 100.0)),
            ("c", WiderPrecision(0.3)),
        )
    ]
    wider, longer = unsettled_doubts(answers, None)
    assert (wider.remedy, wider.deployments) == (Remedy.WIDER_PRECISION, ("a", "c"))
    assert widest_precision(wider) == WiderPrecision(0.3)
    assert (longer.remedy, longer.deployments) == (Remedy.LONGER_PROBES, ("b",))
    assert longest_probes(longer) == LongerProbes(8.0, 100.0)


def test_the_limit_to_change_is_that_of_the_deployment_nearest_to_the_limits() -> None:
    limit = Limit("ttft", "ttft", 0.5, None)
    misses = {
        "a": WidestMiss(1.0, limit, needed=0.9, met=0.0, value_s=2.0),
        "b": WidestMiss(1.0, limit, needed=0.9, met=0.2, value_s=3.0),
        "c": WidestMiss(1.0, limit, needed=0.9, met=0.2, value_s=0.9),
    }
    answers = [
        answer(label, unsettled=(SearchedClaim("request_rate", claim("nothing_holds"), miss),))
        for label, miss in misses.items()
    ]
    (doubt,) = unsettled_doubts(answers, None)
    nearest = nearest_miss(doubt)
    assert nearest is not None
    assert (nearest.label, nearest.miss) == ("c", misses["c"])


def test_searches_that_the_same_takes_further_are_one_doubt() -> None:
    answers = [
        answer(label, unsettled=(SearchedClaim("request_rate", claim(status)),))
        for label, status in (("a", "budget"), ("b", "unresolved"), ("c", "budget"))
    ]
    doubts = list(unsettled_doubts(answers, None))
    assert [doubt.deployments for doubt in doubts] == [("a", "c"), ("b",)]


def test_an_unreached_capacity_is_in_doubt_unless_levels_are_open() -> None:
    lower_bound = ranked("a", 100, lower_bound_only=True)
    (doubt,) = unsettled_doubts([answer("a", ranked=lower_bound)], None)
    assert doubt.kind is DoubtKind.CAPACITY_NOT_REACHED
    assert doubt.remedy is Remedy.HIGHER_LEVELS
    thinned = replace(lower_bound, capacity=claim("not_the_limit"))
    (doubt,) = unsettled_doubts([answer("a", ranked=thinned)], None)
    assert doubt.remedy is Remedy.STRETCH
    whole_trace = replace(lower_bound, sends_whole_trace=True)
    (doubt,) = unsettled_doubts([answer("a", ranked=whole_trace)], None)
    assert doubt.remedy is Remedy.STRETCH
    with_open = answer("a", ranked=lower_bound, open_levels=(LEVEL,))
    assert kinds(unsettled_doubts([with_open], None)) == [DoubtKind.OPEN_LEVELS]


def test_no_measurement_makes_deployments_comparable() -> None:
    (doubt,) = unsettled_doubts([answer("a", incomparable=Exclusion.PRICE_UNKNOWN)], None)
    assert doubt.kind is DoubtKind.INCOMPARABLE
    assert doubt.remedy is None


def test_two_starts_far_apart_leave_no_doubt() -> None:
    assert list(ranking_doubts([ranked("a", 100), ranked("b", 50)])) == []


def test_with_one_start_each_is_to_be_started_again() -> None:
    (doubt,) = ranking_doubts([ranked("a", 100, starts=1), ranked("b", 50)])
    assert doubt.kind is DoubtKind.ONE_START
    assert doubt.to_remedy == ("a",)


def test_of_tests_that_may_miss_their_targets_the_least_certain_is_named() -> None:
    shares = {
        "chat": Interval(1, 0.862, 1),
        "json": Interval(1, 0.012, 1),
        "rag": Interval(1, 0.139, 1),
    }
    tests = tuple(Attained("x", share, 0.95, part) for part, share in shares.items())
    (doubt,) = ranking_doubts([ranked("a", 100, tests=tests), ranked("b", 50)])
    assert doubt.kind is DoubtKind.MAY_MISS_TARGET
    assert doubt.test is not None
    assert doubt.test.part == "json"


def test_a_difference_smaller_than_that_of_starts_asks_for_more_starts() -> None:
    (doubt,) = ranking_doubts([ranked("a", 100.1), ranked("b", 100.0)])
    assert doubt.kind is DoubtKind.STARTS_DIFFER
    assert [deployment.label for deployment in doubt.levels] == ["a", "b"]


def test_bounds_that_overlap_ask_for_a_smaller_precision_while_levels_lie_between() -> None:
    first = ranked("a", 100, capacity=claim("converged", 10.0, 10.1))
    second = ranked("b", 90, capacity=claim("converged", 9.0, 12.0))
    (doubt,) = ranking_doubts([first, second])
    assert doubt.kind is DoubtKind.BOUNDS_OVERLAP
    assert doubt.to_remedy == ("b",)
    assert round(doubt.excess, 6) == 0.2
    narrow = ranked("b", 90, capacity=claim("converged", 10.0, 10.1))
    (doubt,) = ranking_doubts([first, narrow])
    assert doubt.remedy is None


def test_more_that_is_claimed_of_another_is_in_doubt() -> None:
    first = ranked("a", 100, capacity=claim("converged", 10.0, 10.1))
    second = ranked("b", 90, capacity=claim("converged", 11.0, 11.1))
    (doubt,) = ranking_doubts([first, second])
    assert doubt.kind is DoubtKind.MORE_IS_CLAIMED
    assert doubt.leader == "a"
    assert doubt.to_remedy == ("a", "b")


def test_outraced_deployments_need_no_more_starts() -> None:
    outraced = ranked("b", 50, starts=1, capacity=claim("outraced", 4.0, 5.0))
    assert DoubtKind.ONE_START not in kinds(ranking_doubts([ranked("a", 100), outraced]))


def judged(label: str, validity: str, level: float = 8.0, refused: int = 0) -> Any:
    """A point of 100 requests that misses its only test."""
    share = Interval(0.5, 0.4, 0.6)
    errors = {"http_429": 50, "http_4xx": refused}
    figures = SimpleNamespace(errors=errors, requests=SimpleNamespace(scheduled=100))
    return SimpleNamespace(
        deployment=SimpleNamespace(label=label),
        validity=validity,
        head=SimpleNamespace(control="request_rate", level=level),
        tests=(SimpleNamespace(share=share, target=0.9, part=None),),
        figures_of=lambda part: figures,
        repeats=[SimpleNamespace(shows_engine=True)],
    )


def test_below_the_lowest_level_that_failed_something_may_hold() -> None:
    points = [judged("a", "valid", 8.0), judged("a", "valid", 4.0)]
    (doubt,) = no_level_doubts(points, refusing=(), searched=())
    assert doubt.remedy is Remedy.LOWER_LEVELS
    assert doubt.levels[0].levels[0].value == 4.0


def test_what_refuses_too_many_requests_for_their_length_is_not_measured_at_lower_loads() -> None:
    # over all levels: "short" refuses 24 of 200, more than the tenth that may miss the test;
    # "whole" 9 of 100
    points = [
        judged("short", "valid", 4.0, refused=16),
        judged("short", "valid", 8.0, refused=8),
        judged("whole", "valid", 8.0, refused=9),
    ]
    longer, lower = no_level_doubts(points, refusing_labels(points), searched=())
    assert (longer.remedy, longer.deployments) == (Remedy.LONGER_CONTEXT, ("short",))
    assert (lower.remedy, lower.deployments) == (Remedy.LOWER_LEVELS, ("whole",))


def test_a_verdict_lasts_only_if_all_points_of_a_deployment_have_it() -> None:
    points = [
        judged("noise", "broken_output"),
        judged("mixed", "broken_output"),
        judged("mixed", "valid"),
    ]
    assert lasting_verdicts(points) == {"noise": "broken_output"}
    assert DoubtKind.NO_LOAD_HELPS in kinds(no_level_doubts(points, refusing=(), searched=()))


def with_error(label: str, rate: float, error: float) -> RankedDeployment:
    deployment = ranked(label, rate)
    throughput = replace(deployment.throughput, standard_error=error)
    return replace(deployment, throughput=throughput)


def test_deployments_that_spread_alike_are_told_apart_by_their_common_spread() -> None:
    first, second, third = (
        with_error("a", 105, 1.0),
        with_error("b", 100, 1.0),
        with_error("c", 99, 0.9),
    )
    assert DoubtKind.STARTS_DIFFER in kinds(ranking_doubts([first, second]))
    assert kinds(ranking_doubts([first, second, third])) == []
    (doubt,) = ranking_doubts([with_error("a", 102, 1.0), second, third])
    assert doubt.kind is DoubtKind.STARTS_DIFFER
    assert doubt.spread is not None
    assert doubt.spread.deployments == 3


def test_starts_that_do_not_differ_lower_the_common_spread() -> None:
    even = [with_error(str(n), 100, 1.0).throughput for n in range(12)]
    alike, with_exact = (
        pooled_spread(even),
        pooled_spread([*even, replace(even[0], standard_error=0.0)]),
    )
    assert alike is not None
    assert with_exact is not None
    assert with_exact.variance == pytest.approx(alike.variance * 12 / 13)


def test_few_or_uneven_deployments_share_no_spread() -> None:
    even = [with_error(str(n), 100, 1.0).throughput for n in range(12)]
    assert pooled_spread(even[:2]) is None
    assert pooled_spread(even[:3]) is not None
    uneven = [replace(each, standard_error=10.0**n) for n, each in enumerate(even[:6])]
    assert pooled_spread(uneven) is None
    assert pooled_spread([replace(each, standard_error=0.0) for each in even]) is None
    assert pooled_spread([replace(each, starts=1) for each in even]) is None

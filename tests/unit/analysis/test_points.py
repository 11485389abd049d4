"""Load points as they are stored: which repeats count, and what they say together."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.points import (
    Attained,
    StoredPoint,
    VerdictBounds,
    attained,
    attained_by,
    compute_ahead,
    deciding_test,
    load_points,
)
from orchestrator.analysis.prediction import ErrorFactors
from orchestrator.analysis.slo import Test, Verdicts, parse_slo
from orchestrator.catalog.work import MissingWork
from orchestrator.results.store import Store
from orchestrator.spec.load import Slo
from tests.unit.report.stores import SOURCE, commit_simulation
from tests.unit.results.builders import (
    commit_launch,
    commit_measurement,
    deployment_row,
    failed_request,
    request,
)

SLO = parse_slo("ttft<=500ms,attainment>=0.9")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def commit(store: Store, repeat: int, first_ms: float = 100, **point: Any) -> None:
    """One repeat of a point: a request whose first token comes after ``first_ms``."""
    row = request(0, first_ms=first_ms)
    commit_measurement(store, f"m{repeat}", [row], repeat=repeat, **point)


def only_point(store: Store) -> StoredPoint:
    (point,) = load_points(store, SLO)
    return point


def test_repeats_of_a_point_stand_together_in_order(store: Store) -> None:
    for repeat in (2, 0, 1):
        commit(store, repeat)
    assert [repeat.head.repeat for repeat in only_point(store).repeats] == [0, 1, 2]


def test_points_are_sorted_by_deployment_workload_and_level(store: Store) -> None:
    for number, (deployment, level) in enumerate([("d1", 1.0), ("d0", 8.0), ("d0", 2.0)]):
        ids = {"deployment_id": deployment, "point_id": f"p{number}", "level": level}
        commit(store, number, deployment=deployment_row(deployment), **ids)
    points = load_points(store)
    assert [(point.deployment.label, point.head.level) for point in points] == [
        ("label-d0", 2.0),
        ("label-d0", 8.0),
        ("label-d1", 1.0),
    ]


def test_the_requests_of_a_point_are_those_that_its_figures_are_about(store: Store) -> None:
    commit(store, 0)
    commit_measurement(store, "m1", [request(0), failed_request(1)], repeat=1)
    commit_measurement(store, "m2", [], repeat=2, status="failed", validity="")
    point = only_point(store)
    assert point.requests == point.figures.requests
    assert (point.requests.scheduled, point.requests.failed) == (3, 1)


@pytest.mark.parametrize("missing", list(MissingWork))
def test_the_efficiency_of_work_that_is_not_known_reads_no_figures(
    store: Store, missing: MissingWork
) -> None:
    commit(store, 0)
    point = only_point(store)
    unread = cast(Any, None)  # reading it would raise AttributeError
    deployment = replace(point.deployment, work=missing)
    assert replace(point, deployment=deployment, _figures=unread).efficiency is missing


def test_a_repeat_that_the_engine_fell_behind_in_counts(store: Store) -> None:
    commit(store, 0, validity="engine_bound_backlog")
    (repeat,) = only_point(store).repeats
    assert repeat.shows_engine
    assert not repeat.valid


def test_repeats_that_do_not_count_are_not_used(store: Store) -> None:
    commit(store, 0, validity="client_bound")
    commit(store, 1)
    commit(store, 2, status="failed", failure_class="infra", reason="node lost")
    point = only_point(store)
    assert [repeat.head.repeat for repeat in point.used_repeats] == [1]
    assert point.validity == "valid"


def test_without_a_repeat_that_counts_all_that_ran_are_used(store: Store) -> None:
    commit(store, 0, validity="client_bound")
    commit(store, 1, status="failed", failure_class="infra", reason="node lost")
    point = only_point(store)
    assert [repeat.head.repeat for repeat in point.used_repeats] == [0]
    assert point.validity == "client_bound"


@pytest.mark.parametrize(
    ("failure_class", "is_broken"),
    [("engine_crash", True), ("timeout", True), ("infra", False), ("client_bound", False)],
)
def test_only_failures_of_the_engine_break_a_repeat(
    store: Store, failure_class: str, is_broken: bool
) -> None:
    commit(store, 0, status="failed", failure_class=failure_class, reason="It ended.")
    assert bool(only_point(store).engine_failures) == is_broken


def test_one_repeat_of_broken_output_breaks_the_point(store: Store) -> None:
    commit(store, 0)
    commit(store, 1, validity="broken_output", validity_reasons=["all answers are empty"])
    point = only_point(store)
    assert point.validity == "broken_output"
    assert point.reasons == ["all answers are empty"]


def test_many_failed_requests_make_a_valid_point_failing(store: Store) -> None:
    rows = [request(0), failed_request(1)]
    commit_measurement(store, "m0", rows)
    assert only_point(store).validity == "failing"


def test_reasons_that_differ_in_figures_only_are_given_once(store: Store) -> None:
    for repeat, reason in enumerate(["lag was 5.1 ms", "lag was 6.2 ms", "replica 1 was late"]):
        commit(store, repeat, validity="disturbed", validity_reasons=[reason])
    assert only_point(store).reasons == ["lag was 5.1 ms", "replica 1 was late"]


def test_reasons_of_different_replicas_are_different(store: Store) -> None:
    reasons = ["replica 0: 8 answers are empty", "replica 1: 8 answers are empty"]
    for repeat, reason in enumerate(reasons):
        commit(store, repeat, validity="broken_output", validity_reasons=[reason])
    assert only_point(store).reasons == reasons


def test_used_repeats_are_pooled_and_failed_ones_are_not(store: Store) -> None:
    commit(store, 0, first_ms=100)
    commit(store, 1, first_ms=300)
    commit(store, 2, first_ms=900, validity="client_bound")
    figures = only_point(store).figures
    assert figures.requests.scheduled == 2
    assert figures.ttft_ms is not None
    assert figures.ttft_ms.mean == 200


def test_attainment_is_the_share_over_all_used_repeats(store: Store) -> None:
    for repeat, first_ms in enumerate([100, 100, 100, 900]):
        commit(store, repeat, first_ms, start=repeat % 2)
    point = only_point(store)
    assert point.attainment is not None
    assert point.attainment.estimate == 0.75
    assert point.starts == (0, 1, 0, 1)


def test_of_parts_that_are_equally_far_from_their_targets_the_least_certain_decides() -> None:
    shares = {
        "chat": Interval(1, 0.862, 1),
        "json": Interval(1, 0.012, 1),
        "rag": Interval(1, 0.139, 1),
    }
    tests = [Attained("attainment", share, 0.95, part) for part, share in shares.items()]
    decides = deciding_test(tests)
    assert decides is not None
    assert decides.part == "json"


def test_without_limits_nothing_is_attained(store: Store) -> None:
    commit(store, 0)
    (point,) = load_points(store)
    assert point.tests == ()
    assert point.attainment is None
    assert attained([]) == ()


def test_tries_of_a_measurement_are_counted_and_the_first_ok_one_counts(store: Store) -> None:
    failed = {"status": "failed", "failure_class": "infra", "reason": "node lost"}
    commit(store, 0, attempt_id="a0", created_unix_ns=1, **failed)
    commit(store, 0, attempt_id="a1", created_unix_ns=2)
    (repeat,) = only_point(store).repeats
    assert repeat.attempts == 2
    assert repeat.head.attempt_id == "a1"


def test_a_renamed_workload_changes_the_rows_of_all_repeats(store: Store) -> None:
    for repeat in range(2):
        commit(store, repeat)
    point = only_point(store)
    assert [repeat.head.workload for repeat in point.named("talk").repeats] == ["talk", "talk"]
    assert point.named(None) is point.named("chat") is point


def test_a_point_is_shown_in_another_experiment_under_its_name(store: Store) -> None:
    commit(store, 0)
    assert only_point(store).of_experiment("a, b").head.experiment == "a, b"


def test_a_deployment_whose_row_came_with_its_launch_is_described(store: Store) -> None:
    commit(store, 0)
    commit_launch(store, "L0", deployment_row(label="tp=2"))
    assert only_point(store).deployment.label == "tp=2"


def test_a_deployment_without_a_row_is_called_by_its_id(store: Store) -> None:
    commit(store, 0, deployment_id="d7")
    assert only_point(store).deployment.label == "d7"


@pytest.mark.parametrize("is_computed", [True, False])
def test_the_oldest_attempt_describes_a_deployment_in_any_order(
    tmp_path: Path, is_computed: bool
) -> None:
    store = Store.open(str(tmp_path), "exp")
    for number in (2, 0, 1):  # stored in another order than they were committed in
        priced = deployment_row(label=f"label {number}", usd_per_hour=float(number))
        ids = {"attempt_id": f"a{number}", "point_id": f"p{number}", "created_unix_ns": number + 1}
        commit_measurement(store, f"m{number}", [request(0)], deployment=priced, **ids)
        compute_ahead(store)
    if not is_computed:
        shutil.rmtree(tmp_path / "exp" / "computed")
    points = load_points(Store.open(str(tmp_path), "exp"))
    assert [point.deployment.label for point in points] == ["label 0"] * 3
    assert {point.deployment.usd_per_hour for point in points} == {0.0}


@pytest.mark.parametrize(
    ("ttft", "interval"),
    [(0.04, (0.0, 0.0)), (0.09, (0.0, 1.0)), (0.15, (0.0, 1.0)), (0.3, (1.0, 1.0))],
)
def test_the_attainment_of_a_simulation_lies_between_those_of_longer_and_shorter_latencies(
    store: Store, ttft: float, interval: tuple[float, float]
) -> None:
    commit_simulation(store)  # a TTFT of 100 ms at 2 in flight, right to a factor of 2
    point = load_points(store, Slo(name="x", ttft=ttft, attainment=0.9))[0]
    assert point.simulated and point.attainment is not None
    assert (point.attainment.lower, point.attainment.upper) == interval
    assert point.attainment.estimate == float(ttft >= 0.1)


def test_under_one_of_several_limits_a_simulation_has_the_bounds_of_that_one(store: Store) -> None:
    commit_simulation(store)
    slos = [Slo(name=f"x{ttft}", ttft=ttft, attainment=0.9) for ttft in (0.3, 0.09, 0.04)]
    both = load_points(store, *slos)[0]
    for number, slo in enumerate(slos):
        assert both.under(number).attainment == load_points(store, slo)[0].attainment


def test_the_throughput_of_a_simulation_is_right_to_the_factor_of_its_model(store: Store) -> None:
    commit_simulation(store)
    point = load_points(store)[0]
    rate = point.output_token_throughput()
    assert rate is not None and rate.confidence == 0.9
    assert (rate.lower, rate.upper) == (rate.estimate / 1.25, rate.estimate * 1.25)
    assert point.model_error == ErrorFactors(2.0, 1.25, SOURCE)


def test_a_model_that_was_never_compared_gives_no_interval(store: Store) -> None:
    commit_simulation(store, error=None)
    point = load_points(store, Slo(name="x", ttft=0.1, attainment=0.9))[0]
    rate = point.output_token_throughput()
    assert rate is not None and math.isnan(rate.lower) and math.isnan(rate.upper)
    assert point.attainment is not None and math.isnan(point.attainment.lower)


def test_a_simulated_share_has_no_bounds_where_the_model_s_error_leaves_no_request() -> None:
    def verdicts(met: list[bool]) -> Verdicts:
        return Verdicts((Test("attainment", np.array(met, bool), 0.9),), {})

    none = (verdicts([]),)
    simulated: Any = SimpleNamespace(
        head=SimpleNamespace(start=0, simulated=True),
        verdicts=(verdicts([True, False]),),
        bounds=VerdictBounds(none, none),
    )
    (test,) = attained_by([simulated], 0)
    assert test.share.estimate == 0.5
    assert math.isnan(test.share.lower)
    assert math.isnan(test.share.upper)


@pytest.mark.parametrize(
    ("level", "fields", "bounds"),
    [
        (1.0, {}, (1.0, 1.0)),  # even a slower engine gives as much as was sent
        (10.0, {}, (1 / 1.25, 1.0)),  # its best
        (8.0, {"validity": "engine_bound_backlog"}, (1 / 1.25, 1.25)),
        # later turns that waited for answers would have come sooner from a faster engine
        (1.0, {"later_turns_share": 0.5, "arrivals": "trace"}, (1 / 1.25, 1.25)),
        (1.0, {"later_turns_share": 0.5, "offered_rate": 0.5}, (1 / 1.25, 1.25)),
        (1.0, {"later_turns_share": 0.5, "offered_rate": 0.99}, (1.0, 1.0)),
    ],
)
def test_a_simulated_rate_that_is_kept_up_with_gives_no_more_than_was_sent(
    store: Store, level: float, fields: dict[str, Any], bounds: tuple[float, float]
) -> None:
    error = {
        "error": {
            "ttft": 0.4,
            "tpot": 0.1,
            "source": "s",
            "within": {"ttft": 2.0, "tpot": 1.25},
            "counted": False,
        }
    }
    for number, rate in enumerate((1, 8, 10)):
        rows = [request(n, 100 * n, tokens=rate) for n in range(100)]
        commit_measurement(
            store,
            f"m{number}",
            rows,
            deployment=deployment_row(predicted_json=json.dumps(error)),
            point_id=f"p{number}",
            control="request_rate",
            level=float(rate),
            simulated=True,
            **(fields if rate == level else {}),
        )
    point = next(point for point in load_points(store) if point.head.level == level)
    interval = point.output_token_throughput()
    assert interval is not None
    assert (interval.lower, interval.upper) == pytest.approx(
        tuple(interval.estimate * bound for bound in bounds)
    )


@pytest.mark.parametrize(
    ("offered", "is_as_asked"),
    [(5.0, True), (2.0, False), (9.0, False), (4.0, True), (None, True)],  # 4 of 5: chance
)
def test_a_point_says_whether_it_was_sent_the_rate_asked_for(
    store: Store, offered: float | None, is_as_asked: bool
) -> None:
    rows = [request(n, 100 * n) for n in range(100)]
    commit_measurement(store, "m", rows, control="request_rate", level=5.0, offered_rate=offered)
    (point,) = load_points(store)
    assert point.offered_rate == offered
    assert point.was_sent_as_asked is is_as_asked


def test_a_short_repeat_counts_for_its_length_in_the_rate_that_was_due(store: Store) -> None:
    for repeat, (rate, count) in enumerate(((10.0, 1000), (20.0, 100))):
        rows = [request(n, 1e3 * n / rate) for n in range(count)]
        commit_measurement(
            store,
            f"m{repeat}",
            rows,
            repeat=repeat,
            point_id="p",
            control="request_rate",
            level=10.0,
            offered_rate=rate,
            window_end_ns=round(count / rate * 1e9),
        )
    (point,) = load_points(store)
    assert point.offered_rate == pytest.approx(1100 / 105)
    assert point.was_sent_as_asked

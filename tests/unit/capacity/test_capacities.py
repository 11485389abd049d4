"""What one deployment holds, as facts; ``test_best`` has whole answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.points import StoredPoint, load_points
from orchestrator.analysis.slo import ANSWERED, parse_slo
from orchestrator.capacity.answers import (
    DeploymentAnswer,
    Exclusion,
    Group,
    LastingVerdict,
    MissingLevel,
    NoteKind,
)
from orchestrator.capacity.capacities import (
    claims_among_rivals,
    deployment_answer,
    divisor_of_capacity,
    per_or_default,
    reason_to_exclude,
    shortfall_of,
)
from orchestrator.results.validity import Validity
from orchestrator.spec.load import Level, Per
from tests.unit.capacity.builders import claim
from tests.unit.capacity.stored_levels import SLO, StoredLevels
from tests.unit.results.builders import commit_measurement, request


@pytest.fixture
def stored(tmp_path: Path) -> StoredLevels:
    levels = StoredLevels(tmp_path)
    levels.deployment("d0")
    return levels


def points_of(stored: StoredLevels) -> list[StoredPoint]:
    return load_points(stored.store, SLO)


def answer(stored: StoredLevels, *missing: MissingLevel, per: Per = "gpu") -> DeploymentAnswer:
    return deployment_answer(points_of(stored), missing, SLO, per)


def rate(value: float) -> Level:
    return Level(control="request_rate", value=value)


def missing_rate(value: float) -> MissingLevel:
    group = Group("exp", "chat", "m", "h100", emulated=False)
    return MissingLevel(group, "d0", "label-d0", "m", rate(value))


def test_the_highest_level_that_holds_is_ranked(stored: StoredLevels) -> None:
    for level, good in ((5, 1.0), (10, 0.95), (20, 0.5)):
        stored.level("d0", level, good)
    ranked = answer(stored).ranked
    assert ranked is not None
    assert ranked.level == rate(10)
    assert not ranked.lower_bound_only


def test_without_a_level_that_fails_the_best_is_a_lower_bound(stored: StoredLevels) -> None:
    stored.level("d0", 10)
    ranked = answer(stored).ranked
    assert ranked is not None
    assert ranked.lower_bound_only
    assert NoteKind.NO_LEVEL_FAILED in [note.kind for note in ranked.notes]


@pytest.mark.parametrize(
    ("levels", "thinned_share", "is_whole"),
    [((5, 10), 0.5, True), ((5, 10), 0.0, False), ((5,), 0.5, False)],
)
def test_the_highest_rate_of_a_thinned_trace_is_the_recorded_one(
    stored: StoredLevels, levels: tuple[float, ...], thinned_share: float, is_whole: bool
) -> None:
    for level in levels:
        share = thinned_share if level < 10 else 0.0
        factors = {"rate_factor": level / 10, "thinned_share": share}
        stored.level("d0", level, arrivals="trace", **factors)
    ranked = answer(stored).ranked
    assert ranked is not None
    assert ranked.sends_whole_trace is is_whole


def test_a_dip_below_the_best_level_is_noted(stored: StoredLevels) -> None:
    for level, good in ((5, 0.5), (10, 1.0), (20, 0.5)):
        stored.level("d0", level, good)
    ranked = answer(stored).ranked
    assert ranked is not None
    assert NoteKind.NOT_MONOTONIC in [note.kind for note in ranked.notes]


def test_levels_between_what_holds_and_what_fails_are_open(stored: StoredLevels) -> None:
    stored.level("d0", 10)
    stored.level("d0", 15, validity="disturbed")
    stored.level("d0", 40, good=0.5)
    found = answer(stored, missing_rate(5), missing_rate(20), missing_rate(60))
    assert found.open_levels == (rate(15), rate(20))
    assert found.lasting_levels == ()


def commit_all_at_once(stored: StoredLevels, late: int, validity: str = "valid") -> None:
    """100 requests that are due at once, of which ``late`` exceed the limit."""
    rows = [
        request(index, 0, first_ms=900 if index < late else 100, tokens=10) for index in range(100)
    ]
    point = {"deployment_id": "d0", "workload": "chat", "point_id": "at-once", "level": math.inf}
    window = {"window_end_ns": 20 * 10**9, "validity": validity}
    commit_measurement(stored.store, "at-once", rows, **point | window)


def test_all_requests_at_once_that_missed_by_chance_are_near(stored: StoredLevels) -> None:
    stored.level("d0", 10)
    commit_all_at_once(stored, late=12)
    found = answer(stored)
    assert found.near_levels == (rate(math.inf),)
    assert found.ranked is not None and not found.ranked.lower_bound_only


def test_all_requests_at_once_without_a_valid_point_are_open(stored: StoredLevels) -> None:
    stored.level("d0", 10)
    commit_all_at_once(stored, late=0, validity="client_bound")
    assert answer(stored).open_levels == (rate(math.inf),)


def test_all_requests_at_once_that_were_not_measured_are_open(stored: StoredLevels) -> None:
    stored.level("d0", 10)
    assert answer(stored, missing_rate(math.inf)).open_levels == (rate(math.inf),)


def test_an_open_level_whose_verdict_lasts_is_told_apart(stored: StoredLevels) -> None:
    stored.level("d0", 10)
    stored.level("d0", 15, validity="stream_buffered")
    found = answer(stored)
    assert found.lasting_levels == (LastingVerdict(rate(15), Validity.STREAM_BUFFERED),)
    assert found.open_levels == (rate(15),)


def test_a_level_that_missed_by_no_more_than_chance_is_near(stored: StoredLevels) -> None:
    stored.level("d0", 10)
    stored.level("d0", 20, good=0.89)
    found = answer(stored)
    assert found.near_levels == (rate(20),)
    assert found.open_levels == ()


def test_a_deployment_of_which_nothing_is_stored_has_only_its_name(stored: StoredLevels) -> None:
    found = deployment_answer([], [missing_rate(5)], SLO, "gpu")
    assert not found.measured
    assert found.label == "label-d0"
    assert found.open_levels == (rate(5),)


def test_where_no_level_holds_the_nearest_one_is_the_evidence(stored: StoredLevels) -> None:
    stored.level("d0", 10, good=0.8)
    stored.level("d0", 20, good=0.4)
    found = answer(stored)
    (excluded,) = found.excluded
    assert found.ranked is None
    assert excluded.reason is Exclusion.NO_LEVEL_HOLDS
    assert excluded.evidence is not None
    assert excluded.evidence.head.level == 10


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"status": "failed", "reason": "it died", "failure_class": "engine_crash"},
            Exclusion.FAILED,
        ),
        ({"validity": "client_bound"}, Exclusion.NOT_VALID),
        ({"ended_early": "fails", "ended_for": "ttft<=500ms"}, Exclusion.ENDED_EARLY),
        ({"ended_early": "holds"}, None),
        ({}, None),
    ],
)
def test_only_a_whole_valid_level_can_be_best(
    changes: dict[str, Any], reason: Exclusion | None, stored: StoredLevels
) -> None:
    stored.level("d0", 10, **changes)
    (point,) = points_of(stored)
    assert reason_to_exclude(point) is reason


def test_one_limit_that_binds_is_told_by_its_percentile(stored: StoredLevels) -> None:
    stored.level("d0", 10, good=0.5)
    (point,) = points_of(stored)
    shortfall = shortfall_of(point, SLO)
    assert shortfall.test.share.estimate == 0.5
    assert shortfall.percentile is not None
    assert shortfall.percentile.name == "p90"
    assert shortfall.percentile.value_ms == pytest.approx(900)
    assert shortfall.missed == ()


def test_the_limit_that_most_requests_miss_gives_the_percentile(stored: StoredLevels) -> None:
    slo = parse_slo("ttft<=950ms,e2e<=500ms,attainment>=0.9")
    stored.level("d0", 10, good=0.5)
    (point,) = load_points(stored.store, slo)
    percentile = shortfall_of(point, slo).percentile
    assert percentile is not None
    assert percentile.limit.of == "e2e"


def test_failed_requests_alone_give_no_percentile_and_no_missed_limit(
    stored: StoredLevels,
) -> None:
    stored.level("d0", 10, failed=0.2)
    (point,) = points_of(stored)
    shortfall = shortfall_of(point, SLO)
    assert shortfall.percentile is None
    assert shortfall.missed == ()  # every answered request met the limit


def test_failed_requests_exclude_a_deployment_without_limits_on_latencies(
    stored: StoredLevels,
) -> None:
    stored.level("d0", 10, failed=0.2)
    points = load_points(stored.store, ANSWERED)
    (excluded,) = deployment_answer(points, (), ANSWERED, "gpu").excluded
    assert excluded.reason is Exclusion.NO_LEVEL_HOLDS
    assert excluded.shortfall is not None
    assert excluded.shortfall.test.share.estimate == pytest.approx(0.8)
    assert excluded.shortfall.percentile is None


def test_where_requests_failed_too_the_missed_limits_are_named(stored: StoredLevels) -> None:
    slo = parse_slo("ttft<=500ms,attainment>=0.95")
    stored.level("d0", 5, good=0.97, failed=0.04)  # the p95 of those that were answered is good
    (point,) = load_points(stored.store, slo)
    shortfall = shortfall_of(point, slo)
    assert shortfall.percentile is None
    (missed,) = shortfall.missed
    assert missed.limit.of == "ttft"
    assert missed.met == pytest.approx(0.94)


@pytest.mark.parametrize(("devices", "per"), [((1, 4), "gpu"), ((1, 0), "deployment")])
def test_deployments_are_compared_per_gpu_if_all_have_some(
    devices: tuple[int, int], per: Per, tmp_path: Path
) -> None:
    stored = StoredLevels(tmp_path)
    for number, count in enumerate(devices):
        stored.deployment(f"d{number}", devices=count)
        stored.level(f"d{number}", 5)
    deployments = [point.deployment for point in points_of(stored)]
    assert per_or_default(None, deployments) == per
    assert per_or_default("usd", deployments) == "usd"


def test_only_request_rates_are_divided_by_dollars(
    tmp_path: Path,
) -> None:
    stored = StoredLevels(tmp_path)
    stored.deployment("d0", devices=4, usd_per_hour=7200.0)
    stored.level("d0", 5)
    (deployment,) = (point.deployment for point in points_of(stored))
    assert divisor_of_capacity(deployment, "gpu", "request_rate") == 4.0
    assert divisor_of_capacity(deployment, "usd", "request_rate") == 2.0
    assert divisor_of_capacity(deployment, "usd", "concurrency") is None
    assert divisor_of_capacity(deployment, "deployment", "concurrency") == 1.0


def test_a_search_that_fails_at_the_lead_of_another_is_outraced(tmp_path: Path) -> None:
    stored = StoredLevels(tmp_path)
    for name, devices in (("small", 1), ("large", 4)):
        stored.deployment(name, devices=devices)
        stored.level(name, 5)
    deployments = {point.deployment.label: point.deployment for point in points_of(stored)}
    searches = [
        (deployments["label-small"], {"request_rate": claim(10.0, 12.0)}),
        (
            deployments["label-large"],
            {"request_rate": claim(20.0, 30.0), "concurrency": claim(1.0, 2.0)},
        ),
    ]
    small, large = claims_among_rivals(searches, "gpu")
    assert small["request_rate"].status == "budget"
    assert large["request_rate"].status == "outraced"  # 7.5 a GPU, and the small one holds 10
    assert large["concurrency"].status == "budget"

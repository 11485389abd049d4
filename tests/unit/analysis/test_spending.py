"""What held devices cost, by hand: 3.6 USD an hour are 0.001 USD a second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.deployments import unknown_deployment
from orchestrator.analysis.launches import StoredLaunch
from orchestrator.analysis.points import load_points
from orchestrator.analysis.spending import ExperimentSpending, spending, spending_of
from orchestrator.results.records import LaunchRow, PointHead
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store
from tests.unit.analysis.test_launches import commit as commit_launch
from tests.unit.results.builders import (
    commit_measurement,
    deployment_row,
    point_row,
    request,
    table,
)


def launch(launch_id: str, usd_per_hour: float | None = 3.6, **row: Any) -> StoredLaunch:
    deployment = replace(unknown_deployment("d0"), usd_per_hour=usd_per_hour)
    given = {"status": "ok", "ready_s": 60.0, "held_s": 500.0} | row
    launched = LaunchRow(
        launch_id=launch_id,
        deployment_id="d0",
        experiment="exp",
        started_unix_ns=1,
        emulated=False,
        **given,
    )
    return StoredLaunch(launched, deployment, {}, {})


def attempt(attempt_id: str, launch_id: str, seconds: float) -> PointHead:
    row = point_row("m", attempt_id, launch_id=launch_id, window_end_ns=round(seconds * 1e9))
    (head,) = rows_of(table("points", [row]), PointHead)
    return head


def as_spending(result: ExperimentSpending | None) -> ExperimentSpending:
    assert result is not None
    return result


def test_starts_points_and_waste_are_apart() -> None:
    # 500 s held: 60 s until ready, 200 s of a point that counts, 100 s of one that does not; a start
    # that failed held its devices for 40 s
    launches = [launch("a"), launch("b", status="failed", held_s=40.0, ready_s=None)]
    attempts = [attempt("good", "a", 200), attempt("spoilt", "a", 100)]
    result = as_spending(spending(launches, attempts, {"good"}))
    assert result.total == pytest.approx(0.540)
    assert result.starts == pytest.approx(0.060)
    assert result.failed_starts == pytest.approx(0.040)
    assert result.counting == pytest.approx(0.200)
    assert result.not_counting == pytest.approx(0.100)
    assert result.other == pytest.approx(0.140)
    parts = (
        result.starts,
        result.failed_starts,
        result.counting,
        result.not_counting,
        result.other,
    )
    assert sum(parts) == pytest.approx(result.total)


def test_a_launch_that_failed_after_it_had_served_is_no_failed_start() -> None:
    """Its node was lost during the second point."""
    result = as_spending(
        spending([launch("a", status="failed")], [attempt("good", "a", 200)], {"good"})
    )
    assert result.failed_starts == 0
    assert result.starts == pytest.approx(0.060)
    assert result.counting == pytest.approx(0.200)
    assert result.other == pytest.approx(0.240)


def test_launches_without_a_price_or_a_time_are_counted_and_cost_nothing() -> None:
    launches = [launch("a"), launch("b", usd_per_hour=None), launch("c", held_s=None)]
    result = as_spending(spending(launches, [attempt("x", "b", 100)], {"x"}))
    assert (result.priced, result.launches) == (1, 3)
    assert result.counting == 0
    assert result.total == pytest.approx(0.5)


def test_nothing_that_was_simulated_was_paid_for() -> None:
    assert spending([launch("a", simulated=True)], [], ()) is None


def test_a_store_says_which_attempts_count(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "exp")
    commit_launch(store, "L0", deployment_row(usd_per_hour=3.6), held_s=500.0, ready_s=60.0)
    for attempt_id, validity in (("a0", "client_bound"), ("a1", "valid")):
        commit_measurement(
            store,
            "m0",
            [request(0)],
            attempt_id=attempt_id,
            created_unix_ns=1 if attempt_id == "a0" else 2,
            validity=validity,
            window_end_ns=100 * 10**9,
        )
    result = as_spending(spending_of(store, load_points(store)))
    assert result.counting == pytest.approx(0.1)
    assert result.not_counting == pytest.approx(0.1)

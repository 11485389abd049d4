"""The CSV of what ``load`` just measured."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from orchestrator.report.load_runs import stored_csv
from orchestrator.results.store import Store
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import planned, store_sweep
from tests.unit.report.test_capacity_table import store_search


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_all_points_are_those_of_the_results_command(store: Store) -> None:
    store_sweep(store, planned())
    assert stored_csv(store) == invoke("results", store.uri, "--format", "csv").stdout


def test_only_the_points_of_these_measurements_have_a_line(store: Store) -> None:
    plan = planned()
    store_sweep(store, plan)
    point = plan.points[1]
    measurement_id = plan.measurement(point, 0).measurement_id
    (line,) = lines_of(stored_csv(store, {measurement_id}))
    assert line["measurement_id"] == measurement_id
    assert line["point_id"] == point.point_id


def test_capacities_have_lines_unless_measurements_are_named(store: Store) -> None:
    store_search(store)
    rows = [line["row"] for line in lines_of(stored_csv(store))]
    assert rows.count("capacity") == 2
    measured = next(iter(store.winners()))
    assert {line["row"] for line in lines_of(stored_csv(store, {measured}))} <= {"point", "repeat"}

"""The record of a capacity: bounds per unit, the prediction beside it, rivals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.slo import parse_slo
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.report.documents.capacity import (
    CapacityBounds,
    CapacityDocument,
    capacity_documents,
)
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Level, Slo
from tests.unit.plan.stored_sweeps import EXPERIMENT, VALUES, store_attempt
from tests.unit.report.test_capacity_table import PREDICTED, SEARCH, store_search


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "exp")


def capacities(store: Store, *slos: Slo) -> list[CapacityDocument]:
    experiment = StoredExperiment(store, {"cpu": 1.8})
    slos = slos or experiment.slos
    points = experiment.points(*slos).current
    return list(capacity_documents(experiment, points, slos))


def test_bounds_are_divided_by_devices_and_by_dollars(store: Store) -> None:
    store_search(store)
    interactive, _ = capacities(store)
    assert interactive.claim.status == "cliff"
    assert interactive.per_gpu == CapacityBounds(4.0, 4.0, 4.16)
    assert interactive.per_usd is not None
    # two cores, 1.80 USD an hour each: a dollar buys 1000 s
    assert interactive.per_usd.claim == pytest.approx(8000)


def test_each_limit_has_a_capacity_of_its_own(store: Store) -> None:
    store_search(store)
    documents = capacities(store)
    assert [document.slo.name for document in documents] == ["interactive", "tight"]
    assert [document.claim.claim for document in documents] == [8.0, None]


def test_requests_in_flight_have_no_capacity_per_dollar(store: Store) -> None:
    store_search(store, "concurrency")
    document, _ = capacities(store)
    assert document.per_usd is None


@pytest.mark.parametrize(
    ("limits", "is_compared"),
    [("ttft<=150ms,attainment>=0.9", True), ("ttft<=140ms,attainment>=0.9", False)],
)
def test_a_prediction_is_compared_under_the_same_limits_alone(
    limits: str, is_compared: bool, store: Store
) -> None:
    store_search(store, predicted=PREDICTED)
    (document,) = capacities(store, parse_slo(limits))
    assert (document.predicted is not None) is is_compared
    assert (document.measured_over_predicted is not None) is is_compared


@pytest.mark.parametrize(("level", "is_worse"), [(24.0, True), (9.0, False)])
def test_a_capacity_below_the_interval_of_its_prediction_is_worse(
    level: float, is_worse: bool, store: Store
) -> None:
    store_search(store, predicted=PREDICTED | {"level": level})
    document, _ = capacities(store)
    assert document.is_worse_than_predicted is is_worse
    assert document.measured_over_predicted == pytest.approx(8 / level)


def commit_probes(
    store: Store, plan: Any, deployment: int, *probes: tuple[float, float, int]
) -> None:
    """Probes of a deployment: level, TTFT in ms, and how many."""
    for value, ttft_ms, count in probes:
        level = Level(control="request_rate", value=value)
        point = plan.point(plan.deployments[deployment].id, plan.loads[0], level)
        for repeat in range(count):
            store_attempt(store, plan, point, repeat, ttft_ms)


@pytest.mark.parametrize(
    ("full_grid", "status"), [("", "outraced"), (", full_grid: true", "budget")]
)
def test_a_deployment_that_another_one_beats_is_outraced_unless_all_are_searched(
    full_grid: str, status: str, store: Store
) -> None:
    search = SEARCH.format(control="request_rate") + full_grid
    text = EXPERIMENT.format(**VALUES).replace("levels: {concurrency: [2]}", search)
    plan = make_plan(parse_experiment(text))
    store.write_plan(plan.to_json())
    commit_probes(store, plan, 0, (16, 100, 24), (16.64, 300, 3))
    commit_probes(store, plan, 1, (8, 100, 1), (12, 300, 3))
    documents = capacities(store, parse_slo("ttft<=150ms,attainment>=0.9"))
    claims = {document.probe.deployment.label: document.claim for document in documents}
    assert claims["emulator seqs=8"].claim == 16
    assert claims["emulator seqs=16"].status == status

"""A stored simulation in place of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.model import Plan
from orchestrator.plan.predictions import SIMULATED, with_predictions
from orchestrator.plan.shortlist import shortlisted
from orchestrator.plan.simulated import with_simulation
from orchestrator.report.documents.prediction import compare_with_prediction
from orchestrator.results.store import Store
from tests.unit.plan.test_current import commit, planned, run

LEVELS = [2, 4]


def simulated_store(folder: Path, plan: Plan, **given: Any) -> str:
    """All points of the plan, simulated: TTFT is 100 ms, TPOT is 12.9 ms."""
    store = Store.open(str(folder), plan.name)
    run(store, plan, simulated=True, **given)
    return str(folder)


def prediction(plan: Plan, number: int = 0) -> dict[str, Any]:
    return plan.deployments[number].predicted or {}


def test_figures_of_a_simulation_take_the_place_of_predictions(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    uri = simulated_store(tmp_path, plan)
    predicted = prediction(with_simulation(with_predictions(plan), uri))
    assert [level["level"] for level in predicted["levels"]] == LEVELS
    for level in predicted["levels"]:
        assert level["ttft_ms"] == pytest.approx(100)
        assert level["tpot_ms"] == pytest.approx(90 / 7)
        assert level["workload"] == "chat"
    assert predicted[SIMULATED] == uri
    assert predicted["error"] == prediction(with_predictions(plan))["error"]


def test_an_interval_is_what_holds_if_latencies_are_off_by_the_known_factor(
    tmp_path: Path,
) -> None:
    """100 ms hold 150 ms, and still do 1.4 times as long; 1 ms they would hold by no factor."""
    plan = planned(levels=LEVELS)
    uri = simulated_store(tmp_path, plan)
    predicted = prediction(with_simulation(with_predictions(plan), uri))
    factor = predicted["error"]["within"]["tpot"]
    capacity = predicted["capacity"]["interactive"]["chat"]
    throughput = capacity["output_throughput"]
    assert throughput == predicted["levels"][-1]["output_throughput"]
    assert capacity["level"] == LEVELS[-1]
    is_slow_held = 100 * predicted["error"]["within"]["ttft"] <= 150
    lowest = throughput / factor if is_slow_held else 0
    assert capacity["interval_per_gpu"] == pytest.approx([lowest, throughput * factor])
    assert predicted["capacity"]["tight"]["chat"]["interval_per_gpu"] == [0, 0]


def test_a_plan_keeps_what_was_simulated_when_it_is_predicted_again(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    simulated = with_simulation(with_predictions(plan), simulated_store(tmp_path, plan))
    assert with_predictions(Plan.from_json(simulated.to_json())) == simulated


def test_what_was_not_simulated_is_not_predicted(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    first, second = plan.deployments
    store = Store.open(str(tmp_path), plan.name)
    store.write_plan(plan.to_json())
    for point in plan.points_of(first.id):
        commit(store, plan, point, simulated=True)
    limited = shortlisted(with_simulation(with_predictions(plan), str(tmp_path)), 1, "x")
    left_out = limited.deployment(second.id).left_out
    assert left_out is not None
    assert (left_out.why, left_out.reason) == (
        "not_predicted",
        "the simulation has no valid point of it",
    )


def test_workloads_match_by_content_and_deployments_by_settings(tmp_path: Path) -> None:
    uri = simulated_store(tmp_path, planned(levels=LEVELS, workload="other", duration="20s"))
    plan = planned(levels=LEVELS)
    assert prediction(with_simulation(with_predictions(plan), uri))["capacity"]["interactive"]


def test_what_was_measured_is_no_simulation(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    run(Store.open(str(tmp_path), plan.name), plan)
    with pytest.raises(InputError, match="has no simulated points of exp"):
        with_simulation(plan, str(tmp_path))


def test_measured_stands_beside_simulated(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    uri = simulated_store(tmp_path / "simulated", plan)
    simulated = with_simulation(with_predictions(plan), uri)
    store = Store.open(str(tmp_path / "measured"), plan.name)
    run(store, simulated, ttft_ms=200)
    for point in StoredExperiment(store).points().current:
        comparison = compare_with_prediction(point)
        assert comparison is not None
        assert comparison.ratio["ttft_ms"] == pytest.approx(2.0)
        assert comparison.ratio["tpot_ms"] == pytest.approx(1.0)

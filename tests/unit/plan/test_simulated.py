"""A stored simulation in place of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import InputError
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.plan.predictions import with_predictions
from orchestrator.plan.shortlist import shortlisted
from orchestrator.plan.simulated import with_simulation
from orchestrator.report.documents.prediction import compare_with_prediction
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.spec.load import Level
from tests.unit.plan.stored_sweeps import (
    EXPERIMENT,
    SEARCH,
    VALUES,
    planned,
    store_attempt,
    store_sweep,
)

LEVELS = [2, 4]


def simulated_store(folder: Path, plan: Plan, **given: Any) -> str:
    """All points of the plan, simulated: TTFT is 100 ms, TPOT is 12.9 ms."""
    store = Store.open(str(folder), plan.name)
    store_sweep(store, plan, simulated=True, **given)
    return str(folder)


def at_level(requests: float) -> Level:
    return Level(control="concurrency", value=requests)


def prediction(plan: Plan, number: int = 0) -> dict[str, Any]:
    return plan.deployments[number].predicted.document()


def test_figures_of_a_simulation_take_the_place_of_predictions(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    uri = simulated_store(tmp_path, plan)
    predicted = prediction(with_simulation(plan, uri))
    assert [level["level"] for level in predicted["levels"]] == LEVELS
    for level in predicted["levels"]:
        assert level["ttft_ms"] == pytest.approx(100)
        assert level["tpot_ms"] == pytest.approx(90 / 7)
        assert level["workload"] == "chat"
    assert predicted["simulated"] == uri
    assert predicted["error"] == prediction(with_predictions(plan))["error"]


def test_an_interval_is_what_holds_if_latencies_are_off_by_the_known_factor(
    tmp_path: Path,
) -> None:
    """100 ms hold 150 ms, and still do 1.4 times as long; 1 ms they would hold by no factor."""
    plan = planned(levels=LEVELS)
    uri = simulated_store(tmp_path, plan)
    predicted = prediction(with_simulation(plan, uri))
    factor = predicted["error"]["within"]["tpot"]
    capacity = predicted["capacity"]["interactive"]["chat"]
    throughput = capacity["output_throughput"]
    assert throughput == predicted["levels"][-1]["output_throughput"]
    assert capacity["level"] == LEVELS[-1]
    is_slow_held = 100 * predicted["error"]["within"]["ttft"] <= 150
    lowest = throughput / factor if is_slow_held else 0
    assert capacity["interval_per_gpu"] == pytest.approx([lowest, throughput * factor])
    assert predicted["capacity"]["tight"]["chat"]["interval_per_gpu"] == [0, 0]


def test_at_a_rate_that_is_kept_up_with_the_interval_ends_at_what_was_sent(tmp_path: Path) -> None:
    """The second level shows that the engine could give more than the first asks for."""
    text = EXPERIMENT.format(**VALUES | {"levels": LEVELS}).replace("concurrency", "request_rate")
    plan = make_plan(parse_experiment(text))
    store = Store.open(str(tmp_path), plan.name)
    store.write_plan(plan.to_json())
    for point in plan.points:
        is_first = point.level.value == LEVELS[0]
        ttft_ms, tokens = (10, 8) if is_first else (5000, 64)
        store_attempt(store, plan, point, ttft_ms=ttft_ms, tokens=tokens, simulated=True)
    capacity = prediction(with_simulation(plan, store.uri))["capacity"]["interactive"]["chat"]
    assert capacity["level"] == LEVELS[0]
    throughput = capacity["output_throughput"]
    assert throughput > 0
    assert capacity["interval_per_gpu"] == pytest.approx([throughput, throughput])


def test_a_plan_keeps_what_was_simulated_when_it_is_predicted_again(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    simulated = with_simulation(plan, simulated_store(tmp_path, plan))
    assert with_predictions(Plan.from_json(simulated.to_json())) == simulated


def test_what_was_not_simulated_is_not_predicted(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    first, second = plan.deployments
    store = Store.open(str(tmp_path), plan.name)
    store.write_plan(plan.to_json())
    for point in plan.points_of(first.id):
        store_attempt(store, plan, point, simulated=True)
    limited = shortlisted(with_simulation(plan, str(tmp_path)), 1, "x")
    left_out = limited.deployment(second.id).left_out
    assert left_out is not None
    assert (left_out.why, left_out.reason) == (
        "not_predicted",
        "the simulation has no valid point of it",
    )


def test_why_a_deployment_was_not_simulated_is_why_it_is_not_predicted(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    first, second = plan.deployments
    store = Store.open(str(tmp_path), plan.name)
    store.write_plan(plan.to_json())
    for point in plan.points_of(first.id):
        store_attempt(store, plan, point, simulated=True)
    failed = {"status": "failed", "reason": "The model has no term for it.", "simulated": True}
    for point in plan.points_of(second.id):
        store_attempt(store, plan, point, **failed)
    reason = prediction(with_simulation(plan, str(tmp_path)), 1)["not_predicted"]
    assert reason == "The model has no term for it"


def test_workloads_match_by_content_and_deployments_by_settings(tmp_path: Path) -> None:
    uri = simulated_store(tmp_path, planned(levels=LEVELS, workload="other", duration="20s"))
    plan = planned(levels=LEVELS)
    assert prediction(with_simulation(plan, uri))["capacity"]["interactive"]


def test_versions_of_an_engine_that_differ_in_nothing_else_have_points_of_their_own(
    tmp_path: Path,
) -> None:
    plan = planned(levels=LEVELS)
    first, second = plan.deployments
    settings = first.settings.model_copy(update={"engine_version": "2"})
    plan = plan.with_deployments([first, second.model_copy(update={"settings": settings})])
    store = Store.open(str(tmp_path), plan.name)
    store.write_plan(plan.to_json())
    for deployment, ttft_ms in ((first, 100), (second, 50)):
        for point in plan.points_of(deployment.id):
            store_attempt(store, plan, point, ttft_ms=ttft_ms, simulated=True)
    predicted = with_simulation(plan, str(tmp_path))
    for number, ttft_ms in ((0, 100), (1, 50)):
        levels = prediction(predicted, number)["levels"]
        assert [level["ttft_ms"] for level in levels] == pytest.approx([ttft_ms] * len(LEVELS))


def test_what_was_measured_is_no_simulation(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    store_sweep(Store.open(str(tmp_path), plan.name), plan)
    with pytest.raises(InputError, match="has no simulated points of exp"):
        with_simulation(plan, str(tmp_path))


def test_measured_stands_beside_simulated(tmp_path: Path) -> None:
    plan = planned(levels=LEVELS)
    uri = simulated_store(tmp_path / "simulated", plan)
    simulated = with_simulation(plan, uri)
    store = Store.open(str(tmp_path / "measured"), plan.name)
    store_sweep(store, simulated, ttft_ms=200)
    for point in StoredExperiment(store).points().current:
        comparison = compare_with_prediction(point)
        assert comparison is not None
        assert comparison.ratio["ttft_ms"] == pytest.approx(2.0)
        assert comparison.ratio["tpot_ms"] == pytest.approx(1.0)


class TestSearch:
    @pytest.fixture(autouse=True)
    def simulated_search(self, tmp_path: Path) -> None:
        """The first deployment holds 8 in flight and fails at 9; of the second a level is known to
        fail.
        """
        text = EXPERIMENT.format(**VALUES).replace("levels: {concurrency: [2]}", SEARCH)
        self.plan = make_plan(parse_experiment(text))
        self.uri = str(tmp_path)
        store = Store.open(self.uri, self.plan.name)
        store.write_plan(self.plan.to_json())
        first, second = self.plan.deployments
        (load,) = self.plan.loads
        for deployment, level, ttft_ms, times in (
            (first, 8, 100, 24),
            (first, 9, 300, 3),
            (second, 9, 300, 3),
        ):
            point = self.plan.point(deployment.id, load, at_level(level))
            for repeat in range(times):
                store_attempt(store, self.plan, point, repeat, ttft_ms, simulated=True)

    def capacities(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """The capacities of a deployment, in closed form and with the simulation."""
        by_form = prediction(with_predictions(self.plan), number)
        simulated = prediction(with_simulation(self.plan, self.uri), number)
        capacities = [each["capacity"]["interactive"]["chat"] for each in (by_form, simulated)]
        return capacities[0], capacities[1]

    def test_a_claim_has_the_interval_of_the_closed_form_in_shares(self) -> None:
        by_form, simulated = self.capacities(0)
        assert simulated["level"] == 8
        value = simulated["output_throughput_per_gpu"]
        ratio = value / by_form["output_throughput_per_gpu"]
        assert ratio != pytest.approx(1.0, rel=0.01)
        lowest, highest = by_form["interval_per_gpu"]
        assert simulated["interval_per_gpu"] == pytest.approx([lowest * ratio, highest * ratio])

    def test_where_nothing_is_claimed_the_closed_form_stands(self) -> None:
        by_form, simulated = self.capacities(1)
        assert simulated == by_form

    def test_what_is_shown_to_hold_nothing_has_no_value(self) -> None:
        store = Store.open(self.uri, self.plan.name)
        (load,) = self.plan.loads
        point = self.plan.point(self.plan.deployments[1].id, load, at_level(1))
        for repeat in range(3):
            store_attempt(store, self.plan, point, repeat, ttft_ms=300, simulated=True)
        by_form, simulated = self.capacities(1)
        assert simulated["output_throughput"] == 0
        assert simulated["interval_per_gpu"] == [0, by_form["interval_per_gpu"][1]]

    def test_a_simulation_replaces_an_earlier_one(self) -> None:
        once = with_simulation(self.plan, self.uri)
        assert with_simulation(once, self.uri) == once

"""Sweeps that say who leads, and end when that is decided: engines are queues with as many slots as
``max_num_seqs`` says.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.analysis.points import StoredPoint
from orchestrator.base.errors import ResultsError
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.spec.experiment import parse_experiment
from orchestrator.sweep import forming_answer
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.forming_answer import FormingAnswer
from tests.unit.sweep.simulation import World, sweep, world_of
from tests.unit.sweep.sweeps import event_texts
from tests.unit.sweep.test_race import RACE, SLOTS, queues  # noqa: F401

SEARCH = "search: capacity, control: request_rate"
RATES = "levels: {request_rate: [1, 2, 4, 8, 16]}"
IN_FLIGHT = "levels: {concurrency: [1, 2, 4, 8, 16]}"


def planned(load: str, more: str = "", cases: str = SLOTS) -> Plan:
    text = RACE.format(load="", cases=cases, price="").replace(SEARCH, load) + more
    return make_plan(parse_experiment(text, "x.yaml"))


def standings(world: World) -> list[Event]:
    return [item for item in world.events if isinstance(item, Event) and item.kind == "standing"]


def measured_levels(store: Store, plan: Plan) -> Counter[tuple[str, float]]:
    labels = {deployment.id: deployment.label for deployment in plan.deployments}
    rows = store.read("points").to_pylist()
    return Counter((labels[row["deployment_id"]], row["level"]) for row in rows)


@pytest.mark.parametrize("load", [RATES, IN_FLIGHT])
def test_after_each_point_the_leader_is_told_and_who_can_still_beat_it(
    tmp_path: Path, load: str
) -> None:
    world, plan = world_of(), planned(load)
    sweep(world, plan, Store.open(str(tmp_path), "x"))
    events = standings(world)
    assert len(events) == 15
    assert [event.data["rivals"] for event in events[:5]] == [2] * 5  # the others may hold anything
    last = events[-1]
    assert "seqs=8 leads: " in last.text
    assert last.text.endswith("no other can beat it")
    assert last.data["deployments"] == 3
    interval = last.data["output_token_throughput"]
    assert interval["lower"] <= interval["estimate"] <= interval["upper"]


def test_without_limits_nothing_leads(tmp_path: Path) -> None:
    text = RACE.format(load="", cases=SLOTS, price="").replace(SEARCH, RATES)
    plan = make_plan(parse_experiment(text.partition("slos:")[0], "x.yaml"))
    world = world_of()
    sweep(world, plan, Store.open(str(tmp_path), "x"))
    assert not standings(world)


def test_a_search_is_told_with_its_estimate(tmp_path: Path) -> None:
    world = world_of()
    sweep(world, planned(SEARCH), Store.open(str(tmp_path), "x"))
    estimated = [event for event in standings(world) if "estimate" in event.data]
    assert estimated
    assert "leads: estimate " in estimated[0].text or "leads: holds " in estimated[0].text
    assert "seqs=8 leads: holds " in standings(world)[-1].text


def test_what_cannot_be_best_is_not_measured_to_the_end(tmp_path: Path) -> None:
    world, store, plan = world_of(), Store.open(str(tmp_path), "x"), planned(RATES, "repeats: 2")
    report = sweep(world, plan, store, decided_within=0.05)
    early = report.left_unmeasured
    assert early is not None
    assert early.is_decided
    assert report.left_by_stop == 0
    assert early.measurements == 30 - report.counts.measured > 0
    assert event_texts(world, "decided") == [
        f"decided within 5 %: {early.deployments} deployments not measured to the end "
        f"({early.measurements} measurements left)"
    ]
    levels = measured_levels(store, plan)
    assert levels["vllm seqs=8", 4.0] == 2  # with it alone it is as good as what others can come to
    assert levels["vllm seqs=8", 8.0] == 1
    (row,) = [row for row in store.read("events").to_pylist() if row["kind"] == "decided"]
    assert '"is_decided": true' in row["data_json"]


@pytest.mark.parametrize("load", [RATES, IN_FLIGHT])
def test_the_same_command_without_until_goes_on(tmp_path: Path, load: str) -> None:
    store, plan = Store.open(str(tmp_path), "x"), planned(load, "repeats: 2")
    first = sweep(world_of(), plan, store, decided_within=0.05)
    world = world_of()
    rest = sweep(world, plan, store)
    assert rest.left_unmeasured is None
    assert first.counts.measured + rest.counts.measured == 30
    assert max(measured_levels(store, plan).values()) == 2
    # what was measured before is known from the beginning
    assert "seqs=8 leads: " in standings(world)[0].text


def test_a_decided_sweep_starts_no_engine_again(tmp_path: Path) -> None:
    store, plan = Store.open(str(tmp_path), "x"), planned(RATES, "repeats: 2")
    sweep(world_of(), plan, store, decided_within=0.05)
    world = world_of()
    report = sweep(world, plan, store, decided_within=0.05)
    assert report.counts.measured == 0
    assert report.left_unmeasured is not None
    assert "place" not in world.log


def test_a_race_ends_when_nobody_can_beat_the_claim_of_the_leader(tmp_path: Path) -> None:
    whole = sweep(world_of(), planned(SEARCH), Store.open(str(tmp_path / "whole"), "x"))
    world, store = world_of(), Store.open(str(tmp_path / "decided"), "x")
    report = sweep(world, planned(SEARCH), store, decided_within=0.25)
    assert report.left_unmeasured is not None
    assert report.left_unmeasured.is_decided
    assert report.counts.measured < whole.counts.measured
    assert "seqs=8 leads: holds " in standings(world)[-1].text


def test_a_level_that_was_spoilt_keeps_it_from_being_decided(tmp_path: Path) -> None:
    cases = "{max_num_seqs: 2}, {max_num_seqs: 8}"
    world = world_of(is_disturbed=True)
    report = sweep(
        world, planned(RATES, cases=cases), Store.open(str(tmp_path), "x"), decided_within=0.05
    )
    assert report.counts.measured == 10
    assert report.left_unmeasured is None


def test_dollars_are_by_the_hour(tmp_path: Path) -> None:
    text = RACE.format(load="", cases=SLOTS, price=", usd_per_gpu_hour: 3.6")
    text = text.replace(SEARCH, RATES + ", objective: usd")
    plan = make_plan(parse_experiment(text, "x.yaml"))
    world = world_of()
    sweep(world, plan, Store.open(str(tmp_path), "x"))
    last = standings(world)[-1]
    assert " tokens/USD " in last.text
    # 8 tokens/s at 3.6 USD an hour
    assert math.isclose(last.data["output_token_throughput"]["estimate"], 8000, rel_tol=0.1)


def test_what_cannot_be_read_now_may_hold_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = Store.open(str(tmp_path), "x"), planned(RATES)
    sweep(world_of(), plan, store)
    committed = {commit.measurement_id: commit for commit in store.commits()}
    works = [DeploymentWork(plan, deployment, committed) for deployment in plan.runnable()]

    def refuse(*_: object) -> list[StoredPoint]:
        raise ResultsError("the storage does not answer")

    monkeypatch.setattr(forming_answer, "load_points", refuse)
    answer = FormingAnswer(plan, 0.05)
    answer.enter(works, store)
    (lead,) = answer.leads()
    assert (lead.leader, lead.rivals) == (None, 3)
    assert not answer.is_decided

"""What a simulated sweep has come to: what was told, whether it is stopped, and what it spent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.plan.model import Deployment
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase
from orchestrator.results.store import Store
from orchestrator.simulation.so_far import SimulationInputs, SweepSoFar
from orchestrator.simulation.virtual_clock import EPOCH_NS
from tests.unit.simulation.builders import planned

SweepOf = Callable[..., SweepSoFar]


@pytest.fixture
def sweep_of(tmp_path: Path) -> SweepOf:
    """The beginning of a sweep with this budget."""

    def sweep_of(budget: str = "{}", told: list[Event | Phase] | None = None) -> SweepSoFar:
        plan = planned(budget=f"budget: {budget}")
        heard: list[Event | Phase] = [] if told is None else told
        store = Store.open(str(tmp_path), plan.name)
        inputs = SimulationInputs.of(plan, store, heard.append, threading.Event())
        return SweepSoFar(inputs, committed={})

    return sweep_of


def deployment_of(sweep: SweepSoFar, devices: int) -> Deployment:
    (found,) = [each for each in sweep.plan.deployments if each.devices == devices]
    return found


def test_every_deployment_is_queued_at_the_beginning(sweep_of: SweepOf) -> None:
    sweep = sweep_of()
    assert set(sweep.queue.waiting) == {deployment.id for deployment in sweep.plan.deployments}
    assert sweep.clock.now_s == 0


def test_events_have_the_time_of_the_simulation_and_are_taken_once(sweep_of: SweepOf) -> None:
    told: list[Event | Phase] = []
    sweep = sweep_of(told=told)
    sweep.clock.go_on(2.0)
    sweep.tell(Event("launch", "a launch"))
    (event,) = sweep.take_events()
    assert event.unix_ns == EPOCH_NS + 2 * 10**9
    assert told == [event]
    assert sweep.take_events() == []


def test_a_budget_that_was_spent_is_used_up(sweep_of: SweepOf) -> None:
    sweep = sweep_of("{gpu_hours: 1}")
    two_gpus = deployment_of(sweep, devices=2)
    sweep.state.spend(two_gpus, held_s=1800)  # of two GPUs: one hour
    over = sweep.budget.over(two_gpus, next_s=0)
    assert over == "the budget of 1 GPU hours is used up"


@pytest.mark.parametrize(("next_s", "is_over"), [(1700.0, False), (1800.0, True)])
def test_a_point_that_would_exceed_the_budget_is_not_begun(
    sweep_of: SweepOf, next_s: float, is_over: bool
) -> None:
    sweep = sweep_of("{usd: 3.6}")  # one hour of one GPU
    deployment = deployment_of(sweep, devices=1)
    sweep.state.placed(deployment, sweep.clock.now_s)
    sweep.clock.go_on(1800)
    over = sweep.budget.over(deployment, next_s)
    assert (over is not None) is is_over


def test_without_a_race_no_launch_yields(sweep_of: SweepOf) -> None:
    sweep = sweep_of()
    assert not any(sweep.should_yield(work) for work in sweep.queue.waiting.values())

"""No sweep uses more than its budget, whatever runs side by side."""

from __future__ import annotations

from functools import partial

import pytest

from orchestrator.plan.model import Plan
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.spec.experiment import Budget
from orchestrator.sweep.admission import Spending
from orchestrator.sweep.budget import SweepBudget, left_of, used_up
from orchestrator.sweep.state import SweepState
from tests.unit.sweep.simulation import (
    World,
    node,
    outcomes,
    plan_of,
    steps,
    sweep,
    world_of,
)
from tests.unit.sweep.sweeps import (
    EIGHT,
    OOM,
    TWO,
    growing,
    launches,
    points,
)


@pytest.mark.parametrize(
    ("budget", "measured"),
    [
        ("{gpu_hours: 0.05}", 0),
        ("{gpu_hours: 0.15}", 1),
        ("{wall: 160s}", 2),
        ("{gpu_hours: 9}", 4),
        ("{usd: 0.5}", 0),  # 0.001 for a second of a GPU
        ("{usd: 0.62}", 2),
        ("{usd: 32}", 4),
    ],
)
def test_a_budget_ends_the_sweep_and_leaves_measurements_out(
    budget: str, measured: int, store: Store
) -> None:
    world, plan = world_of(), plan_of(TWO, levels="1, 2", more=f"budget: {budget}")
    state = SweepState()
    report = sweep(world, plan, store, state=state)  # one node, exclusive: one after the other
    assert (
        used_up(plan.budget or Budget(), state.spent(world.clock.now_s()), world.clock.now_s())
        is None
    )
    assert (report.counts.measured, report.counts.over_budget, report.counts.failed) == (
        measured,
        4 - measured,
        0,
    )
    assert len(outcomes(store)) == measured
    assert (measured == 4) != any(
        "budget" in one.text for one in world.events if isinstance(one, Event)
    )


@pytest.mark.parametrize("budget", ["gpu_hours: 0.3415", "usd: 1.23"])
def test_a_launch_waits_for_what_others_leave_of_the_budget(budget: str, store: Store) -> None:
    """From second 82 to 152 all 8 GPUs of a node run a point that the budget pays for (1,224 GPU
    seconds by then). The node that comes meanwhile would start an engine on 4 GPUs with what is not
    used yet.
    """
    world, state = world_of(), SweepState()
    world.clock.at(90.0, lambda: world.nodes.append(node("b")))
    plan = plan_of(
        "{tensor_parallel_size: 8}, {tensor_parallel_size: 4}", "1, 2", f"budget: {{{budget}}}"
    )
    report = sweep(world, plan, store, state=state)
    assert used_up(plan.budget or Budget(), state.spent(world.clock.now_s()), 0.0) is None
    assert report.counts.measured == 2
    assert report.counts.over_budget == 2
    assert steps(world)["start"] == 1


def test_a_launch_goes_on_when_others_used_less_than_was_set_aside(
    store: Store,
) -> None:
    """Eight GPUs start an engine that dies at once; until then its start and first point count as
    spent.
    """
    world, state = (
        world_of(
            [node("a", gpus=1)],
            ready_after_s=60.0,
            autoscaler=True,
            fails={"ready": [None, OOM, None]},
        ),
        SweepState(),
    )
    world.clock.at(120.0, lambda: world.nodes.append(node("b")))
    plan = plan_of(
        "{tensor_parallel_size: 1}, {tensor_parallel_size: 8}",
        "1, 2, 3, 4, 5",
        "budget: {gpu_hours: 0.34}",
    )
    sweep(world, plan, store, state=state)
    assert [one.status for one in points(store)].count("ok") == 5
    assert state.spent(world.clock.now_s()).gpu_s <= 0.34 * 3600


def test_only_as_many_launches_start_at_once_as_the_budget_pays_for(
    store: Store,
) -> None:
    """The budget pays for the start and one point of one launch; two launches together would use it
    up with nothing measured.
    """
    world, state = world_of([node("a"), node("b")]), SweepState()
    report = sweep(
        world, plan_of(TWO, levels="1, 2", more="budget: {gpu_hours: 0.15}"), store, state=state
    )
    assert (report.counts.measured, steps(world)["start"]) == (1, 1)
    assert state.spent(world.clock.now_s()).gpu_s <= 0.15 * 3600


@pytest.mark.parametrize("usd", [0.5 + 0.25 * at for at in range(12)])
def test_no_budget_is_exceeded_side_by_side_whenever_nodes_come(usd: float, store: Store) -> None:
    world, state = world_of(), SweepState()
    for name, at_s in (("b", 30.0), ("c", 90.0), ("d", 125.0)):
        world.clock.at(at_s, partial(world.nodes.append, node(name)))
    sweep(world, plan_of(EIGHT, levels="1, 2", more=f"budget: {{usd: {usd}}}"), store, state=state)
    assert state.spent(world.clock.now_s()).usd <= usd


def test_no_engine_is_started_whose_start_the_budget_does_not_pay_for(store: Store) -> None:
    # 4 GPUs for 60 s of start and 72 s of a point are 0.147 GPU hours, the point alone 0.08
    world = world_of()
    report = sweep(
        world,
        plan_of("{tensor_parallel_size: 4}", levels="1, 2", more="budget: {gpu_hours: 0.1}"),
        store,
    )
    assert report.counts.over_budget == 2
    assert steps(world)["start"] == 0
    assert len(launches(store)) == 0


def test_a_point_counts_with_the_overrun_of_the_slowest_one(store: Store) -> None:
    # it starts until 12 s, the first point drains until 112 s; another one like that ends at 212 s
    world = world_of()
    world.fails["load"] = ["drains"]
    report = sweep(
        world,
        plan_of("{tensor_parallel_size: 4}", levels="1, 2", more="budget: {wall: 200s}"),
        store,
    )
    assert (report.counts.measured, report.counts.over_budget) == (1, 1)


def test_no_more_nodes_are_desired_than_the_budget_pays_for(store: Store) -> None:
    world = growing(0, 8)
    # each is expected to hold 8 GPUs for 132 s, 0.29 GPU hours: the second begins within the
    # budget, a third would not
    cases = ", ".join(
        f"{{tensor_parallel_size: 8, max_num_seqs: {seqs}}}" for seqs in (8, 16, 32, 64)
    )
    sweep(world, plan_of(cases, more="budget: {gpu_hours: 0.4}"), store)
    assert world.most_held == 2


def budget_of(plan: Plan, world: World) -> SweepBudget:
    return SweepBudget(plan.budget, SweepState(), world.clock.now_s)


def test_a_budget_says_whether_it_is_used_up_or_would_be() -> None:
    world = world_of()
    plan = plan_of(more="budget: {wall: 100s}")
    (deployment,) = plan.deployments
    budget = budget_of(plan, world)
    assert budget.over(deployment, 99.0) is None
    too_long = budget.over(deployment, 100.0)
    assert too_long == "the budget of 100s wall time would be exceeded by the next point"
    world.clock.sleep(100.0)
    assert budget.over(deployment, 0.0) == "the budget of 100s wall time is used up"


def test_a_second_launch_sees_what_the_first_got_of_the_budget() -> None:
    plan = plan_of(TWO, more="budget: {gpu_hours: 0.15}")
    first, second = plan.deployments
    budget = budget_of(plan, world_of())
    assert budget.admit(first, 100.0) is None
    assert budget.admit(second, 100.0) is not None


def test_a_budget_is_used_up_by_whichever_part_is_first() -> None:
    budget = Budget(gpu_hours=2.0, usd=10.0)
    assert used_up(budget, Spending(7199.0, 9.9), 1e9) is None
    assert "2 GPU hours" in str(used_up(budget, Spending(7200.0, 0.0), 0.0))
    assert "10 USD" in str(used_up(budget, Spending(0.0, 10.0), 0.0))
    assert left_of(budget, Spending(3600.0, 4.0)) == Spending(3600.0, 6.0)
    assert left_of(None, Spending(3600.0, 4.0)) == Spending(float("inf"), float("inf"))

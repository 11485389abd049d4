"""What is left of a deployment, and how far the work on it is."""

from __future__ import annotations

import pytest

from orchestrator.capacity.race import Race
from orchestrator.plan.order import QueueClass
from orchestrator.results.records import Committed
from orchestrator.sweep.deployment_work import DeploymentWork, WorkStage
from tests.unit.plan.files import measurements
from tests.unit.sweep.simulation import plan_of

OK = Committed(
    measurement_id="m", attempt_id="a", created_unix_ns=1, status="ok", deployment_id="d"
)


@pytest.fixture
def work() -> DeploymentWork:
    plan = plan_of(levels="1, 2")
    return DeploymentWork(plan, plan.deployments[0], {})


def test_queries_change_nothing(work: DeploymentWork) -> None:
    names = [name for name, value in vars(DeploymentWork).items() if isinstance(value, property)]
    state = {name: value for name, value in vars(work).items() if not callable(value)}
    for name in names:
        getattr(work, name)
    work.estimate_s()
    work.first_s()
    work.rest_s()
    assert {name: value for name, value in vars(work).items() if not callable(value)} == state


def test_its_stage_goes_from_new_to_done(work: DeploymentWork) -> None:
    assert work.stage is WorkStage.NEW
    work.close(OK)
    assert work.stage is WorkStage.BEGUN
    work.yield_to_others()
    assert work.stage is WorkStage.YIELDED
    work.close(OK)
    assert work.stage is WorkStage.DONE


def test_what_races_and_was_begun_queues_after_what_may_not_fit() -> None:
    plan = plan_of()
    (deployment,) = plan.deployments
    risky = deployment.model_copy(update={"status": "risky"})
    race = Race({})
    assert DeploymentWork(plan, deployment, {}).queue_class is QueueClass.NORMAL
    assert DeploymentWork(plan, risky, {}).queue_class is QueueClass.RISKY
    begun = DeploymentWork(plan_of(levels="1, 2"), risky, {}, race=race)
    begun.close(OK)
    assert begun.queue_class is QueueClass.CONTINUED


def test_a_launch_is_estimated_by_its_start_and_what_is_left(work: DeploymentWork) -> None:
    before = work.estimate_s()
    work.close(OK)
    assert before - work.estimate_s() == pytest.approx(72.0)


TWICE = "repeats: 2"


def order(work: DeploymentWork) -> list[tuple[str, float, int]]:
    """Everything it asks for: workload, level, repeat."""
    found = []
    while (following := work.next) is not None:
        point = following.point
        found.append((point.workload.name, point.level.value, following.measurement.repeat))
        work.close(OK)
    return found


def test_every_point_is_measured_once_before_any_is_measured_again() -> None:
    plan = plan_of(levels="1, 2", more=TWICE)
    work = DeploymentWork(plan, plan.deployments[0], {})
    assert work.left == 4
    assert order(work) == [("w", 1, 0), ("w", 2, 0), ("w", 1, 1), ("w", 2, 1)]
    assert work.left == 0


def test_ids_are_those_of_the_plan() -> None:
    plan = plan_of(levels="1, 2", more=TWICE)
    work, found = DeploymentWork(plan, plan.deployments[0], {}), []
    while (following := work.next) is not None:
        found.append(following.measurement)
        work.close(OK)
    assert found == measurements(plan)


def test_committed_measurements_are_told_and_not_made_again() -> None:
    plan = plan_of(levels="1, 2, 4", more=TWICE)
    names = [one.measurement_id for one in measurements(plan)]
    done = dict.fromkeys((names[0], names[2], names[4]), OK)
    work = DeploymentWork(plan, plan.deployments[0], done)
    assert (work.earlier.skipped, work.left) == (3, 3)
    assert order(work) == [("w", 2, 0), ("w", 1, 1), ("w", 4, 1)]


def test_what_is_dropped_is_not_asked_for(work: DeploymentWork) -> None:
    work.drop()
    assert work.next is None
    assert work.left == 0

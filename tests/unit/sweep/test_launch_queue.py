"""The queue of a sweep: what is in it, in which order, and when that order is out of date."""

from __future__ import annotations

import pytest

from orchestrator.capacity.race import Race
from orchestrator.plan.cost import estimated_start_s
from orchestrator.plan.model import Plan
from orchestrator.plan.order import QueueClass
from orchestrator.results.records import Committed
from orchestrator.sweep.competition import race_of
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.launch_queue import LaunchQueue
from orchestrator.sweep.roster import Place, Roster
from orchestrator.sweep.start_times import StartTimes
from tests.unit.sweep.simulation import plan_of
from tests.unit.sweep.test_competition import searching

# one launch of one GPU, two of four
THREE = "{tensor_parallel_size: 1}, {tensor_parallel_size: 4}, {tensor_parallel_size: 4, max_num_seqs: 8}"
OK = Committed(
    measurement_id="m", attempt_id="a", created_unix_ns=1, status="ok", deployment_id="d"
)


class Sweep:
    """What a queue sees of a sweep: all deployments queued."""

    def __init__(self, plan: Plan, race: Race | None = None) -> None:
        self.start_times = StartTimes()
        self.works: list[DeploymentWork] = []
        self.roster = Roster()
        for deployment in plan.deployments:
            work = DeploymentWork(plan, deployment, {}, self.start_times, race)
            self.works.append(work)
            self.roster.put(work, Place.QUEUED)
        self.queue = LaunchQueue(plan, self.roster, race, self.start_times)

    def keys(self) -> list[str]:
        return [job.key for job in self.queue.jobs]

    def took(self, factor: float) -> None:
        """A start took this many times its estimate."""
        deployment = self.works[0].deployment
        self.start_times.add(deployment, factor * estimated_start_s(deployment))


@pytest.fixture
def sweep() -> Sweep:
    return Sweep(plan_of(THREE))


def test_the_queue_is_filled_by_its_first_order(sweep: Sweep) -> None:
    assert sweep.keys() == []
    sweep.queue.order()
    assert sorted(sweep.keys()) == sorted(sweep.roster.queued)


def test_deployments_off_the_shortlist_are_not_in_the_queue() -> None:
    plan = searching(", max_deployments: 1")
    limited = Sweep(plan, race_of(plan))
    limited.queue.order()
    assert limited.keys() == []
    (first, second) = limited.works
    limited.queue.shortlist.chosen.add(second.deployment.id)
    limited.queue.order()
    assert limited.keys() == [second.deployment.id]
    assert limited.queue.to_start() == [second]
    assert limited.queue.waiting_new() == 1
    assert first.deployment.id in limited.roster.queued


@pytest.mark.parametrize(("factor", "is_off"), [(1.05, False), (1.2, True), (0.8, True)])
def test_an_order_is_off_once_starts_take_a_tenth_more_or_less(
    factor: float, is_off: bool, sweep: Sweep
) -> None:
    sweep.queue.order()
    sweep.took(factor)
    assert sweep.queue.starts_are_off() is is_off
    sweep.queue.order()
    assert not sweep.queue.starts_are_off()


def test_a_deployment_is_added_in_its_place(sweep: Sweep) -> None:
    sweep.queue.order()
    expected = sweep.keys()
    returning = sweep.works[0]
    (job,) = [job for job in sweep.queue.jobs if job.key == returning.deployment.id]
    sweep.queue.jobs.remove(job)
    sweep.queue.add(returning)
    assert sweep.keys() == expected


def test_launches_with_equal_requests_are_found_together(sweep: Sweep) -> None:
    sweep.queue.order()
    small, large, large_too = sweep.works
    resources = sweep.queue.resources(large)
    keys = [job.key for job in sweep.queue.jobs_for(resources)]
    assert sorted(keys) == sorted([large.deployment.id, large_too.deployment.id])
    requests = sweep.queue.requests()
    assert len(requests) == 2
    assert set(requests) == {resources, sweep.queue.resources(small)}


@pytest.mark.parametrize("isolation", ["exclusive_node", "shared"])
def test_the_isolation_of_the_plan_is_that_of_each_request(isolation: str) -> None:
    isolated = Sweep(plan_of(more=f"isolation: {isolation}"))
    resources = isolated.queue.resources(isolated.works[0])
    assert resources.exclusive is (isolation == "exclusive_node")


def test_a_waiting_launch_has_the_time_and_the_price_of_its_work(sweep: Sweep) -> None:
    large = sweep.works[1]
    job = sweep.queue.waiting(large)
    assert job.estimate_s == large.estimate_s()
    assert job.cost.gpu_s == 4 * job.estimate_s
    assert job.queue_class is QueueClass.NORMAL


def test_what_was_probed_already_goes_by_its_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    race = Race({})
    racing = Sweep(plan_of(levels="1, 2"), race)
    (work,) = racing.works
    monkeypatch.setattr(race, "priority", lambda name: 0.7)
    assert racing.queue.waiting(work).priority != 0.7
    work.close(OK)
    assert racing.queue.waiting(work).queue_class is QueueClass.CONTINUED
    assert racing.queue.waiting(work).priority == 0.7


def test_what_is_left_is_counted_over_all_that_will_start(sweep: Sweep) -> None:
    assert sweep.queue.left_to_start() == 3
    assert sweep.queue.waiting_new() == 3
    sweep.works[0].close(OK)
    assert sweep.queue.left_to_start() == 2
    assert sweep.queue.waiting_new() == 2

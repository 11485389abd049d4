"""Which deployment of a simulated sweep is next, and which are no longer waiting."""

from __future__ import annotations

from orchestrator.plan.model import Plan
from orchestrator.simulation.queue import QueueOrder, SimulatedQueue
from tests.unit.simulation.builders import planned

SEARCH = "load: {search: capacity, control: request_rate, duration: 60s, max_deployments: 1}"


def queue_of(plan: Plan) -> SimulatedQueue:
    """The queue of a sweep that has measured nothing."""
    return SimulatedQueue(plan, QueueOrder.of(plan), {})


def test_the_first_is_the_one_with_the_smallest_position() -> None:
    plan = planned()
    order = QueueOrder.of(plan)
    queue = SimulatedQueue(plan, order, {})
    first = queue.first
    assert first is not None
    assert len(queue.waiting) > 1
    positions = [order.position(work) for work in queue.waiting.values()]
    assert order.position(first) == min(positions)
    assert positions.count(min(positions)) == 1


def test_a_deployment_with_nothing_left_waits_no_longer() -> None:
    queue = queue_of(planned())
    left_s = queue.left_s
    work = queue.first
    assert work is not None
    work.drop()
    assert queue.put_aside() == []  # no other beats it
    assert work.deployment.id not in queue.waiting
    assert queue.first is not work
    assert queue.left_s < left_s


def test_once_enough_are_started_the_others_are_dropped() -> None:
    queue = queue_of(planned(load=SEARCH))
    deployments = len(queue.waiting)
    assert queue.first is None  # none is chosen yet
    assert queue.fill_shortlist() == 0
    work = queue.first
    assert work is not None
    assert queue.fill_shortlist() == 0  # the chosen one still waits
    queue.waiting.pop(work.deployment.id)
    assert queue.fill_shortlist() == deployments - 1
    assert queue.waiting == {}

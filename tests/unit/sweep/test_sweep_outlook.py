"""What launches hear of the others: how long all will take, and whether to make room."""

from __future__ import annotations

import pytest

from orchestrator.cluster.base import Machine
from orchestrator.results.records import Committed
from orchestrator.results.store import Store
from orchestrator.sweep.admission import Reservation
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.launch_queue import LaunchQueue
from orchestrator.sweep.roster import Place, Roster
from orchestrator.sweep.start_times import StartTimes
from orchestrator.sweep.sweep_outlook import QUEUE_S, SweepOutlook
from tests.unit.sweep.simulation import context_of, node, plan_of, world_of

GANG = "tensor_parallel_size: 8, pipeline_parallel_size: 2"  # on two nodes with 8 GPUs
CASES = f"{{{GANG}}}, {{{GANG}, max_num_seqs: 8}}, {{tensor_parallel_size: 8}}, {{tensor_parallel_size: 4}}"
OK = Committed(
    measurement_id="m", attempt_id="a", created_unix_ns=1, status="ok", deployment_id="d"
)


class Sweep:
    """Four deployments, none of which is anywhere yet."""

    def __init__(self, store: Store, machines: list[Machine]) -> None:
        plan = plan_of(CASES, levels="1, 2")
        self.world = world_of(machines)
        self.context = context_of(self.world, plan, store)
        self.roster = Roster()
        queue = LaunchQueue(plan, self.roster, None, StartTimes())
        self.resources = queue.resources
        self.outlook = SweepOutlook(self.context, self.roster, queue)
        works = [DeploymentWork(plan, deployment, {}) for deployment in plan.deployments]
        self.gang, self.other_gang, self.large, self.small = works

    def hold(self, work: DeploymentWork, *nodes: str) -> None:
        """A launch gets these nodes, all of them for its only replica."""
        self.roster.put(work, Place.LAUNCHED)
        reservation = Reservation(self.resources(work), (nodes,), end_s=100.0)
        self.context.state.admitted(work.deployment, reservation)

    def queue(self, *works: DeploymentWork) -> None:
        for work in works:
            self.roster.put(work, Place.QUEUED)


@pytest.fixture
def two_nodes(store: Store) -> Sweep:
    return Sweep(store, [node("a"), node("b")])


def test_nothing_queued_or_launched_takes_no_time(two_nodes: Sweep) -> None:
    assert two_nodes.outlook.left_s() == 0.0


def test_what_is_queued_takes_its_start_and_its_points(two_nodes: Sweep) -> None:
    small = two_nodes.small
    two_nodes.queue(small)
    assert two_nodes.outlook.left_s() == small.start_estimate_s + small.rest_s()


def test_launches_share_what_is_left(two_nodes: Sweep) -> None:
    for work in (two_nodes.large, two_nodes.small):
        two_nodes.roster.put(work, Place.LAUNCHED)
    two_nodes.queue(two_nodes.gang)
    rests_s = [two_nodes.large.rest_s(), two_nodes.small.rest_s()]
    queued_s = two_nodes.gang.rest_s(extra_starts=1)
    assert two_nodes.outlook.left_s() == (sum(rests_s) + queued_s) / 2


def test_all_takes_at_least_as_long_as_the_longest_in_the_queue(two_nodes: Sweep) -> None:
    for work in (two_nodes.large, two_nodes.small):
        two_nodes.roster.put(work, Place.LAUNCHED)
        work.close(OK)
    two_nodes.queue(two_nodes.gang)
    assert two_nodes.outlook.left_s() == two_nodes.gang.rest_s(extra_starts=1)


def test_all_takes_at_least_as_long_as_the_longest_launch(two_nodes: Sweep) -> None:
    two_nodes.roster.put(two_nodes.large, Place.LAUNCHED)
    two_nodes.roster.put(two_nodes.small, Place.LAUNCHED)
    two_nodes.small.close(OK)
    assert two_nodes.small.rest_s() < two_nodes.large.rest_s()
    assert two_nodes.outlook.left_s() == two_nodes.large.rest_s()


def test_points_are_as_slow_as_those_before(two_nodes: Sweep) -> None:
    two_nodes.roster.put(two_nodes.small, Place.LAUNCHED)
    expected_s = two_nodes.outlook.left_s()
    two_nodes.context.state.took(expected_s=10.0, took_s=20.0)
    assert two_nodes.outlook.left_s() == 2 * expected_s


def test_the_queue_is_looked_at_now_and_then(two_nodes: Sweep) -> None:
    two_nodes.queue(two_nodes.small)
    before_s = two_nodes.outlook.left_s()
    two_nodes.queue(two_nodes.large)
    assert two_nodes.outlook.left_s() == before_s
    two_nodes.world.clock.sleep(QUEUE_S)
    assert two_nodes.outlook.left_s() > before_s


@pytest.fixture
def _can_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeploymentWork, "can_yield", True)


def test_a_launch_that_cannot_yield_keeps_its_nodes(two_nodes: Sweep) -> None:
    two_nodes.hold(two_nodes.large, "a")
    two_nodes.queue(two_nodes.small)
    assert not two_nodes.outlook.should_yield(two_nodes.large)


@pytest.mark.usefixtures("_can_yield")
def test_a_launch_yields_its_nodes_to_what_was_not_probed_yet(store: Store) -> None:
    one_node = Sweep(store, [node("a")])
    one_node.hold(one_node.large, "a")
    assert not one_node.outlook.should_yield(one_node.large), "nothing waits"
    one_node.queue(one_node.gang)
    assert not one_node.outlook.should_yield(one_node.large), "its node would not be enough"
    one_node.queue(one_node.small)
    assert one_node.outlook.should_yield(one_node.large)


@pytest.mark.usefixtures("_can_yield")
@pytest.mark.parametrize(("standing", "yields"), [(0.5, False), (2.0, True)])
def test_a_launch_yields_to_a_probed_deployment_that_may_hold_more(
    standing: float, yields: bool, two_nodes: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = two_nodes.small
    two_nodes.hold(two_nodes.large, "a")
    small.close(OK)
    two_nodes.queue(small)
    standings = property(lambda work: standing if work is small else 1.0)
    monkeypatch.setattr(DeploymentWork, "standing", standings)
    assert two_nodes.outlook.should_yield(two_nodes.large) is yields


def test_a_launch_that_waits_for_a_host_goes_where_others_are_free(two_nodes: Sweep) -> None:
    small = two_nodes.small
    two_nodes.hold(small, "a")
    two_nodes.context.state.waits_for(small.deployment, "10.0.0.a")
    assert two_nodes.outlook.is_better_off_elsewhere(small.deployment)


def test_a_launch_waits_on_where_no_other_node_is_free(two_nodes: Sweep) -> None:
    small = two_nodes.small
    two_nodes.hold(small, "a")
    two_nodes.context.state.waits_for(small.deployment, "10.0.0.a")
    two_nodes.hold(two_nodes.large, "b")
    two_nodes.queue(two_nodes.gang)
    assert not two_nodes.outlook.is_better_off_elsewhere(small.deployment)


def test_nodes_kept_idle_by_a_wait_go_to_what_is_queued(two_nodes: Sweep) -> None:
    gang, other_gang = two_nodes.gang, two_nodes.other_gang
    two_nodes.hold(gang, "a", "b")
    two_nodes.context.state.waits_for(gang.deployment, "10.0.0.a")
    assert not two_nodes.outlook.is_better_off_elsewhere(gang.deployment), "nothing is queued"
    two_nodes.queue(other_gang)
    assert not two_nodes.outlook.is_better_off_elsewhere(gang.deployment), "it would not fit"
    two_nodes.queue(two_nodes.small)
    assert two_nodes.outlook.is_better_off_elsewhere(gang.deployment)

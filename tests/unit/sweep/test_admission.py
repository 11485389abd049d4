"""Admission: who starts next, on which nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cluster.base import (
    ACCELERATOR_LABEL,
    MOST_GROUPS,
    NODE_GROUP,
    Bundle,
    Machine,
    NodeType,
)
from orchestrator.plan.order import QueueClass
from orchestrator.sweep.admission import (
    Pick,
    Queue,
    Reservation,
    Spending,
    Waiting,
    choose,
    fit,
    nodes_to_ask_for,
    worth_adding,
)
from orchestrator.sweep.resource_request import ResourceRequest

GPU8 = [Machine(f"n{i}", f"10.0.0.{i}", gpus=8, cpus=96) for i in range(3)]


def gpu_need(gpus: int, nodes: int = 1, replicas: int = 1, **more: object) -> ResourceRequest:
    return ResourceRequest(((Bundle(gpus, float(gpus)),) * nodes,) * replicas, **more)  # type: ignore[arg-type]


def test_of_those_that_end_before_the_reservation_the_one_predicted_best_overtakes() -> None:
    reservations = [Reservation(gpu_need(8, exclusive=False), (("n0",),), 30.0)]
    gang = Waiting("gang", gpu_need(8, 3, exclusive=False), 50)
    waiting = [(10.0, 0.2), (25.0, 0.9), (500.0, 1.0)]  # the last would hold the gang up
    jobs = [
        Waiting(f"{length:g}", gpu_need(1, exclusive=False), length, priority=share)
        for length, share in waiting
    ]
    picked = choose(Queue([gang, *jobs]), GPU8, reservations, now_s=0.0)
    assert picked is not None and picked[0].key == "25"


def test_an_exclusive_launch_takes_only_hosts_where_nothing_runs() -> None:
    reservations = [Reservation(gpu_need(1, exclusive=False), (("n0",),), 10.0)]
    assert fit(gpu_need(1, exclusive=True), GPU8[:1], reservations) is None
    assert fit(gpu_need(1, exclusive=True), GPU8[:2], reservations) == (("n1",),)


def test_nothing_joins_a_host_that_an_exclusive_launch_holds() -> None:
    reservations = [Reservation(gpu_need(1, exclusive=True), (("n0",),), 10.0)]
    assert fit(gpu_need(1, exclusive=False), GPU8[:1], reservations) is None


def test_two_raylets_on_one_machine_count_as_one_host() -> None:
    machines = [Machine("a", "10.0.0.1", cpus=4), Machine("b", "10.0.0.1", cpus=4)]
    need = ResourceRequest(((Bundle(0, 1.0),),), exclusive=True)
    reservations = [Reservation(need, (("a",),), 10.0)]
    assert fit(need, machines, reservations) is None


def test_shared_launches_pack_onto_the_fullest_node_that_fits() -> None:
    reservations = [Reservation(gpu_need(6, exclusive=False), (("n1",),), 10.0)]
    assert fit(gpu_need(2, exclusive=False), GPU8, reservations) == (("n1",),)


def test_replicas_of_one_launch_may_share_a_host_and_never_overbook_it() -> None:
    assert fit(gpu_need(4, replicas=2), GPU8[:1], ()) == (("n0",), ("n0",))
    assert fit(gpu_need(4, replicas=3), GPU8[:1], ()) is None


def test_labels_select_nodes() -> None:
    machines = [
        Machine("a", "1", gpus=8, cpus=8),
        Machine("b", "2", gpus=8, cpus=8, labels={"accelerator": "H100"}),
    ]
    assert fit(gpu_need(8, labels=(("accelerator", "H100"),)), machines, ()) == (("b",),)


def test_a_node_labelled_with_another_accelerator_is_neither_taken_nor_asked_for() -> None:
    kinds = {"a": "A100", "b": "H100", "c": "somebody's"}
    machines = [
        Machine(name, name, 8, 96.0, {ACCELERATOR_LABEL: kind}) for name, kind in kinds.items()
    ]
    need = gpu_need(8, accelerator="H100-80GB")
    assert fit(need, machines, ()) == (("b",),)
    assert fit(need, machines[2:], ()) == (("c",),), "nothing is known of it"
    assert fit(need, [Machine("d", "d", 8, 96.0)], ()) == (("d",),)
    assert fit(need, machines[:1], ()) is None
    (asked,) = need.nodes_worth_adding(machines)
    assert asked.labels == ((ACCELERATOR_LABEL, "!in(A100)"),)
    assert need.nodes_worth_adding(machines[1:]) == gpu_need(8).nodes_worth_adding([])
    assert str(need) == "one node with 8 GPUs (H100-80GB)"


def test_one_endpoint_is_never_loaded_by_two_launches_at_once() -> None:
    need = ResourceRequest((), endpoint="http://x")
    assert fit(need, [], [Reservation(need, (), 1.0)]) is None
    assert fit(ResourceRequest((), endpoint="http://y"), [], [Reservation(need, (), 1.0)]) == ()


def test_a_small_launch_overtakes_only_where_it_does_not_delay_the_gang() -> None:
    reservations = [Reservation(gpu_need(8, exclusive=False), (("n0",),), end_s=100.0)]
    gang = Waiting("gang", gpu_need(8, 3, exclusive=False), 50)
    short = Waiting("short", gpu_need(1, exclusive=False), 20)
    long = Waiting("long", gpu_need(1, exclusive=False), 500)
    assert choose(Queue([gang, long]), GPU8, reservations, now_s=0.0) is None
    picked = choose(Queue([gang, long, short]), GPU8, reservations, now_s=0.0)
    assert picked is not None
    assert (picked.job.key, picked.overtaken) == ("short", "gang")


def test_what_can_never_fit_these_nodes_holds_nobody_up() -> None:
    never = Waiting("never", gpu_need(16), 1000)
    small = Waiting("small", gpu_need(1), 1)
    picked = choose(Queue([never, small]), GPU8, (), now_s=0.0)
    assert picked is not None
    assert (picked.job.key, picked.overtaken) == ("small", "")


replicas = st.builds(
    lambda gpus, nodes: (Bundle(gpus, float(gpus)),) * nodes, st.integers(0, 8), st.integers(1, 3)
)
needs = st.builds(
    lambda different, exclusive: ResourceRequest(tuple(different), exclusive=exclusive),
    st.lists(replicas, min_size=1, max_size=3), st.booleans(),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(needs, min_size=1, max_size=12))
def test_admission_never_overbooks_and_starts_everything_that_fits_an_empty_cluster(
    jobs: list[ResourceRequest],
) -> None:
    queue = {str(index): Waiting(str(index), need, 10.0 + index) for index, need in enumerate(jobs)}
    possible = {key for key, job in queue.items() if fit(job.resources, GPU8, ()) is not None}
    reservations: list[Reservation] = []
    started: set[str] = set()
    now = 0.0
    for _ in range(200):
        picked = choose(Queue(list(queue.values())), GPU8, reservations, now)
        if picked is None:
            if not reservations:
                break
            first = min(reservations, key=lambda launch: launch.end_s)
            now = first.end_s
            reservations.remove(first)
            continue
        job, nodes, _ = picked
        del queue[job.key]
        started.add(job.key)
        reservations.append(Reservation(job.resources, nodes, now + job.estimate_s))
        used: dict[str, int] = {}
        for launch in reservations:
            for replica, bundles in zip(launch.nodes, launch.resources.replicas, strict=True):
                assert len(set(replica)) == len(replica), (
                    "ranks of one replica sit on distinct nodes"
                )
                for node, bundle in zip(replica, bundles, strict=True):
                    used[node] = used.get(node, 0) + bundle.gpus
        assert all(gpus <= 8 for gpus in used.values())
    assert started >= possible  # of replicas of several sizes more may fit beside others than alone


def test_a_node_on_which_it_failed_is_taken_last() -> None:
    job = Waiting("again", gpu_need(8), 10, avoid=frozenset({"n0"}))
    assert choose(Queue([job]), GPU8, [], 0.0) == Pick(job, (("n1",),))
    assert choose(Queue([job]), GPU8[:1], [], 0.0) == Pick(job, (("n0",),))


LOTS = Spending(float("inf"), float("inf"))


def test_nodes_are_worth_adding_for_waiting_launches_in_the_order_of_admission() -> None:
    reservations = [Reservation(gpu_need(8), (("n0",),), 100.0)]
    jobs = [
        Waiting("short", gpu_need(1), 10),
        Waiting("gang", gpu_need(8, 2), 5),
        Waiting("long", gpu_need(1), 100),
    ]
    in_order = list(Queue(jobs))  # whatever that order is: test_admission_order.py guards it
    # of three nodes one is taken: the gang gets the other two, and no other launch finds a place
    without_gang = [job for job in in_order if job.key != "gang"]
    assert worth_adding(Queue(jobs), GPU8, reservations, LOTS) == without_gang
    assert worth_adding(Queue(jobs), [], [], LOTS) == in_order
    assert worth_adding(Queue(jobs[:1]), GPU8, reservations, LOTS) == []


POOLS = [gpu_need(8, labels=(("pool", name),), gpus_per_node=8) for name in "ab"]
MANY = [
    *(Waiting(f"a{at:03}", POOLS[0], 1000) for at in range(100)),
    *(Waiting(f"b{at}", POOLS[1], 9) for at in range(10)),
]


def test_nodes_are_asked_for_one_of_each_request_in_turn() -> None:
    pools = [job.key[0] for job in worth_adding(Queue(MANY), [], [], LOTS, most_launches=64)]
    assert set(pools[:2]) == set(pools[2:4]) == {"a", "b"}
    assert Counter(pools) == {"a": 54, "b": 10}


def test_launches_of_a_higher_class_are_asked_for_last() -> None:
    risky = Waiting("risky", gpu_need(1), 10**6, queue_class=QueueClass.RISKY)
    *others, last = worth_adding(Queue([risky, *MANY[98:102]]), [], [], LOTS)
    assert last is risky
    assert {job.key for job in others} == {"a098", "a099", "b0", "b1"}


@pytest.mark.parametrize(("there", "asked"), [(0, 4), (2, 2), (4, 1)])
def test_one_launch_of_each_request_is_always_asked_for(there: int, asked: int) -> None:
    """The one of which there are none left: what is not asked for would never be given up."""
    types = [
        NodeType(f"{name}8", 8, 96.0, most, {"pool": name}) for name, most in (("a", 4), ("b", 99))
    ]
    machines = [
        Machine(f"n{at}", f"n{at}", 8, 96.0, {"pool": "a", NODE_GROUP: "a8"}) for at in range(there)
    ]
    reservations = [Reservation(POOLS[0], ((one.node_id,),), 100.0) for one in machines]
    found = worth_adding(Queue(MANY), machines, reservations, LOTS, most_launches=60, types=types)
    assert Counter(job.key[0] for job in found) == {"a": asked, "b": 10}
    assert len(worth_adding(Queue(MANY), machines, reservations, LOTS, types=types[:0])) == 110, (
        "no types are known"
    )


def test_no_more_footprints_are_asked_for_than_ray_can_look_at() -> None:
    needs = [gpu_need(1, replicas=count, exclusive=False) for count in (40, 30, 20)]
    jobs = [Waiting(str(at), need, 1) for at, need in enumerate(needs)]
    wanted = nodes_to_ask_for(jobs, [], (), 99)
    assert len(wanted.footprints) == 60
    assert wanted.requests == {needs[0], needs[2]}
    large = gpu_need(1, replicas=100, exclusive=False)
    jobs = [Waiting("large", large, 1), Waiting("other", needs[0], 1)]
    wanted = nodes_to_ask_for(jobs, [], (), 99)
    assert len(wanted.footprints) == MOST_GROUPS
    assert wanted.requests == {large}, "it could never be given up else"


def test_of_10000_launches_as_few_are_looked_at_as_are_asked_for() -> None:
    looked_at = list[ResourceRequest]()

    class Looking(Queue):
        def in_turn(self, closed: Collection[ResourceRequest]) -> Iterator[Waiting]:
            for job in super().in_turn(closed):
                looked_at.append(job.resources)
                yield job

    queue = Looking(Waiting(f"{at:05}", POOLS[at % 2], 10) for at in range(10_000))
    assert len(worth_adding(queue, [], [], LOTS, most_nodes=6)) == 6
    assert len(looked_at) < 10


def test_endpoints_need_no_node_and_shared_nodes_are_asked_for_once() -> None:
    assert (
        worth_adding(
            Queue([Waiting("e", ResourceRequest((), endpoint="http://x"), 1)]), [], [], LOTS
        )
        == []
    )
    shared = [Waiting(str(at), gpu_need(4, exclusive=False), 10) for at in range(3)]
    assert len(worth_adding(Queue(shared), GPU8[:1], [], LOTS)) == 1


def test_nothing_is_worth_adding_that_would_begin_after_the_budget_is_spent() -> None:
    jobs = [Waiting(str(at), gpu_need(8), 10, cost=Spending(80.0, 2.0)) for at in range(5)]
    assert len(worth_adding(Queue(jobs), [], [], Spending(100.0, 100.0))) == 2
    assert len(worth_adding(Queue(jobs), [], [], Spending(1000.0, 2.0))) == 1
    assert worth_adding(Queue(jobs), [], [], Spending(0.0, 100.0)) == []
    # what fits a node of now is paid for first
    assert len(worth_adding(Queue(jobs), GPU8[:1], [], Spending(100.0, 100.0))) == 1


def test_a_router_joins_the_fullest_node_of_its_launch() -> None:
    need = ResourceRequest(((Bundle(8, 8.0),), (Bundle(0, 0.0),)))
    assert fit(need, GPU8, ()) == (("n0",), ("n0",))


def test_a_router_needs_no_node_beside_those_of_its_replicas() -> None:
    machines = [Machine("head", "a", cpus=8.0), Machine("gpu", "b", gpus=8, cpus=8.0)]
    need = ResourceRequest((*[(Bundle(4, 4.0),)] * 2, (Bundle(0, 0.0),)))
    assert fit(need, machines, (), most_nodes=1) == (("gpu",),) * 3

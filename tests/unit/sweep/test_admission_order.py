"""The order in which a sweep admits launches: one table guards it. Below it: what reorders the
queue, and that nothing overtakes where it would delay another launch.
"""

from __future__ import annotations

import pytest

from orchestrator.cluster.base import Bundle, Machine
from orchestrator.plan.order import QueueClass
from orchestrator.results.store import Store
from orchestrator.sweep import sweep as sweep_module
from orchestrator.sweep.admission import Queue, Reservation, Spending, Waiting, choose, worth_adding
from orchestrator.sweep.resource_request import ResourceRequest
from tests.unit.sweep.simulation import node, plan_of, sweep, world_of
from tests.unit.sweep.sweeps import EIGHT, launches

HOSTS = [node(name) for name in "abcd"]


def need(gpus: int, nodes: int = 1) -> ResourceRequest:
    return ResourceRequest(((Bundle(gpus, float(gpus)),) * nodes,))


def picked(
    jobs: list[Waiting], machines: list[Machine], reservations: list[Reservation], most_nodes: float
) -> str:
    """Key of the launch that starts next, empty if none does."""
    pick = choose(Queue(jobs), machines, reservations, 0.0, most_nodes)
    return pick.job.key if pick else ""


NORMAL, RISKY, CONTINUED = QueueClass

# Launches in the order of admission. The class comes first: what may not fit waits for all that
# fits, and what was probed already for all that was not. Within a class: launches with a replica
# over several nodes, then the best prediction, then the longest; of those that were probed, how far
# they may still come, whatever nodes they take. Launches that are alike in all of this go
# by their key.
#  name                  class      nodes  priority  seconds
ADMISSION_ORDER = [
    ("gang, long",        NORMAL,    2,     0.1,      9.0),
    ("gang",              NORMAL,    2,     0.1,      5.0),
    ("best prediction",   NORMAL,    1,     1.0,      10.0),
    ("long",              NORMAL,    1,     0.4,      100.0),
    ("short",             NORMAL,    1,     0.4,      90.0),
    ("short, same again", NORMAL,    1,     0.4,      90.0),
    ("no prediction",     NORMAL,    1,     0.0,      500.0),
    ("risky gang",        RISKY,     2,     0.0,      5.0),
    ("risky, best",       RISKY,     1,     1.0,      500.0),
    ("risky",             RISKY,     1,     0.1,      5.0),
    ("probed, far",       CONTINUED, 1,     2.0,      10.0),
    ("probed gang",       CONTINUED, 2,     0.5,      5.0),
    ("probed, near, long", CONTINUED, 1,    0.1,      50.0),
    ("probed, near",      CONTINUED, 1,     0.1,      5.0),
]  # fmt: skip


def test_launches_are_admitted_in_the_order_of_this_table() -> None:
    jobs = [
        Waiting(name, need(1, nodes), seconds, queue_class=queue_class, priority=priority)
        for name, queue_class, nodes, priority, seconds in ADMISSION_ORDER
    ]
    in_order = [job.key for job in jobs]
    assert [job.key for job in Queue(jobs)] == in_order
    assert [job.key for job in Queue(reversed(jobs))] == in_order
    assert [job.key for job in Queue(sorted(jobs, key=lambda job: job.key))] == in_order


def test_starts_that_take_less_than_expected_reorder_the_queue(store: Store) -> None:
    """The longest goes first. A vLLM is expected to take 60 s to start and takes 2, an emulator to
    take 5.
    """
    plan = plan_of("{max_num_seqs: 1}, {max_num_seqs: 2}, {engine: emulator, profile: h100-80gb}")
    sweep(world_of(ready_after_s=1.0), plan, store)
    engines = {deployment.id: deployment.settings.engine for deployment in plan.deployments}
    assert [engines[row.deployment_id] for row in launches(store)] == ["vllm", "emulator", "vllm"]


def test_no_launch_overtakes_a_gang_onto_one_node_too_many() -> None:
    machines = [*HOSTS[:2], node("small", gpus=1)]
    reservations = [Reservation(need(8), (("a",),), 100.0)]
    gang = Waiting("gang", need(8, 2), 50)
    long = Waiting("long", need(1), 500)
    short = Waiting("short", need(1), 20)
    assert picked([gang, long], machines, reservations, most_nodes=2) == ""
    assert picked([gang, long], machines, reservations, most_nodes=3) == "long"
    assert picked([gang, long, short], machines, reservations, most_nodes=2) == "short"


def test_nodes_are_kept_for_a_gang_from_when_it_may_have_them() -> None:
    reservations = [
        Reservation(need(8), ((name,),), end_s) for name, end_s in (("a", 50.0), ("b", 200.0))
    ]
    gang, small = Waiting("gang", need(8, 3), 50), Waiting("small", need(1), 100)
    assert picked([gang, small], HOSTS, reservations, most_nodes=3) == "small", (
        "the gang starts at 200 s"
    )
    assert picked([gang, small], HOSTS, reservations, most_nodes=4) == "", "it starts at 50 s"
    assert (
        picked([gang, Waiting("long", need(1), 999)], HOSTS, reservations[:1], most_nodes=2)
        == "long"
    ), "it never may"


def test_no_more_nodes_are_asked_for_than_launches_may_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, lots = (
        [Waiting(str(at), need(8), 10) for at in range(5)],
        Spending(float("inf"), float("inf")),
    )
    assert len(worth_adding(Queue(jobs), [], [], lots, most_launches=2)) == 2
    monkeypatch.setattr(sweep_module, "MOST_LAUNCHES", 3)
    world, asked = world_of(autoscaler=True), list[int]()
    world.clock.at(5.0, lambda: asked.append(len(world.desired)))
    sweep(world, plan_of(EIGHT), store)
    assert asked == [2], "beside the one that runs"

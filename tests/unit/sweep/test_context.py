"""What launches share: the stored events, clients, and nodes that are taken back."""

from __future__ import annotations

import json
import math

import pytest

from orchestrator.base.errors import FailureKind
from orchestrator.cluster.base import Avoidance
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.sweep.breakers import FIRST_WAIT_S
from orchestrator.sweep.context import SweepContext
from tests.unit.sweep.simulation import (
    World,
    node,
    plan_of,
    sweep,
    world_of,
)
from tests.unit.sweep.sweeps import PORT


def test_events_of_a_sweep_are_stored_with_its_launches(store: Store) -> None:
    sweep(world_of(fails={"load": ["slow"]}), plan_of(), store)
    kinds = store.read("events").column("kind").to_pylist()
    assert kinds == ["sweep", "launch", "host_facts", "retry", "measured"]


def test_why_a_launch_was_admitted_is_stored(store: Store) -> None:
    sweep(world_of([node("a"), node("b")], fails={"ready": [PORT, None]}), plan_of(), store)
    told = [
        json.loads(one["data_json"])
        for one in store.read("events").to_pylist()
        if one["kind"] == "launch"
    ]
    assert [(one["nodes"], one["why"], one.get("avoided")) for one in told] == [
        (["a"], "first", None),
        (["b"], "first", ["a"]),
    ]


def test_events_after_the_last_launch_are_stored_when_the_sweep_ends(store: Store) -> None:
    world = world_of(fails={"stop": [RuntimeError("a rank hangs")]})
    # the launch is committed before its engine is stopped
    sweep(world, plan_of(), store, interrupt_s=40.0)
    told = [one.kind for one in world.events if isinstance(one, Event)]
    assert told[-1] == "stop_failed"
    assert [one["kind"] for one in store.read("events").to_pylist()] == told
    assert [one.kind for one in store.manifests()].count("sweep") == 1


def test_a_sweep_with_nothing_to_do_stores_nothing(store: Store) -> None:
    sweep(world_of(), plan_of(), store)
    before = store.manifests()
    sweep(world_of(), plan_of(), again := Store.open(store.uri, "x"))
    assert again.manifests() == before


def context_of(world: World, store: Store) -> SweepContext:
    return SweepContext(plan_of(), world, store, clock=world.clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gone_s", "needs_s", "is_failure"),
    [
        (30.0, 20.0, False),
        (30.0, 30.0, False),
        (30.0, 31.0, True),
        (30.0, math.inf, True),
        (math.inf, 10.0, False),
        (math.inf, math.inf, True),
    ],
)
def test_a_node_that_drains_is_a_failure_for_what_needs_it_longer(
    gone_s: float, needs_s: float, is_failure: bool, store: Store
) -> None:
    world = world_of(gone_s={"a": gone_s})
    failure = context_of(world, store).taken_back(["b", "a"], needs_s)
    assert (failure is not None) == is_failure
    if failure is not None:
        assert failure.kind is FailureKind.PREEMPTED


def test_clients_keep_off_nodes_that_are_unfit(store: Store) -> None:
    world = world_of()
    context_of(world, store).borrow_clients("d", unfit=["a"])
    assert world.avoided == [{"a": Avoidance.UNFIT}]
    assert world.client_counts == [1]


def test_no_launch_starts_while_the_sweep_pauses(store: Store) -> None:
    world = world_of()
    context = context_of(world, store)
    assert context.may_start()
    for name in ("a", "b", "c"):
        context.breakers.failed(PORT, [name])
    assert not context.may_start()
    world.clock.sleep(FIRST_WAIT_S)
    assert context.may_start()

"""Which requests wait for nodes, since when, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.cluster.base import Bundle, Growth
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.node_shortage import NodeShortage, WaitForNodes
from orchestrator.sweep.resource_request import RETURN_S, ROOM_S, ResourceRequest
from tests.unit.sweep.simulation import World, context_of, node, plan_of, world_of

EIGHT_GPUS = ResourceRequest(((Bundle(8, 8.0),),))
TWO_NODES = ResourceRequest(((Bundle(8, 8.0),) * 2,))
FIXED = Growth(may_grow=False)
GROWING = Growth(may_grow=True)


@pytest.fixture
def world() -> World:
    return world_of()


def shortage_in(world: World, store: Store, **settings: Any) -> tuple[SweepContext, NodeShortage]:
    context = context_of(world, plan_of(), store, **settings)
    return context, NodeShortage(context)


def test_what_fits_on_empty_nodes_waits_for_none(world: World, store: Store) -> None:
    _, shortage = shortage_in(world, store)
    shortage.update([EIGHT_GPUS, ResourceRequest(endpoint="h:80")], FIXED, world.nodes)
    assert not shortage.exists


def test_without_an_autoscaler_a_wait_begins_at_the_first_look(world: World, store: Store) -> None:
    _, shortage = shortage_in(world, store)
    shortage.update([TWO_NODES], FIXED, world.nodes)
    world.clock.sleep(ROOM_S - 1.0)
    shortage.update([TWO_NODES], FIXED, world.nodes)
    (wait,) = shortage.waits(world.nodes, FIXED)
    assert wait == WaitForNodes(TWO_NODES, ROOM_S - 1.0, ROOM_S, "it has no autoscaler")
    assert not wait.is_over
    world.clock.sleep(1.0)
    (wait,) = shortage.waits(world.nodes, FIXED)
    assert wait.is_over


def test_with_an_autoscaler_a_wait_begins_once_nodes_were_asked_for(
    world: World, store: Store
) -> None:
    _, shortage = shortage_in(world, store)
    shortage.update([TWO_NODES], GROWING, world.nodes)
    assert not shortage.exists
    shortage.asked_for = {TWO_NODES}
    shortage.update([TWO_NODES], GROWING, world.nodes)
    shortage.asked_for = set()
    world.clock.sleep(3.0)
    shortage.update([TWO_NODES], GROWING, world.nodes)
    assert [wait.waited_s for wait in shortage.waits(world.nodes, GROWING)] == [3.0]


def test_more_nodes_than_allowed_are_not_waited_for(world: World, store: Store) -> None:
    _, shortage = shortage_in(world, store, most_nodes=1)
    shortage.update([TWO_NODES], GROWING, world.nodes)
    (wait,) = shortage.waits(world.nodes, GROWING)
    assert wait.is_over
    assert wait.reason == "it takes 2 nodes where --max-nodes allows 1"


def test_what_nodes_held_once_waits_until_a_lost_node_is_back(world: World, store: Store) -> None:
    _, shortage = shortage_in(world, store)
    seen, placed = TWO_NODES, EIGHT_GPUS
    shortage.note_placed(placed)
    shortage.update([seen], FIXED, [node("a"), node("b")])
    shortage.update([seen, placed], FIXED, [])
    assert [wait.limit_s for wait in shortage.waits([], FIXED)] == [RETURN_S, RETURN_S]


def test_a_wait_begins_anew_after_a_pause(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, shortage = shortage_in(world, store)
    shortage.asked_for = {TWO_NODES}
    shortage.update([TWO_NODES], GROWING, world.nodes)
    shortage.asked_for = set()
    with monkeypatch.context() as paused:
        paused.setattr(context.breakers, "paused", lambda: True)
        shortage.update([TWO_NODES], GROWING, world.nodes)
    assert not shortage.exists
    shortage.update([TWO_NODES], GROWING, world.nodes)
    assert not shortage.exists, "nodes must be asked for again first"


def test_what_is_given_up_waits_no_longer(world: World, store: Store) -> None:
    _, shortage = shortage_in(world, store)
    shortage.update([EIGHT_GPUS, TWO_NODES], FIXED, [])
    shortage.give_up(EIGHT_GPUS)
    assert [wait.resources for wait in shortage.waits([], FIXED)] == [TWO_NODES]


def test_the_autoscaler_is_quoted_again_only_for_new_words(world: World, store: Store) -> None:
    _, shortage = shortage_in(world, store)
    for text in ("2 x h8 refused", "", "5 x h8 refused", "5 x h8 refused: no quota"):
        shortage.tell_autoscaler(text)
    texts = [event.text for event in world.events if isinstance(event, Event)]
    assert texts == ["2 x h8 refused", "5 x h8 refused: no quota"]

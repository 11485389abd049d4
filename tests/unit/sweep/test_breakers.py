"""Nodes rest after failures, and a sweep that fails everywhere in the same way pauses."""

from __future__ import annotations

from orchestrator.base.errors import (
    Failure,
    FailureKind,
)
from orchestrator.cluster.base import HostLost
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.sweep.breakers import FIRST_WAIT_S, Breakers
from tests.unit.sweep.simulation import (
    node,
    plan_of,
    sweep,
    world_of,
)
from tests.unit.sweep.sweeps import (
    OOM,
    PORT,
    TWO,
    event_texts,
    launches,
)

DIED = Failure(FailureKind.DIED_AT_START, "It ended before it was ready.")
THREE = TWO + ", {tensor_parallel_size: 4, max_num_seqs: 16}"


def placed_on(store: Store) -> list[str]:
    return [row.placement_json.partition('"node_id": "')[2][:1] for row in launches(store)]


def test_a_node_that_failed_two_launches_rests_for_a_stated_time(
    store: Store,
) -> None:
    world = world_of([node("a")], fails={"ready": [PORT, PORT]})
    report = sweep(world, plan_of(), store)
    assert report.counts.measured == 1
    began = [(row.started_unix_ns - 10**18) / 1e9 for row in launches(store)]
    assert began[1] - began[0] < 30
    assert began[2] - began[1] >= FIRST_WAIT_S
    assert "rests for 120 s: 2 launches on it failed" in event_texts(world, "node_rests")[0]


def test_a_node_rests_whose_gpu_memory_is_not_free_after_a_launch(store: Store) -> None:
    world = world_of([node("a")], fails={"stop": [("GPU-1",), None]})
    report = sweep(world, plan_of(TWO), store)
    assert (report.counts.measured, report.counts.failed) == (2, 0)
    assert event_texts(world, "gpu_dirty") == ["memory is still in use on GPU-1"]
    (rests,) = event_texts(world, "node_rests")
    assert "a rests for 120 s: memory is still in use on GPU-1" in rests
    first, second = sorted(launches(store), key=lambda row: row.started_unix_ns)
    assert second.started_unix_ns - first.started_unix_ns >= (82 + 120) * 10**9  # held for 82 s


def test_each_further_failure_makes_it_rest_twice_as_long(store: Store) -> None:
    world = world_of([node("a")], fails={"ready": [PORT] * 4})
    assert sweep(world, plan_of(), store).counts.failed == 1
    assert [text.split()[4] for text in event_texts(world, "node_rests")] == ["120", "240", "480"]


def test_only_nodes_that_rest_are_left_out() -> None:
    now_s, heard = [0.0], list[Event]()
    breakers = Breakers(lambda: now_s[0], heard.append)
    nodes = [node("a"), node("b")]
    breakers.failed(PORT, "ab")
    assert breakers.usable(nodes) == nodes
    breakers.failed(PORT, "a")
    breakers.failed(PORT, "a")  # of a launch that was under way: the rest is not longer by it
    assert breakers.usable(nodes) == nodes[1:]
    now_s[0] = FIRST_WAIT_S
    assert breakers.usable(nodes) == nodes
    breakers.rest("b", "memory is still in use on GPU-1")
    assert breakers.usable(nodes) == nodes[:1]
    assert [one.data["node"] for one in heard] == ["a", "b"]


def test_a_point_measured_on_a_node_clears_what_it_failed_before(store: Store) -> None:
    world = world_of([node("a")], fails={"ready": [PORT, None, PORT]})
    sweep(world, plan_of(TWO), store)
    assert event_texts(world, "node_rests") == []


def test_a_wrong_configuration_is_held_against_no_node(store: Store) -> None:
    world = world_of([node(name) for name in "abc"], fails={"ready": [OOM] * 9})
    sweep(world, plan_of(THREE), store)
    assert event_texts(world, "node_rests") == event_texts(world, "paused") == []


def test_the_same_failure_on_three_nodes_pauses_the_sweep(
    store: Store,
) -> None:
    world = world_of([node(name) for name in "abc"], fails={"ready": [DIED] * 3})
    report = sweep(world, plan_of(THREE), store)
    assert report.counts.measured == 3
    (text,) = event_texts(world, "paused")
    assert "engine_crash" in text
    assert "no new one for 120 s, then one as a probe" in text
    began = sorted((row.started_unix_ns - 10**18) / 1e9 for row in launches(store))
    assert began[3] - began[2] >= FIRST_WAIT_S
    assert began[4] - began[3] > 70  # the probe went alone
    assert began[5] - began[4] < 5
    assert event_texts(world, "goes_on")


def test_no_nodes_are_asked_for_while_the_sweep_pauses(store: Store) -> None:
    world = world_of([node(name) for name in "abc"], fails={"ready": [DIED] * 3}, autoscaler=True)
    asked: dict[float, int] = {}
    for when_s in (5.0, 60.0, 300.0):
        world.clock.at(when_s, lambda when_s=when_s: asked.update({when_s: len(world.desired)}))  # type: ignore[misc]
    five = ", ".join(f"{{tensor_parallel_size: 4, max_num_seqs: {at}}}" for at in range(8, 13))
    assert sweep(world, plan_of(five), store).counts.measured == 5
    assert asked == {5.0: 2, 60.0: 0, 300.0: 0}
    assert event_texts(world, "paused")


def test_one_launch_on_many_nodes_that_fails_is_one_failure() -> None:
    heard: list[Event] = []
    breakers = Breakers(lambda: 0.0, heard.append)
    for nodes in ("abcd", "abcd", "efgh", "abcd"):
        breakers.failed(DIED, nodes)
    assert not breakers.paused()
    breakers.failed(DIED, "a")
    assert breakers.paused()
    assert "on 8 nodes" in heard[0].text


def test_a_probe_that_fails_alike_pauses_twice_as_long(store: Store) -> None:
    world = world_of([node(name) for name in "abc"], fails={"ready": [DIED] * 4})
    sweep(world, plan_of(THREE), store)
    assert [
        text.partition("no new one for ")[2].split()[0] for text in event_texts(world, "paused")
    ] == [
        "120",
        "240",
    ]


def test_lost_hosts_of_one_node_rest_and_do_not_pause(store: Store) -> None:
    world = world_of([node("a"), node("b")], fails={"start": [HostLost("gone"), HostLost("gone")]})
    sweep(world, plan_of(), store)
    assert event_texts(world, "paused") == []

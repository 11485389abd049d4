"""Nodes that are lost, come late or never: how long a sweep waits, and what it says then."""

from __future__ import annotations

import pytest

from orchestrator.cluster.base import (
    Bundle,
    Footprint,
    Growth,
    NodeType,
    RefusedNodes,
)
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.sweep.resource_request import RETURN_S, ROOM_S
from tests.unit.sweep.simulation import (
    node,
    outcomes,
    plan_of,
    sweep,
    world_of,
)
from tests.unit.sweep.sweeps import (
    EIGHT,
    TWO,
    event_texts,
    growing,
    launches,
    points,
)


def test_a_lost_node_fails_its_launch_and_others_take_over(
    store: Store,
) -> None:
    world = world_of([node("a"), node("b")])
    world.clock.at(100.0, lambda: world.lose("a"))
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert outcomes(store) == [("ok", None), ("failed", "infra"), ("ok", None)]
    assert report.counts.measured == 2
    assert "engine.log" in str(launches(store)[0].reason)


def test_a_node_that_joins_is_used_at_once(store: Store) -> None:
    world = world_of([node("a")])
    world.clock.at(20.0, lambda: world.nodes.append(node("b")))
    report = sweep(world, plan_of(TWO), store)
    assert world.most_held == 2
    assert report.wall_s < 120


def test_a_lost_node_is_waited_for_before_its_deployments_are_given_up(store: Store) -> None:
    world = world_of([node("a")])
    world.clock.at(40.0, lambda: world.lose("a"))
    world.clock.at(70.0, lambda: world.nodes.append(node("c")))
    assert sweep(world, plan_of(), store).counts.measured == 1


def test_a_node_that_came_late_and_was_lost_is_waited_for_anew(store: Store) -> None:
    world = world_of([])
    world.clock.at(3.0, lambda: world.nodes.append(node("a")))
    world.clock.at(45.0, lambda: world.lose("a"))
    world.clock.at(45.0 + RETURN_S - 20.0, lambda: world.nodes.append(node("c")))
    assert sweep(world, plan_of(), store).counts.measured == 1


def test_a_lost_node_that_stays_away_gives_up_what_needs_it(store: Store) -> None:
    world = world_of([node("a")])
    world.clock.at(40.0, lambda: world.lose("a"))
    report = sweep(world, plan_of(), store)
    assert (report.counts.failed, launches(store)[-1].failure_kind) == (1, "no_room")
    assert 40 + RETURN_S <= report.wall_s < 60 + RETURN_S


def test_a_deployment_that_no_node_can_hold_is_given_up(
    store: Store,
) -> None:
    world = world_of([node("a", gpus=4)])
    report = sweep(
        world, plan_of("{tensor_parallel_size: 8}, {tensor_parallel_size: 4}, {replicas: 5}"), store
    )
    assert (report.counts.measured, report.counts.failed) == (1, 2)
    rows = [row for row in launches(store) if row.status == "failed"]
    assert {row.failure_kind for row in rows} == {"no_room"}
    assert {row.reason for row in rows} == {
        (
            "No room: the cluster's 1 node cannot hold one node with 8 GPUs (H100-80GB), and it has "
            "no autoscaler."
        ),
        (
            "No room: the cluster's 1 node cannot hold 5 x one node with 1 GPU (H100-80GB), and it "
            "has no autoscaler."
        ),
    }
    assert min(row.started_unix_ns for row in rows) >= 10**18 + ROOM_S * 1e9
    assert len(points(store)) == 3
    failed = [
        event for event in world.events if isinstance(event, Event) and event.kind == "failed"
    ]
    assert [event.data["told"] for event in failed] == [True, True], "the launch said why"


@pytest.mark.parametrize("up", [0, 1, 2])
def test_an_autoscaling_cluster_grows_for_the_whole_queue(up: int, store: Store) -> None:
    world = growing(up, 8)
    report = sweep(world, plan_of(EIGHT), store)
    assert report.counts.measured == 8
    assert world.most_held == 8
    assert report.wall_s < 180  # 60 s until the nodes are there, then one launch each
    assert world.desired == []


def test_a_launch_waits_for_nobody_that_waits_for_nodes(store: Store) -> None:
    world = growing(1, 1, grow_after_s=500.0)
    sweep(
        world,
        plan_of(
            "{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}, "
            "{tensor_parallel_size: 1}"
        ),
        store,
    )
    first, second = launches(store)
    assert first.placed_s is not None
    assert first.started_unix_ns - 10**18 < 1e9  # the small one, at once
    assert second.started_unix_ns - 10**18 >= 500e9


def test_nodes_that_never_come_are_waited_for_until_the_timeout(store: Store) -> None:
    world = growing(0, 0)
    report = sweep(world, plan_of(), store, placement_timeout_s=300.0)
    assert report.counts.failed == 1
    assert 300 <= report.wall_s < 310
    (row,) = launches(store)
    assert "none was added within 300 s" in str(row.reason)


NODE8 = Footprint((Bundle(8, 1.0),))
SET_UP_S = 900.0


@pytest.mark.parametrize(
    ("known_growth", "after_s", "why"),
    [
        (
            Growth(impossible=frozenset({NODE8})),
            5.0,
            "its autoscaler has no type of node that could.",
        ),
        (
            Growth(refused={"spot": RefusedNodes(2, "no capacity")}),
            300.0,
            "none was added within 300 s (launches of nodes were refused: 2 x spot (no capacity)).",
        ),
        (
            Growth(silent="it has not reported"),
            300.0,
            "none was added within 300 s (it has not reported).",
        ),
        (Growth(coming={"h8": 1}), 1200.0, "none was added within 1200 s."),
    ],
)
def test_a_wait_for_nodes_ends_with_what_the_autoscaler_said(
    known_growth: Growth, after_s: float, why: str, store: Store
) -> None:
    world = growing(0, 0, known_growth=known_growth)
    report = sweep(world, plan_of(), store, placement_timeout_s=300.0)
    assert after_s <= report.wall_s < after_s + 10
    (row,) = launches(store)
    assert str(row.reason).endswith(f"cannot hold one node with 1 GPU (H100-80GB), and {why}")
    reason = known_growth.why_no_nodes()
    assert event_texts(world, "autoscaler") == ([reason] if reason else [])


def test_node_types_that_no_label_tells_apart_are_told_once(
    store: Store,
) -> None:
    types = tuple(NodeType(name, 8, 96.0, 4, {"accelerator": name}) for name in ("H100", "A10"))
    world = growing(0, 8, known_growth=Growth(types=types))
    sweep(world, plan_of(EIGHT), store)
    (text,) = event_texts(world, "autoscaler")
    assert text.startswith(
        "for H100-80GB the autoscaler may add nodes of H100, A10: no label of the hardware"
    )


def test_a_node_that_is_being_set_up_is_waited_for(store: Store) -> None:
    world = growing(0, 1, grow_after_s=SET_UP_S, known_growth=Growth(coming={"h8": 1}))
    assert sweep(world, plan_of(), store, placement_timeout_s=300.0).counts.measured == 1


@pytest.mark.parametrize(("up", "can_add"), [(0, 8), (2, 8), (8, 0)])
def test_launches_hold_and_ask_for_no_more_nodes_than_the_user_allows(
    up: int, can_add: int, store: Store
) -> None:
    world = growing(up, can_add)
    assert sweep(world, plan_of(EIGHT), store, most_nodes=3).counts.measured == 8
    assert world.most_held == 3
    assert len(world.nodes) == max(up, 3)


def test_a_launch_of_more_nodes_than_allowed_is_given_up_at_once(store: Store) -> None:
    gang = "{tensor_parallel_size: 8, nnodes: 2, pipeline_parallel_size: 2}"
    report = sweep(
        growing(0, 8), plan_of(f"{gang}, {{tensor_parallel_size: 8}}"), store, most_nodes=1
    )
    assert (report.counts.measured, report.counts.failed) == (1, 1)
    given_up = launches(store)[0]
    assert given_up.started_unix_ns - 10**18 < 2e9
    assert str(given_up.reason).endswith("and it takes 2 nodes where --max-nodes allows 1.")


def test_that_no_node_has_a_gpu_is_said_in_those_words(store: Store) -> None:
    sweep(world_of([node("a", 0)]), plan_of(), store)
    (row,) = launches(store)
    assert row.reason == (
        "No room: no node has a GPU, so the cluster's 1 node cannot hold one node with 1 GPU"
        " (H100-80GB), and it has no autoscaler."
    )

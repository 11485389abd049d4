"""What a sweep does when nodes are taken back or fail again and again, and when its storage refuses
for minutes.
"""

from __future__ import annotations

import errno
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import (
    Failure,
    FailureKind,
    NoClient,
    PlacementError,
    ResultsError,
)
from orchestrator.cluster.base import Avoidance, ClientLost
from orchestrator.node.readiness import Ready
from orchestrator.results import blobs
from orchestrator.results.events import KINDS
from orchestrator.results.store import Store
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.sweep import Sweep
from tests.unit.sweep.simulation import (
    FULL_DISK,
    World,
    node,
    outcomes,
    plan_of,
    steps,
    sweep,
    world_of,
)
from tests.unit.sweep.sweeps import (
    OOM,
    TWO,
    event_texts,
    launches,
    points,
)

DIED = Failure(FailureKind.DIED_AT_START, "It ended before it was ready.")
THREE = TWO + ", {tensor_parallel_size: 4, max_num_seqs: 16}"


@pytest.fixture
def refuses(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Between these seconds of virtual time every write to the folder fails."""
    write = blobs._write_beside_and_rename

    def between(
        world: World, start_s: float, end_s: float, number: int = errno.ENOSPC, only: str = ""
    ) -> None:
        def faulty(path: Path, data: bytes) -> None:
            if start_s <= world.clock.now_s() < end_s and only in str(path):
                raise OSError(number, "the storage refuses")
            write(path, data)

        monkeypatch.setattr(blobs, "_write_beside_and_rename", faulty)

    return between


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
def test_rows_wait_for_storage_that_refuses_for_minutes_and_engines_stay_up(
    number: int, store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of([node("a"), node("b")])
    refuses(world, 60.0, 660.0, number)
    report = sweep(world, plan_of(THREE, levels="1, 2"), store)
    assert report.counts.measured == 6
    assert report.counts.failed == 0
    assert outcomes(store) == [("ok", None)] * 6
    assert steps(world)["start"] == 3  # none was started again
    assert {row.status for row in launches(store)} == {"ok"}
    assert any(
        "the storage refuses" in text and "at most 900 s" in text
        for text in event_texts(world, "storage")
    )
    assert any("answers again after" in text for text in event_texts(world, "storage"))
    assert 660 < world.clock.now_s() < 660 + 300


def test_no_launch_begins_while_the_storage_refuses(
    store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of([node("a")])
    refuses(world, 60.0, 400.0)
    world.clock.at(100.0, lambda: world.nodes.append(node("b")))
    sweep(world, plan_of(TWO), store)
    began = sorted(row.started_unix_ns for row in launches(store))
    assert (began[1] - 10**18) / 1e9 >= 400


def test_a_short_refusal_of_the_storage_keeps_no_launch_from_starting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of()
    context, says = SweepContext(plan_of(), world, store, clock=world.clock), iter([True, False])  # type: ignore[arg-type]
    monkeypatch.setattr(context, "may_start", lambda: next(says, True))
    assert Sweep(context).run().counts.measured == 1


def test_a_storage_that_stays_away_ends_the_sweep_after_its_limit(
    store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of([node("a"), node("b")])
    refuses(world, 60.0, math.inf)
    with pytest.raises(
        ResultsError, match=r"refused for 3\d\d s.*No space|refuses.*same command again"
    ):
        sweep(world, plan_of(THREE, levels="1, 2"), store, storage_timeout_s=300.0)
    assert world.held == {}
    assert 360 < world.clock.now_s() < 500
    refuses(world, 0.0, 0.0)
    again = sweep(world_of(), plan_of(THREE, levels="1, 2"), Store.open(store.uri, "x"))
    assert again.counts.measured + again.counts.skipped == 6


def test_an_interrupt_does_not_wait_for_the_storage(
    store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of()
    refuses(world, 60.0, math.inf)
    report = sweep(world, plan_of(levels="1, 2"), store, interrupt_s=120.0)
    assert report.interrupted
    assert world.clock.now_s() < 125


def test_a_client_that_the_storage_refuses_is_not_lost(
    store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of(
        fails={"clients": [PlacementError("no client on node a: the storage refuses"), None]}
    )
    refuses(world, 5.0, 200.0)
    assert sweep(world, plan_of(), store).counts.measured == 1
    assert [one for one in world.log if one in ("start", "clients")] == [
        "start",
        "clients",
        "clients",
    ]


def test_after_an_outage_clients_start_where_they_should_have_before(
    store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of(
        fails={"clients": [NoClient("no client on node a: the storage refuses", {"a"}), None]}
    )
    refuses(world, 5.0, 200.0)
    assert sweep(world, plan_of(), store).counts.measured == 1
    assert world.avoided[0] == world.avoided[1]


def test_where_no_client_starts_others_are_tried_and_then_the_launch_fails(store: Store) -> None:
    def gone(name: str) -> NoClient:
        return NoClient(f"a load client did not start on node {name}: it ended", {name})

    world = world_of(fails={"clients": [gone("x"), gone("y"), None]})
    assert sweep(world, plan_of(), store).counts.measured == 1
    assert [one.keys() & {"x", "y"} for one in world.avoided] == [set(), {"x"}, {"x", "y"}]
    assert steps(world)["start"] == 1
    world = world_of(fails={"clients": [gone("x"), gone("y"), gone("z"), None]})
    sweep(world, plan_of("{tensor_parallel_size: 2}"), store)
    assert "did not start on node z" in event_texts(world, "retry")[0]


@pytest.mark.parametrize(
    "fails", [{"prepare": [None, ClientLost([0], FULL_DISK)]}, {"load": ["full"]}]
)
def test_a_point_whose_clients_disk_is_full_is_measured_with_clients_elsewhere(
    store: Store, fails: dict[str, list[Any]]
) -> None:
    world = world_of([node("a"), node("b")], fails=fails)
    world.unfit = {"a"}
    report = sweep(world, plan_of(levels="1, 2"), store)
    assert report.counts.measured == 2
    assert outcomes(store) == [("failed", "infra"), ("ok", None), ("ok", None)]
    assert FULL_DISK in event_texts(world, "retry")[0]
    assert [avoided.get("a") is Avoidance.UNFIT for avoided in world.avoided] == [False, True]


def test_a_full_disk_without_other_hosts_fails_the_point_after_its_tries(store: Store) -> None:
    world = world_of(fails={"load": ["full"] * 9})
    report = sweep(world, plan_of(), store)
    assert report.counts.failed == 1
    assert outcomes(store) == [("failed", "infra")] * 4


def test_one_launch_whose_row_cannot_be_stored_does_not_end_the_others(
    store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of([node("a"), node("b")])
    refuses(world, 0.0, 100.0, errno.EACCES, only="data/launches")
    report = sweep(world, plan_of(TWO), store)
    assert report.counts.measured == 2
    assert len(event_texts(world, "row_lost")) == 2


@pytest.mark.parametrize(
    ("says", "measured", "without_row"),
    [
        (Ready({}, "0.32.\ud800"), 2, 0),
        (Failure(FailureKind.OOM_LOAD, "Half of a character: \ud83d"), 1, 1),  # nor can a point's
    ],
)
def test_a_launch_whose_row_cannot_be_made_costs_its_rows_alone(
    says: object, measured: int, without_row: int, store: Store
) -> None:
    report = sweep(world := world_of(fails={"ready": [says, None]}), plan_of(TWO), store)
    assert (report.counts.measured, report.counts.without_row) == (measured, without_row)
    assert report.counts.over_budget == 0
    assert len(event_texts(world, "row_lost")) == 1 + without_row
    assert len(launches(store)) == 1
    assert "measured" in store.read("events").column("kind").to_pylist()


def test_events_of_a_launch_without_row_are_stored_with_the_next(
    store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of()
    refuses(world, 0.0, 100.0, errno.EACCES, only="data/launches")
    sweep(world, plan_of(TWO), store)
    kinds = store.read("events").column("kind").to_pylist()
    assert (kinds.count("launch"), kinds.count("measured"), kinds.count("row_lost")) == (2, 2, 1)


def test_a_sweep_ends_though_rows_of_failures_cannot_be_stored(
    store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of(fails={"ready": [OOM] * 9})
    refuses(world, 0.0, math.inf, errno.EACCES, only="data/points")
    report = sweep(world, plan_of(), store)
    assert (report.counts.without_row, steps(world)["ready"]) == (1, 1)
    texts = event_texts(world, "row_lost")
    assert any(text.startswith("rows that say why cannot be stored") for text in texts)
    assert "the rows that say why" in KINDS["row_lost"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_what_waiting_does_not_change_is_not_waited_for(
    number: int, store: Store, refuses: Callable[..., None]
) -> None:
    world = world_of()
    refuses(world, 0.0, math.inf, number)
    with pytest.raises(ResultsError):
        sweep(world, plan_of(), store)
    assert world.clock.now_s() == 0


def test_a_point_that_ends_before_its_node_is_gone_is_finished(
    store: Store,
) -> None:
    world = world_of([node("a"), node("b")])
    world.clock.at(20.0, lambda: world.gone_s.update(a=140.0))  # the first point ends at 82
    sweep(world, plan_of(levels="1, 2"), store)
    assert outcomes(store) == [("ok", None)] * 2
    assert [(row.failure_kind, row.failure_class) for row in launches(store)] == [
        ("preempted", "infra"),
        (None, None),
    ]
    assert '"node_id": "b"' in launches(store)[1].placement_json
    assert launches(store)[0].log_uri  # it was stopped in order


def test_a_point_longer_than_its_node_lasts_is_measured_elsewhere(
    store: Store,
) -> None:
    world = world_of([node("a"), node("b")])
    world.clock.at(20.0, lambda: world.gone_s.update(a=50.0))
    report = sweep(world, plan_of(), store)
    assert outcomes(store) == [("failed", "infra"), ("ok", None)]
    first = min(points(store), key=lambda row: row.attempt_id)
    assert "taken back" in str(first.reason)
    ended_s = (launches(store)[1].started_unix_ns - 10**18) / 1e9
    assert ended_s < 30  # nobody waited for the end of the node
    assert report.counts.measured == 1


def test_no_point_begins_through_a_client_whose_node_is_being_taken_back(store: Store) -> None:
    world = world_of(client_nodes=["c", "d"])
    world.clock.at(20.0, lambda: world.gone_s.update(c=math.inf))  # in the first point
    sweep(world, plan_of(levels="1, 2, 3"), store)
    assert [step for step in world.log if step in ("clients", "load")] == [
        "clients",
        "load",
        "clients",
        "load",
        "load",
    ]
    assert (outcomes(store), steps(world)["start"]) == ([("ok", None)] * 3, 1)


@pytest.mark.parametrize("gone_s", [500.0, math.inf])
def test_a_start_on_a_node_that_drains_is_not_waited_for(gone_s: float, store: Store) -> None:
    world = world_of([node("a"), node("b")], ready_after_s=300.0)
    world.clock.at(5.0, lambda: world.gone_s.update(a=gone_s))
    sweep(world, plan_of(), store)
    assert outcomes(store) == [("ok", None)]
    assert world.clock.now_s() < 400


def test_nodes_that_are_taken_back_do_not_use_up_the_tries(
    store: Store,
) -> None:
    names = "abcdefg"
    world = world_of([node(name) for name in names])
    for at, name in enumerate(names[:-1]):
        world.clock.at(5.0 + 8 * at, lambda name=name: world.gone_s.update({name: math.inf}))  # type: ignore[misc]
    report = sweep(world, plan_of(), store)
    assert report.counts.measured == 1
    assert len(launches(store)) == 7


def test_a_sweep_ends_in_order_when_all_nodes_are_taken_back(
    store: Store,
) -> None:
    world = world_of([node("a"), node("b")])
    # the first points end at 82
    world.clock.at(20.0, lambda: world.gone_s.update(a=140.0, b=140.0))
    report = sweep(
        world,
        plan_of("{max_num_seqs: 1}, {max_num_seqs: 2}, {max_num_seqs: 3}", levels="1, 2"),
        store,
    )
    assert outcomes(store) == [("ok", None)] * 2
    assert (report.counts.failed, report.left_by_stop) == (0, 4)
    assert event_texts(world, "taken_back") == [
        "all nodes are being taken back: run it on others to continue"
    ]
    assert {row.failure_kind for row in launches(store)} == {"preempted"}


@pytest.mark.parametrize("gone_s", [10.0, math.inf])
def test_a_lost_last_node_is_waited_for_after_another_was_taken_back(
    gone_s: float, store: Store
) -> None:
    world = world_of([node("a"), node("b")])
    world.clock.at(5.0, lambda: world.gone_s.update(a=gone_s))
    world.clock.at(40.0, lambda: world.lose("b"))
    world.clock.at(70.0, lambda: world.nodes.append(node("c")))
    report = sweep(world, plan_of(), store)
    assert (report.counts.measured, report.left_by_stop) == (1, 0)
    assert event_texts(world, "taken_back") == []


def test_replicas_on_a_lost_node_are_released_before_other_ranks_stop(
    store: Store,
) -> None:
    world = world_of([node("a"), node("b")])
    world.clock.at(40.0, lambda: world.lose("b"))
    world.clock.at(60.0, lambda: world.nodes.append(node("c")))
    sweep(world, plan_of("{tensor_parallel_size: 8, pipeline_parallel_size: 2, nnodes: 2}"), store)
    assert [one for one in world.log if one in ("stop", "release")] == [
        "release",
        "stop",
        "stop",
        "release",
    ]


def test_a_log_is_named_by_its_rank_although_another_rank_was_lost(store: Store) -> None:
    world = world_of([node("a"), node("b")])
    world.clock.at(40.0, lambda: world.lose("a"))
    world.clock.at(60.0, lambda: world.nodes.append(node("c")))
    sweep(world, plan_of("{tensor_parallel_size: 8, replicas: 2}"), store)
    assert [str(row.log_uri).rpartition("/")[2] for row in launches(store)] == [
        "rank1.log",
        "rank0.log",
    ]


def test_a_point_is_measured_on_the_last_node_after_many_preemptions(
    store: Store,
) -> None:
    names = "abcdefg"
    world = world_of([node(name) for name in names])

    def take_back(name: str) -> None:
        world.gone_s[name] = world.clock.now_s() + 20

    for at, name in enumerate(names[:-1]):  # each in the middle of the point
        world.clock.at(20.0 + 22 * at, functools.partial(take_back, name))
    report = sweep(world, plan_of(), store)
    assert (report.counts.measured, report.counts.failed) == (1, 0)
    assert outcomes(store) == [("failed", "infra")] * 6 + [("ok", None)]

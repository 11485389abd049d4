"""What tests of whole sweeps share: failures, deployments, and what a sweep left in the store."""

from __future__ import annotations

from typing import Any

from orchestrator.base.errors import (
    Failure,
    FailureKind,
)
from orchestrator.results.events import Event
from orchestrator.results.records import LaunchRow, PointRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store
from tests.unit.sweep.simulation import (
    World,
    node,
    world_of,
)

OOM = Failure(FailureKind.OOM_LOAD, "It ran out of memory.")
DIED = Failure(FailureKind.ENGINE_DEAD, "It died.", log_tail="last words")
NEVER = Failure(FailureKind.NEVER_READY, "It was not ready in time.")
PORT = Failure(FailureKind.PORT_TAKEN, "A port is taken.")
MISSING = Failure(FailureKind.NO_EXECUTABLE, "The engine is not installed.")
EIGHT = ", ".join(f"{{tensor_parallel_size: {gpus}}}" for gpus in (1, 2, 4, 8)) + ", " + ", ".join(
    f"{{tensor_parallel_size: {gpus}, max_num_seqs: 8}}" for gpus in (1, 2, 4, 8)
)  # fmt: skip


def launches(store: Store) -> list[LaunchRow]:
    rows = rows_of(store.read("launches", include_failed=True), LaunchRow)
    return sorted(rows, key=lambda row: row.started_unix_ns)


def points(store: Store) -> list[PointRow]:
    return rows_of(store.read("points", include_failed=True), PointRow)


# two deployments of 4 GPUs, each 12 s of start (60 s are expected of the first), then two points of
# 70 s
TWO = "{tensor_parallel_size: 4}, {tensor_parallel_size: 4, max_num_seqs: 8}"


def growing(up: int, can_add: int, **given: Any) -> World:
    return world_of(
        [node(f"up{at}") for at in range(up)],
        grows_by=[node(f"new{at}") for at in range(can_add)],
        autoscaler=True,
        **given,
    )


def event_texts(world: World, kind: str) -> list[str]:
    """The texts of all events of one kind."""
    events = [event for event in world.events if isinstance(event, Event)]
    return [event.text for event in events if event.kind == kind]

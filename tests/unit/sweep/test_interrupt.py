"""An interrupt leaves nothing running and loses nothing that was measured."""

from __future__ import annotations

import threading

import pytest

from orchestrator.results.store import Store
from tests.unit.sweep.simulation import (
    FakeAgent,
    node,
    outcomes,
    plan_of,
    steps,
    sweep,
    world_of,
)
from tests.unit.sweep.sweeps import (
    TWO,
    launches,
)


def test_an_interrupted_sweep_stops_its_engines_and_keeps_what_was_measured(store: Store) -> None:
    world = world_of([node("a"), node("b")])
    # in the second points
    report = sweep(world, plan_of(TWO, levels="1, 2"), store, interrupt_s=100.0)
    assert (report.interrupted, report.left_by_stop) == (True, 2)
    assert (report.counts.measured, outcomes(store)) == (2, [("ok", None)] * 2)
    assert steps(world)["stop"] == steps(world)["release"] == 2
    assert world.held == {}
    assert sweep(world_of([node("a")]), plan_of(TWO, levels="1, 2"), store).counts.skipped == 2


# one launch places until 1, starts until 11, gives its first answers until 12, loads until 82, then
# the second point
@pytest.mark.parametrize(
    "when_s", [0.0, 0.5, 1.0, 5.0, 11.5, 12.0, 15.0, 40.0, 81.9, 82.0, 83.0, 120.0, 150.5]
)
def test_an_interrupt_leaves_nothing_running_and_loses_nothing_measured(
    when_s: float, store: Store
) -> None:
    world = world_of()
    report = sweep(world, plan_of(levels="1, 2"), store, interrupt_s=when_s)
    assert report.interrupted
    assert report.left_by_stop == 2 - report.counts.measured
    assert (world.held, outcomes(store)) == ({}, [("ok", None)] * report.counts.measured)
    assert len(launches(store)) == steps(world)["place"]
    logs = [store.read_log(row.log_uri) for row in launches(store) if row.log_uri]
    assert logs == [b"the log"] * steps(world)["start"]
    assert world.clock.now_s() < when_s + 5
    again = sweep(world_of(), plan_of(levels="1, 2"), store)
    assert (again.counts.skipped, again.counts.measured, again.left_by_stop) == (
        report.counts.measured,
        report.left_by_stop,
        0,
    )


def test_a_sweep_that_ends_by_itself_was_not_stopped(store: Store) -> None:
    # what the run's record says, and whether the storage is tried again afterwards
    stop = threading.Event()
    assert sweep(world_of(), plan_of(), store, stop=stop).counts.measured == 1
    assert not stop.is_set()


def test_an_interrupt_after_the_last_measurement_is_none(store: Store) -> None:
    report = sweep(world_of(), plan_of(), store, interrupt_s=82.5)  # its engine is being stopped
    assert (report.interrupted, report.counts.measured) == (False, 1)


def test_what_is_complete_is_committed_before_engines_are_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GraceOver(BaseException):
        """`ray job stop` sends SIGKILL."""

    def never(agent: FakeAgent) -> None:
        raise GraceOver

    monkeypatch.setattr(FakeAgent, "stop", never)
    sweep(world_of(), plan_of(levels="1, 2"), store, interrupt_s=100.0)
    assert (outcomes(store), [row.status for row in launches(store)]) == ([("ok", None)], ["ok"])


def test_a_launch_that_was_being_placed_starts_no_engine(store: Store) -> None:
    world = world_of()
    sweep(world, plan_of(), store, interrupt_s=0.5)
    assert (steps(world)["place"], steps(world)["start"]) == (1, 0)

"""The states of a launch: every pair of state and event, and what random events lead to."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import Occupied
from orchestrator.cluster.base import ClientLost, HostLost
from orchestrator.results.events import Event
from orchestrator.results.phases import LaunchState, Phase, PhaseName
from orchestrator.results.store import Store
from orchestrator.sweep.admission import Reservation
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.launch_state import (
    TRANSITIONS,
    ImpossibleTransition,
    LaunchEvent,
    LaunchRecord,
)
from orchestrator.sweep.resource_request import ResourceRequest
from orchestrator.sweep.state import SweepState
from orchestrator.sweep.sweep import Sweep
from tests.unit.sweep.simulation import World, node, plan_of, world_of
from tests.unit.sweep.sweeps import DIED, OOM

# What each event (column) makes of each state (row); a point: it cannot happen there
TABLE = """
          admitted refused host_held hosts_taken serving load_began load_ended stop_began stopped requeued
queued    placing  refused .         .           .       .          .          .          .       .
placing   .        .       occupied  starting    .       .          .          stopping   .       .
occupied  .        .       occupied  starting    .       .          .          stopping   .       .
starting  .        .       .         .           ready   .          .          stopping   .       .
ready     .        .       .         .           .       loading    .          stopping   .       .
loading   .        .       .         .           .       .          ready      stopping   .       .
stopping  .        .       .         .           .       .          .          .          ended   queued
ended     .        .       .         .           .       .          .          .          .       .
refused   .        .       .         .           .       .          .          .          .       .
"""
PLAN = plan_of()


def record_in(state: LaunchState) -> LaunchRecord:
    record = LaunchRecord(PLAN.deployments[0])
    record.state = state
    return record


def table() -> list[tuple[LaunchState, LaunchEvent, LaunchState | None]]:
    header, *lines = [line.split() for line in TABLE.strip().splitlines()]
    events = [LaunchEvent[name.upper()] for name in header]
    rows = []
    for name, *cells in lines:
        for event, cell in zip(events, cells, strict=True):
            following = None if cell == "." else LaunchState(cell)
            rows.append((LaunchState(name), event, following))
    return rows


@pytest.mark.parametrize(("state", "event", "following"), table())
def test_an_event_changes_the_state_as_the_table_says(
    state: LaunchState, event: LaunchEvent, following: LaunchState | None
) -> None:
    record = record_in(state)
    if following is None:
        with pytest.raises(ImpossibleTransition, match=f"while it is {state}"):
            record.advance(event)
        assert record.state is state
    else:
        record.advance(event)
        assert record.state is following


def test_the_table_has_every_state_and_every_event() -> None:
    rows = table()
    assert {state for state, *_ in rows} == set(LaunchState)
    assert {event for _, event, _ in rows} == set(LaunchEvent)


@given(st.lists(st.sampled_from(list(LaunchEvent)), max_size=60))
def test_whatever_happens_a_launch_that_got_nodes_stops_before_it_is_over(
    events: list[LaunchEvent],
) -> None:
    record = LaunchRecord(PLAN.deployments[0])
    states = [record.state]
    for event in events:
        possible = (record.state, event) in TRANSITIONS
        try:
            record.advance(event)
        except ImpossibleTransition:
            assert not possible
            continue
        assert possible
        states.append(record.state)
    for before, after in zip(states, states[1:], strict=False):
        if after is LaunchState.ENDED:
            assert before is LaunchState.STOPPING
        if after is LaunchState.LOADING:
            assert before is LaunchState.READY
        if after is LaunchState.REFUSED:
            assert before is LaunchState.QUEUED


def test_every_state_leads_to_an_end() -> None:
    ends = {LaunchState.ENDED, LaunchState.REFUSED}
    for _ in LaunchState:
        ends |= {state for (state, _), following in TRANSITIONS.items() if following in ends}
    assert ends == set(LaunchState)


@pytest.mark.parametrize(
    ("step", "instead"),
    [
        ("load", None),
        ("start", HostLost("gone")),
        ("ready", OOM),
        ("first", DIED),
        ("load", DIED),
        ("prepare", ClientLost([0], "killed")),
        ("lease", Occupied("others hold it")),
    ],
    ids=lambda value: str(value)[:16],
)
def test_what_a_launch_is_shown_to_do_belongs_to_its_state(
    step: str, instead: object, tmp_path: Path
) -> None:
    world = world_of([node("a"), node("b")], fails={step: [instead, None]})
    shown = phases_checked_against_states(world, Store.open(str(tmp_path), "x"))
    assert {PhaseName.PLACE, PhaseName.START, PhaseName.STOP, PhaseName.ENDED} <= set(shown)


def phases_checked_against_states(world: World, store: Store) -> list[PhaseName]:
    """What the launch of PLAN is shown to do during a sweep, each checked when it is told."""
    state = SweepState()
    (deployment,) = PLAN.deployments
    shown: list[PhaseName] = []

    def listen(item: Event | Phase) -> None:
        if isinstance(item, Phase) and isinstance(item.name, PhaseName):
            shown.append(item.name)
            assert item.state is state.launch(deployment).state

    context = SweepContext(PLAN, world, store, listen, clock=world.clock, state=state)
    Sweep(context).run()
    return shown


def test_a_launch_that_no_node_can_hold_is_shown_as_refused(tmp_path: Path) -> None:
    world = world_of([node("small", gpus=0)])
    shown = phases_checked_against_states(world, Store.open(str(tmp_path), "x"))
    assert list(dict.fromkeys(shown)) == [PhaseName.WAIT_FOR_NODES, PhaseName.REFUSED]


def test_a_launch_that_queues_again_is_shown_as_queued_until_placed(
    tmp_path: Path,
) -> None:
    world = world_of([node("a"), node("b")], fails={"lease": [Occupied("others hold it"), None]})
    shown = phases_checked_against_states(world, Store.open(str(tmp_path), "x"))
    assert shown.count(PhaseName.ENDED) == 1
    after_queued = shown[shown.index(PhaseName.QUEUED) + 1]
    assert after_queued is PhaseName.PLACE


def test_a_launch_knows_why_it_was_admitted() -> None:
    plan = plan_of("{tensor_parallel_size: 8}, {tensor_parallel_size: 4}")
    reservation = Reservation(ResourceRequest(), (), 0.0)
    head, other = (LaunchRecord(deployment) for deployment in plan.deployments)
    other.admit(reservation, frozenset({"b", "a"}), head)
    assert other.admission.data() == {
        "why": "backfill",
        "ahead": head.deployment.label,
        "avoided": ["a", "b"],
    }
    head.admit(reservation, frozenset(), None)
    assert head.admission.data() == {"why": "reserved"}
    again = LaunchRecord(head.deployment)
    again.admit(reservation, frozenset(), None)
    assert again.admission.data() == {"why": "first"}

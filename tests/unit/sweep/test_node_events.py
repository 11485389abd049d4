"""Decisions about nodes are events, each told once as long as it stays so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from orchestrator.cluster.base import Bundle, Footprint
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase, PhaseName
from orchestrator.results.store import Store
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.node_events import ClusterWithEvents
from tests.unit.plan.stored_sweeps import planned
from tests.unit.sweep.simulation import node


def test_changes_of_nodes_and_of_wanted_nodes_are_told() -> None:
    told: list[Event] = []
    there, desired = [node("1")], list[object]()
    watched = ClusterWithEvents(
        SimpleNamespace(
            machines=lambda: list(there), desire=lambda wanted, _: desired.append(wanted), note="n"
        ),
        told.append,
    )
    assert watched.note == "n"
    assert watched.machines() == there
    there.append(node("2"))
    for _ in range(2):
        watched.machines()
    del there[0]
    watched.machines()
    two = [Footprint((Bundle(8, 8.0),))] * 2
    for wanted in (two, two, []):
        watched.desire(wanted)
    assert [(one.kind, one.text) for one in told] == [
        ("nodes_changed", "nodes 1 joined: 2 at 10.0.0.2; 2 in all"),
        ("nodes_changed", "nodes 1 left: 1 at 10.0.0.1; 1 in all"),
        ("nodes_wanted", "asks the cluster for nodes: 2 x one node with 8 GPUs"),
        ("nodes_wanted", "asks the cluster for nodes: none beside those it uses"),
    ]
    assert told[0].data == {"joined": ["2"], "left": []}
    assert told[2].data == {"one node with 8 GPUs": 2}
    assert len(desired) == 3


def test_a_deployment_that_waits_for_nodes_is_an_event_once(tmp_path: Path) -> None:
    shown: list[Event | Phase] = []
    context = SweepContext(
        planned(), SimpleNamespace(note=None), Store.open(str(tmp_path), "x"), shown.append
    )
    for waited_s in (0.0, 1.0):
        context.tell(
            Phase("tp=16", PhaseName.WAIT_FOR_NODES, "2 nodes with 8 GPUs each", waited_s, 900.0)
        )
    (event,) = context.news.take_events()
    assert (event.kind, event.deployment) == ("waiting", "tp=16")
    assert (
        event.text
        == "there is no room for 2 nodes with 8 GPUs each now: waits up to 900 s for others"
    )
    assert len(shown) == 3

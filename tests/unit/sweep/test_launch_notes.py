"""What is found out about a launch, and how it is told and stored."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.clock import Clock
from orchestrator.base.errors import Failure, FailureKind, ResultsError
from orchestrator.cluster.base import HostLost
from orchestrator.node.readiness import Ready
from orchestrator.plan.model import Deployment
from orchestrator.results.events import Event
from orchestrator.results.store import Store
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.sweep.launch_notes import LaunchNotes
from orchestrator.sweep.news import SweepNews

H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8)
SETTINGS = EngineSettings(engine="vllm", model="m", pipeline_parallel_size=2, nnodes=2)
DEPLOYMENT = Deployment(id="d", label="d", settings=SETTINGS, hardware=H100, status="planned")
FAILURE = Failure(FailureKind.ENGINE_DEAD, "It died.")


class Context:
    """The part of a ``SweepContext`` that notes use. ``told``: the events."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = Clock()
        self.news = SweepNews(lambda item: None)
        self.told: list[Event] = []

    def tell(self, item: object) -> None:
        if isinstance(item, Event):
            self.told.append(item)


@pytest.fixture
def context(store: Store) -> Context:
    return Context(store)


@pytest.fixture
def notes(context: Context) -> LaunchNotes:
    return LaunchNotes(context, DEPLOYMENT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "network", "kinds"),
    [
        ("0.32.1+cpu", "IB", []),
        ("0.33.0", "IB", []),
        ("0.34.0", "IB", ["other_version"]),
        ("0.32.0", "Socket", ["network"]),
        ("0.32.0", "not said", ["network"]),
        (None, "IB", []),
    ],
)
def test_another_version_and_a_slow_network_are_told_and_stored(
    context: Context, notes: LaunchNotes, version: str | None, network: str, kinds: list[str]
) -> None:
    notes.note_ready("", Ready({"network": network}, version))
    assert [event.kind for event in context.told] == kinds
    reported = json.loads(notes.row.engine_reported_json)
    assert reported["network"] == network
    assert reported.get("flags_known_as_of") == ("0.33" if "other_version" in kinds else None)


def agent(address: str, *gpus: str) -> Any:
    return SimpleNamespace(
        allocation=SimpleNamespace(address=address),
        environment=lambda: {"kernel": "6.8", "gpus": list(gpus)},
        host_facts=dict,
    )


def test_a_host_has_the_gpus_of_all_its_agents_and_is_told_of_once(
    context: Context, notes: LaunchNotes
) -> None:
    names = {"10.0.0.1": "a", "10.0.0.2": "b"}
    notes.note_environment([agent("10.0.0.1", "0"), agent("10.0.0.2", "4")], names)
    notes.note_environment([agent("10.0.0.1", "1")], names)
    hosts = json.loads(notes.row.environment_json)
    assert {name: host["gpus"] for name, host in hosts.items()} == {"a": ["0", "1"], "b": ["4"]}
    assert [event.text for event in context.told] == [
        "the facts of host a are stored, those that doctor judges",
        "the facts of host b are stored, those that doctor judges",
    ]


def test_a_lost_agent_leaves_out_its_host(notes: LaunchNotes) -> None:
    def lost() -> Any:
        raise HostLost("it is gone")

    lost_agent = agent("10.0.0.1")
    lost_agent.environment = lost
    notes.note_environment([lost_agent], {"10.0.0.1": "a"})
    assert json.loads(notes.row.environment_json) == {}


def test_the_row_has_the_command_and_the_place_of_each_rank(notes: LaunchNotes) -> None:
    notes.note_rank(("serve", "0"), {"rank": 0})
    notes.note_rank(("serve", "1"), {"rank": 1})
    assert json.loads(notes.row.argv_json) == [["serve", "0"], ["serve", "1"]]
    assert json.loads(notes.row.placement_json) == [{"rank": 0}, {"rank": 1}]


def test_a_log_that_cannot_be_stored_is_told_and_the_others_are_stored(
    context: Context, notes: LaunchNotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log = context.store.write_log

    def refuse_first(name: str, log: bytes) -> str:
        if name.endswith("rank0.log"):
            raise ResultsError("no room")
        return write_log(name, log)

    monkeypatch.setattr(context.store, "write_log", refuse_first)
    notes.store_logs({0: b"first", 1: b"second"})
    assert [event.kind for event in context.told] == ["log_lost"]
    assert notes.row.log_uri is not None
    assert context.store.read_log(notes.row.log_uri) == b"second"


def test_only_the_first_commit_counts(context: Context, notes: LaunchNotes) -> None:
    notes.note_rank(("serve",), {"rank": 0})
    notes.commit_first(FAILURE)
    notes.commit(None)
    (row,) = context.store.read("launches").to_pylist()
    assert row["failure_kind"] == "engine_dead"
    assert row["log_uri"].endswith(f"{notes.launch_id}/rank0.log")

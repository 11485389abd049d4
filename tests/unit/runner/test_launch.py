"""What a launch checks before it starts an engine, and when it gives up a place."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cluster.base import AgentLost, Bundle, Machine, Seat
from orchestrator.errors import EngineFailure, FailureClass
from orchestrator.plan.model import Deployment
from orchestrator.results.store import Store
from orchestrator.runner import launch
from orchestrator.runner.cores import CoreBook
from orchestrator.runner.events import Journal
from orchestrator.runner.hosts import HostBook
from orchestrator.runner.launch import (
    NO_ROOM,
    Launch,
    Record,
    Replicas,
    Site,
    check_accelerators,
    endpoint_key,
    need_of,
)
from orchestrator.spec.settings import EngineSettings, Hardware

H100 = Hardware(name="h100", accelerator="H100-80GB", gpus_per_node=8, labels={"pool": "a"})


class LostPlacement:
    """A replica whose agent is gone."""

    class Lost:
        seat = Seat("n", "10.0.0.1", "host-a", (), (0,), 1, (), "/tmp/l/engine.log")

        def failure(self) -> None:
            raise AgentLost("the actor died")

    agents = (Lost(),)


def test_a_lost_agent_leaves_word_of_where_its_log_is() -> None:
    failure = Replicas([LostPlacement()], ()).failure()  # type: ignore[list-item]
    assert failure is not None
    assert failure.failure_class is FailureClass.INFRA
    assert "host-a:/tmp/l/engine.log" in failure.sentence


@dataclass
class Sitting:
    """Stands for an agent, of which only its seat is asked."""

    seat: Seat


def sitting(*gpus: str) -> Sitting:
    return Sitting(Seat("n", "10.0.0.1", "host-a", ("0",), (0,), 1, gpus))


def test_the_accelerator_of_the_file_must_be_the_one_that_is_there() -> None:
    check_accelerators(H100, [sitting("NVIDIA H100 80GB HBM3 GPU-aa")])  # type: ignore[list-item]
    with pytest.raises(EngineFailure, match="host-a has NVIDIA A100") as caught:
        check_accelerators(H100, [sitting("NVIDIA A100-SXM4-80GB GPU-aa")])  # type: ignore[list-item]
    assert caught.value.failure.kind == "wrong_accelerator"


def test_an_accelerator_nobody_knows_is_not_judged() -> None:
    check_accelerators(Hardware(name="x", accelerator="prototype-9"), [sitting("NVIDIA A100 GPU-a")])  # type: ignore[list-item]


def test_a_replica_over_two_nodes_needs_a_bundle_on_each() -> None:
    settings = EngineSettings(engine="vllm", model="m", tensor_parallel_size=8, pipeline_parallel_size=2, nnodes=2)
    deployment = Deployment(id="d", label="d", settings=settings, hardware=H100, status="planned")
    need = need_of(deployment, exclusive=True)
    assert need.bundles == (Bundle(8, 8.0),) * 2
    assert need.labels == (("pool", "a"),)


@dataclass
class Nodes:
    """A cluster of which only its nodes are asked; ``later`` joins when they were looked at once."""

    count: int
    growing: bool = False
    later: int = 0

    def grows(self) -> bool:
        return self.growing

    def machines(self) -> list[Machine]:
        self.count, self.later, count = self.count + self.later, 0, self.count
        return [Machine(f"n{at}", f"10.0.0.{at}", cpus=2.0) for at in range(count)]


def enter(cluster: Nodes, tmp_path: Path, **settings: int) -> Record:
    """Enter a launch that Ray must find a place for, up to where Ray would be asked; its record."""
    given = EngineSettings(engine="vllm", model="m", **settings)  # type: ignore[arg-type]
    deployment = Deployment(id="d", label="d", settings=given, hardware=Hardware(name="cpu"), status="planned")
    store = Store.open(str(tmp_path), "x")
    hosts = HostBook(store, Journal())
    site = Site(cluster, store, Journal(), CoreBook(), hosts, threading.Event(), 1.0)  # type: ignore[arg-type]
    made = Launch(site, deployment, None, "l")
    with pytest.raises(EngineFailure), made:
        pass
    return made.record


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor_parallel_size": 2, "nnodes": 2}, "this cluster of 1 node(s) cannot hold 2 nodes with 1 CPUs each"),
        ({"replicas": 3}, "this cluster of 1 node(s) cannot hold 3 x one node with 1 CPUs"),
    ],
)
def test_what_the_nodes_can_never_hold_is_given_up_with_the_sentence_why(
    settings: dict[str, int], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ROOM_S", 0.0)
    failure = enter(Nodes(1), tmp_path, **settings).failure
    assert failure is not None
    assert (failure.failure_class, failure.kind) == (FailureClass.INFRA, NO_ROOM)
    assert words in failure.sentence


@pytest.mark.parametrize("cluster", [Nodes(1, growing=True), Nodes(1, later=1)])
def test_a_cluster_that_grows_or_whose_last_node_joins_in_time_is_asked(cluster: Nodes, tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match="place"):  # it was asked
        enter(cluster, tmp_path, tensor_parallel_size=2, nnodes=2)


def test_the_key_of_an_endpoint_comes_from_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings(engine="endpoint", model="m", url="http://x", api_key_env="SOME_KEY")
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(EngineFailure, match="SOME_KEY"):
        endpoint_key(settings)
    monkeypatch.setenv("SOME_KEY", "secret")
    assert endpoint_key(settings) == "secret"
    assert endpoint_key(settings.model_copy(update={"api_key_env": None})) is None

"""One measurement: attempts until the verdict stands, each of them a commit. Cluster and clients are fakes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orchestrator.cluster.base import ClientLost, ClientReport
from orchestrator.errors import Failure, FailureClass, InputError
from orchestrator.load.point import ClientStats, LoadPoint, Progress, Target
from orchestrator.load.validity import Verdict
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.results.schemas import REQUESTS
from orchestrator.results.store import Manifest, Store
from orchestrator.runner import measure
from orchestrator.runner.cores import CoreBook
from orchestrator.runner.events import Event, Journal
from orchestrator.runner.hosts import HostBook
from orchestrator.runner.launch import Site
from orchestrator.runner.measure import EngineDied, Measurer
from orchestrator.spec.experiment import parse_experiment
from orchestrator.telemetry.engine_metrics import Sample

EXPERIMENT = """
version: 1
name: fake
model: some-org/some-model
deployments: {engine: emulator}
workloads: [{name: w, input_tokens: 4, output_tokens: 2}]
load: {levels: {concurrency: [8]}, duration: 1s, warmup: 0s}
"""
STATS = ClientStats(0, 1.0, 0.1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 0)


def request_row(point: LoadPoint, index: int, status: str = "ok", error_class: str | None = None) -> dict[str, Any]:
    times = dict.fromkeys(("scheduled_ns", "sent_ns", "first_byte_ns", "first_token_ns", "last_token_ns", "done_ns"), 1)
    lengths = {"input_tokens_asked": 4, "output_tokens_asked": 2, "chunks": 2, "coalesced_chunks": 0}
    keys = {"measurement_id": point.measurement_id, "attempt_id": point.attempt_id, "request_index": index}
    what = {"client": index, "replica": 0, "phase": "measure", "status": status, "error_class": error_class}
    return keys | what | times | lengths


@dataclass
class FakeRun:
    """A point that is over at once; ``lost`` clients report nothing."""

    answers: dict[int, ClientReport]
    lost: list[int]

    def wait(self, wait_s: float) -> bool:
        if self.lost:
            raise ClientLost(self.lost, "killed")
        return True

    def settle(self, limit_s: float) -> None: ...

    def abort(self) -> None: ...

    def progress(self) -> Progress:
        return Progress()

    def reports(self) -> dict[int, ClientReport]:
        return self.answers


@dataclass
class World:
    """What the fakes do and what was asked of them."""

    store: Store
    lose: list[list[int]] = field(default_factory=list)  # clients to lose, attempt by attempt
    status: tuple[str, str | None] = ("ok", None)
    refuse: str | None = None
    deaths: list[Failure | None] = field(default_factory=list)
    crowds: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    # as replicas
    targets = (Target("http://127.0.0.1:1", "m"),)

    def failure(self) -> Failure | None:
        return self.deaths.pop(0) if self.deaths else None

    def between_points(self) -> None: ...

    def begin_metrics(self) -> None: ...

    def end_metrics(self) -> dict[int, list[Sample]]:
        return {0: [Sample(1, {"running": 2.0})]}

    # as a cluster
    def most_clients(self) -> int:
        return 4

    def clients(self, count: int) -> FakeClients:
        return FakeClients(self, [f"10.0.0.{index}" for index in range(count)])


@dataclass
class FakeClients:
    world: World
    addresses: list[str]
    point: LoadPoint | None = None

    def prepare(self, point: LoadPoint, avoid_cores: object) -> int:
        if self.world.refuse:
            raise InputError(self.world.refuse)
        self.point = point
        self.world.crowds.append(len(self.addresses))
        self.world.seeds.append(point.seed)
        return 1

    def start(self, lead_s: float, write: bool = True) -> FakeRun:
        assert self.point is not None
        lost = self.world.lose.pop(0) if self.world.lose else []
        answers = {}
        for index in set(range(len(self.addresses))) - set(lost):
            table = pa.Table.from_pylist([request_row(self.point, index, *self.world.status)], schema=REQUESTS)
            keys = {"measurement_id": self.point.measurement_id, "attempt_id": self.point.attempt_id}
            part = self.world.store.write_part("requests", table, writer=f"client{index}", **keys)
            answers[index] = ClientReport(STATS, (part,), table)
        return FakeRun(answers, lost)

    def release(self) -> None: ...


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Store.open(str(tmp_path), "fake"))


@pytest.fixture
def plan() -> Plan:
    return make_plan(parse_experiment(EXPERIMENT))


@pytest.fixture
def run(world: World, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Failure | None]:
    """Measure the plan's one measurement, the verdicts being these."""

    def go(*verdicts: str) -> Failure | None:
        left = list(verdicts) or ["valid"]
        monkeypatch.setattr(
            measure, "judge", lambda *_: Verdict(left.pop(0) if len(left) > 1 else left[0], ["why"], {})
        )
        monkeypatch.setattr(measure.time, "sleep", lambda _: None)
        journal = Journal(told.append)
        hosts = HostBook(world.store, journal)
        site = Site(world, world.store, journal, CoreBook(), hosts, threading.Event(), 1.0)  # type: ignore[arg-type]
        measurer = Measurer(
            site,
            plan,
            plan.deployments[0],
            world,
            "launch",
            world.clients(1),
            lambda _, count: world.clients(count),  # type: ignore[arg-type]
        )
        return measurer.measure(plan.points[0], plan.measurements()[0])

    told: list[Any] = []
    go.told = told  # type: ignore[attr-defined]
    return go


def commits(world: World) -> list[Manifest]:
    return sorted(world.store.manifests(), key=lambda one: one.age)


def test_a_valid_point_is_committed_once(run: Callable[..., Failure | None], world: World, plan: Plan) -> None:
    assert run("valid") is None
    assert [one.status for one in commits(world)] == ["ok"]
    assert world.store.done() == {plan.measurements()[0].measurement_id}
    assert world.store.read("engine_metrics").column("running").to_pylist() == [2.0]


def test_a_client_bound_point_is_repeated_with_twice_the_clients_up_to_the_clusters_limit(
    run: Callable[..., Failure | None], world: World
) -> None:
    assert run("client_bound") is None
    assert world.crowds == [1, 2, 4]
    assert [(one.status, one.failure_class) for one in commits(world)] == [
        ("failed", "client_bound"), ("failed", "client_bound"), ("ok", None),
    ]  # fmt: skip
    assert world.store.read("points").column("validity").to_pylist() == ["client_bound"]


def test_repeated_attempts_send_other_prompts(run: Callable[..., Failure | None], world: World) -> None:
    run("client_bound", "valid")
    assert len(set(world.seeds)) == 2
    points = world.store.read("points", include_failed=True)
    assert sorted(points.column("seed").to_pylist()) == sorted(world.seeds)


def test_the_requests_of_a_lost_client_are_rows_and_the_point_is_tried_again(
    run: Callable[..., Failure | None], world: World
) -> None:
    world.lose = [[0]]
    assert run("valid") is None
    assert [(one.status, one.failure_class) for one in commits(world)] == [("failed", "infra"), ("ok", None)]
    rows = world.store.read("requests", include_failed=True)
    assert "lost" in rows.column("status").to_pylist()
    points = world.store.read("points", include_failed=True)
    assert sum(points.column("requests_scheduled").to_pylist()) == rows.num_rows


def test_a_measurement_that_loses_its_client_again_and_again_is_given_up(
    run: Callable[..., Failure | None], world: World
) -> None:
    world.lose = [[0]] * 10
    failure = run("valid")
    assert failure is not None
    assert failure.failure_class is FailureClass.INFRA
    assert [one.status for one in commits(world)] == ["failed"] * measure.CLIENT_LOSSES


def test_a_point_that_cannot_be_run_is_a_row_that_says_why(run: Callable[..., Failure | None], world: World) -> None:
    world.refuse = "no tokenizer at /models/x"
    failure = run("valid")
    assert failure is not None
    assert failure.failure_class is FailureClass.BAD_CONFIG
    assert "no tokenizer" in str(commits(world)[0].reason)


def test_an_engine_that_dies_under_load_ends_the_launch_and_its_rows_stay(
    run: Callable[..., Failure | None], world: World
) -> None:
    world.deaths = [Failure(FailureClass.ENGINE_CRASH, "engine_dead", "It died.")]
    with pytest.raises(EngineDied, match="It died"):
        run("valid")
    assert [(one.status, one.reason) for one in commits(world)] == [("failed", "It died.")]
    assert world.store.read("requests", include_failed=True).num_rows == 1


def test_an_engine_found_dead_seconds_after_its_last_error_fails_the_point(
    run: Callable[..., Failure | None], world: World
) -> None:
    world.status = ("error", "http_5xx")
    world.deaths = [None, None, Failure(FailureClass.ENGINE_CRASH, "engine_dead", "It died late.")]
    with pytest.raises(EngineDied, match="It died late"):
        run("valid")


def test_a_point_without_one_good_request_is_failed_with_the_commonest_error(
    run: Callable[..., Failure | None], world: World
) -> None:
    world.status = ("error", "http_4xx")
    failure = run("valid")
    assert failure is not None
    assert failure.failure_class is FailureClass.BAD_CONFIG
    assert "http_4xx" in failure.sentence


def test_what_happened_is_told(run: Callable[..., Failure | None], world: World) -> None:
    run("client_bound", "valid")
    kinds = [item.kind for item in run.told if isinstance(item, Event)]  # type: ignore[attr-defined]
    assert kinds == ["retry"]
    evidence = world.store.read("points").column("evidence_json").to_pylist()
    assert [json.loads(text) for text in evidence] == [{}]

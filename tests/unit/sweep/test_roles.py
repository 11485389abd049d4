"""A launch of prefill and decode replicas and their router: what is started when, what is loaded,
what a death says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import Failure, FailureKind
from orchestrator.engines.command import Node
from orchestrator.plan.model import Plan
from orchestrator.results.store import Store
from orchestrator.spec.settings import EngineSettings
from tests.unit.sweep import simulation
from tests.unit.sweep.simulation import plan_of, sweep, world_of

CASE = (
    "{roles: {prefill: {replicas: 2, tensor_parallel_size: 2}, decode: {tensor_parallel_size: 4}}, "
    "router: {engine: vllm_router}}"
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path), "x")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineSettings, Node, str]]:
    """Settings, node and key of everything that a launch starts, in order."""
    seen: list[tuple[EngineSettings, Node, str]] = []
    real = simulation.FakeAgent.start

    def start(
        agent: Any, settings: EngineSettings, hardware: object, node: Node, key: str
    ) -> tuple[str, ...]:
        seen.append((settings, node, key))
        return real(agent, settings, hardware, node, key)

    monkeypatch.setattr(simulation.FakeAgent, "start", start)
    return seen


def plan() -> Plan:
    return plan_of(CASE)


def test_the_router_starts_when_all_replicas_serve_and_alone_is_loaded(
    store: Store, started: list[tuple[EngineSettings, Node, str]]
) -> None:
    world = world_of()
    report = sweep(world, plan(), store)
    assert (report.counts.measured, report.counts.failed) == (1, 0)
    steps = [step for step in world.log if step in ("start", "ready")]
    assert steps == ["start"] * 3 + ["ready"] * 3 + ["start", "ready"]
    assert [node.role for _, node, _ in started] == ["prefill", "prefill", "decode", ""]
    router, node, _ = started[-1]
    assert router.engine == "vllm_router"
    assert [worker.role for worker in node.workers] == ["prefill", "prefill", "decode"]
    assert len({key for _, _, key in started}) == 1, (
        "a router passes on the key that it is asked with"
    )
    (target,) = world.loads[0].targets
    assert target.url == f"http://{node.bind}:{node.port}"
    assert world.log.count("stop") == 4


def test_rows_say_roles_and_count_all_devices(store: Store, tmp_path: Path) -> None:
    sweep(world_of(), plan(), store)
    (deployment,) = {
        row["deployment_id"]: row for row in store.read("deployments").to_pylist()
    }.values()
    assert (deployment["roles"], deployment["router"], deployment["devices"]) == (
        "prefill, decode",
        "vllm_router",
        8,
    )
    assert deployment["usd_per_hour"] == pytest.approx(8 * 3.6)
    (launch,) = store.read("launches").to_pylist()
    placed = json.loads(launch["placement_json"])
    assert [one["role"] for one in placed] == ["prefill", "prefill", "decode", "router"]
    assert len(json.loads(launch["argv_json"])) == 4
    told_by_router = json.loads(launch["engine_reported_json"])["router.version"]
    assert told_by_router == launch["engine_version"], "the simulated agents all say the same"
    told = store.read("engine_metrics").to_pylist()
    assert {(row["replica"], row["role"]) for row in told} == {
        (0, "prefill"),
        (1, "prefill"),
        (2, "decode"),
    }
    assert {path.name for path in tmp_path.glob("x/logs/*/*.log")} == {
        f"rank{at}.log" for at in range(4)
    }


@pytest.mark.parametrize(
    ("transport", "told"),
    [
        ("rc_mlx5/mlx5_0:1 cuda_ipc/cuda", ""),
        ("tcp/eth0", "KV caches travel over TCP (tcp/eth0)"),
        ("not said", "KV caches travel over a network that its log does not name"),
    ],
)
def test_the_row_says_what_kv_caches_travelled_over(
    transport: str, told: str, store: Store
) -> None:
    sweep(world_of(kv_transport=transport), plan(), store)
    (launch,) = store.read("launches").to_pylist()
    assert json.loads(launch["engine_reported_json"])["kv_transport"] == transport
    events = [row["text"] for row in store.read("events").to_pylist() if row["kind"] == "network"]
    assert events == ([f"{told}: the results depend on that network, too"] if told else [])


@pytest.mark.parametrize("at", range(4), ids=["prefill", "prefill", "decode", "router"])
def test_the_death_of_any_role_ends_the_launch_in_its_name(
    at: int,
    store: Store,
    started: list[tuple[EngineSettings, Node, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    role = ["prefill", "prefill", "decode", "router"][at]
    agents: list[Any] = []
    real = simulation.FakeAgent.begin_ready

    def begin(agent: Any, timeout_s: float) -> None:
        agents.append(agent)
        real(agent, timeout_s)

    def failure(agent: Any) -> Failure | None:
        dead = len(agents) == 4 and agent is agents[at] and agent.world.log.count("load")
        return Failure(FailureKind.ENGINE_DEAD, "It died.") if dead else None

    monkeypatch.setattr(simulation.FakeAgent, "begin_ready", begin)
    monkeypatch.setattr(simulation.FakeAgent, "failure", failure)
    world = world_of()
    sweep(world, plan(), store)
    row = store.read("points", include_failed=True).to_pylist()[0]
    assert (row["status"], row["failure_kind"]) == ("failed", "engine_dead")
    assert row["reason"].startswith(f"{role}: It died.")
    assert world.log.count("stop") >= 4
    assert not world.held, "every place is given back"


def test_a_router_that_does_not_start_fails_the_launch_in_its_name(store: Store) -> None:
    failure = Failure(FailureKind.NEVER_READY, "It never served.")
    world = world_of(fails={"ready": [None, None, None, failure] * 3})
    report = sweep(world, plan(), store)
    assert report.counts.failed == 1
    launch = store.read("launches", include_failed=True).to_pylist()[0]
    assert launch["reason"] == "router: It never served."

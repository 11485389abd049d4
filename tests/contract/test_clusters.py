"""What every kind of cluster does, with engines and clients that are real: here on this machine
without Ray.

tests/cluster/test_contract.py runs the same over Ray. A cluster of another kind (also a fake one)
joins with a module that imports these tests and has a fixture ``open_cluster`` of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.base.errors import (
    EngineFailure,
    Failure,
    FailureClass,
    InputError,
    PlacementError,
)
from orchestrator.cluster.base import Bundle, ClientLost, Footprint, PlacementDeadline
from orchestrator.cluster.engine_host import EngineHost
from orchestrator.cluster.local import LocalCluster
from orchestrator.cluster.protocol import Cluster
from orchestrator.engines.command import Node
from orchestrator.engines.registry import ENGINES
from orchestrator.load.point import LoadPoint, Target
from orchestrator.node.readiness import Ready
from orchestrator.results.ids import new_ulid
from orchestrator.results.store import Store
from orchestrator.spec.load import Arrivals, Lengths, Level
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.workloads.drawn import RandomWorkload
from tests.harness import wait_for

ONE_CPU = Footprint((Bundle(0, 1.0),))
CPU = Hardware(name="cpu")
SETTINGS = EngineSettings(
    engine="emulator", model="meta-llama/Llama-3.1-8B-Instruct", startup_timeout_s=30
)
KEY = "a-key-of-the-test"
OpenCluster = Callable[..., Cluster]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(str(tmp_path / "results"), "contract")
    store.write_plan("{}")
    return store


@pytest.fixture
def open_cluster(store: Store) -> Iterator[OpenCluster]:
    """Gives a cluster with room for one engine and at most ``client_limit`` clients; closes it."""
    with ExitStack() as stack:

        def opened(client_limit: int | None = None) -> LocalCluster:
            cluster = LocalCluster(store, client_limit)
            stack.callback(cluster.close)
            return cluster

        yield opened


@pytest.fixture
def cluster(open_cluster: OpenCluster) -> Cluster:
    return open_cluster(3)


@pytest.fixture
def launch_id() -> str:
    return f"contract-{new_ulid()}"


def place(
    cluster: Cluster,
    launch_id: str,
    footprint: Footprint = ONE_CPU,
    timeout_s: float = 30.0,
    node: str | None = None,
) -> Any:
    """On this node, else on the first ones."""
    nodes = [machine.node_id for machine in cluster.machines()] * len(footprint.bundles)
    return cluster.place(
        launch_id,
        footprint,
        [node] if node else nodes[: len(footprint.bundles)],
        PlacementDeadline(timeout_s),
    )


def start(agent: EngineHost, launch_id: str, settings: EngineSettings = SETTINGS) -> LoadPoint:
    """Start an engine; returns a point that loads it."""
    port, master_port, *extra = agent.reserve_ports(6)
    node = Node(port=port, master_port=master_port, extra_ports=tuple(extra), launch_id=launch_id)
    argv = agent.start(settings, CPU, node, KEY)
    assert "orchestrator.emulator" in argv
    assert KEY not in " ".join(argv)
    agent.begin_ready(settings.startup_timeout_s)
    engine = ENGINES[settings.engine]
    return LoadPoint(
        targets=(Target(f"http://127.0.0.1:{port}", engine.served_name(settings, node), 0, KEY),),
        dialect=engine.dialects(settings)["completions"],
        workload=RandomWorkload(
            name="w", input_tokens=Lengths(fixed=8), output_tokens=Lengths(fixed=4)
        ),
        level=Level(control="concurrency", value=2),
        arrivals=Arrivals(),
        duration_s=None,
        requests=12,
        seed=7,
        measurement_id="m",
        attempt_id="a",
    )


def until_ready(agent: EngineHost, limit_s: float = 40.0) -> Ready | Failure:
    outcome: Ready | Failure = wait_for(lambda: agent.poll_ready(0.5), limit_s, "ready or failed")
    return outcome


def processes(launch_id: str) -> list[psutil.Process]:
    """The processes that carry the mark of this launch."""
    processes = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("ORCHESTRATOR_LAUNCH") == launch_id
                and process.status() != "zombie"
            ):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def nothing_left(launch_id: str) -> None:
    wait_for(lambda: not processes(launch_id), 15.0, f"left: {processes(launch_id)}")


def over(run: Any) -> None:
    wait_for(lambda: run.wait(0.5), 60.0, "every client has reported")


# -- machines and places


def test_machines_have_an_id_and_an_address_each_and_room(cluster: Cluster) -> None:
    machines = cluster.machines()
    assert machines
    assert len({machine.node_id for machine in machines}) == len(machines)
    assert all(machine.address and machine.cpus >= 1 for machine in machines)


def test_a_cluster_of_fixed_size_does_not_grow_and_a_desire_changes_nothing(
    cluster: Cluster,
) -> None:
    before = cluster.machines()
    assert not cluster.growth().may_grow
    cluster.desire([Footprint((Bundle(8, 8.0),)), Footprint((Bundle(8, 8.0),) * 2)])
    placement = place(cluster, "after-a-desire")
    placement.release()
    cluster.desire([])
    assert cluster.machines() == before


def test_nodes_that_can_work_leave_nothing_to_say(cluster: Cluster) -> None:
    assert cluster.check_nodes() == []


def test_an_allocation_says_where_it_is(cluster: Cluster, launch_id: str) -> None:
    placement = place(cluster, launch_id)
    (agent,) = placement.agents
    given = agent.allocation
    assert (given.node_id, given.address) in {
        (machine.node_id, machine.address) for machine in cluster.machines()
    }
    assert given.cores
    assert given.devices == given.gpus == ()
    placement.release()


@pytest.mark.parametrize(
    "footprint",
    [
        Footprint((Bundle(0, 5000.0),)),
        Footprint((Bundle(64, 1.0),)),
        Footprint((Bundle(0, 1.0),), (("pool", "nowhere"),)),
        Footprint((Bundle(0, 1.0),) * 9),
    ],
)
def test_what_its_nodes_cannot_ever_hold_is_refused_soon(
    cluster: Cluster, launch_id: str, footprint: Footprint
) -> None:
    began = time.monotonic()
    with pytest.raises(PlacementError):
        place(cluster, launch_id, footprint, timeout_s=60.0)
    assert time.monotonic() - began < 20


def test_a_node_that_is_not_there_is_no_place(cluster: Cluster, launch_id: str) -> None:
    with pytest.raises(PlacementError):
        place(cluster, launch_id, node="0" * 56, timeout_s=60.0)


def test_a_full_cluster_is_waited_for_as_long_as_was_said_and_until_somebody_stops(
    cluster: Cluster,
) -> None:
    everything = [
        place(cluster, f"all-{at}", Footprint((Bundle(0, machine.cpus),)), node=machine.node_id)
        for at, machine in enumerate(cluster.machines())
    ]
    with pytest.raises(
        PlacementError, match="one node with 1 CPU did not become free within 1.5 s: others hold it"
    ):
        place(cluster, "late", timeout_s=1.5)
    with pytest.raises(PlacementError, match="stopped"):
        cluster.place(
            "late", ONE_CPU, [cluster.machines()[0].node_id], PlacementDeadline(60.0, lambda: True)
        )
    everything[0].release()
    place(cluster, "late").release()
    for placement in everything:
        placement.release()


# -- engines


def test_an_engine_is_started_serves_is_stopped_and_nothing_is_left(
    cluster: Cluster, launch_id: str
) -> None:
    placement = place(cluster, launch_id)
    (agent,) = placement.agents
    assert agent.failure() is None
    start(agent, launch_id)
    ready = until_ready(agent)
    assert isinstance(ready, Ready), ready
    assert "max_model_len" in ready.reported
    assert agent.failure() is None
    assert processes(launch_id)
    assert agent.empty_cache()
    assert agent.saying()
    agent.begin_metrics()
    samples = agent.end_metrics()
    assert all(sample.values for sample in samples)
    agent.begin_telemetry([], watches_host=True)
    sampled = agent.end_telemetry()
    assert sampled.host_samples[-1].values["engine_rss_bytes"] > 2**20
    assert agent.end_telemetry().host_samples == (), "it has ended"
    assert agent.environment()["kernel"]
    assert json.loads(json.dumps(agent.host_facts()))["hostname"]
    assert abs(agent.wall_ns() - time.time_ns()) < 10**9
    stopped = agent.stop()
    assert stopped.left_over == 0
    assert b"orchestrator.emulator" in stopped.log
    placement.release()
    nothing_left(launch_id)


def test_releasing_a_place_ends_its_engine(cluster: Cluster, launch_id: str) -> None:
    placement = place(cluster, launch_id)
    start(placement.agents[0], launch_id)
    until_ready(placement.agents[0])
    placement.agents[0].begin_metrics()
    placement.release()
    placement.release()  # again changes nothing
    assert "engine-metrics" not in {thread.name for thread in threading.enumerate()}, (
        "nobody reads /metrics any more"
    )
    nothing_left(launch_id)


def test_closing_a_cluster_ends_its_engines(open_cluster: OpenCluster, launch_id: str) -> None:
    cluster = open_cluster(1)
    placement = place(cluster, launch_id)
    start(placement.agents[0], launch_id)
    until_ready(placement.agents[0])
    cluster.close()
    nothing_left(launch_id)


def test_an_engine_that_does_not_start_says_why(cluster: Cluster, launch_id: str) -> None:
    placement = place(cluster, launch_id)
    broken = SETTINGS.model_copy(update={"extra_args": {"--fault": "start=oom"}})
    start(placement.agents[0], launch_id, broken)
    failure = until_ready(placement.agents[0])
    assert isinstance(failure, Failure)
    assert (failure.failure_class, failure.kind) == (FailureClass.BAD_CONFIG, "oom_load")
    assert "OutOfMemory" in failure.log_tail
    placement.release()
    nothing_left(launch_id)


def test_a_missing_executable_is_a_failure_of_the_configuration(
    cluster: Cluster, launch_id: str
) -> None:
    placement = place(cluster, launch_id)
    nowhere = EngineSettings(engine="vllm", model="m", executable="/nowhere/vllm")
    with pytest.raises(EngineFailure) as caught:
        placement.agents[0].start(nowhere, CPU, Node(launch_id=launch_id), KEY)
    assert caught.value.failure.failure_class is FailureClass.BAD_CONFIG
    placement.release()


def test_an_engine_that_dies_under_load_is_a_failure(cluster: Cluster, launch_id: str) -> None:
    placement = place(cluster, launch_id)
    (agent,) = placement.agents
    start(agent, launch_id)
    assert isinstance(until_ready(agent), Ready)
    for process in processes(launch_id):
        if "orchestrator.emulator" in " ".join(process.cmdline()):
            os.kill(process.pid, signal.SIGKILL)
    failure = wait_for(agent.failure, 15.0, "a failure")
    assert failure.failure_class is FailureClass.ENGINE_CRASH
    placement.release()
    nothing_left(launch_id)


# -- clients


@pytest.fixture
def served(cluster: Cluster, launch_id: str) -> Iterator[LoadPoint]:
    """A point of a running engine."""
    placement = place(cluster, launch_id)
    point = start(placement.agents[0], launch_id)
    assert isinstance(until_ready(placement.agents[0]), Ready)
    yield point
    placement.release()


def test_clients_share_a_point_and_write_their_rows(
    cluster: Cluster, served: LoadPoint, store: Store
) -> None:
    clients = cluster.clients(2, {})
    assert len(clients.addresses) == 2
    assert clients.prepare(served) == 12
    run = clients.start(0.2)
    over(run)
    assert run.progress().done == 12
    reports = run.reports()
    assert list(reports) == [0, 1]
    assert sum(report.requests.rows for report in reports.values()) == 12
    assert {path.table for report in reports.values() for path in report.stored} == {
        "requests",
        "token_events",
    }
    assert {report.stats.client for report in reports.values()} == {0, 1}
    statuses = [
        status
        for report in reports.values()
        for status in report.requests.read()["status"].to_pylist()
    ]
    assert statuses == ["ok"] * 12
    clients.release()


def test_rows_that_are_not_to_be_kept_come_back_alone(cluster: Cluster, served: LoadPoint) -> None:
    clients = cluster.clients(1, {})
    clients.prepare(served)
    run = clients.start(0.0, write=False)
    over(run)
    assert run.reports()[0].stored == ()
    assert run.reports()[0].requests.rows == run.reports()[0].token_events.rows == 12
    clients.release()


def test_clients_are_used_again_point_after_point_and_launch_after_launch(
    cluster: Cluster, served: LoadPoint
) -> None:
    pids = []
    for _ in range(2):
        clients = cluster.clients(2, {})
        for _ in range(2):
            clients.prepare(served)
            run = clients.start(0.0, write=False)
            over(run)
            pids.append(sorted(report.stats.pid for report in run.reports().values()))
        clients.release()
    assert all(pid == pids[0] for pid in pids)


def test_each_launch_knows_the_clients_of_all(cluster: Cluster, served: LoadPoint) -> None:
    """Else they would be taken for others' load on the hosts of its engines."""
    first, second = cluster.clients(1, {}), cluster.clients(1, {})
    pids = []
    for clients in (first, second):
        clients.prepare(served)
        run = clients.start(0.0, write=False)
        over(run)
        pids.append((socket.gethostname(), run.reports()[0].stats.pid))
    assert set(pids) <= set(first.processes)
    assert set(first.processes) == set(second.processes)
    first.release()
    second.release()


def test_a_point_that_cannot_be_run_is_bad_input(cluster: Cluster, served: LoadPoint) -> None:
    clients = cluster.clients(2, {})
    with pytest.raises(InputError, match="nowhere"):
        clients.prepare(
            replace(served, targets=(replace(served.targets[0], url="http://nowhere.invalid:1"),))
        )
    clients.prepare(served)  # they are still good
    clients.release()


def test_aborted_clients_report_soon_and_with_a_row_for_every_request(
    cluster: Cluster, served: LoadPoint
) -> None:
    slow = replace(served, level=Level(control="request_rate", value=1.0), requests=100)
    clients = cluster.clients(2, {})
    clients.prepare(slow)
    run = clients.start(0.0, write=False)
    assert run.wait(1.0) is False
    began = time.monotonic()
    run.abort()
    run.settle(20.0)
    assert time.monotonic() - began < 15
    rows = [row for report in run.reports().values() for row in report.requests.read().to_pylist()]
    assert len(rows) == 100
    assert "aborted" in {row["status"] for row in rows}
    clients.release()


def test_a_client_that_is_killed_is_lost_and_the_others_still_report(
    cluster: Cluster, served: LoadPoint
) -> None:
    clients = cluster.clients(2, {})
    clients.prepare(served)
    run = clients.start(0.0, write=False)
    over(run)
    victim = run.reports()[1].stats.pid
    clients.prepare(replace(served, level=Level(control="request_rate", value=4.0), requests=16))
    run = clients.start(0.0, write=False)
    assert run.wait(1.0) is False
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(ClientLost) as caught:
        over(run)
    assert caught.value.clients == (1,)
    run.settle(30.0)
    assert list(run.reports()) == [0]
    clients.release()
    again = cluster.clients(2, {})  # the pool has two that answer
    assert again.prepare(served) == 12
    again.release()


def test_clients_that_die_before_a_point_are_lost(cluster: Cluster, served: LoadPoint) -> None:
    clients = cluster.clients(2, {})
    clients.prepare(served)
    run = clients.start(0.0, write=False)
    over(run)
    os.kill(run.reports()[0].stats.pid, signal.SIGKILL)
    with pytest.raises(ClientLost) as caught:
        clients.prepare(served)
    assert caught.value.clients == (0,)
    clients.release()


def test_there_are_as_many_clients_as_was_said(open_cluster: OpenCluster) -> None:
    assert open_cluster(5).most_clients() == 5


def test_no_client_process_is_left_when_a_cluster_is_closed(open_cluster: OpenCluster) -> None:
    cluster = open_cluster(2)
    clients = cluster.clients(2, {})
    point = LoadPoint(
        (Target("http://127.0.0.1:9", "m"),), ENGINES["emulator"].dialects(SETTINGS)["completions"],
        RandomWorkload(name="w", input_tokens=Lengths(fixed=8), output_tokens=Lengths(fixed=4)),
        Level(control="concurrency", value=2), requests=2, duration_s=None,
    )  # fmt: skip
    clients.prepare(point)
    run = clients.start(0.0, write=False)
    over(run)
    pids = [report.stats.pid for report in run.reports().values()]
    assert os.getpid() not in pids
    cluster.close()
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), 15.0, "clients are left")

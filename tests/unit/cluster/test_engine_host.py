"""Agents on their nodes: logs, work folders, GPUs, downloads and the load of others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.base.errors import Occupied
from orchestrator.base.folders import node_folder
from orchestrator.cluster.client_host import ClientHost
from orchestrator.cluster.engine_host import EngineHost, free_middle, stored_log
from orchestrator.engines.command import Node
from orchestrator.engines.sglang import ENGINE as SGLANG
from orchestrator.node.leases import Lease, Owner, Wish, living
from orchestrator.node.ownership import LAUNCH, LOCKS, LaunchLock
from orchestrator.node.readiness import Expected, Ready
from orchestrator.results.ids import new_ulid
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.telemetry.gpus import Gpu
from tests.harness import wait_for


def test_of_a_long_log_the_start_and_the_end_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    lines = [f"line {number}" for number in range(1000)]
    log.write_text("\n".join(lines) + "\n")
    assert stored_log(log).decode() == log.read_text()
    first, *middle, last = stored_log(log, head=100, tail=50).decode().splitlines()
    assert (first, last) == ("line 0", "line 999")
    gap = next(at for at, line in enumerate(middle) if line.startswith("# ... about"))
    assert set(middle[:gap] + middle[gap + 1 :]) <= set(lines), "whole lines only"
    assert "about 8740 bytes are left out" in middle[gap]


def test_the_middle_of_a_log_that_grows_gives_its_disk_back(tmp_path: Path) -> None:
    log, block = tmp_path / "engine.log", b"x" * 63 + b"\n"
    with log.open("ab") as engine:  # as engines write theirs
        engine.write(b"first\n" + block * 2**14)
        engine.flush()
        before = log.stat()
        free_middle(log, head=2**16, most=2**21, tail=2**16)
        assert log.stat().st_blocks == before.st_blocks, "it is not long yet"
        free_middle(log, head=2**16, most=2**18, tail=2**16)
        after = log.stat()
        assert after.st_size == before.st_size
        assert after.st_blocks * 512 < 2**18
        engine.write(b"last\n")
    text = log.read_bytes()
    assert (text[: 2**16].count(0), text[-(2**16) :].count(0)) == (0, 0)
    assert stored_log(log, head=2**15, tail=2**15).decode().splitlines()[0] == "first"
    assert stored_log(log, head=2**15, tail=2**15).endswith(b"x\nlast\n")


@pytest.fixture
def agent() -> Iterator[EngineHost]:
    host = EngineHost(f"test-{new_ulid()}", "n", "127.0.0.1")
    yield host
    host.stop()


def test_logs_of_dead_agents_are_told_to_their_own_sweep(
    agent: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "t0ken-of-the-node")
    dead, sweep = new_ulid(), new_ulid()
    for name, whose in ((f"{dead}-a", sweep), (f"{dead}-b", "another")):
        work = node_folder("work") / name
        work.mkdir()
        (work / "origin").write_text(f"{whose} 1")
        (work / "engine.log").write_text("its words, t0ken-of-the-node")
    try:
        assert agent.lease(Wish(Owner(sweep))) == ()
        assert agent.dead_logs() == [(f"{dead}-a", f"{dead}/rank1.log", b"its words, ***")]
        held = LaunchLock(dead, node_folder("locks"))
        assert agent.dead_logs() == [], "it lives"
        held.release()
        ending = Lease(dead)
        ending.take(Wish(Owner(sweep)))
        assert agent.dead_logs() == [], "its engine has ended, and it hands over the log itself"
        ending.release()
        agent.drop_dead(f"{dead}-a")
        agent.drop_dead("../../nothing/outside")
        assert agent.dead_logs() == []
        assert (node_folder("work") / f"{dead}-b").exists()
    finally:
        agent.drop_dead(f"{dead}-b")


@pytest.mark.parametrize(("first", "other"), [("1", "GPU-b"), ("MIG-x", "MIG-x")])
def test_agents_of_two_launches_do_not_get_one_gpu(
    first: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [Gpu(0, "GPU-a0", "H100", 0), Gpu(1, "GPU-b0", "H100", 0)]
    monkeypatch.setattr("orchestrator.cluster.engine_host.list_gpus", lambda: gpus)
    monkeypatch.setattr("orchestrator.cluster.engine_host.await_release", lambda _: ())
    mine, another, mine_too = (
        EngineHost(f"test-{new_ulid()}", "n", "127.0.0.1", (name,)) for name in (first, other, "0")
    )
    try:
        mine.lease(Wish(Owner("mine")))
        mine_too.lease(Wish(Owner("mine")))
        with pytest.raises(Occupied, match=r"GPU (GPU-b0|MIG-x) is held by launch test-"):
            another.lease(Wish(Owner("another")))
        mine.stop()
        another.lease(Wish(Owner("another")))
    finally:
        for agent in (mine, another, mine_too):
            agent.stop()


@pytest.mark.parametrize(
    ("hip", "rocr", "names"),
    [("0,1", None, ["amd-0", "amd-1"]), ("0,1", "4, 5", ["amd-4", "amd-5"]), ("0,1", "", ["amd-0", "amd-1"]),
     ("0,1", "4", ["amd-4", "amd-1"]), (None, None, []), ("", "4,5", [])],
)  # fmt: skip
def test_gpus_of_amd_are_leased_by_their_index(
    hip: str | None, rocr: str | None, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cluster.engine_host.list_gpus", list)
    for name, value in (("HIP_VISIBLE_DEVICES", hip), ("ROCR_VISIBLE_DEVICES", rocr)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    agents = [
        EngineHost(f"test-{new_ulid()}", "n", "127.0.0.1", devices)
        for devices in (("0", "1"), ("1",))
    ]
    try:
        agents[0].lease(Wish(Owner("mine")))
        assert [list(lease.gpus) for lease in living() if lease.sweep == "mine"] == [names]
        with pytest.raises(Occupied, match=f"GPU {names[1]} is held") if names else nullcontext():
            agents[1].lease(Wish(Owner("another")))
    finally:
        for agent in agents:
            agent.stop()


def test_a_rank_waits_for_all_downloads(
    agent: EngineHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def wait_ready(server: object, timeout_s: float, downloaded: Callable[[], int]) -> Ready:
        seen.append(downloaded())
        agent.hear_downloaded(7_000_000)
        seen.append(downloaded())
        return Ready({}, None)

    monkeypatch.setattr("orchestrator.cluster.engine_host.wait_ready", wait_ready)
    blobs = tmp_path / "models--acme--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "part.incomplete").write_bytes(bytes(range(256)) * 4096)
    settings = EngineSettings(
        engine="emulator", model="acme/tiny", env={"HF_HUB_CACHE": str(tmp_path)}
    )
    agent.start(settings, Hardware(name="cpu"), Node(port=agent.reserve_ports(1)[0]), "")
    agent.begin_ready(1.0)
    assert isinstance(agent.poll_ready(10.0), Ready)
    assert seen == [agent.downloaded(), agent.downloaded() + 7_000_000]
    assert agent.downloaded() >= 1 << 20


def test_a_cache_that_hangs_holds_nobody_up_and_is_asked_once(
    agent: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer = threading.Event()
    calls: list[int] = []

    def count(*_: object) -> int:
        calls.append(1)
        if len(calls) == 1:
            return 5
        if may_answer.wait(30.0):
            return 7
        return 0

    monkeypatch.setattr("orchestrator.cluster.engine_host.downloaded_bytes", count)
    monkeypatch.setattr("orchestrator.cluster.engine_host.CACHE_LIMIT_S", 0.05)
    node = Node(port=agent.reserve_ports(1)[0])
    agent.start(EngineSettings(engine="emulator", model="m"), Hardware(name="cpu"), node, "")
    assert [agent.downloaded() for _ in range(4)] == [5] * 4
    assert len(calls) == 2
    may_answer.set()
    assert wait_for(lambda: agent.downloaded() == 7, 10.0, "its answer")


def test_metrics_that_are_begun_twice_are_read_by_one_thread(
    agent: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cluster.engine_host.read", lambda *_: None)
    node = Node(port=agent.reserve_ports(1)[0])
    agent.start(EngineSettings(engine="emulator", model="m"), Hardware(name="cpu"), node, "")

    def reading_threads() -> int:
        return [thread.name for thread in threading.enumerate()].count("engine-metrics")

    threads_before = reading_threads()
    agent.begin_metrics()
    agent.begin_metrics()
    assert reading_threads() == threads_before + 1
    agent.end_metrics()
    assert reading_threads() == threads_before


@pytest.mark.parametrize(
    ("rank", "attention_ranks", "url"),
    [
        (0, 2, "http://10.0.0.2:8000/metrics"),
        (1, 2, "http://10.0.0.2:8100/metrics"),
        (1, 1, None),
    ],
)
def test_ranks_of_other_nodes_have_metrics_where_attention_is_data_parallel(
    agent: EngineHost, rank: int, attention_ranks: int, url: str | None
) -> None:
    settings = EngineSettings(
        engine="sglang",
        model="m",
        nnodes=2,
        tensor_parallel_size=2,
        data_parallel_size=attention_ranks,
        enable_expert_parallel=True,
    )
    node = Node(rank=rank, bind="10.0.0.2", port=8000, extra_ports=(8100,))
    agent._server = Expected(SGLANG, settings, node, "http://10.0.0.2:8000")
    assert agent.metrics_url() == url


def test_a_work_folder_is_its_users_alone_and_goes_with_its_launch() -> None:
    agent = EngineHost(f"test-{new_ulid()}", "n", "127.0.0.1")
    work = Path(agent.allocation.log_path).parent
    assert work.stat().st_mode & 0o777 == 0o700
    assert work.parent.stat().st_mode & 0o777 == 0o700
    agent.stop()
    assert not work.exists()


def test_the_files_of_an_engine_that_runs_are_kept_from_looking_old(
    agent: EngineHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.lease(Wish(Owner("mine")))
    lock = LaunchLock(f"test-{new_ulid()}", node_folder("locks"))
    files = [agent._lease._lease_file._path, lock.path]
    has_stopped = iter([False, True])
    for file in files:
        os.utime(file, (0, 0))
    monkeypatch.setattr(agent._has_stopped, "wait", lambda _: next(has_stopped))
    agent._keep_files(
        SimpleNamespace(
            touch=lock.touch, log_path=Path(agent.allocation.log_path), log_bytes_at_ready=0
        )
    )
    assert [file.stat().st_mtime > 0 for file in files] == [True, True]
    lock.release()


def test_an_agent_tells_what_others_did_on_its_host(agent: EngineHost, tmp_path: Path) -> None:
    agent.lease(Wish(Owner("mine")))
    agent.begin_host()
    mine, other, clients = Lease("a"), Lease("b"), [ClientHost(), ClientHost()]
    mine.take(Wish(Owner("mine")))
    other.take(Wish(Owner("another")))
    for client in clients:
        client.lease(Owner("another"))
    host_use = agent.end_host([os.getpid()])
    for client in clients:
        client.release_lease()
    mine.release()
    other.release()
    assert host_use.host == socket.gethostname()
    assert host_use.foreign_launches == 3, "launch b, and two clients, each with a lease of its own"
    assert host_use.foreign_cpu_s >= 0
    assert host_use.core_wait is None, "it has no engine"


def test_an_agent_tells_how_long_its_engine_waited_for_cores() -> None:
    launch_id = f"test-{new_ulid()}"
    tags = {LOCKS: str(node_folder("locks")), LAUNCH: launch_id}
    computes = "print(flush=True)\nwhile True: sum(range(1000))"
    command = [sys.executable, "-c", computes]
    host = EngineHost(launch_id, "n", "127.0.0.1")
    environment = {**os.environ, **tags}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as engine:
        try:
            assert engine.stdout is not None
            engine.stdout.readline()  # it computes from now on
            host.lease(Wish(Owner("mine")))
            host.begin_host()
            until = os.times().user + 0.2
            while os.times().user < until:
                sum(range(1000))
            host_use = host.end_host([os.getpid()])
        finally:
            engine.kill()
            host.stop()
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count how long threads wait for cores")
    assert host_use.core_wait is not None
    assert host_use.core_wait.ran_s > 0
    assert host_use.core_wait.others_s > 0, "at least this test computed, too"

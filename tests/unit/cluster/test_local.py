"""Client processes and engines' logs of this machine, and what is found of a model."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from multiprocessing import Pipe, reduction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.base.errors import NoClient, Occupied, PlacementError, ResultsError
from orchestrator.base.folders import node_folder
from orchestrator.cluster.base import ClientLost, ClientReport, HostLost, Machine
from orchestrator.cluster.client_host import ClientHost
from orchestrator.cluster.clients import UNFIT, ClientHandle, ClientPool, ClientRun
from orchestrator.cluster.engine_host import EngineHost, cap, kept
from orchestrator.cluster.local import ClientProcess, LocalCluster, _Answer, _received, _serve
from orchestrator.engines import ENGINES
from orchestrator.engines.command import Node
from orchestrator.load.point import LoadPoint, Progress, Target
from orchestrator.node.leases import Lease, Owner, Wish, living
from orchestrator.node.ownership import LaunchLock
from orchestrator.node.readiness import Ready
from orchestrator.results.ids import new_ulid
from orchestrator.spec.load import Arrivals, Lengths, Level
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.telemetry.gpus import Gpu
from orchestrator.workloads.content import local_tokenizer
from orchestrator.workloads.drawn import RandomWorkload
from tests.harness import wait_for
from tests.unit.results.builders import events, part_of, request, requests


@pytest.mark.parametrize(("variable", "other"), [("CUDA", "HIP"), ("HIP", "CUDA")])
def test_the_local_machine_has_the_gpus_that_a_vendors_variable_names(
    variable: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"{other}_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv(f"{variable}_VISIBLE_DEVICES", "2,0,5")
    assert [machine.gpus for machine in LocalCluster(None).machines()] == [3]


def test_of_a_long_log_the_start_and_the_end_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    lines = [f"line {number}" for number in range(1000)]
    log.write_text("\n".join(lines) + "\n")
    assert kept(log).decode() == log.read_text()
    first, *middle, last = kept(log, head=100, tail=50).decode().splitlines()
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
        cap(log, head=2**16, most=2**21, tail=2**16)
        assert log.stat().st_blocks == before.st_blocks, "it is not long yet"
        cap(log, head=2**16, most=2**18, tail=2**16)
        after = log.stat()
        assert (after.st_size, after.st_blocks * 512 < 2**18) == (before.st_size, True)
        engine.write(b"last\n")
    text = log.read_bytes()
    assert (text[: 2**16].count(0), text[-(2**16) :].count(0)) == (0, 0)
    assert kept(log, head=2**15, tail=2**15).decode().splitlines()[0] == "first"
    assert kept(log, head=2**15, tail=2**15).endswith(b"x\nlast\n")


@pytest.fixture
def agent() -> Iterator[EngineHost]:
    made = EngineHost(f"test-{new_ulid()}", "n", "127.0.0.1")
    yield made
    made.stop()


def test_logs_of_the_dead_are_told_to_their_own_sweep_until_they_are_dropped(
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


@pytest.mark.parametrize(("one", "other"), [("1", "GPU-b"), ("MIG-x", "MIG-x")])
def test_agents_of_two_launches_do_not_get_one_gpu(
    one: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Gpu(0, "GPU-a0", "H100", 0), Gpu(1, "GPU-b0", "H100", 0)]
    monkeypatch.setattr("orchestrator.cluster.engine_host.list_gpus", lambda: found)
    monkeypatch.setattr("orchestrator.cluster.engine_host.await_release", lambda _: ())
    agents = [
        EngineHost(f"test-{new_ulid()}", "n", "127.0.0.1", (name,)) for name in (one, other, "0")
    ]
    try:
        agents[0].lease(Wish(Owner("mine")))
        agents[2].lease(Wish(Owner("mine")))
        with pytest.raises(Occupied, match=r"GPU (GPU-b0|MIG-x) is held by launch test-"):
            agents[1].lease(Wish(Owner("another")))
        agents[0].stop()
        agents[1].lease(Wish(Owner("another")))
    finally:
        for agent in agents:
            agent.stop()


@pytest.mark.parametrize(
    ("hip", "rocr", "names"),
    [("0,1", None, ["amd-0", "amd-1"]), ("0,1", "4, 5", ["amd-4", "amd-5"]), ("0,1", "", ["amd-0", "amd-1"]),
     ("0,1", "4", ["amd-4", "amd-1"]), (None, None, []), ("", "4,5", [])],
)  # fmt: skip
def test_gpus_of_amd_are_leased_by_their_index_and_devices_of_nobody_are_not(
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
        assert [list(one.gpus) for one in living() if one.sweep == "mine"] == [names]
        with pytest.raises(Occupied, match=f"GPU {names[1]} is held") if names else nullcontext():
            agents[1].lease(Wish(Owner("another")))
    finally:
        for agent in agents:
            agent.stop()


def test_what_a_rank_waits_for_is_its_own_download_and_those_of_the_others(
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
    answers, asked = threading.Event(), list[int]()

    def count(*_: object) -> int:
        asked.append(1)
        return 5 if len(asked) == 1 else 7 if answers.wait(30.0) else 0

    monkeypatch.setattr("orchestrator.cluster.engine_host.downloaded_bytes", count)
    monkeypatch.setattr("orchestrator.cluster.engine_host.CACHE_LIMIT_S", 0.05)
    node = Node(port=agent.reserve_ports(1)[0])
    agent.start(EngineSettings(engine="emulator", model="m"), Hardware(name="cpu"), node, "")
    assert [agent.downloaded() for _ in range(4)] == [5] * 4
    assert len(asked) == 2
    answers.set()
    assert wait_for(lambda: agent.downloaded() == 7, 10.0, "its answer")


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
    files, looks = [agent._lease._lease_file._path, lock.path], iter([False, True])
    for file in files:
        os.utime(file, (0, 0))
    monkeypatch.setattr(agent._over, "wait", lambda _: next(looks))
    agent._keep(
        SimpleNamespace(touch=lock.touch, log_path=Path(agent.allocation.log_path), ready_at=0)
    )
    assert [file.stat().st_mtime > 0 for file in files] == [True, True]
    lock.release()


def test_an_agent_tells_what_others_did_on_its_host(agent: EngineHost, tmp_path: Path) -> None:
    agent.lease(Wish(Owner("mine")))
    agent.begin_host()
    mine, other, clients = Lease("a"), Lease("b"), [ClientHost(), ClientHost()]
    mine.take(Wish(Owner("mine"), False))
    other.take(Wish(Owner("another"), False))
    for client in clients:
        client.lease(Owner("another"))
    found = agent.end_host([os.getpid()])
    for client in clients:
        client.rest()
    mine.release()
    other.release()
    assert (found.host, found.foreign_launches) == (socket.gethostname(), 3)
    assert found.foreign_cpu_s >= 0


def test_no_other_sweep_gets_the_host_of_a_client_that_a_launch_has() -> None:
    cluster, other = LocalCluster(None, 1, watched=False), Lease("a")
    clients = cluster.clients(1, {})
    with pytest.raises(Occupied, match="held by a load client"):
        other.take(Wish(Owner("another"), True))
    clients.release()
    other.take(Wish(Owner("another"), True))
    again = cluster.clients(1, {})  # there is no other host
    assert sorted(one.client for one in living()) == [False, True]
    other.release()
    again.release()
    cluster.close()
    assert living() == []


class Machines:
    """Clients on hosts, some of which other sweeps have for themselves."""

    def __init__(self, *held: str) -> None:
        self.held, self.names, self.killed, self.broken = held, "abc", list[str](), ""

    def machines(self) -> list[Machine]:
        return [Machine(name, name) for name in self.names]

    def start(self, machine: Machine) -> ClientHandle:
        name = machine.node_id
        return Sitting(name in self.held, lambda: self.killed.append(name), name in self.broken)


class Sitting:
    def __init__(self, held: bool, kill: Callable[[], None], broken: bool) -> None:
        self._held, self.kill, self._broken = held, kill, broken

    def begin(self, method: Callable[..., Any], *arguments: object) -> Future[Any]:
        made: Future[Any] = Future()
        if self._broken:
            made.set_exception(HostLost("its process ended"))
            return made
        answers: dict[Callable[..., Any], object] = {
            ClientHost.lease: self._held,
            ClientHost.rest: True,
            ClientHost.process: ("here", 1),
        }
        made.set_result(answers[method])
        return made


@pytest.mark.parametrize(("held", "where"), [("", "c"), ("c", "a"), ("ca", "b"), ("abc", "a")])
def test_clients_keep_off_hosts_that_are_held_or_full(held: str, where: str) -> None:
    """``a`` has the engine of this launch, ``b`` one of another launch of this sweep."""
    machines = Machines(*held)
    pool = ClientPool(None, "a", machines.machines, machines.start)
    clients = pool.borrow(1, {"a": 1, "b": 2})
    assert (clients.addresses, clients.unfit) == ([where], set(held))


def test_it_is_said_on_which_hosts_no_client_started() -> None:
    machines = Machines()
    machines.broken = "ac"
    pool = ClientPool(None, "x", machines.machines, machines.start)
    with pytest.raises(
        NoClient, match="did not start on node a: its process ended; .* on node c"
    ) as caught:
        pool.borrow(3, {})
    assert caught.value.nodes == {"a", "c"}
    assert sorted(machines.killed) == ["a", "b", "c"]
    assert pool.borrow(1, {"a": 4, "c": 4}).addresses == ["b"]


def test_idle_clients_on_a_host_without_room_are_not_taken_while_there_are_others() -> None:
    machines = Machines()
    pool = ClientPool(None, "x", machines.machines, machines.start)
    pool.borrow(1, {}).release()
    assert pool.borrow(1, {"a": UNFIT}).addresses == ["b"]
    assert machines.killed == ["a"]


def test_idle_clients_on_a_host_that_became_unfit_are_not_the_next_ones_taken() -> None:
    machines = Machines()
    machines.names = "a"
    pool = ClientPool(None, "a", machines.machines, machines.start)
    pool.borrow(4, {}).release()
    machines.names = "ab"
    for member in pool._idle:
        member.handle._held = True  # type: ignore[attr-defined]
    assert pool.borrow(2, {}).addresses == ["b", "b"]
    assert machines.killed == ["a"] * 4


def test_a_client_whose_disk_is_full_says_so_before_a_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses() -> None:
        raise ResultsError("/tmp of x is full")

    clients = ClientPool(None, "a", Machines().machines, lambda machine: Direct()).borrow(2, {})
    assert clients.unfit == set()
    monkeypatch.setattr("orchestrator.cluster.client_host.check_free_space", refuses)
    with pytest.raises(ClientLost, match=r"/tmp of x is full$") as caught:
        clients.prepare(point_for("http://127.0.0.1:9"))
    host = ClientHost()
    assert (host.lease(Owner("sweep")), host.rest()) == (True, True)
    clients.release()
    assert caught.value.clients == (0, 1)
    assert clients.unfit == set(clients.nodes)


class Direct:
    """A client in this process."""

    def __init__(self) -> None:
        self._client = ClientHost()

    def begin(self, method: Callable[..., Any], *arguments: object) -> Future[Any]:
        made: Future[Any] = Future()
        try:
            made.set_result(method(self._client, *arguments))
        except Exception as error:
            made.set_exception(error)
        return made

    def kill(self) -> None: ...


def test_a_client_gives_the_driver_the_rows_that_the_storage_does_not_take_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ResultsError("the storage refuses")

    def never(*_: object, **__: object) -> None:
        over.wait()

    over, host = threading.Event(), ClientHost()
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr("orchestrator.results.row_writer.SMALL_BYTES", 0)
    for put_part, limit_s in ((refuse, 60.0), (never, 0.0)):
        monkeypatch.setattr("orchestrator.cluster.client_host.STORE_LIMIT_S", limit_s)
        host.prepare(point_for("http://127.0.0.1:9"))
        report = host.run_and_store(time.time_ns(), 0, 0, SimpleNamespace(put_part=put_part))
        assert (report.stored, report.requests.rows, report.token_events is None) == ((), 3, False)
    over.set()


def test_a_client_that_waits_on_a_node_that_is_taken_back_is_ended() -> None:
    """Its pod would wait for it."""
    machines = Machines()
    pool = ClientPool(None, "a", machines.machines, machines.start)
    pool.borrow(3, {}).release()
    machines.names = "ab"
    assert sorted(pool.borrow(2, {}).nodes) == ["a", "b"]
    assert machines.killed == ["c"]
    pool.close()
    assert machines.killed == ["c", "a", "b"]


def test_without_any_node_there_is_no_place_for_a_client() -> None:
    """A failure of the cluster, not of this program."""
    pool = ClientPool(None, "a", list, Machines().start)
    with pytest.raises(PlacementError, match="no node is left"):
        pool.borrow(1, {})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (None, None),
        ("folder", "folder"),
        ("folder/tokenizer.json", "folder/tokenizer.json"),
        ("folder/tokens", "folder/tokens"),
        ("x.gguf", None),
        ("acme/x:Q4_K_M", None),
        ("acme/x", None),
        ("/nowhere/x.gguf", None),
    ],
)
def test_a_gguf_file_and_what_the_hub_has_not_given_are_no_tokenizer(
    name: str | None, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file in ("folder/tokenizer.json", "folder/tokens", "x.gguf"):
        (tmp_path / file).write_bytes(b"GGUF")
    assert local_tokenizer(name) == found


def test_a_client_process_ignores_signals_from_its_very_beginning() -> None:
    """A terminal sends Ctrl-C to it too, and it may still be importing: it would end, or print
    where it was.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    client = ClientProcess()
    try:
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        assert client.process.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.process.pid, number)
        assert client.begin(ClientHost.wall_ns).result(30) > 0
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.process.pid, number)
        assert client.begin(ClientHost.wall_ns).result(30) > 0
    finally:
        client.kill()


class Counting:
    """A client that still counts replies: it reports at the third question, or never answers."""

    def __init__(self, answers: bool) -> None:
        self.report: Future[Any] = Future()
        self.asked, self.answers, self.progress = 0, answers, Progress()

    def begin(self, method: Callable[..., Any], *arguments: object) -> Future[Any]:
        made: Future[Any] = Future()
        self.asked += 1
        if self.answers:
            made.set_result(self.progress)
            if self.asked == 3:
                self.report.set_result("rows")
        return made


@pytest.mark.parametrize(("answers", "found"), [([True], [0]), ([False], []), ([True, False], [0])])
def test_who_answers_is_waited_for_and_who_does_not_is_not(
    answers: list[bool], found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cluster.clients.PROGRESS_LIMIT_S", 0.01)
    clients = [Counting(one) for one in answers]
    run = ClientRun(clients, [one.report for one in clients])
    run.settle(0.0)
    assert list(run.reports()) == found


def test_a_client_that_owes_an_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process reads nothing: questions would fill its pipe until the driver blocks for
    ever.
    """
    monkeypatch.setattr("orchestrator.cluster.clients.PROGRESS_LIMIT_S", 0.01)
    clients = [Counting(True), Counting(False)]
    run = ClientRun(clients, [one.report for one in clients])
    for _ in range(5):
        run.progress()
    assert [one.asked for one in clients] == [5, 1]


def test_a_client_whose_disk_fills_up_during_a_point_is_lost_and_known_as_full() -> None:
    clients = [Counting(True), Counting(True)]
    run = ClientRun(clients, [one.report for one in clients])
    clients[0].report.set_exception(ResultsError("/tmp of x is full"))
    with pytest.raises(ClientLost, match="/tmp of x is full"):
        run.wait(0.0)
    assert run.full == {0}


def reported(client: ClientProcess) -> ClientReport:
    """Of requests to a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        point = point_for(f"http://127.0.0.1:{gone.getsockname()[1]}")
    try:
        client.begin(ClientHost.prepare, point, 0, 1).result(30)
        return client.begin(ClientHost.run_and_store, time.time_ns(), 0, 0, None).result(30)
    finally:
        client.kill()


def point_for(url: str) -> LoadPoint:
    return LoadPoint(
        targets=(Target(url, "m", 0),),
        dialect=ENGINES["vllm"].dialects(EngineSettings(engine="vllm", model="m"))["completions"],
        workload=RandomWorkload(
            name="w", input_tokens=Lengths(fixed=8), output_tokens=Lengths(fixed=4)
        ),
        level=Level(control="concurrency", value=2),
        arrivals=Arrivals(),
        duration_s=None,
        requests=3,
        seed=7,
    )


def test_a_client_process_reports_whatever_its_temporary_folder_is_called_and_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a Unix socket has at most 107 bytes."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    report = reported(ClientProcess())
    rows = [part.read() for part in (report.requests, report.token_events) if part]
    assert [one.num_rows for one in rows] == [3, 0]
    assert set(rows[0]["error_class"].to_pylist()) == {"connect"}
    assert list(folder.iterdir()) == []


def test_an_answer_that_the_driver_cannot_read_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("orchestrator.cluster.local._Read.load", full)
    with pytest.raises(HostLost, match="answer could not be read: .*Too many open files"):
        reported(ClientProcess())


def lock_of(_: ClientHost) -> object:
    """An answer that cannot be pickled."""
    return threading.Lock()


def test_an_answer_that_cannot_be_sent_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread of this process: what a client's own process lacks cannot be patched there."""
    ours, theirs = Pipe()
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    threading.Thread(target=_serve, args=(theirs,), daemon=True).start()
    ours.send((3, lock_of, ()))
    assert ours.poll(10)
    number, error, _ = _received(ours)
    assert (number, str(error)) == (
        3,
        "lock_of failed on its node: TypeError: cannot pickle '_thread.lock' object",
    )
    ours.close()


def test_few_rows_of_a_client_process_are_passed_on_decoded() -> None:
    parts = [
        part_of("requests", requests(request(0), request(1))),
        part_of("token_events", events({})),
    ]
    ours, theirs = Pipe()
    _Answer(3, None, parts).send(theirs)
    for part, found, again in zip(
        parts, _received(ours)[2], pickle.loads(pickle.dumps(parts)), strict=True
    ):
        for one in (found, again):
            assert isinstance(one.file, pa.Table)
            assert one.read().equals(part.read(), check_metadata=True)
            assert pq.read_table(one.open()).equals(part.read())
            assert one.rows == part.rows


def test_many_rows_of_a_client_process_are_passed_on_as_an_open_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.results.row_writer.SMALL_BYTES", 0)
    part = part_of("token_events", events({index: [20] * 500 for index in range(200)}))
    ours, theirs = Pipe()
    _Answer(3, None, {"rows": part}).send(theirs)
    content, _ = ours.recv()
    os.close(reduction.recv_handle(ours))
    assert len(content) < 1_000 < part.open().size() < len(pickle.dumps(part))
    _Answer(3, None, {"rows": part}).send(theirs)
    number, error, value = _received(ours)
    assert (number, error) == (3, None)
    for found in (value["rows"], pickle.loads(pickle.dumps(part))):
        assert (found.table, found.rows, found.open().read()) == (
            part.table,
            part.rows,
            part.open().read(),
        )


def test_a_driver_may_open_as_many_files_as_the_system_permits() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    try:
        LocalCluster(None).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

"""The pool of load clients, what a launch borrows from it, and one run of those clients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from orchestrator.base.errors import NoClient, PlacementError, ResultsError
from orchestrator.cluster.base import Avoidance, ClientLost, HostLost, Machine
from orchestrator.cluster.client_host import ClientHost
from orchestrator.cluster.clients import ClientHandle, ClientPool, ClientRun
from orchestrator.load.point import Progress
from orchestrator.node.leases import Owner
from tests.unit.cluster.points import point_for


class Cluster:
    """Nodes, each of which is a host of its own, and the clients on them.

    ``held``: hosts that other sweeps have for themselves. ``broken``: nodes on which the process of
    a client ends at once. ``without_processes``: nodes on which no process can be started.
    ``killed``: the node of each client that was killed.
    """

    def __init__(self, *held: str) -> None:
        self.nodes = ["a", "b", "c"]
        self.held = list(held)
        self.broken: list[str] = []
        self.without_processes: list[str] = []
        self.killed: list[str] = []

    def machines(self) -> list[Machine]:
        return [Machine(node, node) for node in self.nodes]

    def start(self, machine: Machine) -> ClientHandle:
        if machine.node_id in self.without_processes:
            raise OSError("no process can be started")
        return FakeClient(self, machine.node_id)

    def pool(self, driver: str) -> ClientPool:
        """A pool of clients, whose driver runs on the node ``driver``."""
        return ClientPool(None, driver, self.machines, self.start)


class FakeClient:
    """A client that does nothing."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node

    def begin(self, method: Callable[..., Any], *arguments: object) -> Future[Any]:
        future: Future[Any] = Future()
        if self._node in self._cluster.broken:
            future.set_exception(HostLost("its process ended"))
            return future
        answers: dict[Callable[..., Any], object] = {
            ClientHost.lease: self._node in self._cluster.held,
            ClientHost.release_lease: True,
            ClientHost.process: ("here", 1),
        }
        future.set_result(answers[method])
        return future

    def kill(self) -> None:
        self._cluster.killed.append(self._node)


@pytest.mark.parametrize(("held", "node"), [("", "c"), ("c", "a"), ("ca", "b"), ("abc", "a")])
def test_clients_keep_off_hosts_that_others_hold_or_that_have_engines(held: str, node: str) -> None:
    """``a`` has the engine of this launch, ``b`` one of another launch of this sweep."""
    clients = (
        Cluster(*held).pool("a").borrow(1, {"a": Avoidance.OWN_ENGINE, "b": Avoidance.OTHER_ENGINE})
    )
    assert (clients.addresses, clients.unfit) == ([node], set(held))


def test_it_is_said_on_which_hosts_no_client_started() -> None:
    cluster = Cluster()
    cluster.broken = ["a", "c"]
    pool = cluster.pool("elsewhere")
    with pytest.raises(
        NoClient, match="did not start on node a: its process ended; .* on node c"
    ) as caught:
        pool.borrow(3, {})
    assert caught.value.nodes == {"a", "c"}
    assert sorted(cluster.killed) == ["a", "b", "c"]
    assert pool.borrow(1, {"a": Avoidance.UNFIT, "c": Avoidance.UNFIT}).addresses == ["b"]


def test_if_a_client_cannot_be_started_the_others_are_kept_or_ended() -> None:
    cluster = Cluster()
    pool = cluster.pool("elsewhere")
    pool.borrow(1, {}).release()
    cluster.without_processes = ["c"]
    with pytest.raises(OSError, match="no process"):
        pool.borrow(3, {})
    assert cluster.killed == ["b"]  # it was new
    assert pool.borrow(1, {}).addresses == ["a"]
    pool.close()
    assert sorted(cluster.killed) == ["a", "b"]


def test_an_idle_client_on_a_host_that_the_launch_finds_unfit_is_ended() -> None:
    cluster = Cluster()
    pool = cluster.pool("elsewhere")
    pool.borrow(1, {}).release()
    assert pool.borrow(1, {"a": Avoidance.UNFIT}).addresses == ["b"]
    assert cluster.killed == ["a"]


def test_idle_clients_on_a_host_that_another_sweep_took_are_ended() -> None:
    cluster = Cluster()
    cluster.nodes = ["a"]
    pool = cluster.pool("a")
    pool.borrow(4, {}).release()
    cluster.nodes = ["a", "b"]
    cluster.held = ["a"]
    assert pool.borrow(2, {}).addresses == ["b", "b"]
    assert cluster.killed == ["a"] * 4


class DirectClient:
    """A client whose methods run in the thread that calls them."""

    def __init__(self) -> None:
        self._client = ClientHost()

    def begin(self, method: Callable[..., Any], *arguments: object) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(method(self._client, *arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def kill(self) -> None: ...


@pytest.fixture
def fill_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, no client has room for rows."""

    def refuse() -> None:
        raise ResultsError("/tmp of x is full")

    return lambda: monkeypatch.setattr("orchestrator.cluster.client_host.check_free_space", refuse)


def test_a_client_whose_disk_is_full_says_so_before_a_point(fill_disk: Callable[[], None]) -> None:
    pool = ClientPool(None, "a", Cluster().machines, lambda machine: DirectClient())
    clients = pool.borrow(2, {})
    assert clients.unfit == set()
    fill_disk()
    with pytest.raises(ClientLost, match=r"/tmp of x is full$") as caught:
        clients.prepare(point_for("http://127.0.0.1:9"))
    clients.release()
    assert caught.value.clients == (0, 1)
    assert clients.unfit == set(clients.nodes)


def test_a_host_whose_disk_is_full_is_unfit_for_a_client(fill_disk: Callable[[], None]) -> None:
    fill_disk()
    host = ClientHost()
    is_unfit = host.lease(Owner("sweep"))
    assert is_unfit
    assert host.release_lease()


def test_an_idle_client_on_a_node_taken_back_is_ended() -> None:
    """The node's pod would wait for the client."""
    cluster = Cluster()
    pool = cluster.pool("a")
    pool.borrow(3, {}).release()
    cluster.nodes = ["a", "b"]
    assert sorted(pool.borrow(2, {}).nodes) == ["a", "b"]
    assert cluster.killed == ["c"]
    pool.close()
    assert cluster.killed == ["c", "a", "b"]


def test_a_closed_pool_starts_and_keeps_no_client() -> None:
    cluster = Cluster()
    pool = cluster.pool("elsewhere")
    borrowed = pool.borrow(1, {})
    pool.close()
    borrowed.release()
    assert set(cluster.killed) == {"a"}
    with pytest.raises(PlacementError, match="were ended"):
        pool.borrow(1, {})


def test_a_client_that_starts_while_the_pool_closes_is_ended() -> None:
    """A second Ctrl-C closes the pool while launches borrow clients."""
    cluster = Cluster()
    closings: list[threading.Thread] = []

    def start_while_closing(machine: Machine) -> ClientHandle:
        closing = threading.Thread(target=pool.close)
        closing.start()
        closings.append(closing)
        return cluster.start(machine)

    pool = ClientPool(None, "elsewhere", cluster.machines, start_while_closing)
    pool.borrow(1, {})
    closings[0].join()
    assert cluster.killed == ["a"]


def test_without_any_node_there_is_no_place_for_a_client() -> None:
    """A failure of the cluster, not of this program."""
    cluster = Cluster()
    cluster.nodes = []
    pool = cluster.pool("a")
    with pytest.raises(PlacementError, match="no node is left"):
        pool.borrow(1, {})


class CountingClient:
    """A client that still counts the replies of a long point.

    ``answers``: it answers every question about its progress, and reports at the third; otherwise it
    does neither.
    """

    def __init__(self, answers: bool) -> None:
        self.report: Future[Any] = Future()
        self.questions = 0
        self._answers = answers

    def begin(self, method: Callable[..., Any], *arguments: object) -> Future[Any]:
        future: Future[Any] = Future()
        self.questions += 1
        if self._answers:
            future.set_result(Progress())
            if self.questions == 3:
                self.report.set_result("rows")
        return future


@pytest.mark.parametrize(
    ("answers", "reporting"), [([True], [0]), ([False], []), ([True, False], [0])]
)
def test_a_late_client_is_waited_for_as_long_as_it_answers(
    answers: list[bool], reporting: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``answers``: of each client. ``reporting``: the clients whose reports come."""
    monkeypatch.setattr("orchestrator.cluster.clients.PROGRESS_LIMIT_S", 0.01)
    clients = [CountingClient(answer) for answer in answers]
    run = ClientRun(clients, [client.report for client in clients])
    run.settle(0.0)
    assert list(run.reports()) == reporting


def test_a_client_that_owes_an_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process reads nothing: questions would fill its pipe until the driver blocks for
    ever.
    """
    monkeypatch.setattr("orchestrator.cluster.clients.PROGRESS_LIMIT_S", 0.01)
    clients = [CountingClient(answers=True), CountingClient(answers=False)]
    run = ClientRun(clients, [client.report for client in clients])
    for _ in range(5):
        run.progress()
    assert [client.questions for client in clients] == [5, 1]


def test_a_client_whose_disk_fills_up_is_lost_and_full() -> None:
    clients = [CountingClient(answers=True), CountingClient(answers=True)]
    run = ClientRun(clients, [client.report for client in clients])
    clients[0].report.set_exception(ResultsError("/tmp of x is full"))
    with pytest.raises(ClientLost, match="/tmp of x is full"):
        run.wait(0.0)
    assert run.without_room == {0}

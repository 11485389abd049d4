"""The pool of load clients, what a launch borrows from it, and one run of those clients."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from orchestrator.base.errors import NoClient, PlacementError, ResultsError
from orchestrator.cluster.base import ClientLost, HostLost, Machine
from orchestrator.cluster.client_host import ClientHost
from orchestrator.cluster.clients import UNFIT, ClientHandle, ClientPool, ClientRun
from orchestrator.load.point import Progress
from orchestrator.node.leases import Owner
from tests.unit.cluster.points import point_for


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
        future: Future[Any] = Future()
        if self._broken:
            future.set_exception(HostLost("its process ended"))
            return future
        answers: dict[Callable[..., Any], object] = {
            ClientHost.lease: self._held,
            ClientHost.release_lease: True,
            ClientHost.process: ("here", 1),
        }
        future.set_result(answers[method])
        return future


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


def test_idle_clients_on_a_full_host_are_taken_last() -> None:
    machines = Machines()
    pool = ClientPool(None, "x", machines.machines, machines.start)
    pool.borrow(1, {}).release()
    assert pool.borrow(1, {"a": UNFIT}).addresses == ["b"]
    assert machines.killed == ["a"]


def test_idle_clients_on_an_unfit_host_are_ended() -> None:
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
    assert (host.lease(Owner("sweep")), host.release_lease()) == (True, True)
    clients.release()
    assert caught.value.clients == (0, 1)
    assert clients.unfit == set(clients.nodes)


class Direct:
    """A client in this process."""

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


def test_an_idle_client_on_a_node_taken_back_is_ended() -> None:
    """The node's pod would wait for the client."""
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


class Counting:
    """A client that still counts replies: it reports at the third question, or never answers."""

    def __init__(self, answers: bool) -> None:
        self.report: Future[Any] = Future()
        self.questions, self.answers, self.progress = 0, answers, Progress()

    def begin(self, method: Callable[..., Any], *arguments: object) -> Future[Any]:
        future: Future[Any] = Future()
        self.questions += 1
        if self.answers:
            future.set_result(self.progress)
            if self.questions == 3:
                self.report.set_result("rows")
        return future


@pytest.mark.parametrize(
    ("answers", "expected"), [([True], [0]), ([False], []), ([True, False], [0])]
)
def test_who_answers_is_waited_for_and_who_does_not_is_not(
    answers: list[bool], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.cluster.clients.PROGRESS_LIMIT_S", 0.01)
    clients = [Counting(answer) for answer in answers]
    run = ClientRun(clients, [client.report for client in clients])
    run.settle(0.0)
    assert list(run.reports()) == expected


def test_a_client_that_owes_an_answer_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process reads nothing: questions would fill its pipe until the driver blocks for
    ever.
    """
    monkeypatch.setattr("orchestrator.cluster.clients.PROGRESS_LIMIT_S", 0.01)
    clients = [Counting(True), Counting(False)]
    run = ClientRun(clients, [client.report for client in clients])
    for _ in range(5):
        run.progress()
    assert [client.questions for client in clients] == [5, 1]


def test_a_client_whose_disk_fills_up_is_lost_and_full() -> None:
    clients = [Counting(True), Counting(True)]
    run = ClientRun(clients, [client.report for client in clients])
    clients[0].report.set_exception(ResultsError("/tmp of x is full"))
    with pytest.raises(ClientLost, match="/tmp of x is full"):
        run.wait(0.0)
    assert run.full == {0}

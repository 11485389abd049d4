"""Load clients as the driver sees them: the pool, the clients a launch borrows from it, and one run
of those clients.

Each kind of cluster brings its own ``ClientHandle``; everything else is shared.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol

from orchestrator.base.errors import NoClient, PlacementError, ResultsError
from orchestrator.base.redaction import redact
from orchestrator.cluster.base import (
    Avoidance,
    ClientLost,
    ClientProcess,
    ClientReport,
    HostLost,
    Machine,
)
from orchestrator.cluster.calls import CALL_LIMIT_S, Arguments, T, answer, answer_or_none
from orchestrator.cluster.client_host import ClientHost
from orchestrator.load.point import LoadPoint, Progress, SoFar
from orchestrator.node.leases import Owner
from orchestrator.results.ids import digest
from orchestrator.telemetry.clock_offset import SAME_CLOCK, ClockOffset, clock_offset

if TYPE_CHECKING:
    from orchestrator.results.store import Store

PREPARE_LIMIT_S = 600.0  # for the schedule and the bodies of a long point
STOP_LOOK_S = 0.2
PROGRESS_LIMIT_S = 0.5
MOST_SETTLES = 20  # so that a client which answers but never finishes is not waited for forever
REUSE_LIMIT_S = 5.0


class ClientHandle(Protocol):
    """A ``ClientHost``, whether it runs in this process, in another one, or on another node."""

    def begin(
        self, method: Callable[[ClientHost, *Arguments], T], *arguments: *Arguments
    ) -> Future[T]:
        """Calls one of its methods without waiting: ``begin(ClientHost.finish, at_ns, drain)``. The
        future raises HostLost when the client's process is gone.
        """
        ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class PooledClient:
    """A client of the pool and where it runs. ``here``: on the driver's host, so both share one
    wall clock.
    """

    handle: ClientHandle
    node_id: str
    address: str
    here: bool


class _Poll(Generic[T]):
    """Asks all clients the same question again and again.

    A client that still owes an answer is not asked again: unread questions would pile up in the
    pipe of a stopped process until sending another one blocks.
    """

    def __init__(
        self, handles: Sequence[ClientHandle], question: Callable[[ClientHost], T]
    ) -> None:
        self._handles = handles
        self._question = question
        self._unanswered: dict[int, Future[T]] = {}

    def answers(self) -> dict[int, T]:
        """The answers that come within PROGRESS_LIMIT_S, by client."""
        for index, handle in enumerate(self._handles):
            if index not in self._unanswered:
                self._unanswered[index] = handle.begin(self._question)
        done, _ = wait(self._unanswered.values(), PROGRESS_LIMIT_S)
        answers: dict[int, T] = {}
        for index, call in list(self._unanswered.items()):
            if call in done:
                del self._unanswered[index]
                if call.exception() is None:
                    answers[index] = call.result()
        return answers


class ClientRun:
    """One load point while clients run it."""

    def __init__(
        self, handles: Sequence[ClientHandle], futures: Sequence[Future[ClientReport]]
    ) -> None:
        self._handles = handles
        self._futures = futures
        self._progress = _Poll(handles, ClientHost.progress)
        self._so_far = _Poll(handles, ClientHost.so_far)
        self._reports: dict[int, ClientReport] = {}
        self._lost: dict[int, str] = {}
        self.without_room: set[int] = set()  # the clients that could not keep their rows

    def wait(self, wait_s: float) -> bool:
        """Waits up to ``wait_s``. Returns whether every client has reported. Raises ClientLost."""
        outstanding = self._outstanding()
        wait(outstanding.values(), wait_s, FIRST_EXCEPTION)
        for index, future in outstanding.items():
            if not future.done():
                continue
            try:
                self._reports[index] = future.result()
            except ResultsError as error:
                self._lost[index] = str(error)
                self.without_room.add(index)
            except Exception as error:
                self._lost[index] = str(error)
        if self._lost:
            raise ClientLost(sorted(self._lost), _distinct(self._lost.values()))
        return not self.unfinished()

    def _outstanding(self) -> dict[int, Future[ClientReport]]:
        """The reports of clients that have neither reported nor been lost, by client."""
        over = self._reports.keys() | self._lost.keys()
        return {index: future for index, future in enumerate(self._futures) if index not in over}

    def settle(self, limit_s: float) -> None:
        """Waits ``limit_s`` for the outstanding reports, and again as long as a late client still
        answers: it may be counting the replies of a long point. Does not wait for lost clients.
        """
        for _ in range(MOST_SETTLES):
            wait(self._futures, limit_s)
            calls = []
            for handle, future in zip(self._handles, self._futures, strict=True):
                if not future.done():
                    calls.append(handle.begin(ClientHost.progress))
            answered, _ = wait(calls, PROGRESS_LIMIT_S)
            if all(call.exception() for call in answered):
                break
        try:
            self.wait(0.0)
        except ClientLost:
            return

    def progress(self) -> Progress:
        """The sum over the clients that answer promptly."""
        answers = self._progress.answers()
        total = sum(answers.values(), Progress())
        if len(answers) < len(self._handles):
            # a replica that seems silent may have answered a client that is missing here
            return replace(total, silences=())
        return total

    def so_far(self) -> list[SoFar]:
        """What happened in a watched point since the last call, as reported by the clients that
        answer promptly. The next call has what the others answer later.
        """
        return [report for report in self._so_far.answers().values() if report is not None]

    def finish(self, at_s: float, drain: bool) -> None:
        """Ends the point on all clients ``at_s`` seconds after its start, as if that had been its
        planned length.

        ``drain``: the clients wait for open requests; otherwise they close the connections, and
        open requests become ``aborted`` rows.
        """
        for handle in self._handles:
            handle.begin(ClientHost.finish, round(at_s * 1e9), drain)

    def abort(self, rows: bool = True) -> None:
        """Ends the point now. ``rows``: requests that are open or were not sent have rows, too."""
        for handle in self._handles:
            handle.begin(ClientHost.abort, rows)

    def unfinished(self) -> bool:
        """Whether a client may still be sending load."""
        return len(self._reports) < len(self._futures)

    def reports(self) -> dict[int, ClientReport]:
        """The reports that arrived, by client index."""
        return dict(sorted(self._reports.items()))


class BorrowedClients:
    """The clients that one launch borrowed from the pool. ``unfit``: nodes that were found, when
    these clients were borrowed, to be unfit for a client.
    """

    def __init__(
        self,
        pool: ClientPool,
        members: Sequence[PooledClient],
        store: Store | None,
        unfit: Collection[str] = (),
    ) -> None:
        self.addresses: Sequence[str] = [member.address for member in members]
        self.nodes: Sequence[str] = [member.node_id for member in members]
        self._pool = pool
        self._members = members
        self._store = store
        self._offsets: list[ClockOffset] = []  # of each member, since ``prepare``
        self._run: ClientRun | None = None
        self._unfit = frozenset(unfit)
        self._without_room: set[int] = set()  # members that had no room for rows in ``prepare``
        self._released = False

    def prepare(self, point: LoadPoint, stopped: Callable[[], bool] = lambda: False) -> int | None:
        """Builds the schedule and the request bodies on every client, and waits until all are ready
        to start.

        Returns the number of requests that are known by then; None when ``stopped`` became true.
        Raises InputError when the point cannot be run (no tokenizer, no such file, …), ClientLost.
        """
        count = len(self._members)
        calls = [
            member.handle.begin(ClientHost.prepare, point, index, count)
            for index, member in enumerate(self._members)
        ]
        end_s = time.monotonic() + PREPARE_LIMIT_S
        scheduled = 0
        while wait(calls, STOP_LOOK_S).not_done and time.monotonic() < end_s:
            if stopped():
                return None
        self._offsets = []
        without_room: dict[int, str] = {}
        self._without_room.clear()
        for index, (member, call) in enumerate(zip(self._members, calls, strict=True)):
            try:
                scheduled += answer(call, "prepare", end_s - time.monotonic())
                self._offsets.append(SAME_CLOCK if member.here else _offset_of(member.handle))
            except HostLost as error:
                raise ClientLost([index], str(error)) from error
            except ResultsError as error:
                without_room[index] = str(error)
                self._without_room.add(index)
        if without_room:
            raise ClientLost(list(without_room), _distinct(without_room.values()))
        return scheduled

    def start(self, lead_s: float, write: bool = True) -> ClientRun:
        """Starts all clients at one instant, ``lead_s`` from now. Where ``write`` is False, rows
        come back but are not stored.
        """
        start_ns = time.time_ns() + int(lead_s * 1e9)
        store = self._store if write else None
        calls = [
            member.handle.begin(
                ClientHost.run_and_store, start_ns + offset.ns, offset.ns, offset.error_ns, store
            )
            for member, offset in zip(self._members, self._offsets, strict=True)
        ]
        self._run = ClientRun([member.handle for member in self._members], calls)
        return self._run

    @property
    def nodes_without_room(self) -> set[str]:
        """Nodes on which a client had no room for its rows."""
        without_room = set(self._without_room)
        if self._run is not None:
            without_room |= self._run.without_room
        return {self.nodes[index] for index in without_room}

    @property
    def unfit(self) -> set[str]:
        """Nodes to which no client should move: those without room for rows, and those that
        another sweep held when these clients were borrowed.
        """
        return self.nodes_without_room | self._unfit

    @property
    def processes(self) -> Sequence[ClientProcess]:
        """Every client of this sweep, those of other launches included."""
        return tuple(self._pool.processes)

    def release(self) -> None:
        if not self._released:
            self._released = True
            still_loading = self._run is not None and self._run.unfinished()
            self._pool.give_back(self._members, reusable=not still_loading)


def _distinct(reasons: Iterable[str]) -> str:
    return "; ".join(sorted(set(reasons)))


def _offset_of(handle: ClientHandle) -> ClockOffset:
    """How far a client's wall clock is off."""
    return clock_offset(lambda: answer(handle.begin(ClientHost.wall_ns), "wall_ns"))


class ClientPool:
    """Long-lived client processes that launches borrow and give back. Thread-safe.

    ``start`` starts a client on a machine; ``address`` is the driver's.
    """

    def __init__(
        self,
        store: Store | None,
        address: str,
        machines: Callable[[], list[Machine]],
        start: Callable[[Machine], ClientHandle],
    ) -> None:
        self._store = store
        self._address = address
        self._machines = machines
        self._start = start
        self._owner = owner_of(store) if store is not None else Owner()
        self._lock = threading.Lock()
        self._idle: list[PooledClient] = []
        self._members: list[PooledClient] = []  # idle and borrowed
        self._is_closed = False
        self.processes: list[ClientProcess] = []  # of every client ever started

    def borrow(self, count: int, avoid: Mapping[str, Avoidance]) -> BorrowedClients:
        """``count`` clients (see ``Cluster.clients``), which lease a share of their hosts. Hosts
        that another sweep has for itself, or that have no room for rows, are the last choice.

        Raises NoClient, PlacementError.
        """
        avoid = dict(avoid)
        # idle clients are taken before new ones are started, wherever they are
        self._end_idle_on({node for node, reason in avoid.items() if reason >= Avoidance.UNFIT})
        unfit: set[str] = set()
        while True:
            members = self._borrow(count, avoid)
            newly_unfit = self._lease(members) - unfit
            if not newly_unfit:
                return BorrowedClients(self, members, self._store, unfit)
            for member in members:
                self.give_back([member], reusable=member.node_id not in newly_unfit)
            unfit |= newly_unfit
            self._end_idle_on(unfit)
            avoid |= dict.fromkeys(newly_unfit, Avoidance.UNFIT)

    def _lease(self, members: Sequence[PooledClient]) -> set[str]:
        """Leases shares of the clients' hosts. Returns the nodes where clients should rather not
        run.
        """
        calls = [member.handle.begin(ClientHost.lease, self._owner) for member in members]
        unfit: set[str] = set()
        for member, call in zip(members, calls, strict=True):
            if answer_or_none(call, "lease"):
                unfit.add(member.node_id)
        return unfit

    def _borrow(self, count: int, avoid: Mapping[str, Avoidance]) -> list[PooledClient]:
        """Takes idle clients, and starts those that are missing.

        Raises NoClient, PlacementError.
        """
        machines = {machine.node_id: machine for machine in self._machines()}
        if not machines:
            raise PlacementError("no node is left that could run a load client")
        self._end_idle(lambda member: member.node_id not in machines)
        with self._lock:
            self._idle.sort(key=lambda member: avoid.get(member.node_id, Avoidance.NONE))
            reused = self._idle[:count]
            self._idle = self._idle[count:]
        new: list[PooledClient] = []
        try:
            with self._lock:
                while len(reused) + len(new) < count:
                    new.append(self._start_client(list(machines.values()), avoid))
            self._await_first_answers(new)
        except BaseException:
            self.give_back(new, reusable=False)
            self.give_back(reused)
            raise
        return reused + new

    def _start_client(
        self, machines: Sequence[Machine], avoid: Mapping[str, Avoidance]
    ) -> PooledClient:
        """Starts a client where it disturbs least. Called with the lock. Raises PlacementError once
        the pool is closed.
        """
        if self._is_closed:
            raise PlacementError("the clients of this cluster were ended")
        nodes_of_clients = [member.node_id for member in self._members]
        machine = min(machines, key=lambda machine: _disturbance(machine, avoid, nodes_of_clients))
        client = PooledClient(
            handle=self._start(machine),
            node_id=machine.node_id,
            address=machine.address,
            here=machine.address == self._address,
        )
        self._members.append(client)
        return client

    def _await_first_answers(self, new: Sequence[PooledClient]) -> None:
        """Waits until new clients answer, and checks that they can write to the results from their
        node. Raises NoClient.
        """
        end_s = time.monotonic() + CALL_LIMIT_S
        calls = [member.handle.begin(ClientHost.process) for member in new]
        lost: dict[str, str] = {}
        for member, call in zip(new, calls, strict=True):
            try:
                self.processes.append(answer(call, "the first call", end_s - time.monotonic()))
            except HostLost as error:
                lost[member.node_id] = (
                    f"a load client did not start on node {member.address}: {error}"
                )
        if lost:
            raise NoClient("; ".join(lost.values()), lost)
        # stops at the first problem: where the storage does not answer, every check waits as long
        for member in new:
            problem = self._reach_problem(member)
            if problem:
                raise NoClient(problem, [member.node_id])

    def _reach_problem(self, member: PooledClient) -> str:
        """Why a client cannot write to the results; empty if it can."""
        if self._store is None or (member.here and self._store.is_local):
            return ""
        try:
            problem = answer(
                member.handle.begin(ClientHost.reach_problem, self._store),
                "the check of the results",
            )
        except HostLost as error:
            problem = str(error)
        return f"no client on node {member.address}: {problem}" if problem else ""

    def give_back(self, members: Sequence[PooledClient], reusable: bool = True) -> None:
        """Keeps clients that still answer for the next launch, and kills the others; kills all of
        them unless they are ``reusable``. A closed pool keeps none.
        """
        for member in members:
            answers = reusable and _release(member)
            with self._lock:
                is_kept = answers and not self._is_closed
                if is_kept:
                    self._idle.append(member)
                else:
                    self._members = [other for other in self._members if other is not member]
            if not is_kept:
                member.handle.kill()

    def end_idle(self) -> None:
        """Ends idle clients on other hosts: an autoscaler removes no node on which one waits."""
        self._end_idle(lambda member: not member.here)

    def _end_idle_on(self, nodes: Collection[str]) -> None:
        self._end_idle(lambda member: member.node_id in nodes)

    def _end_idle(self, should_end: Callable[[PooledClient], bool]) -> None:
        with self._lock:
            ended = [member for member in self._idle if should_end(member)]
            self._idle = [member for member in self._idle if member not in ended]
            self._members = [member for member in self._members if member not in ended]
        for member in ended:
            member.handle.kill()

    def close(self) -> None:
        """Ends every client, also one that a launch is just starting. No client starts after this,
        and none is kept.
        """
        with self._lock:
            self._is_closed = True
            members = self._members
            self._members = []
            self._idle = []
        for member in members:
            member.handle.kill()


def _release(member: PooledClient) -> bool:
    """Releases a client's lease. Returns whether the client is alive."""
    call = member.handle.begin(ClientHost.release_lease)
    return answer_or_none(call, "release_lease", REUSE_LIMIT_S) is not None


def owner_of(store: Store) -> Owner:
    """The owner of this driver's leases (node/leases.py). A sweep is one experiment in one results
    root.
    """
    return Owner(
        sweep=digest([store.uri, store.experiment]),
        experiment=store.experiment,
        results=redact(store.uri),
        pid=os.getpid(),
        host=socket.gethostname(),
    )


class _Disturbance(NamedTuple):
    """How much a new client would disturb on a machine: the smaller, by the first field in which
    two machines differ, the less. ``clients``: how many clients are there already. ``node_id``
    breaks ties.
    """

    avoidance: Avoidance
    has_gpus: bool
    clients: int
    node_id: str


def _disturbance(
    machine: Machine, avoid: Mapping[str, Avoidance], nodes_of_clients: Sequence[str]
) -> _Disturbance:
    """How much a new client would disturb on a machine. ``nodes_of_clients``: the node of each
    client.
    """
    return _Disturbance(
        avoidance=avoid.get(machine.node_id, Avoidance.NONE),
        has_gpus=machine.gpus > 0,
        clients=nodes_of_clients.count(machine.node_id),
        node_id=machine.node_id,
    )

"""Load clients as the driver sees them: the pool, the clients a launch borrows from it, and one run
of those clients.

Each kind of cluster brings its own ``ClientHandle``; everything else is shared.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.base.errors import NoClient, PlacementError, ResultsError
from orchestrator.base.redaction import redact
from orchestrator.cluster.base import ClientLost, ClientReport, HostLost, Machine
from orchestrator.cluster.calls import CALL_LIMIT_S, answer
from orchestrator.load.point import LoadPoint, Progress, SoFar
from orchestrator.node.leases import Owner
from orchestrator.results.ids import digest

if TYPE_CHECKING:
    from orchestrator.results.store import Store

PREPARE_LIMIT_S = 600.0  # a schedule and the bodies of a long point
STOP_LOOK_S = 0.2
PROGRESS_LIMIT_S = 0.5
MOST_SETTLES = 20  # a client that answers but never finishes must not be waited for without end
REUSE_LIMIT_S = 5.0
UNFIT = 3  # in ``avoid``: worse than a node that any launch of this sweep uses


class ClientHandle(Protocol):
    """A ``ClientHost`` (client_host.py), whether it runs in this process, in another one, or on
    another node.
    """

    def begin(self, method: str, *args: object) -> Future[Any]:
        """Call one of its methods without waiting. The future raises HostLost when the client's
        process is gone.
        """
        ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A client of the pool and where it runs. ``here``: on the driver's host, so both share one
    wall clock.
    """

    handle: ClientHandle
    node_id: str
    address: str
    here: bool


class ClientRun:
    """One load point while clients run it."""

    def __init__(self, handles: Sequence[ClientHandle], futures: Sequence[Future[Any]]) -> None:
        self._handles, self._futures = handles, futures
        self._reports: dict[int, ClientReport] = {}
        self._lost: dict[int, str] = {}
        # method -> client -> the answer it still owes
        self._asked: dict[str, dict[int, Future[Any]]] = {}
        self.full: set[int] = set()  # the clients that could not keep their rows

    def wait(self, wait_s: float) -> bool:
        """Wait up to ``wait_s``; true once every client has reported. Raises ClientLost."""
        wait([self._futures[index] for index in self._open()], wait_s, FIRST_EXCEPTION)
        for index in self._open():
            if self._futures[index].done():
                try:
                    self._reports[index] = self._futures[index].result()
                except ResultsError as error:
                    self._lost[index] = str(error)
                    self.full.add(index)
                except Exception as error:
                    self._lost[index] = str(error)
        if self._lost:
            raise ClientLost(sorted(self._lost), "; ".join(sorted(set(self._lost.values()))))
        return not self.unfinished()

    def _open(self) -> list[int]:
        return [
            at
            for at in range(len(self._futures))
            if at not in self._reports and at not in self._lost
        ]

    def settle(self, limit_s: float) -> None:
        """Wait ``limit_s`` for the outstanding reports, and again as long as a late client still
        answers: it may be counting the replies of a long point. Clients that are lost are not
        waited for.
        """
        for _ in range(MOST_SETTLES):
            wait(self._futures, limit_s)
            late = [
                handle
                for handle, future in zip(self._handles, self._futures, strict=True)
                if not future.done()
            ]
            told, _ = wait([handle.begin("progress") for handle in late], PROGRESS_LIMIT_S)
            if all(call.exception() for call in told):
                break
        try:
            self.wait(0.0)
        except ClientLost:
            return

    def progress(self) -> Progress:
        """The sum over the clients that answer promptly."""
        parts = self._ask("progress")
        found = sum(parts.values(), Progress())
        # unless all answer, nobody knows whether a replica is silent: a missing client may have
        # heard from it
        silences = found.silences if len(parts) == len(self._handles) else ()
        return replace(found, silences=silences)

    def so_far(self) -> list[SoFar]:
        """What happened in a watched point since the last call; a client that answers late is
        included next time.
        """
        return [found for found in self._ask("so_far").values() if found is not None]

    def _ask(self, method: str) -> dict[int, Any]:
        """The answers that come in time, by client. One that still owes an answer is not asked
        again: unread questions would pile up in the pipe of a stopped process until sending another
        one blocks.
        """
        asked = self._asked.setdefault(method, {})
        for index, handle in enumerate(self._handles):
            if index not in asked:
                asked[index] = handle.begin(method)
        wait(asked.values(), PROGRESS_LIMIT_S)
        calls = {index: asked.pop(index) for index, call in list(asked.items()) if call.done()}
        return {index: call.result() for index, call in calls.items() if call.exception() is None}

    def finish(self, at_s: float, drain: bool) -> None:
        """End the point on all clients ``at_s`` seconds after its start, as if that had been its
        planned length.

        ``drain``: wait for open requests; otherwise close their connections, and they become
        ``aborted`` rows.
        """
        for handle in self._handles:
            handle.begin("finish", round(at_s * 1e9), drain)

    def abort(self, rows: bool = True) -> None:
        """End the point now. ``rows``: also write rows for requests that are open or were not sent."""
        for handle in self._handles:
            handle.begin("abort", rows)

    def unfinished(self) -> bool:
        """Whether a client may still be sending load."""
        return len(self._reports) < len(self._futures)

    def reports(self) -> dict[int, ClientReport]:
        """The reports that arrived, by client index."""
        return dict(sorted(self._reports.items()))


class Clients:
    """The clients that one launch borrowed from the pool. ``unfit``: nodes that were found to be
    unfit for others.
    """

    def __init__(
        self,
        pool: ClientPool,
        members: Sequence[Member],
        store: Store | None,
        unfit: Collection[str] = (),
    ) -> None:
        self.addresses: Sequence[str] = [member.address for member in members]
        self.nodes: Sequence[str] = [member.node_id for member in members]
        self._pool, self._members, self._store = pool, members, store
        self._offsets: list[tuple[int, int]] = []
        self._run: ClientRun | None = None
        self._unfit, self._full = frozenset(unfit), set[int]()
        self._released = False

    def prepare(self, point: LoadPoint, stopped: Callable[[], bool] = lambda: False) -> int | None:
        """Build the schedule and the request bodies on every client, and wait until all are ready
        to start.

        Returns the number of requests scheduled so far, None when ``stopped`` became true. Raises
        InputError when the point cannot be run (no tokenizer, no such file, …), ClientLost.
        """
        count = len(self._members)
        calls = [
            member.handle.begin("prepare", point, at, count)
            for at, member in enumerate(self._members)
        ]
        end_s, known = time.monotonic() + PREPARE_LIMIT_S, 0
        while wait(calls, STOP_LOOK_S).not_done and time.monotonic() < end_s:
            if stopped():
                return None
        self._offsets = []
        full: dict[int, str] = {}
        for index, (member, call) in enumerate(zip(self._members, calls, strict=True)):
            try:
                known += answer(call, "prepare", end_s - time.monotonic())
                self._offsets.append((0, 0) if member.here else _clock_offset(member.handle))
            except HostLost as error:
                raise ClientLost([index], str(error)) from error
            except ResultsError as error:
                full[index] = str(error)
        self._full = set(full)
        if full:
            raise ClientLost(list(full), "; ".join(sorted(set(full.values()))))
        return known

    def start(self, lead_s: float, write: bool = True) -> ClientRun:
        """Start all clients at one instant, ``lead_s`` from now. ``write=False``: rows come back
        but are not stored.
        """
        start_ns = time.time_ns() + int(lead_s * 1e9)
        store = self._store if write else None
        calls = [
            member.handle.begin("run_and_store", start_ns + offset, offset, error, store)
            for member, (offset, error) in zip(self._members, self._offsets, strict=True)
        ]
        self._run = ClientRun([member.handle for member in self._members], calls)
        return self._run

    @property
    def full(self) -> set[str]:
        """Nodes without room for rows."""
        return {
            self.nodes[index] for index in self._full | (self._run.full if self._run else set())
        }

    @property
    def unfit(self) -> set[str]:
        """Nodes to which no client should move: those, and another sweep's when these were
        borrowed.
        """
        return self.full | self._unfit

    @property
    def processes(self) -> Sequence[tuple[str, int]]:
        """Host name and pid of every client of this sweep, those of other launches included."""
        return tuple(self._pool.processes)

    def release(self) -> None:
        if not self._released:
            self._released = True
            still_loading = self._run is not None and self._run.unfinished()
            self._pool.give_back(self._members, reusable=not still_loading)


def _clock_offset(handle: ClientHandle, rounds: int = 8) -> tuple[int, int]:
    """The client's wall clock minus ours, and half the fastest round trip, which bounds the error
    (Cristian); in ns.
    """
    best = (1 << 62, 0)
    for _ in range(rounds):
        before = time.time_ns()
        there = answer(handle.begin("wall_ns"), "wall_ns")
        after = time.time_ns()
        best = min(best, (after - before, there - (before + after) // 2))
    return best[1], best[0] // 2


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
        self._store, self._address, self._machines, self._start = store, address, machines, start
        self._owner = owner_of(store) if store is not None else Owner()
        self._lock = threading.Lock()
        self._idle: list[Member] = []
        self._members: list[Member] = []
        self.processes: list[tuple[str, int]] = []  # host name and pid of every client ever started

    def borrow(self, count: int, avoid: Mapping[str, int]) -> Clients:
        """``count`` clients (see ``Cluster.clients``), which lease a share of their hosts. Hosts
        that another sweep has for itself, or that have no room for rows, are the last choice.

        Raises NoClient, PlacementError.
        """
        avoid = dict(avoid)
        # else they are the first ones taken
        self._end_idle(lambda one: avoid.get(one.node_id, 0) >= UNFIT)
        unfit: set[str] = set()
        while True:
            members = self._borrow(count, avoid)
            calls = [(one.node_id, one.handle.begin("lease", self._owner)) for one in members]
            found = {node for node, call in calls if _told(call, "lease")} - unfit
            if not found:
                return Clients(self, members, self._store, unfit)
            for member in members:
                self.give_back([member], reusable=member.node_id not in found)
            unfit.update(found)
            self._end_idle(lambda one: one.node_id in unfit)  # else they are the next ones taken
            avoid |= dict.fromkeys(found, UNFIT)

    def _borrow(self, count: int, avoid: Mapping[str, int]) -> list[Member]:
        if not (machines := {machine.node_id: machine for machine in self._machines()}):
            raise PlacementError("no node is left that could run a load client")
        self._end_idle(lambda member: member.node_id not in machines)
        with self._lock:
            self._idle.sort(key=lambda member: avoid.get(member.node_id, 0))
            taken, self._idle = self._idle[:count], self._idle[count:]
            new: list[Member] = []
            while len(taken) + len(new) < count:
                load = [member.node_id for member in self._members + new]
                where = min(machines.values(), key=lambda one: _distance(one, avoid, load))
                new.append(
                    Member(
                        self._start(where),
                        where.node_id,
                        where.address,
                        where.address == self._address,
                    )
                )
            self._members += new
        try:
            self._await(new)
        except BaseException:
            self.give_back(new, reusable=False)
            self.give_back(taken)
            raise
        return taken + new

    def _await(self, new: Sequence[Member]) -> None:
        """Wait until new clients answer, and check that they can write to the results from their
        node.
        """
        end_s, calls = (
            time.monotonic() + CALL_LIMIT_S,
            [member.handle.begin("process") for member in new],
        )
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
        # the first one that fails tells: it may be the storage, which all of them would wait for
        for member in new:
            if problem := self._reach_problem(member):
                raise NoClient(problem, [member.node_id])

    def _reach_problem(self, member: Member) -> str:
        """Why a client cannot write to the results, or nothing."""
        if self._store is None or (member.here and self._store.is_local):
            return ""
        try:
            problem = answer(
                member.handle.begin("reach_problem", self._store), "the check of the results"
            )
        except HostLost as error:
            problem = str(error)
        return f"no client on node {member.address}: {problem}" if problem else ""

    def give_back(self, members: Sequence[Member], reusable: bool = True) -> None:
        """Keep clients that still answer for the next launch; kill the others, and all of them
        unless ``reusable``.
        """
        for member in members:
            alive = (
                reusable and _told(member.handle.begin("rest"), "rest", REUSE_LIMIT_S) is not None
            )
            if not alive:
                member.handle.kill()
            with self._lock:
                if alive:
                    self._idle.append(member)
                else:
                    self._members = [other for other in self._members if other is not member]

    def end_idle(self) -> None:
        """End idle clients on other hosts: an autoscaler removes no node on which one waits."""
        self._end_idle(lambda member: not member.here)

    def _end_idle(self, of: Callable[[Member], bool]) -> None:
        with self._lock:
            ended = [member for member in self._idle if of(member)]
            self._idle = [member for member in self._idle if member not in ended]
            self._members = [member for member in self._members if member not in ended]
        for member in ended:
            member.handle.kill()

    def close(self) -> None:
        """End every client."""
        for member in self._members:
            member.handle.kill()


def _told(call: Future[Any], method: str, limit_s: float = CALL_LIMIT_S) -> Any:
    """What a client answers; None if it is lost, which the next point will notice."""
    try:
        return answer(call, method, limit_s)
    except HostLost:
        return None


def owner_of(store: Store) -> Owner:
    """Whose the leases of this driver are (node/leases.py). A sweep is one experiment in one
    results root.
    """
    return Owner(
        sweep=digest([store.uri, store.experiment]),
        experiment=store.experiment,
        results=redact(store.uri),
        pid=os.getpid(),
        host=socket.gethostname(),
    )


def _distance(
    machine: Machine, avoid: Mapping[str, int], load: Sequence[str]
) -> tuple[int, bool, int, str]:
    """Sort key of machines for a new client: away from engines, off GPU nodes, where few clients
    are.
    """
    return (
        avoid.get(machine.node_id, 0),
        machine.gpus > 0,
        load.count(machine.node_id),
        machine.node_id,
    )

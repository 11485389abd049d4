"""Load clients, wherever their processes are: one run of them, those that a launch borrowed, the pool they come from.

Each kind of cluster gives a ``ClientHandle`` of its own; all else is the same for all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.cluster.base import ClientLost, ClientReport, HostLost, Machine
from orchestrator.cluster.calls import CALL_LIMIT_S, answer
from orchestrator.errors import PlacementError
from orchestrator.load.point import LoadPoint, Progress, SoFar
from orchestrator.results.ids import digest

if TYPE_CHECKING:
    from orchestrator.results.store import Store

PREPARE_LIMIT_S = 600.0  # a schedule and the bodies of a long point
STOP_LOOK_S = 0.2
PROGRESS_LIMIT_S = 0.5
MOST_SETTLES = 20  # one that does nothing else any more answers as well
REUSE_LIMIT_S = 5.0
HELD = 3  # of ``avoid``: above the nodes of any launch of this sweep


class ClientHandle(Protocol):
    """A ``ClientHost`` (client_host.py) in this process, in one of its own, or on another node."""

    def begin(self, method: str, *args: object) -> Future[Any]:
        """Call one of its methods. The future raises HostLost when its process is gone (calls.py)."""
        ...

    def kill(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A client of the pool and where it runs. ``here``: its wall clock is the driver's."""

    handle: ClientHandle
    node_id: str
    address: str
    here: bool


class ClientRun:
    """A point under way on some clients."""

    def __init__(self, handles: Sequence[ClientHandle], futures: Sequence[Future[Any]]) -> None:
        self._handles, self._futures = handles, futures
        self._reports: dict[int, ClientReport] = {}
        self._lost: dict[int, str] = {}
        self._asked: dict[int, Future[SoFar | None]] = {}

    def wait(self, wait_s: float) -> bool:
        """True once every client has reported. Raises ClientLost."""
        wait([self._futures[index] for index in self._open()], wait_s, FIRST_EXCEPTION)
        for index in self._open():
            if self._futures[index].done():
                try:
                    self._reports[index] = self._futures[index].result()
                except Exception as error:
                    self._lost[index] = str(error)
        if self._lost:
            raise ClientLost(sorted(self._lost), "; ".join(sorted(set(self._lost.values()))))
        return not self.unfinished()

    def _open(self) -> list[int]:
        return [at for at in range(len(self._futures)) if at not in self._reports and at not in self._lost]

    def settle(self, limit_s: float) -> None:
        """Wait for those that can still report, lost ones aside: so long, and again while one of them answers. It may
        be counting the replies of a long point."""
        for _ in range(MOST_SETTLES):
            wait(self._futures, limit_s)
            late = [handle for handle, future in zip(self._handles, self._futures, strict=True) if not future.done()]
            told, _ = wait([handle.begin("progress") for handle in late], PROGRESS_LIMIT_S)
            if all(call.exception() for call in told):
                break
        try:
            self.wait(0.0)
        except ClientLost:
            return

    def progress(self) -> Progress:
        """Of all clients together, as far as they answer at once."""
        calls = [handle.begin("progress") for handle in self._handles]
        told, _ = wait(calls, PROGRESS_LIMIT_S)
        parts = [call.result() for call in told if call.exception() is None]
        found = sum(parts, Progress())
        return found if len(parts) == len(calls) else replace(found, silences=())  # somebody else may have heard

    def so_far(self) -> list[SoFar]:
        """Of a watched point what was not told before, by each client that answers at once; the others' comes next."""
        for index, handle in enumerate(self._handles):
            if index not in self._asked:
                self._asked[index] = handle.begin("so_far")
        wait(self._asked.values(), PROGRESS_LIMIT_S)
        over = [index for index, call in self._asked.items() if call.done()]
        calls = [self._asked.pop(index) for index in over]
        return [found for call in calls if call.exception() is None and (found := call.result()) is not None]

    def finish(self, at_s: float, drain: bool) -> None:
        """End it so long after its start, on all clients at that instant, as if it had not been meant to go on.

        ``drain``: open requests are waited for; else they become ``aborted`` rows, their connections are closed.
        """
        for handle in self._handles:
            handle.begin("finish", round(at_s * 1e9), drain)

    def abort(self, rows: bool = True) -> None:
        """End it now. ``rows``: also of what is open or not yet sent."""
        for handle in self._handles:
            handle.begin("abort", rows)

    def unfinished(self) -> bool:
        """Whether a client may still be loading."""
        return len(self._reports) < len(self._futures)

    def reports(self) -> dict[int, ClientReport]:
        """By client index; those that were lost are missing."""
        return dict(sorted(self._reports.items()))


class Clients:
    """Client processes borrowed from a pool for one launch."""

    def __init__(self, pool: ClientPool, members: Sequence[Member], store: Store | None) -> None:
        self.addresses: Sequence[str] = [member.address for member in members]
        self.nodes: Sequence[str] = [member.node_id for member in members]
        self._pool, self._members, self._store = pool, members, store
        self._offsets: list[tuple[int, int]] = []
        self._run: ClientRun | None = None
        self._released = False

    def prepare(self, point: LoadPoint, stopped: Callable[[], bool] = lambda: False) -> int | None:
        """Build the schedule and the bodies on every client: the ready barrier. Returns entries known, None once
        ``stopped`` says that nobody wants them any more.

        Raises InputError when the point cannot be run (no tokenizer, no such file, …), ClientLost.
        """
        count = len(self._members)
        calls = [member.handle.begin("prepare", point, at, count) for at, member in enumerate(self._members)]
        end_s, known = time.monotonic() + PREPARE_LIMIT_S, 0
        while wait(calls, STOP_LOOK_S).not_done and time.monotonic() < end_s:
            if stopped():
                return None
        self._offsets = []
        for index, (member, call) in enumerate(zip(self._members, calls, strict=True)):
            try:
                known += answer(call, "prepare", end_s - time.monotonic())
                self._offsets.append((0, 0) if member.here else _clock_offset(member.handle))
            except HostLost as error:
                raise ClientLost([index], str(error)) from error
        return known

    def start(self, lead_s: float, write: bool = True) -> ClientRun:
        """Start all at one instant, ``lead_s`` from now. ``write=False``: rows come back but are not stored."""
        start_ns = time.time_ns() + int(lead_s * 1e9)
        store = self._store if write else None
        calls = [
            member.handle.begin("run", start_ns + offset, offset, error, store)
            for member, (offset, error) in zip(self._members, self._offsets, strict=True)
        ]
        self._run = ClientRun([member.handle for member in self._members], calls)
        return self._run

    @property
    def processes(self) -> Sequence[tuple[str, int]]:
        """Host and pid of all clients of this sweep, those of other launches too."""
        return tuple(self._pool.processes)

    def release(self) -> None:
        if not self._released:
            self._released = True
            still_loading = self._run is not None and self._run.unfinished()
            self._pool.give_back(self._members, reusable=not still_loading)


def _clock_offset(handle: ClientHandle, rounds: int = 8) -> tuple[int, int]:
    """Wall clock of the client minus ours, and half the round trip that bounds its error (Cristian), both ns."""
    best = (1 << 62, 0)
    for _ in range(rounds):
        before = time.time_ns()
        there = answer(handle.begin("wall_ns"), "wall_ns")
        after = time.time_ns()
        best = min(best, (after - before, there - (before + after) // 2))
    return best[1], best[0] // 2


class ClientPool:
    """Long-lived clients, borrowed by launches from threads of their own.

    ``start`` starts one on a machine; ``address`` is the driver's.
    """

    def __init__(
        self,
        store: Store | None,
        address: str,
        machines: Callable[[], list[Machine]],
        start: Callable[[Machine], ClientHandle],
    ) -> None:
        self._store, self._address, self._machines, self._start = store, address, machines, start
        self._tag = sweep_tag(store) if store is not None else ""
        self._lock = threading.Lock()
        self._idle: list[Member] = []
        self._members: list[Member] = []
        self.processes: list[tuple[str, int]] = []  # host and pid of every client that it ever started

    def borrow(self, count: int, avoid: Mapping[str, int]) -> Clients:
        """``count`` clients (see ``Cluster.clients``), last of all on hosts that other sweeps have for themselves."""
        held: dict[str, int] = {}
        while True:
            members = self._borrow(count, {**avoid, **held})
            calls = {one.node_id: one.handle.begin("held_by_others", self._tag) for one in members}
            others = {node for node, call in calls.items() if node not in held and _says_yes(call)}
            if not others:
                return Clients(self, members, self._store)
            for member in members:
                self.give_back([member], reusable=member.node_id not in others)
            held |= dict.fromkeys(others, HELD)

    def _borrow(self, count: int, avoid: Mapping[str, int]) -> list[Member]:
        with self._lock:
            machines = {machine.node_id: machine for machine in self._machines()}
            self._idle = [member for member in self._idle if member.node_id in machines]
            self._idle.sort(key=lambda member: avoid.get(member.node_id, 0))
            taken, self._idle = self._idle[:count], self._idle[count:]
            new: list[Member] = []
            while len(taken) + len(new) < count:
                load = [member.node_id for member in self._members + new]
                where = min(machines.values(), key=lambda one: _distance(one, avoid, load))
                new.append(Member(self._start(where), where.node_id, where.address, where.address == self._address))
            self._members += new
        try:
            self._await(new)
        except BaseException:
            self.give_back(new, reusable=False)
            self.give_back(taken)
            raise
        return taken + new

    def _await(self, new: Sequence[Member]) -> None:
        """Wait until new clients answer, and see that they reach the results from where they are."""
        end_s = time.monotonic() + CALL_LIMIT_S
        try:
            for call in [member.handle.begin("process") for member in new]:
                self.processes.append(answer(call, "the first call", end_s - time.monotonic()))
            for member in new:
                if self._store is None or (member.here and self._store.is_local):
                    continue
                if problem := answer(member.handle.begin("reach_problem", self._store), "the look at the results"):
                    raise PlacementError(f"no client on node {member.address}: {problem}")
        except HostLost as error:
            raise PlacementError(f"a load client did not start: {error}") from error

    def give_back(self, members: Sequence[Member], reusable: bool = True) -> None:
        """Keep what still answers for the next launch; a client that may still be loading is ended instead."""
        for member in members:
            alive = reusable and _answers(member.handle)
            if not alive:
                member.handle.kill()
            with self._lock:
                if alive:
                    self._idle.append(member)
                else:
                    self._members = [other for other in self._members if other is not member]

    def end_idle(self) -> None:
        """End idle clients elsewhere: an autoscaler takes no node on which one waits."""
        with self._lock:
            ended = [member for member in self._idle if not member.here]
            self._idle = [member for member in self._idle if member.here]
            self._members = [member for member in self._members if member not in ended]
        for member in ended:
            member.handle.kill()

    def close(self) -> None:
        """End every client."""
        for member in self._members:
            member.handle.kill()


def _answers(handle: ClientHandle) -> bool:
    try:
        answer(handle.begin("wall_ns"), "wall_ns", REUSE_LIMIT_S)
    except HostLost:
        return False
    return True


def _says_yes(call: Future[Any]) -> bool:
    try:
        return bool(answer(call, "held_by_others"))
    except HostLost:
        return False  # the point finds out


def sweep_tag(store: Store) -> str:
    """The same for all launches of an experiment into one root: what their leases say (engines/leases.py)."""
    return digest([store.uri, store.experiment])


def _distance(machine: Machine, avoid: Mapping[str, int], load: Sequence[str]) -> tuple[int, bool, int, str]:
    """Where a client goes first: away from engines, off GPU nodes, where few clients are."""
    return avoid.get(machine.node_id, 0), machine.gpus > 0, load.count(machine.node_id), machine.node_id

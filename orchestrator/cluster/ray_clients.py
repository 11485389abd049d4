"""Clients: the actors that send load, one run of them, and the pool they come from."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.cluster.base import ClientLost, ClientReport, Machine
from orchestrator.cluster.host import ClientHost
from orchestrator.cluster.ray_errors import CALL_LIMIT_S, cause, first_line
from orchestrator.errors import InputError, PlacementError
from orchestrator.load.point import LoadPoint, Progress
from orchestrator.results.store import Store

CLIENT_CPUS = 0  # admission counts the engines' CPUs; how much a client really used is in its stats


@ray.remote(max_concurrency=4, max_restarts=0)
class ClientActor:
    """ClientHost behind Ray."""

    def __init__(self) -> None:
        self._host = ClientHost()

    def wall_ns(self) -> int:
        return self._host.wall_ns()

    def reach_problem(self, store: Store) -> str | None:
        return self._host.reach_problem(store)

    def prepare(self, point: LoadPoint, index: int, count: int, avoid_cores: frozenset[int]) -> int:
        return self._host.prepare(point, index, count, avoid_cores)

    def run(self, start_wall_ns: int, offset_ns: int, error_ns: int, store: Store | None) -> ClientReport:
        return self._host.run(start_wall_ns, offset_ns, error_ns, store)

    def selfcheck(self, limit_s: float) -> dict[str, Any]:
        return self._host.selfcheck(limit_s)

    def progress(self) -> Progress:
        return self._host.progress()

    def abort(self) -> None:
        self._host.abort()


class RayClientRun:
    """A point under way on client actors."""

    def __init__(self, actors: Sequence[Any], refs: Sequence[Any]) -> None:
        self._actors = actors
        self._refs = list(refs)
        self._reports: dict[int, ClientReport] = {}
        self._lost: dict[int, str] = {}

    def wait(self, wait_s: float) -> bool:
        open_refs = [
            ref for index, ref in enumerate(self._refs) if index not in self._reports and index not in self._lost
        ]
        ready, _ = ray.wait(open_refs, num_returns=len(open_refs), timeout=wait_s) if open_refs else ([], [])
        for ref in ready:
            index = self._refs.index(ref)
            try:
                self._reports[index] = ray.get(ref, timeout=CALL_LIMIT_S)
            except RayTaskError as error:
                self._lost[index] = cause(error)
            except RayError as error:
                self._lost[index] = first_line(error)
        if self._lost:
            raise ClientLost(sorted(self._lost), "; ".join(sorted(set(self._lost.values()))))
        return len(self._reports) == len(self._refs)

    def settle(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while len(self._reports) + len(self._lost) < len(self._refs) and time.monotonic() < end:
            with suppress(ClientLost):
                self.wait(0.5)

    def progress(self) -> Progress:
        refs = [actor.progress.remote() for actor in self._actors]
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0.5)
        parts = []
        for ref in ready:
            with suppress(RayError):
                parts.append(ray.get(ref))
        return Progress(*(sum(getattr(part, name) for part in parts) for name in Progress.__slots__))

    def abort(self) -> None:
        for actor in self._actors:
            actor.abort.remote()

    def unfinished(self) -> bool:
        """Whether a client may still be loading."""
        return len(self._reports) < len(self._refs)

    def reports(self) -> dict[int, ClientReport]:
        return dict(sorted(self._reports.items()))


class RayClients:
    """Client actors borrowed from the pool."""

    def __init__(self, pool: ClientPool, members: Sequence[_Member], store: Store) -> None:
        self.addresses: Sequence[str] = [member.address for member in members]
        self._pool, self._members, self._store = pool, members, store
        self._offsets: list[tuple[int, int]] = []
        self._run: RayClientRun | None = None
        self._released = False

    def prepare(self, point: LoadPoint, avoid_cores: Mapping[str, frozenset[int]]) -> int:
        count = len(self._members)
        refs = [
            member.actor.prepare.remote(point, index, count, avoid_cores.get(member.address, frozenset()))
            for index, member in enumerate(self._members)
        ]
        try:
            known: int = sum(ray.get(refs, timeout=10 * CALL_LIMIT_S))
            self._offsets = [(0, 0) if member.local else _clock_offset(member.actor) for member in self._members]
        except RayTaskError as error:
            raise InputError(str(error.cause)) from error
        except RayError as error:
            raise ClientLost(range(count), first_line(error)) from error
        return known

    def selfcheck(self, members: Sequence[int], limit_s: float) -> list[dict[str, Any]]:
        refs = [self._members[index].actor.selfcheck.remote(limit_s) for index in members]
        ray.wait(refs, num_returns=len(refs), timeout=limit_s + CALL_LIMIT_S)
        return [_found(ref) for ref in refs]

    def start(self, lead_s: float, write: bool = True) -> RayClientRun:
        start_ns = time.time_ns() + int(lead_s * 1e9)
        refs = [
            member.actor.run.remote(start_ns + offset, offset, error, self._store if write else None)
            for member, (offset, error) in zip(self._members, self._offsets, strict=True)
        ]
        self._run = RayClientRun([member.actor for member in self._members], refs)
        return self._run

    def release(self) -> None:
        if not self._released:
            self._released = True
            still_loading = self._run is not None and self._run.unfinished()
            self._pool.give_back(self._members, reusable=not still_loading)


def _found(ref: Any) -> dict[str, Any]:
    """What is there by now, or why there is nothing."""
    try:
        return dict(ray.get(ref, timeout=0))
    except RayError as error:
        return {"error": first_line(error)}


def _clock_offset(actor: Any, rounds: int = 8) -> tuple[int, int]:
    """Wall clock of the client minus ours, and half the round trip that bounds its error (Cristian), both ns."""
    best = (1 << 62, 0)
    for _ in range(rounds):
        before = time.time_ns()
        there = ray.get(actor.wall_ns.remote(), timeout=CALL_LIMIT_S)
        after = time.time_ns()
        best = min(best, (after - before, there - (before + after) // 2))
    return best[1], best[0] // 2


class _Member:
    """A client actor and where it runs."""

    def __init__(self, actor: Any, machine: Machine, local: bool) -> None:
        self.actor, self.node_id, self.address, self.local = actor, machine.node_id, machine.address, local


class ClientPool:
    """Long-lived client actors, borrowed by launches from threads of their own. ``environment``: Ray's runtime_env."""

    def __init__(
        self,
        store: Store,
        address: str,
        machines: Callable[[], list[Machine]],
        environment: Callable[[], dict[str, Any] | None],
    ) -> None:
        self._store, self._address, self._machines, self._environment = store, address, machines, environment
        self._lock = threading.Lock()
        self._idle: list[_Member] = []
        self._members: list[_Member] = []

    def borrow(self, count: int, avoid: Mapping[str, int]) -> RayClients:
        """See ``Cluster.clients``."""
        with self._lock:
            machines = {machine.node_id: machine for machine in self._machines()}
            self._idle = [member for member in self._idle if member.node_id in machines]
            self._idle.sort(key=lambda member: avoid.get(member.node_id, 0))
            taken, self._idle = self._idle[:count], self._idle[count:]
            new: list[_Member] = []
            while len(taken) + len(new) < count:
                load = [member.node_id for member in self._members + new]
                new.append(self._client(min(machines.values(), key=lambda one: _distance(one, avoid, load))))
            self._members += new
        try:
            self._greet(new)
        except BaseException:
            self.give_back(new, reusable=False)
            self.give_back(taken)
            raise
        return RayClients(self, taken + new, self._store)

    def _greet(self, new: Sequence[_Member]) -> None:
        """Wait until they answer, and see that those elsewhere reach the results."""
        try:
            ray.get([member.actor.wall_ns.remote() for member in new], timeout=CALL_LIMIT_S)
            for member in new:
                if member.local and self._store.is_local:
                    continue
                if problem := ray.get(member.actor.reach_problem.remote(self._store), timeout=CALL_LIMIT_S):
                    raise PlacementError(f"no client on node {member.address}: {problem}")
        except RayError as error:
            raise PlacementError(f"a load client did not start: {first_line(error)}") from error

    def _client(self, machine: Machine) -> _Member:
        actor = ClientActor.options(  # type: ignore[attr-defined]
            num_cpus=CLIENT_CPUS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node_id, soft=False),
            runtime_env=self._environment(),
        ).remote()
        return _Member(actor, machine, local=machine.address == self._address)

    def give_back(self, members: Sequence[_Member], reusable: bool = True) -> None:
        """Keep what still answers for the next launch; a client that may still be loading is ended instead."""
        for member in members:
            alive = False
            with suppress(RayError):
                alive = reusable and bool(ray.get(member.actor.wall_ns.remote(), timeout=5))
            if not alive:
                with suppress(RayError):
                    ray.kill(member.actor)
            with self._lock:
                if alive:
                    self._idle.append(member)
                else:
                    self._members = [other for other in self._members if other is not member]

    def close(self) -> None:
        """End every client."""
        for member in self._members:
            with suppress(RayError):
                ray.kill(member.actor)


def _distance(machine: Machine, avoid: Mapping[str, int], load: Sequence[str]) -> tuple[int, bool, int, str]:
    """Where a client goes first: away from engines, off GPU nodes, where few clients are."""
    return avoid.get(machine.node_id, 0), machine.gpus > 0, load.count(machine.node_id), machine.node_id

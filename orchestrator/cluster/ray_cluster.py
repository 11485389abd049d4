"""Ray as a cluster: placement groups, one agent actor per bundle, long-lived client actors.

Facts of Ray that shaped this file stand in docs/architecture.md, "Ray".
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray._private.state import state as global_state
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from orchestrator.cluster.base import Agent, AgentLost, Bundle, ClientLost, ClientReport, Machine, Ready, Seat, Stopped
from orchestrator.cluster.host import ClientHost, EngineHost
from orchestrator.engines.base import Node
from orchestrator.errors import Failure, InputError, PlacementError
from orchestrator.load.point import LoadPoint, Progress
from orchestrator.results.store import Store
from orchestrator.spec.settings import EngineSettings, Hardware

CALL_LIMIT_S = 60.0
STOP_LIMIT_S = 120.0
INFEASIBLE_S = 5.0
CLIENT_CPUS = 0  # admission counts the engines' CPUs; how much a client really used is in its stats


@ray.remote(max_concurrency=4, max_restarts=0)
class AgentActor:
    """EngineHost behind Ray."""

    def __init__(self, launch_id: str, gpus: int) -> None:
        self._host = EngineHost(launch_id, gpus)

    def seat(self) -> Seat:
        context = ray.get_runtime_context()
        return self._host.seat(context.get_node_id(), ray.util.get_node_ip_address())

    def reserve_ports(self, count: int) -> list[int]:
        return self._host.reserve_ports(count)

    def start(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> tuple[str, ...]:
        return self._host.start(settings, hardware, node, api_key)

    def wait_ready(self, timeout_s: float) -> Ready | Failure:
        return self._host.wait_ready(timeout_s)

    def failure(self) -> Failure | None:
        return self._host.failure()

    def between_points(self) -> None:
        self._host.between_points()

    def stop(self) -> Stopped:
        return self._host.stop()


@ray.remote(max_concurrency=4, max_restarts=0)
class ClientActor:
    """ClientHost behind Ray."""

    def __init__(self) -> None:
        self._host = ClientHost()

    def wall_ns(self) -> int:
        return self._host.wall_ns()

    def reaches(self, store: Store) -> bool:
        return self._host.reaches(store)

    def prepare(self, point: LoadPoint, index: int, count: int, avoid_cores: frozenset[int]) -> int:
        return self._host.prepare(point, index, count, avoid_cores)

    def run(self, start_wall_ns: int, offset_ns: int, error_ns: int, store: Store | None) -> ClientReport:
        return self._host.run(start_wall_ns, offset_ns, error_ns, store)

    def progress(self) -> Progress:
        return self._host.progress()

    def abort(self) -> None:
        self._host.abort()


def _call(actor: Any, method: str, *args: object, limit_s: float = CALL_LIMIT_S) -> Any:
    """One call with a limit. A dead or silent actor is AgentLost."""
    try:
        return ray.get(getattr(actor, method).remote(*args), timeout=limit_s)
    except GetTimeoutError as error:
        raise AgentLost(f"no answer to {method} within {limit_s:g} s") from error
    except RayTaskError as error:
        raise AgentLost(f"{method} failed on its node: {_cause(error)}") from error
    except RayError as error:
        raise AgentLost(f"the node agent is gone: {_first_line(error)}") from error


def _cause(error: RayTaskError) -> str:
    return f"{type(error.cause).__name__}: {error.cause}"


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class RayAgent:
    """An AgentActor seen from the driver."""

    def __init__(self, actor: Any, seat: Seat) -> None:
        self.seat = seat
        self._actor = actor
        self._ready: Any = None

    def reserve_ports(self, count: int) -> list[int]:
        return _call(self._actor, "reserve_ports", count)  # type: ignore[no-any-return]

    def start(self, settings: EngineSettings, hardware: Hardware, node: Node, api_key: str) -> tuple[str, ...]:
        return _call(self._actor, "start", settings, hardware, node, api_key)  # type: ignore[no-any-return]

    def begin_ready(self, timeout_s: float) -> None:
        self._ready = self._actor.wait_ready.remote(timeout_s)

    def poll_ready(self, wait_s: float) -> Ready | Failure | None:
        try:
            return ray.get(self._ready, timeout=wait_s)  # type: ignore[no-any-return]
        except GetTimeoutError:
            return None
        except RayTaskError as error:
            raise AgentLost(f"waiting for the engine failed: {_cause(error)}") from error
        except RayError as error:
            raise AgentLost(f"the node agent is gone: {_first_line(error)}") from error

    def failure(self) -> Failure | None:
        return _call(self._actor, "failure")  # type: ignore[no-any-return]

    def between_points(self) -> None:
        _call(self._actor, "between_points")

    def stop(self) -> Stopped:
        return _call(self._actor, "stop", limit_s=STOP_LIMIT_S)  # type: ignore[no-any-return]


class RayPlacement:
    """A placement group with its agents."""

    def __init__(self, group: PlacementGroup, actors: Sequence[Any], agents: Sequence[RayAgent]) -> None:
        self.agents: Sequence[Agent] = agents
        self._group = group
        self._actors = actors

    def release(self) -> None:
        """Kill the agents (their engines end by the guard) and free the group at once, lost or not."""
        _release(self._group, self._actors)


def _release(group: PlacementGroup, actors: Sequence[Any]) -> None:
    for actor in actors:
        with suppress(RayError):
            ray.kill(actor)
    with suppress(RayError):
        remove_placement_group(group)


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
                self._lost[index] = _cause(error)
            except RayError as error:
                self._lost[index] = _first_line(error)
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

    def __init__(self, pool: RayCluster, members: Sequence[_Member], store: Store) -> None:
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
            raise ClientLost(range(count), _first_line(error)) from error
        return known

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


class RayCluster:
    """A running Ray cluster (or one started here when there is none), seen from the driver."""

    def __init__(self, store: Store, address: str | None = None, client_limit: int | None = None) -> None:
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, logging_level="warning", namespace="orchestrator")
            except (ConnectionError, RuntimeError) as error:
                raise InputError(f"no Ray cluster at {address or 'this machine'}: {_first_line(error)}") from error
        self._store = store
        self._lock = threading.Lock()  # launches borrow clients from threads of their own
        self._address = ray.util.get_node_ip_address()
        self._idle: list[_Member] = []
        self._members: list[_Member] = []
        self._client_limit = client_limit

    def _package_environment(self) -> dict[str, Any] | None:
        """Nodes elsewhere get this package shipped, unless the job's working_dir already carries it."""
        elsewhere = any(machine.address != self._address for machine in self.machines())
        in_job = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
        package = Path(__file__).resolve().parents[1]
        return {"py_modules": [str(package)]} if elsewhere and not in_job else None

    def machines(self) -> list[Machine]:
        alive = [node for node in ray.nodes() if node["Alive"]]
        return [
            Machine(
                node["NodeID"],
                node["NodeManagerAddress"],
                int(node["Resources"].get("GPU", 0)),
                float(node["Resources"].get("CPU", 0)),
                dict(node.get("Labels") or {}),
            )
            for node in alive
        ]

    def place(
        self,
        launch_id: str,
        bundles: Sequence[Bundle],
        nodes: Sequence[str] | None,
        labels: Mapping[str, str],
        timeout_s: float,
        stopped: Callable[[], bool],
    ) -> RayPlacement:
        group = placement_group(
            [{"CPU": bundle.cpus} | ({"GPU": bundle.gpus} if bundle.gpus else {}) for bundle in bundles],
            strategy="STRICT_SPREAD" if len(bundles) > 1 else "STRICT_PACK",
            bundle_label_selector=[
                dict(labels) | ({"ray.io/node-id": nodes[rank]} if nodes else {}) for rank in range(len(bundles))
            ],
        )
        actors: list[Any] = []
        try:
            _await_group(group, _describe(bundles), timeout_s, stopped)
            actors += [self._agent(group, rank, launch_id, bundle) for rank, bundle in enumerate(bundles)]
            seats = [_call(actor, "seat") for actor in actors]
        except AgentLost as error:
            _release(group, actors)
            raise PlacementError(f"a node agent did not start: {error}") from error
        except BaseException:
            _release(group, actors)
            raise
        agents = [RayAgent(actor, seat) for actor, seat in zip(actors, seats, strict=True)]
        return RayPlacement(group, actors, agents)

    def _agent(self, group: PlacementGroup, rank: int, launch_id: str, bundle: Bundle) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, rank, placement_group_capture_child_tasks=False)
        return AgentActor.options(  # type: ignore[attr-defined]
            num_cpus=0, num_gpus=bundle.gpus, scheduling_strategy=strategy, runtime_env=self._package_environment()
        ).remote(launch_id, bundle.gpus)

    def clients(self, count: int, avoid: Mapping[str, int]) -> RayClients:
        with self._lock:
            machines = {machine.node_id: machine for machine in self.machines()}
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
                if not member.local and not ray.get(member.actor.reaches.remote(self._store), timeout=CALL_LIMIT_S):
                    raise InputError(
                        f"{self._store.uri} is a folder of this machine that node {member.address} does not see; "
                        "give --results s3://... or a folder that all nodes share"
                    )
        except RayError as error:
            raise PlacementError(f"a load client did not start: {_first_line(error)}") from error

    def _client(self, machine: Machine) -> _Member:
        actor = ClientActor.options(  # type: ignore[attr-defined]
            num_cpus=CLIENT_CPUS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.node_id, soft=False),
            runtime_env=self._package_environment(),
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

    def most_clients(self) -> int:
        cores = sum(machine.cpus for machine in self.machines())
        return self._client_limit or max(1, int(cores // 2))

    def close(self) -> None:
        for member in self._members:
            with suppress(RayError):
                ray.kill(member.actor)
        ray.shutdown()


def _distance(machine: Machine, avoid: Mapping[str, int], load: Sequence[str]) -> tuple[int, bool, int, str]:
    """Where a client goes first: away from engines, off GPU nodes, where few clients are."""
    return avoid.get(machine.node_id, 0), machine.gpus > 0, load.count(machine.node_id), machine.node_id


def _await_group(group: PlacementGroup, what: str, timeout_s: float, stopped: Callable[[], bool]) -> None:
    """Until the group is placed. Raises PlacementError: see ``Cluster.place``."""
    began = time.monotonic()
    while not group.wait(1.0):
        waited_s = time.monotonic() - began
        if stopped():
            raise PlacementError("the sweep was stopped")
        if waited_s >= timeout_s:
            raise PlacementError(f"no place for {what} within {timeout_s:g} s")
        if waited_s >= INFEASIBLE_S and _infeasible(group) and not _autoscales():
            raise PlacementError(f"no node of this cluster can hold {what}, and it has no autoscaler to add one")


def _infeasible(group: PlacementGroup) -> bool:
    stats = placement_group_table(group).get("stats", {})
    return bool(stats.get("scheduling_state") == "INFEASIBLE")


def _autoscales() -> bool:
    """Whether an autoscaler told this cluster its node types. Private in Ray 2.60; unknown counts as yes."""
    try:
        return global_state.get_cluster_config() is not None
    except Exception:
        return True


def _describe(bundles: Sequence[Bundle]) -> str:
    one = f"{bundles[0].gpus} GPUs" if bundles[0].gpus else f"{bundles[0].cpus:g} CPUs"
    return f"{len(bundles)} node(s) with {one} each" if len(bundles) > 1 else f"one node with {one}"

"""A launch: one live start of a deployment, from its place on the cluster to its last process gone."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.cluster.base import Agent, AgentLost, Bundle, Cluster, Placement, Ready
from orchestrator.engines import ENGINES
from orchestrator.engines.base import Node
from orchestrator.errors import EngineFailure, Failure, FailureClass, PlacementError
from orchestrator.load.point import Target
from orchestrator.plan.model import Deployment
from orchestrator.results.store import Store
from orchestrator.runner.admission import Need, Nodes
from orchestrator.runner.events import Event, Journal, Phase

LOOPBACK = "127.0.0.1"


def need_of(deployment: Deployment, exclusive: bool) -> Need:
    """The footprint of a deployment: nodes x devices of a replica, times its replicas."""
    settings, hardware = deployment.settings, deployment.hardware
    if not ENGINES[settings.engine].launches:
        return Need((), endpoint=settings.url or "")
    devices = settings.devices_per_node
    each = hardware.cpus_per_device if hardware.cpus_per_device is not None else 1.0
    bundle = Bundle(0 if hardware.is_cpu else devices, devices * each)
    labels = tuple(sorted(hardware.labels.items()))
    return Need((bundle,) * settings.nnodes, settings.replicas, labels, exclusive)


@dataclass
class Record:
    """What becomes the launch's row."""

    launch_id: str
    started_unix_ns: int = field(default_factory=time.time_ns)
    placed_s: float | None = None
    ready_s: float | None = None
    stopped_s: float | None = None
    held_s: float | None = None
    engine_version: str | None = None
    argv: list[tuple[str, ...]] = field(default_factory=list)
    seats: list[dict[str, Any]] = field(default_factory=list)
    reported: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    log_uri: str | None = None

    def row(self) -> dict[str, Any]:
        failure = self.failure
        return {
            "launch_id": self.launch_id,
            "status": "failed" if failure else "ok",
            "failure_class": str(failure.failure_class) if failure else None,
            "failure_kind": failure.kind if failure else None,
            "reason": failure.sentence if failure else None,
            "log_tail": failure.log_tail if failure else None,
            "log_uri": self.log_uri,
            "engine_version": self.engine_version,
            "argv_json": json.dumps(self.argv),
            "placement_json": json.dumps(self.seats),
            "engine_reported_json": json.dumps(dict(self.reported)),
            "placed_s": self.placed_s,
            "ready_s": self.ready_s,
            "stopped_s": self.stopped_s,
            "held_s": self.held_s,
            "started_unix_ns": self.started_unix_ns,
        }


class Replicas:
    """The running replicas of one launch. ``targets`` is what clients load."""

    def __init__(
        self, placements: Sequence[Placement], targets: Sequence[Target], cores: Mapping[str, frozenset[int]]
    ) -> None:
        self.targets = tuple(targets)
        self.cores = cores  # address -> cores the engine uses there
        self._placements = placements

    def failure(self) -> Failure | None:
        """Why a rank ended, None while all live. A lost agent or node is infrastructure."""
        try:
            for agent in _agents(self._placements):
                if (failure := agent.failure()) is not None:
                    return failure
        except AgentLost as error:
            return Failure(FailureClass.INFRA, "agent_lost", f"The node agent or its node was lost: {error}.")
        return None

    def between_points(self) -> None:
        """Empty prefix caches; a replica that cannot is still a replica."""
        for placement in self._placements:
            with suppress(AgentLost):
                placement.agents[0].between_points()


def _agents(placements: Sequence[Placement]) -> list[Agent]:
    return [agent for placement in placements for agent in placement.agents]


class Launch:
    """Context manager: entering places and starts, leaving stops and releases, whatever happened in between."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        deployment: Deployment,
        nodes: Nodes | None,
        launch_id: str,
        journal: Journal,
        *,
        placement_timeout_s: float,
        client_addresses: Sequence[str],
        stop: threading.Event,
    ) -> None:
        self.record = Record(launch_id)
        self._cluster, self._store, self._deployment, self._nodes = cluster, store, deployment, nodes
        self._journal, self._stop = journal, stop
        self._placement_timeout_s = placement_timeout_s
        self._client_addresses = set(client_addresses)
        self._placements: list[Placement] = []
        self._placed_at: float | None = None

    def __enter__(self) -> Replicas:
        try:
            if not ENGINES[self._deployment.settings.engine].launches:
                return self._endpoint()
            self._place()
            return self._start()
        except PlacementError as error:
            failure = Failure(FailureClass.INFRA, "no_place", f"The cluster gave no place: {error}.")
        except AgentLost as error:
            failure = Failure(
                FailureClass.INFRA, "agent_lost", f"The node agent or its node was lost at start: {error}."
            )
        except EngineFailure as error:
            failure = error.failure
        except BaseException:
            self.__exit__()
            raise
        self.record.failure = failure
        self.__exit__()
        raise EngineFailure(failure)

    def _endpoint(self) -> Replicas:
        settings = self._deployment.settings
        engine = ENGINES[settings.engine]()
        target = Target(str(settings.url), engine.served_name(settings, Node()), 0, engine_key(self._deployment))
        return Replicas((), (target,), {})

    def _place(self) -> None:
        began = time.monotonic()
        self._phase("place")
        need = need_of(self._deployment, exclusive=False)
        for replica in range(need.replicas):
            nodes = self._nodes[replica] if self._nodes else None
            self._placements.append(
                self._cluster.place(
                    self.record.launch_id,
                    need.bundles,
                    nodes,
                    dict(need.labels),
                    self._placement_timeout_s,
                    self._stop.is_set,
                )
            )
        self._placed_at = time.monotonic()
        self.record.placed_s = self._placed_at - began

    def _start(self) -> Replicas:
        began = time.monotonic()
        cores = share_cores(self._placements, self._deployment)
        starts = [
            self._start_replica(index, placement, cores[index]) for index, placement in enumerate(self._placements)
        ]
        self._await_ready(began)
        self.record.ready_s = time.monotonic() - began
        used: dict[str, frozenset[int]] = {}
        if self._deployment.hardware.is_cpu:
            for placement, shares in zip(self._placements, cores, strict=True):
                for agent, share in zip(placement.agents, shares, strict=True):
                    used[agent.seat.address] = used.get(agent.seat.address, frozenset()) | set(share)
        return Replicas(self._placements, starts, used)

    def _start_replica(self, index: int, placement: Placement, cores: Sequence[tuple[int, ...]]) -> Target:
        settings, hardware = self._deployment.settings, self._deployment.hardware
        first = placement.agents[0]
        port, master_port, *extra = first.reserve_ports(6)
        local = self._client_addresses <= {first.seat.address}
        base = Node(
            port=port,
            master_host=first.seat.address,
            master_port=master_port,
            bind=LOOPBACK if local else first.seat.address,
            launch_id=self.record.launch_id,
            model_path=settings.model,
        )
        key = secrets.token_urlsafe(24)
        for rank, agent in enumerate(placement.agents):
            extra_ports = tuple(extra if rank == 0 else agent.reserve_ports(4))
            seat = agent.seat
            node = replace(
                base,
                rank=rank,
                host=seat.address,
                devices=seat.devices,
                cores=tuple(cores[rank]),
                extra_ports=extra_ports,
            )
            self.record.argv.append(agent.start(settings, hardware, node, key))
            self.record.seats.append(asdict(seat) | {"rank": rank, "replica": index, "engine_cores": list(cores[rank])})
        first.begin_ready(settings.startup_timeout_s)
        name = ENGINES[settings.engine]().served_name(settings, base)
        return Target(f"http://{base.bind}:{port}", name, index, key)

    def _await_ready(self, began: float) -> None:
        waiting = list(self._placements)
        while waiting:
            self._phase("start", elapsed_s=time.monotonic() - began)
            if self._stop.is_set():
                raise KeyboardInterrupt
            outcome = waiting[0].agents[0].poll_ready(1.0)
            if isinstance(outcome, Failure):
                raise EngineFailure(outcome)
            if isinstance(outcome, Ready):
                self.record.reported, self.record.engine_version = outcome.reported, outcome.version
                waiting.pop(0)
                continue
            for placement in waiting:  # a follower that died would leave rank 0 waiting for its rendezvous
                for agent in placement.agents[1:]:
                    if (failure := agent.failure()) is not None:
                        raise EngineFailure(failure)

    def __exit__(self, *_: object) -> None:
        began = time.monotonic()
        self._phase("stop")
        logs, left_over = [], 0
        try:
            for index, agent in enumerate(_agents(self._placements)):
                with suppress(AgentLost):  # its guard ends what it ran
                    stopped = agent.stop()
                    left_over += stopped.left_over
                    logs.append((index, stopped.log))
        finally:
            for placement in self._placements:
                placement.release()
        if left_over:
            self._tell("left_over", f"{left_over} processes outlived their launch")
        for index, log in logs:
            uri = self._store.write_log(f"{self.record.launch_id}/rank{index}.log", log)
            self.record.log_uri = self.record.log_uri or uri
        if self._placements:
            self.record.stopped_s = time.monotonic() - began
        if self._placed_at is not None:
            self.record.held_s = time.monotonic() - self._placed_at
        self._placements = []

    def _phase(self, name: str, **more: Any) -> None:
        self._journal.tell(Phase(self._deployment.label, name, **more))

    def _tell(self, kind: str, text: str) -> None:
        self._journal.tell(Event(kind, text, self._deployment.label, self.record.launch_id))


def engine_key(deployment: Deployment) -> str | None:
    """The key of an endpoint: from the environment variable its settings name, never from the file."""
    name = deployment.settings.api_key_env
    return os.environ.get(name) if name else None


def share_cores(placements: Sequence[Placement], deployment: Deployment) -> list[list[tuple[int, ...]]]:
    """Cores for every rank of every replica: ranks on one host get disjoint ones, and where some remain the clients
    keep them. On GPU hardware engines are not bound.
    """
    hardware = deployment.hardware
    if not hardware.is_cpu:
        return [[() for _ in placement.agents] for placement in placements]
    each = max(1, int(hardware.cpus_per_device or 1)) * deployment.settings.devices_per_node
    next_core: dict[str, int] = {}
    shares: list[list[tuple[int, ...]]] = []
    for placement in placements:
        row = []
        for agent in placement.agents:
            seat = agent.seat
            first = next_core.get(seat.address, 0)
            next_core[seat.address] = first + each
            cores = seat.cores[first : first + each]
            if len(cores) < each:
                have = f"host {seat.hostname} lets this process use {len(seat.cores)} cores"
                raise PlacementError(f"{have}, the launch needs {first + each}")
            row.append(tuple(cores))
        shares.append(row)
    return shares

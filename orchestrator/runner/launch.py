"""A launch: one live start of a deployment, from its place on the cluster to its last process gone."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.catalog.accelerators import find
from orchestrator.cluster.base import Agent, AgentLost, Bundle, Cluster, Placement, Ready, describe
from orchestrator.engines import ENGINES
from orchestrator.engines.base import Node
from orchestrator.engines.readiness import wait_ready
from orchestrator.errors import EngineFailure, Failure, FailureClass, NoRoom, PlacementError, ResultsError
from orchestrator.load.point import Target
from orchestrator.plan.model import Deployment
from orchestrator.results.store import Store
from orchestrator.runner.admission import Need, Nodes, fit
from orchestrator.runner.cores import CoreBook
from orchestrator.runner.events import Event, Journal, Phase
from orchestrator.runner.hosts import HostBook
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.telemetry.engine_metrics import Sample

LOOPBACK = "127.0.0.1"
ENDPOINT_LIMIT_S = 30.0
ROOM_S = 5.0  # nodes of a cluster that is just starting, or one that was lost, may join within it
NO_ROOM = "no_room"


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
    began_ns: int | None = None  # when the first process was started
    stop_began_ns: int | None = None
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


class Interrupted(Exception):
    """The user asked to stop; what is under way is not committed."""


@dataclass(frozen=True, slots=True)
class Site:
    """What every launch of a sweep shares."""

    cluster: Cluster
    store: Store
    journal: Journal
    cores: CoreBook
    hosts: HostBook
    stop: threading.Event
    placement_timeout_s: float


class Replicas:
    """The running replicas of one launch. ``targets`` is what clients load."""

    def __init__(self, placements: Sequence[Placement], targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self._placements = placements

    def failure(self) -> Failure | None:
        """Why a rank ended, None while all live. A lost agent or node is infrastructure."""
        for agent in _agents(self._placements):
            try:
                if (failure := agent.failure()) is not None:
                    return failure
            except AgentLost as error:
                return _lost("was lost", error, [agent])
        return None

    def between_points(self) -> None:
        """Empty prefix caches; a replica that cannot is still a replica."""
        for placement in self._placements:
            with suppress(AgentLost):
                placement.agents[0].between_points()

    def begin_metrics(self) -> None:
        """Read every replica's /metrics from now on."""
        for placement in self._placements:
            with suppress(AgentLost):
                placement.agents[0].begin_metrics()

    def end_metrics(self) -> dict[int, list[Sample]]:
        """By replica; of a lost one there are none."""
        samples: dict[int, list[Sample]] = {}
        for index, placement in enumerate(self._placements):
            samples[index] = []
            with suppress(AgentLost):
                samples[index] = placement.agents[0].end_metrics()
        return samples


def _lost(what: str, error: AgentLost, agents: Sequence[Agent]) -> Failure:
    """Infrastructure; the log stayed where the agent was, and the sentence says where that is."""
    logs = ", ".join(f"{one.seat.hostname}:{one.seat.log_path}" for one in agents)
    text = f"The node agent or its node {what}: {error}. The engine's log stayed on its node: {logs}."
    return Failure(FailureClass.INFRA, "agent_lost", text)


def _agents(placements: Sequence[Placement]) -> list[Agent]:
    return [agent for placement in placements for agent in placement.agents]


class Launch:
    """Context manager: entering places and starts, leaving stops and releases, whatever happened in between.

    Entering raises EngineFailure (``record`` then says the same), or Interrupted when the user stopped the sweep.
    """

    def __init__(
        self,
        site: Site,
        deployment: Deployment,
        nodes: Nodes | None,
        launch_id: str,
        on_placed: Callable[[Nodes], None] = lambda nodes: None,
    ) -> None:
        self.record = Record(launch_id)
        self._site, self._deployment, self._nodes, self._on_placed = site, deployment, nodes, on_placed
        self._placements: list[Placement] = []
        self._placed_at: float | None = None

    def __enter__(self) -> Replicas:
        try:
            if not ENGINES[self._deployment.settings.engine].launches:
                return self._endpoint()
            self._place()
            return self._start()
        except EngineFailure as error:
            failure = error.failure
        except PlacementError as error:
            kind = NO_ROOM if isinstance(error, NoRoom) else "no_place"
            failure = Failure(FailureClass.INFRA, kind, f"The cluster gave no place: {error}.")
        except AgentLost as error:
            failure = _lost("was lost at start", error, _agents(self._placements))
        except BaseException:
            self.__exit__()
            raise
        self.__exit__()
        if self._site.stop.is_set():
            raise Interrupted
        self.record.failure = failure
        raise EngineFailure(failure)

    def _endpoint(self) -> Replicas:
        settings = self._deployment.settings
        engine = ENGINES[settings.engine]()
        key = endpoint_key(settings)
        wait_ready(engine, settings, Node(), str(settings.url), key or "", None, ENDPOINT_LIMIT_S)
        return Replicas((), (Target(str(settings.url), engine.served_name(settings, Node()), 0, key),))

    def _place(self) -> None:
        began = time.monotonic()
        self._phase("place")
        need = need_of(self._deployment, exclusive=False)
        if not self._nodes:
            self._await_room(need)
        for replica in range(need.replicas):
            placement = self._site.cluster.place(
                self.record.launch_id,
                need.bundles,
                self._nodes[replica] if self._nodes else None,
                dict(need.labels),
                self._site.placement_timeout_s,
                self._site.stop.is_set,
            )
            self._placements.append(placement)
            self._placed_at = self._placed_at or time.monotonic()
        self.record.placed_s = time.monotonic() - began
        self._on_placed(tuple(tuple(agent.seat.node_id for agent in one.agents) for one in self._placements))

    def _await_room(self, need: Need) -> None:
        """See that the nodes could hold it: Ray would wait for the bundle that is one too many until the timeout."""
        cluster, end_s = self._site.cluster, time.monotonic() + ROOM_S
        while not cluster.grows() and fit(need, machines := cluster.machines(), ()) is None:
            if time.monotonic() > end_s:
                what = describe(need.bundles) if need.replicas == 1 else f"{need.replicas} x {describe(need.bundles)}"
                raise NoRoom(f"this cluster of {len(machines)} node(s) cannot hold {what}, and it has no autoscaler")
            if self._site.stop.wait(0.5):
                raise PlacementError("the sweep was stopped")

    def _start(self) -> Replicas:
        check_accelerators(self._deployment.hardware, _agents(self._placements))
        began = time.monotonic()
        self.record.began_ns = time.time_ns()
        cores = self._site.cores.share(self.record.launch_id, self._placements, self._deployment)
        targets = [self._start_replica(at, placement, cores[at]) for at, placement in enumerate(self._placements)]
        self._await_ready(began)
        self.record.ready_s = time.monotonic() - began
        return Replicas(self._placements, targets)

    def _start_replica(self, index: int, placement: Placement, cores: Sequence[tuple[int, ...]]) -> Target:
        settings, hardware = self._deployment.settings, self._deployment.hardware
        first = placement.agents[0]
        port, master_port, *extra = first.reserve_ports(6)
        one_host = {machine.address for machine in self._site.cluster.machines()} <= {first.seat.address}
        base = Node(
            port=port,
            master_host=first.seat.address,
            master_port=master_port,
            bind=LOOPBACK if one_host else first.seat.address,  # clients may come from any node, later ones too
            launch_id=self.record.launch_id,
            model_path=settings.model,
        )
        key = secrets.token_urlsafe(24)
        for rank, agent in enumerate(placement.agents):
            extra_ports = tuple(extra if rank == 0 else agent.reserve_ports(4))
            seat = agent.seat
            node = replace(
                base, rank=rank, host=seat.address, devices=seat.devices, cores=cores[rank], extra_ports=extra_ports
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
            if self._site.stop.is_set():
                raise Interrupted
            for placement in list(waiting):
                outcome = placement.agents[0].poll_ready(1.0 / len(waiting))
                if isinstance(outcome, Failure):
                    raise EngineFailure(outcome)
                if isinstance(outcome, Ready):
                    self.record.reported, self.record.engine_version = outcome.reported, outcome.version
                    waiting.remove(placement)
                    continue
                for agent in placement.agents[1:]:  # without it rank 0 would wait for its rendezvous
                    if (failure := agent.failure()) is not None:
                        raise EngineFailure(failure)

    def __exit__(self, *_: object) -> None:
        began = time.monotonic()
        self.record.stop_began_ns = time.time_ns()
        self._phase("stop")
        logs, left_over = [], 0
        try:
            for index, agent in enumerate(_agents(self._placements)):
                with suppress(AgentLost):  # its guard ends what it ran
                    stopped = agent.stop()
                    left_over += stopped.left_over
                    if stopped.dirty_gpus:
                        self._tell("gpu_dirty", f"memory is still in use on {', '.join(stopped.dirty_gpus)}")
                    logs.append((index, stopped.log))
        finally:
            for placement in self._placements:
                placement.release()
            self._site.cores.release(self.record.launch_id)
        if self._placed_at is not None:
            self.record.stopped_s = time.monotonic() - began
            self.record.held_s = time.monotonic() - self._placed_at
        self._placements = []
        if left_over:
            self._tell("left_over", f"{left_over} processes outlived their launch")
        self._keep(logs)

    def _keep(self, logs: Sequence[tuple[int, bytes]]) -> None:
        for index, log in logs:
            try:
                uri = self._site.store.write_log(f"{self.record.launch_id}/rank{index}.log", log)
            except ResultsError as error:  # must not stand in for what happened to the engine
                self._tell("log_lost", f"the log of rank {index} could not be stored: {error}")
                continue
            self.record.log_uri = self.record.log_uri or uri

    def _phase(self, name: str, **more: Any) -> None:
        self._site.journal.tell(Phase(self._deployment.label, name, **more))

    def _tell(self, kind: str, text: str) -> None:
        self._site.journal.tell(Event(kind, text, self._deployment.label, self.record.launch_id))


def check_accelerators(hardware: Hardware, agents: Sequence[Agent]) -> None:
    """A known accelerator must be the one that NVML names: its figures, its price and its identity would be another's.

    Raises EngineFailure.
    """
    known = find(hardware.accelerator)
    if known is None or hardware.is_cpu:
        return
    model = known.name.split("-")[0]
    for agent in agents:
        wrong = [gpu for gpu in agent.seat.gpus if model.lower() not in gpu.lower()]
        if wrong:
            text = f"{agent.seat.hostname} has {wrong[0]}, hardware {hardware.name!r} says {known.name}."
            raise EngineFailure(Failure(FailureClass.BAD_CONFIG, "wrong_accelerator", text))


def endpoint_key(settings: EngineSettings) -> str | None:
    """An endpoint's key, from the environment variable its settings name. Raises EngineFailure when unset."""
    name = settings.api_key_env
    if name is None:
        return None
    if not os.environ.get(name):
        text = f"The environment variable {name} (api_key_env) is not set where the driver runs."
        raise EngineFailure(Failure(FailureClass.BAD_CONFIG, "no_key", text))
    return os.environ[name]

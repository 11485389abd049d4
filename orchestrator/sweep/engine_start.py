"""Places, starts and stops the engines of one launch."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from orchestrator.base.clock import Clock, UnixSpan
from orchestrator.base.errors import (
    EngineFailure,
    Failure,
    FailureKind,
    InputError,
    Occupied,
    OrchestratorError,
    PlacementError,
    ResultsError,
)
from orchestrator.catalog.accelerators import find, is_named
from orchestrator.cluster.base import HostLost, PlacementDeadline, Stopped
from orchestrator.cluster.protocol import Placement
from orchestrator.engines.command import Node, Worker, random_key
from orchestrator.engines.registry import ENGINES, program_of
from orchestrator.load.point import Target
from orchestrator.node.readiness import Expected, Ready, wait_ready
from orchestrator.plan.model import Deployment
from orchestrator.results.outcomes import CacheState
from orchestrator.results.phases import PhaseName
from orchestrator.spec.address import parse_address
from orchestrator.spec.settings import EngineSettings, Hardware
from orchestrator.sweep.endpoint_metrics import EndpointMetrics
from orchestrator.sweep.endpoint_trial import endpoint_target
from orchestrator.sweep.host_leases import HostLeases
from orchestrator.sweep.launch_state import LaunchEvent
from orchestrator.sweep.replicas import (
    Replicas,
    agent_lost,
    agents_of,
    host_names,
    of_role,
    tell_first_of_downloads,
)
from orchestrator.sweep.resource_request import replicas_to_start, resources_of
from orchestrator.sweep.start_request import StartRequest

if TYPE_CHECKING:
    from orchestrator.cluster.protocol import Agent

LOOPBACK = "127.0.0.1"
EXTRA_PORTS = 4  # of each rank
# SGLang with data-parallel attention listens on up to seven ports after that of the rendezvous
# (srt/server_args.py: PortArgs), so these are reserved, too.
PORTS_AFTER_MASTER = 7
ENDPOINT_LIMIT_S = 30.0
# seconds that a launch waits in Ray's queue for nodes that others hold; after them it looks for
# other nodes, or new ones
HELD_S = 60.0
# Seconds between two fetches of a starting engine's last log line and downloads; fewer than LOOK_S
# of node/readiness.py.
SAYS_S = 5.0


class SweepStopped(OrchestratorError):
    """The user stopped the sweep while a launch started its engines."""


class EngineStart:
    """One start of a deployment's engines. Call ``stop`` after ``start``, whatever that returned or
    raised.
    """

    def __init__(self, request: StartRequest) -> None:
        self._request = request
        self._context = request.context
        self._notes = request.notes
        self._replicas = replicas_to_start(request.deployment.settings)  # engines, then routers
        self._placements: list[Placement] = []  # of each replica, as far as they are placed
        # the same for all replicas, because a router passes requests on with their key
        self._key = random_key()
        self._workers: list[Worker] = []  # the replicas that were started, for the routers

    @property
    def _deployment(self) -> Deployment:
        return self._request.deployment

    @property
    def _clock(self) -> Clock:
        return self._context.clock

    def start(self) -> Replicas:
        """Take the nodes, start the engines, and wait until they serve.

        Raises EngineFailure if they do not serve, SweepStopped when the user stopped the sweep
        meanwhile, and Occupied when others hold its hosts and the launch should be queued again.
        """
        try:
            if not ENGINES[self._deployment.settings.engine].launches:
                return self._reach_endpoint()
            self._place()
            return self._start_engines()
        except EngineFailure as error:
            failure = error.failure
        except Occupied:
            raise
        except PlacementError as error:
            failure = Failure(FailureKind.NO_PLACE, f"No room: {error}.")
        except HostLost as error:
            failure = agent_lost("was lost at start", error, agents_of(self._placements))
        except InputError as error:
            failure = Failure(FailureKind.BAD_CONFIG, f"A node refused it: {error}.")
        self._check_not_stopped()
        raise EngineFailure(failure)

    def _reach_endpoint(self) -> Replicas:
        """Wait until an endpoint answers. Raises EngineFailure if it does not answer, or if its key
        is not set.
        """
        settings = self._deployment.settings
        engine = ENGINES[settings.engine]
        target = endpoint_target(settings, endpoint_key(settings))
        first_list, *other_lists = parse_address(str(settings.url)).model_lists
        engine = replace(engine, ready_path=first_list, ready_fallbacks=tuple(other_lists))
        expected = Expected(engine, settings, Node(), target.url, target.api_key or "")
        self._context.state.advance(self._deployment, LaunchEvent.HOSTS_TAKEN)
        began_ns = self._clock.unix_ns()
        try:
            ready = wait_ready(expected, ENDPOINT_LIMIT_S)
        finally:
            self._context.state.add_span(UnixSpan(began_ns, self._clock.unix_ns()))
        self._notes.note_endpoint(ready)
        return Replicas(
            (),
            (target,),
            cache_of(settings),
            self._notes.vocab_size,
            endpoint_metrics=EndpointMetrics(target),
        )

    def _place(self) -> None:
        """Have an agent started on each of its nodes. Raises Occupied when others hold nodes in
        Ray, and PlacementError when agents cannot be started for another reason.
        """
        context = self._context
        began_s = self._clock.now_s()
        began_ns = self._clock.unix_ns()
        footprints = resources_of(self._deployment, exclusive=False).footprints()
        deadline = PlacementDeadline(
            min(HELD_S, context.settings.placement_timeout_s), context.stop.is_set
        )
        for footprint, nodes in zip(footprints, self._request.nodes, strict=True):
            self._notes.announcer.phase(
                PhaseName.PLACE, detail=str(footprint), total_s=deadline.timeout_s
            )
            try:
                placement = context.cluster.place(self._notes.launch_id, footprint, nodes, deadline)
            except Occupied as error:  # the nodes that are free are left to other launches
                self._let_rest(error.nodes or nodes, began_ns)
                raise
            if not self._placements:
                context.state.placed(self._deployment, self._clock.now_s())
            self._placements.append(placement)
        self._notes.note(placed_s=self._clock.now_s() - began_s)

    def _let_rest(self, occupied: Collection[str], since_ns: int) -> None:
        """Do not try the hosts of these nodes for a while, because others hold them. ``since_ns``:
        when the launch began to wait for them.
        """
        state = self._context.state
        cluster = self._context.cluster
        may_grow = cluster.growth().may_grow
        now_s = self._clock.now_s()
        addresses = {
            machine.address for machine in cluster.machines() if machine.node_id in occupied
        }
        rest_s = 0.0
        for address in addresses:
            rest_s = max(rest_s, state.rest(address, now_s, longer=may_grow))
        state.add_span(UnixSpan(since_ns, self._clock.unix_ns() + int(1e9 * rest_s)))

    def _start_engines(self) -> Replicas:
        """Lease the hosts, and start every replica and router there. Raises what ``start`` turns
        into a failure, SweepStopped, and Occupied.
        """
        check_accelerators(self._deployment.hardware, agents_of(self._placements))
        cores = HostLeases(self._request, self._replicas, self._placements).take()
        state = self._context.state
        state.advance(self._deployment, LaunchEvent.HOSTS_TAKEN)
        self._request.hooks.on_hosts()
        self._fetch_dead_logs()
        began_s = self._clock.now_s()
        began_unix_ns = self._clock.unix_ns()
        try:
            engines: list[int] = []
            routers: list[int] = []
            self._check_not_stopped()
            for index, replica in enumerate(self._replicas):
                if replica.is_router:
                    routers.append(index)
                else:
                    engines.append(index)
            targets = [self._start_replica(index, cores[index]) for index in engines]
            self._await_ready(engines, began_s)
            if routers:  # last: they must find replicas that serve; clients then ask only them
                targets = [self._start_replica(index, cores[index]) for index in routers]
                self._await_ready(routers, began_s)
        finally:
            state.add_span(UnixSpan(began_unix_ns, self._clock.unix_ns()))
        self._notes.note(ready_s=self._clock.now_s() - began_s)
        roles = [replica.role for replica in self._replicas]
        settings = self._deployment.settings
        return Replicas(
            self._placements, targets, cache_of(settings), self._notes.vocab_size, roles
        )

    def _fetch_dead_logs(self) -> None:
        """Store the logs that launches of this experiment left on these nodes when their driver or
        agent died.
        """
        for agent in agents_of(self._placements):
            for dead in agent.dead_logs():
                with suppress(ResultsError):  # the log stays on its node
                    self._context.store.write_log(dead.name, dead.log)
                    agent.drop_dead(dead.folder)

    def _start_replica(self, index: int, cores: Sequence[tuple[int, ...]]) -> Target:
        """Start every rank of a replica or a router. Returns where it will serve. ``cores``: the
        cores of each rank.
        """
        replica = self._replicas[index]
        settings = replica.settings
        placement = self._placements[index]
        hardware = self._deployment.hardware
        first = placement.agents[0]
        port, rpc_port, *ports = first.reserve_ports(3 + EXTRA_PORTS + PORTS_AFTER_MASTER)
        extra = ports[:EXTRA_PORTS]
        master_port = ports[EXTRA_PORTS]
        address = first.allocation.address
        is_one_host = self._is_the_only_host(address)
        base = Node(
            port=port,
            master_host=address,
            master_port=master_port,
            rpc_port=rpc_port,
            # clients may run on any node, even one that joins later
            bind=LOOPBACK if is_one_host else address,
            launch_id=self._notes.launch_id,
            model_path=settings.model,
            role="" if replica.is_router else replica.role,
            workers=tuple(self._workers) if replica.is_router else (),
        )
        url = f"http://{base.bind}:{port}"
        self._workers.append(Worker(replica.role, url, rpc_port))
        for rank, agent in enumerate(placement.agents):
            extra_ports = tuple(extra if rank == 0 else agent.reserve_ports(EXTRA_PORTS))
            allocation = agent.allocation
            node = replace(
                base,
                rank=rank,
                host=allocation.address,
                bind=LOOPBACK if is_one_host else allocation.address,
                devices=allocation.devices,
                cores=cores[rank],
                extra_ports=extra_ports,
            )
            argv = agent.start(settings, hardware, node, self._key)
            place = asdict(allocation)
            place["rank"] = rank
            place["replica"] = index
            place["role"] = replica.role
            place["engine_cores"] = list(cores[rank])
            self._notes.note_rank(argv, place)
        # told before the wait begins, because weights that are there already are no progress
        tell_first_of_downloads(placement)
        first.begin_ready(settings.startup_timeout_s)
        self._notes.note_environment(placement.agents, host_names(agents_of(self._placements)))
        # a router serves its replicas' model name
        served = self._replicas[0].settings if replica.is_router else settings
        name = program_of(served.engine).served_name(served, base)
        return Target(url, name, index, self._key)

    def _is_the_only_host(self, address: str) -> bool:
        """Whether the cluster has no other host, and will get none."""
        cluster = self._context.cluster
        addresses = {machine.address for machine in cluster.machines()}
        return addresses <= {address} and not cluster.growth().may_grow

    def _await_ready(self, indices: Sequence[int], began_s: float) -> None:
        """Wait until these replicas serve. Raises EngineFailure, and SweepStopped when the user
        stopped the sweep.
        """
        waiting = list(indices)
        last_fetch_s = began_s
        says = ""  # the last log line
        while waiting:
            now_s = self._clock.now_s()
            if now_s - last_fetch_s >= SAYS_S:
                last_fetch_s = now_s
                says = self._placements[waiting[0]].agents[0].saying()
                for index in waiting:
                    tell_first_of_downloads(self._placements[index])
            self._check_not_stopped()
            self._show_start(now_s - began_s, says)
            failure = self._context.taken_back(itertools.chain(*self._request.nodes), math.inf)
            if failure is not None:
                raise EngineFailure(failure)
            for index in list(waiting):
                if self._poll_ready(index, 1.0 / len(waiting)):
                    waiting.remove(index)

    def _check_not_stopped(self) -> None:
        """Raises SweepStopped when the user stopped the sweep."""
        if self._context.stop.is_set():
            raise SweepStopped

    def _show_start(self, waited_s: float, says: str) -> None:
        limit_s = float(self._deployment.settings.startup_timeout_s)
        total_s = max(limit_s, waited_s)  # beyond the limit while weights are being downloaded
        self._notes.announcer.phase(PhaseName.START, elapsed_s=waited_s, total_s=total_s, says=says)

    def _poll_ready(self, index: int, wait_s: float) -> bool:
        """Whether a replica serves by now. Raises EngineFailure."""
        role = self._replicas[index].role
        first, *others = self._placements[index].agents
        outcome = first.poll_ready(wait_s)
        if isinstance(outcome, Failure):
            raise EngineFailure(of_role(role, outcome))
        if isinstance(outcome, Ready):
            self._notes.note_ready(role, outcome)
            return True
        for agent in others:  # if one of them dies, rank 0 waits for ever
            failure = agent.failure()
            if failure is not None:
                raise EngineFailure(of_role(role, failure))
        return False

    def stop(self) -> None:
        """End every rank that was started, release its nodes and store the logs."""
        began_s = self._clock.now_s()
        self._notes.announcer.phase(PhaseName.STOP)
        logs: dict[int, bytes] = {}  # by rank
        left_over = 0
        # numbered before ``_release_lost`` takes replicas away, so that each keeps its number
        ranks = {id(agent): rank for rank, agent in enumerate(agents_of(self._placements))}
        try:
            self._release_lost()
            for agent in agents_of(self._placements):
                rank = ranks[id(agent)]
                stopped = self._stop_rank(rank, agent)
                if stopped is not None:
                    left_over += stopped.left_over
                    logs[rank] = stopped.log
        finally:
            for placement in self._placements:
                try:
                    placement.release()
                except Exception as error:
                    self._notes.announcer.event(
                        "stop_failed", f"a placement could not be released cleanly: {error}"
                    )
            self._notes.note(
                held_s=self._context.state.released(self._deployment, self._clock.now_s())
            )
        if self._placements:
            self._notes.note(stopped_s=self._clock.now_s() - began_s)
        if left_over:
            self._notes.announcer.event(
                "left_over", f"processes that outlived their launch: {left_over}"
            )
        self._notes.store_logs(logs)

    def _stop_rank(self, rank: int, agent: Agent) -> Stopped | None:
        """Stop one rank, and let its node rest if GPU memory stays in use; None if it could not be
        stopped cleanly.
        """
        try:
            stopped = agent.stop()
        except HostLost:
            return None  # the guard on its node ends the engine
        except Exception as error:  # the others must be stopped all the same
            self._notes.announcer.event(
                "stop_failed", f"rank {rank} could not be stopped cleanly: {error}"
            )
            return None
        if stopped.dirty_gpus:
            dirty = f"memory is still in use on {', '.join(stopped.dirty_gpus)}"
            self._notes.announcer.event("gpu_dirty", dirty)
            self._context.breakers.rest(agent.allocation.node_id, dirty)
        return stopped

    def _release_lost(self) -> None:
        """Release the replicas that lost a node; guards end their other ranks."""
        cluster = self._context.cluster
        present = {machine.node_id for machine in cluster.machines()} | cluster.leaving().keys()
        for placement in list(self._placements):
            if {agent.allocation.node_id for agent in placement.agents} - present:
                placement.release()
                self._placements.remove(placement)


def check_accelerators(hardware: Hardware, agents: Sequence[Agent]) -> None:
    """Check that every GPU is the accelerator that the hardware names, if the catalog knows that
    accelerator. Raises EngineFailure for another GPU, whose results would be stored under a wrong
    name.
    """
    accelerator = find(hardware.accelerator)
    if accelerator is None or hardware.is_cpu:
        return
    for agent in agents:
        for gpu in agent.allocation.gpus:
            driver_name, _, _ = gpu.rpartition(" ")  # the UUID follows
            if is_named(accelerator, driver_name):
                continue
            host = agent.allocation.hostname
            text = f"{host} has {gpu}, but hardware {hardware.name!r} says {accelerator.name}."
            raise EngineFailure(Failure(FailureKind.WRONG_ACCELERATOR, text))


def cache_of(settings: EngineSettings) -> CacheState:
    """The state of the prefix caches as long as nothing empties them: ``off`` if all engines are
    started without one.
    """
    engines = settings.engines.values()
    is_off = all(engine.enable_prefix_caching is False for engine in engines)
    return "off" if is_off else "unknown"


def endpoint_key(settings: EngineSettings) -> str | None:
    """An endpoint's key, from the environment variable that its settings name. Raises EngineFailure
    if it is unset.
    """
    name = settings.api_key_env
    if name is None:
        return None
    if not os.environ.get(name):
        text = f"The environment variable {name} (api_key_env) is not set where the driver runs."
        raise EngineFailure(Failure(FailureKind.NO_KEY, text))
    return os.environ[name]

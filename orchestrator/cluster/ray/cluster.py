"""Ray as a cluster: machines, placement groups, and the agents and clients on them.

docs/explained/ray.md says why it is built this way.
"""

import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from threading import Event, Thread
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from orchestrator.base.errors import InputError, PlacementError
from orchestrator.cluster.base import (
    Avoidance,
    Bundle,
    Footprint,
    Growth,
    HostLost,
    Machine,
    PlacementDeadline,
)
from orchestrator.cluster.cached_for import CachedFor
from orchestrator.cluster.client_host import check_leases_here
from orchestrator.cluster.clients import BorrowedClients, ClientPool
from orchestrator.cluster.protocol import Placement
from orchestrator.cluster.ray.actors import (
    AGENT_ACTOR,
    CLIENT_ACTOR,
    RayAgent,
    RayClientHost,
    RayEngineHost,
    RayHandle,
)
from orchestrator.cluster.ray.address import live_address, watch_head, why_not_joined
from orchestrator.cluster.ray.growth import NODE_ID, Autoscaler, DesiredNodes, group_of, remove
from orchestrator.cluster.ray.nodes import HeadMonitor, RayProbes, check_nodes, shipped_package
from orchestrator.cluster.ray.private import (
    autoscaler_report,
    draining,
    free_resources,
    node_types,
    on_loopback,
    own_signals,
)
from orchestrator.results.store import Store

# Admission counts only the CPUs of engines. What a client really used is in its stats.
CLIENT_CPUS = 0
LOCAL = "local"  # for ``ray.init``: start a cluster on this machine
INFEASIBLE_S = 5.0  # a node that was lost may join again within this time


class RayCluster:
    """The driver's view of a running Ray cluster, or of one started here when there is none."""

    def __init__(
        self, store: Store | None, address: str | None = None, client_limit: int | None = None
    ) -> None:
        self.note: str | None = None
        if not ray.is_initialized():
            is_started_here = False
            try:
                live = live_address(address)
                self.note = live.note
                is_started_here = live.address == LOCAL
                _join(live.address)
            except (ConnectionError, RuntimeError, RayError) as error:
                # RayError: no token where one is asked for
                raise InputError(why_not_joined(address, error, is_started_here)) from error
        self._address = ray.util.get_node_ip_address()
        self._store = store
        self._pool = ClientPool(store, self._address, self.machines, self._client)
        self._desired = DesiredNodes()
        gcs_address = ray.get_runtime_context().gcs_address
        monitor = HeadMonitor(self._package_environment)
        report = partial(autoscaler_report, gcs_address, monitor.has_configuration)
        self._autoscaler = Autoscaler(report, types=node_types)
        self._alive = CachedFor(_alive)
        self._client_limit = client_limit
        # draining node -> when it will be gone, on the monotonic clock
        self._gone_s: dict[str, float] = {}

    def _package_environment(self) -> dict[str, Any] | None:
        """The runtime_env that ships this package to other hosts; None where it is there already."""
        return shipped_package() if self._machines_elsewhere() else None

    def _machines_elsewhere(self) -> list[Machine]:
        """The nodes on other hosts than the driver's."""
        return [machine for machine in self.machines() if machine.address != self._address]

    def check_nodes(self) -> list[str]:
        assert self._store
        check_leases_here()
        # a folder needs no check on the driver's host; a bucket does: raylets have their own
        # environment variables
        machines = self._machines_elsewhere() if self._store.is_local else self.machines()
        if not machines:
            return []
        return check_nodes(machines, self._store, self._package_environment())

    def probes(self) -> RayProbes:
        return RayProbes(self.machines(), self._package_environment())

    def machines(self) -> list[Machine]:
        leaving = self.leaving()
        return [machine for machine in self._alive() if machine.node_id not in leaving]

    def leaving(self) -> Mapping[str, float]:
        now_s = time.monotonic()
        self._note_draining(now_s)
        gone_s = dict(self._gone_s)  # a copy: other threads add to it
        return {node: max(0.0, at_s - now_s) for node, at_s in gone_s.items()}

    def _note_draining(self, now_s: float) -> None:
        """Notes when the nodes that drain now will be gone."""
        for node, deadline_ms in draining().items():
            left_s = math.inf  # Ray does not say when
            if deadline_ms:
                left_s = deadline_ms / 1e3 - time.time()
            # the earliest time counts, because a second drain may name a later one, or none
            self._gone_s[node] = min(self._gone_s.get(node, math.inf), now_s + left_s)

    def watch(self, tell: Callable[[str], None], stop: Event) -> None:
        address = ray.get_runtime_context().gcs_address
        Thread(target=watch_head, args=(address, tell, stop), name="head", daemon=True).start()

    def growth(self) -> Growth:
        return self._autoscaler.growth(self._desired.groups)

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        self._desired.desire(footprints, taken)
        if not footprints:
            self._pool.end_idle()

    def place(
        self,
        launch_id: str,
        footprint: Footprint,
        nodes: Sequence[str],
        deadline: PlacementDeadline,
    ) -> Placement:
        try:
            with ExitStack() as undo:
                undo.callback(self._desired.give_back, nodes)
                self._desired.hold(nodes)
                group = group_of(footprint, [{NODE_ID: node} for node in nodes])
                undo.callback(remove, group)
                _await(group, footprint, nodes, deadline)
                draining_nodes = set(nodes) & self.leaving().keys()
                if draining_nodes:  # starting an actor there would hang
                    raise PlacementError(f"node {', '.join(draining_nodes)} is being taken back")
                handles = [
                    self._agent(group, rank, launch_id, footprint)
                    for rank in range(len(footprint.bundles))
                ]
                for handle in handles:
                    undo.callback(handle.kill)  # the guard then ends its engine
                return Placement([RayAgent(handle) for handle in handles], undo.pop_all().close)
        except HostLost as error:
            raise PlacementError(f"a node agent did not start: {error}") from error

    def _agent(
        self, group: PlacementGroup, rank: int, launch_id: str, footprint: Footprint
    ) -> RayHandle[RayEngineHost]:
        strategy = PlacementGroupSchedulingStrategy(
            group, rank, placement_group_capture_child_tasks=False
        )
        gpus = footprint.bundles[rank].gpus
        options = {"num_cpus": 0, "num_gpus": gpus, "runtime_env": self._package_environment()}
        return RayHandle(
            AGENT_ACTOR.options(scheduling_strategy=strategy, **options).remote(launch_id, gpus)
        )

    def _client(self, machine: Machine) -> RayHandle[RayClientHost]:
        strategy = NodeAffinitySchedulingStrategy(machine.node_id, soft=False)
        options = {"num_cpus": CLIENT_CPUS, "runtime_env": self._package_environment()}
        return RayHandle(CLIENT_ACTOR.options(scheduling_strategy=strategy, **options).remote())

    def clients(self, count: int, avoid: Mapping[str, Avoidance]) -> BorrowedClients:
        return self._pool.borrow(count, avoid)

    def most_clients(self) -> int:
        cores = sum(machine.cpus for machine in self.machines())
        return self._client_limit or max(1, int(cores // 2))

    def close(self) -> None:
        self._desired.desire(())
        self._pool.close()
        ray.shutdown()


def _join(address: str | None) -> None:
    """Joins the cluster at an address for ``ray.init``, or starts one here. Raises what Ray raises."""
    with ExitStack() as during_init:
        during_init.enter_context(own_signals())
        if address == LOCAL:
            # at Ray's own niceness, 15, workers would wait for whatever else runs here
            os.environ.setdefault("RAY_worker_niceness", "0")
            during_init.enter_context(on_loopback())
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="warning",
            namespace="orchestrator",
        )


def _alive() -> list[Machine]:
    """Ray's living nodes, draining ones included."""
    return [
        Machine(
            node["NodeID"],
            node["NodeManagerAddress"],
            int(node["Resources"].get("GPU", 0)),
            float(node["Resources"].get("CPU", 0)),
            dict(node.get("Labels") or {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _await(
    group: PlacementGroup, footprint: Footprint, nodes: Sequence[str], deadline: PlacementDeadline
) -> None:
    """Waits until the group is placed.

    Raises Occupied and PlacementError as ``Cluster.place`` does.
    """
    began_s = time.monotonic()
    while not group.wait(1):
        waited_s = time.monotonic() - began_s
        deadline.check(waited_s, footprint, partial(_nodes_in_use, footprint, nodes))
        if waited_s >= INFEASIBLE_S and _is_infeasible(group):
            raise PlacementError(f"the nodes chosen for {footprint} are gone or cannot hold it")


def _nodes_in_use(footprint: Footprint, nodes: Sequence[str]) -> set[str]:
    """The nodes that have too little free for their bundles, because others use their resources."""
    free = free_resources()
    needed: dict[str, Bundle] = {}  # of each node, all its bundles together
    for node, bundle in zip(nodes, footprint.bundles, strict=True):
        before = needed.get(node, Bundle(0, 0.0))
        needed[node] = Bundle(before.gpus + bundle.gpus, before.cpus + bundle.cpus)
    in_use: set[str] = set()
    for node, bundle in needed.items():
        if node not in free:
            continue
        free_gpus = free[node].get("GPU", 0.0)
        free_cpus = free[node].get("CPU", 0.0)
        if free_gpus < bundle.gpus or free_cpus < bundle.cpus:
            in_use.add(node)
    return in_use


def _is_infeasible(group: PlacementGroup) -> bool:
    """Whether Ray says that no nodes can hold the group."""
    stats = placement_group_table(group).get("stats", {})
    return bool(stats.get("scheduling_state") == "INFEASIBLE")

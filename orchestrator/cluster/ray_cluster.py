"""Ray as a cluster: machines, placement groups, and the agents and clients on them.

Facts of Ray that shaped this file stand in docs/architecture.md, "Ray".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray._private.state import state as global_state
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from orchestrator.cluster.base import AgentLost, Bundle, Machine, describe
from orchestrator.cluster.ray_address import live_address
from orchestrator.cluster.ray_agents import AgentActor, RayAgent, RayPlacement, call, release
from orchestrator.cluster.ray_clients import ClientPool, RayClients
from orchestrator.cluster.ray_errors import first_line
from orchestrator.cluster.ray_nodes import check_nodes, shipped_package
from orchestrator.errors import InputError, NoRoom, PlacementError
from orchestrator.results.store import Store

INFEASIBLE_S = 5.0


class RayCluster:
    """A running Ray cluster (or one started here when there is none), seen from the driver."""

    def __init__(self, store: Store, address: str | None = None, client_limit: int | None = None) -> None:
        self.note: str | None = None  # what the user should know of how the cluster was found
        if not ray.is_initialized():
            address, self.note = live_address(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level="warning", namespace="orchestrator")
            except (ConnectionError, RuntimeError) as error:
                raise InputError(f"no Ray cluster at {address or 'this machine'}: {first_line(error)}") from error
        self._address = ray.util.get_node_ip_address()
        self._store = store
        self._pool = ClientPool(store, self._address, self.machines, self._package_environment)
        self._client_limit = client_limit

    def _package_environment(self) -> dict[str, Any] | None:
        """Nodes elsewhere get this package shipped, unless the job's working_dir already carries it."""
        return shipped_package() if self._elsewhere() else None

    def _elsewhere(self) -> list[Machine]:
        return [machine for machine in self.machines() if machine.address != self._address]

    def check_nodes(self) -> list[str]:
        # on the driver's machine a folder needs no question; a bucket does: raylets have an environment of their own
        asked = self._elsewhere() if self._store.is_local else self.machines()
        return check_nodes(asked, self._store, self._package_environment()) if asked else []

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

    def grows(self) -> bool:
        return _autoscales()

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
            _await_group(group, describe(bundles), timeout_s, stopped)
            actors += [self._agent(group, rank, launch_id, bundle) for rank, bundle in enumerate(bundles)]
            seats = [call(actor, "seat") for actor in actors]
        except AgentLost as error:
            release(group, actors)
            raise PlacementError(f"a node agent did not start: {error}") from error
        except BaseException:
            release(group, actors)
            raise
        agents = [RayAgent(actor, seat) for actor, seat in zip(actors, seats, strict=True)]
        return RayPlacement(group, actors, agents)

    def _agent(self, group: PlacementGroup, rank: int, launch_id: str, bundle: Bundle) -> Any:
        strategy = PlacementGroupSchedulingStrategy(group, rank, placement_group_capture_child_tasks=False)
        return AgentActor.options(  # type: ignore[attr-defined]
            num_cpus=0, num_gpus=bundle.gpus, scheduling_strategy=strategy, runtime_env=self._package_environment()
        ).remote(launch_id, bundle.gpus)

    def clients(self, count: int, avoid: Mapping[str, int]) -> RayClients:
        return self._pool.borrow(count, avoid)

    def most_clients(self) -> int:
        cores = sum(machine.cpus for machine in self.machines())
        return self._client_limit or max(1, int(cores // 2))

    def close(self) -> None:
        self._pool.close()
        ray.shutdown()


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
            raise NoRoom(f"no node of this cluster can hold {what}, and it has no autoscaler to add one")


def _infeasible(group: PlacementGroup) -> bool:
    stats = placement_group_table(group).get("stats", {})
    return bool(stats.get("scheduling_state") == "INFEASIBLE")


def _autoscales() -> bool:
    """Whether an autoscaler told this cluster its node types. Private in Ray 2.60; unknown counts as yes."""
    try:
        return global_state.get_cluster_config() is not None
    except Exception:
        return True

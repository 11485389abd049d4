"""Which CPU cores the engines of a sweep hold, host by host: ranks get disjoint ones, and clients what is left."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from orchestrator.cluster.base import Placement
from orchestrator.errors import PlacementError
from orchestrator.plan.model import Deployment


class CoreBook:
    """Shared by the launches of a sweep; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[str, dict[int, str]] = {}  # address -> core -> launch

    def share(
        self, launch_id: str, placements: Sequence[Placement], deployment: Deployment
    ) -> list[list[tuple[int, ...]]]:
        """Cores for every rank of every replica. On GPU hardware engines are not bound and get none.

        Raises PlacementError when a host has too few.
        """
        hardware = deployment.hardware
        if not hardware.is_cpu:
            return [[() for _ in placement.agents] for placement in placements]
        each = max(1, int(hardware.cpus_per_device or 1)) * deployment.settings.devices_per_node
        with self._lock:
            return [
                [
                    self._take(launch_id, agent.seat.address, agent.seat.cores, each, agent.seat.hostname)
                    for agent in placement.agents
                ]
                for placement in placements
            ]

    def _take(self, launch_id: str, address: str, cores: Sequence[int], count: int, host: str) -> tuple[int, ...]:
        taken = self._taken.setdefault(address, {})
        free = [core for core in cores if core not in taken][:count]
        if len(free) < count:
            raise PlacementError(
                f"host {host} has {len(cores)} cores, {len(taken)} of them in use; {count} more are needed"
            )
        taken.update(dict.fromkeys(free, launch_id))
        return tuple(free)

    def release(self, launch_id: str) -> None:
        """Give a launch's cores back."""
        with self._lock:
            for address, taken in self._taken.items():
                self._taken[address] = {core: owner for core, owner in taken.items() if owner != launch_id}

    def taken(self) -> dict[str, frozenset[int]]:
        """Cores in use by address: clients keep off them where others remain."""
        with self._lock:
            return {address: frozenset(taken) for address, taken in self._taken.items()}

"""Wraps a cluster, and reports when its nodes change and when other nodes are asked for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.cluster.base import Avoidance, Footprint, Growth, Machine, PlacementDeadline
from orchestrator.cluster.protocol import Cluster, Placement, Probes
from orchestrator.results.events import Event, Listener

if TYPE_CHECKING:
    from orchestrator.cluster.clients import BorrowedClients

MOST_NAMED = 8  # nodes in a sentence; all are in the event's data


class ClusterWithEvents:
    """A cluster that tells when its nodes change, and when other nodes are asked for: events of the
    kinds nodes_changed and nodes_wanted. Thread-safe.
    """

    def __init__(self, cluster: Cluster, tell: Listener) -> None:
        self.note = cluster.note
        self._cluster = cluster
        self._tell = tell
        self._lock = threading.Lock()
        self._last_machines: list[Machine] | None = None
        # ids of the nodes at the last look that found any
        self._last_nodes: frozenset[str] = frozenset()
        self._last_wanted: Counter[str] = Counter()  # footprints in words

    def machines(self) -> list[Machine]:
        machines = self._cluster.machines()
        with self._lock:
            last = self._last_machines
            self._last_machines = list(machines)
            if machines:
                self._last_nodes = frozenset(machine.node_id for machine in machines)
        if last is not None and last != machines:
            self._tell_changes(last, machines)
        return machines

    def _tell_changes(self, last: Sequence[Machine], machines: Sequence[Machine]) -> None:
        """Tell which nodes joined and which left, if any did."""
        addresses_before = {machine.node_id: machine.address for machine in last}
        addresses = {machine.node_id: machine.address for machine in machines}
        joined = sorted(addresses.keys() - addresses_before.keys())
        left = sorted(addresses_before.keys() - addresses.keys())
        parts = []
        if joined:
            parts.append(f"{len(joined)} joined: {_named(joined, addresses)}")
        if left:
            parts.append(f"{len(left)} left: {_named(left, addresses_before)}")
        if parts:
            text = f"nodes {'; '.join(parts)}; {len(addresses)} in all"
            data = {"joined": joined, "left": left}
            self._tell(Event("nodes_changed", text, data=data))

    def are_all_taken_back(self) -> bool:
        """Whether there were nodes, and all that were seen last are being taken back."""
        return bool(self._last_nodes) and self._last_nodes <= self._cluster.leaving().keys()

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        self._cluster.desire(footprints, taken)
        wanted = Counter(map(str, footprints))
        with self._lock:
            before = self._last_wanted
            self._last_wanted = wanted
        if wanted == before:
            return
        nodes = ", ".join(f"{number} x {footprint}" for footprint, number in wanted.items())
        text = f"asks the cluster for nodes: {nodes or 'none beside those it uses'}"
        self._tell(Event("nodes_wanted", text, data=dict(wanted)))

    # --- as the cluster itself

    def leaving(self) -> Mapping[str, float]:
        return self._cluster.leaving()

    def watch(self, tell: Callable[[str], None], stop: threading.Event) -> None:
        self._cluster.watch(tell, stop)

    def growth(self) -> Growth:
        return self._cluster.growth()

    def probes(self) -> Probes:
        return self._cluster.probes()

    def check_nodes(self) -> list[str]:
        return self._cluster.check_nodes()

    def place(
        self,
        launch_id: str,
        footprint: Footprint,
        nodes: Sequence[str],
        deadline: PlacementDeadline,
    ) -> Placement:
        return self._cluster.place(launch_id, footprint, nodes, deadline)

    def clients(self, count: int, avoid: Mapping[str, Avoidance]) -> BorrowedClients:
        return self._cluster.clients(count, avoid)

    def most_clients(self) -> int:
        return self._cluster.most_clients()

    def close(self) -> None:
        self._cluster.close()


def _named(nodes: Sequence[str], addresses: Mapping[str, str]) -> str:
    """The nodes for a sentence, at most MOST_NAMED of them."""
    named = ", ".join(f"{node[:8]} at {addresses[node]}" for node in nodes[:MOST_NAMED])
    return named if len(nodes) <= MOST_NAMED else f"{named} and {len(nodes) - MOST_NAMED} more"

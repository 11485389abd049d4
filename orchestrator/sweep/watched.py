"""Wraps a cluster, and reports when its nodes change and when other nodes are asked for."""

import threading
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from orchestrator.cluster.base import Footprint, Machine
from orchestrator.cluster.protocol import Cluster
from orchestrator.results.events import Event, Listener

MOST_NAMED = 8  # nodes in a sentence; all are in the event's data


class WatchedCluster:
    """The cluster, plus events of the kinds nodes_changed and nodes_wanted. Thread-safe."""

    def __init__(self, cluster: Cluster, tell: Listener) -> None:
        self._cluster, self._tell = cluster, tell
        self._lock = threading.Lock()
        self._machines: list[Machine] | None = None
        self._last = frozenset[str]()  # the nodes of the last look that found any
        self._wanted = Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def machines(self) -> list[Machine]:
        machines = self._cluster.machines()
        with self._lock:
            last, self._machines = self._machines, list(machines)
            self._last = frozenset(one.node_id for one in machines) or self._last
        if last is None or last == machines:
            return machines
        before, now = ({one.node_id: one.address for one in some} for some in (last, machines))
        changes = {
            "joined": sorted(now.keys() - before.keys()),
            "left": sorted(before.keys() - now.keys()),
        }
        if any(changes.values()):
            said = (
                f"{len(nodes)} {how}: {_named(nodes, before | now)}"
                for how, nodes in changes.items()
                if nodes
            )
            self._tell(
                Event("nodes_changed", f"nodes {'; '.join(said)}; {len(now)} in all", data=changes)
            )
        return machines

    def taken_back(self) -> bool:
        """Whether the last nodes that were there are all being taken back."""
        return bool(self._last) and self._last <= self._cluster.leaving().keys()

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        self._cluster.desire(footprints, taken)
        wanted = Counter(map(str, footprints))
        with self._lock:
            before, self._wanted = self._wanted, wanted
        if wanted != before:
            what = (
                ", ".join(f"{number} x {one}" for one, number in wanted.items())
                or "none beside those it uses"
            )
            self._tell(
                Event("nodes_wanted", f"asks the cluster for nodes: {what}", data=dict(wanted))
            )


def _named(nodes: Sequence[str], addresses: dict[str, str]) -> str:
    named = ", ".join(f"{node[:8]} at {addresses[node]}" for node in nodes[:MOST_NAMED])
    return named if len(nodes) <= MOST_NAMED else f"{named} and {len(nodes) - MOST_NAMED} more"

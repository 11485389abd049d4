"""Nodes that a Ray cluster should come to have: placement groups that wait, which is what its autoscaler reads.

Nothing runs in these groups: a launch is pinned to nodes that are there, by an admission of our own. So none may ever
take a node from a launch: they keep off the nodes that launches hold, and are made anew when those change.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from orchestrator.cluster.base import Footprint

NODE_ID = "ray.io/node-id"
MOST_GROUPS = 64  # pending groups that Ray's scheduler and autoscaler look at again and again


def group_of(footprint: Footprint, selectors: Sequence[dict[str, str]]) -> PlacementGroup:
    """A placement group for one replica: one node, or a node for each bundle. It ends with the driver."""
    bundles = footprint.bundles
    return placement_group(
        [{"CPU": bundle.cpus} | ({"GPU": bundle.gpus} if bundle.gpus else {}) for bundle in bundles],
        strategy="STRICT_SPREAD" if len(bundles) > 1 else "STRICT_PACK",
        bundle_label_selector=[dict(footprint.labels) | selector for selector in selectors],
    )


def remove(group: PlacementGroup) -> None:
    """Free its resources at once, lost or not: Ray would place a lost group again before everything else."""
    with suppress(RayError):
        remove_placement_group(group)


class DesiredNodes:
    """What the cluster should come to have beside the nodes that launches hold. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()  # node id -> launches' bundles on it
        self._avoided: tuple[str, ...] = ()  # the nodes that the groups of now keep off
        self._groups: list[tuple[Footprint, Any]] = []

    def desire(self, footprints: Sequence[Footprint]) -> None:
        """See ``Cluster.desire``; gangs first, at most MOST_GROUPS."""
        wanted = sorted(footprints, key=lambda one: -len(one.bundles))[:MOST_GROUPS]
        with self._lock:
            self._replace(wanted)

    def hold(self, nodes: Iterable[str]) -> None:
        """A launch takes these nodes: groups of ours make room for it before it asks for them."""
        with self._lock:
            self._held.update(nodes)
            self._replace([footprint for footprint, _ in self._groups])

    def give_back(self, nodes: Iterable[str]) -> None:
        """A launch has left them. They may be what somebody desires, from the next ``desire`` on."""
        with self._lock:
            self._held -= Counter(nodes)

    def _replace(self, wanted: Sequence[Footprint]) -> None:
        avoided = tuple(sorted(self._held))
        if avoided != self._avoided:
            for _, group in self._groups:
                remove(group)
            self._groups, self._avoided = [], avoided
        missing, kept, before = Counter(wanted), list[tuple[Footprint, Any]](), self._groups
        self._groups = kept  # every group is known from the moment it exists
        for footprint, group in before:
            if missing[footprint] > 0:
                missing[footprint] -= 1
                kept.append((footprint, group))
            else:
                remove(group)
        selector = {NODE_ID: f"!in({','.join(avoided)})"} if avoided else {}
        for footprint in wanted:
            if missing[footprint] > 0:
                missing[footprint] -= 1
                kept.append((footprint, group_of(footprint, [selector] * len(footprint.bundles))))

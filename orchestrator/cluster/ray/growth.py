"""Asks Ray's autoscaler for nodes, through pending placement groups, and reads what it reports
about them.

Nothing runs in these groups: our own admission pins launches to nodes that exist. The groups must
never take a node from a launch, so they exclude the nodes that launches hold and are made anew when
those change.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from orchestrator.cluster.base import MOST_GROUPS, Bundle, Footprint, Growth, NodeType
from orchestrator.cluster.cached_for import CachedFor
from orchestrator.cluster.ray.private import AutoscalerReport

NODE_ID = "ray.io/node-id"
LOOK_S = 3.0  # how often the autoscaler's report is read
SILENT_S = 60.0  # normally it reports every 5 s
REPORTS = 2  # reports in a row that must call a footprint infeasible


def _amounts(bundle: Bundle) -> dict[str, float]:
    """The resources of one bundle, as Ray names them."""
    amounts = {"CPU": bundle.cpus, "GPU": float(bundle.gpus)}
    positive = {name: amount for name, amount in amounts.items() if amount}
    return positive or {"memory": 1.0}  # Ray refuses an empty bundle


def group_of(footprint: Footprint, selectors: Sequence[dict[str, str]]) -> PlacementGroup:
    """A placement group for one replica: one node, or a node for each bundle. It ends with the
    driver.
    """
    wanted = [_amounts(bundle) for bundle in footprint.bundles]
    return placement_group(
        wanted,
        strategy="STRICT_SPREAD" if len(wanted) > 1 else "STRICT_PACK",
        bundle_label_selector=[dict(footprint.labels) | selector for selector in selectors],
    )


def remove(group: PlacementGroup) -> None:
    """Free its resources at once: Ray would place a group that lost its node again before
    everything else.
    """
    with suppress(RayError):
        remove_placement_group(group)


class DesiredNodes:
    """The pending groups for nodes wanted beside those that launches hold. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()  # node id -> launches' bundles on it
        self._taken: frozenset[str] = frozenset()  # nodes given to launches at the last ``desire``
        self._avoided: tuple[str, ...] = ()  # the nodes that the pending groups exclude
        self._groups: list[tuple[Footprint, Any]] = []

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        """See ``Cluster.desire``; multi-node footprints first, at most MOST_GROUPS.

        ``taken`` matters at once: a group that was made on a launch's node and removed within the
        same millisecond left the launch waiting for that node for ever (Ray 2.60).
        """
        wanted = sorted(footprints, key=lambda footprint: -len(footprint.bundles))[:MOST_GROUPS]
        with self._lock:
            self._taken = frozenset(taken)
            self._replace(wanted)

    def hold(self, nodes: Iterable[str]) -> None:
        """A launch is about to take these nodes: move pending groups off them first."""
        with self._lock:
            self._held.update(nodes)
            self._replace([footprint for footprint, _ in self._groups])

    def give_back(self, nodes: Iterable[str]) -> None:
        """A launch has left these nodes; from the next ``desire`` on, pending groups may use them."""
        with self._lock:
            self._held -= Counter(nodes)

    def groups(self) -> dict[str, Footprint]:
        """Placement group id -> footprint that it asks for."""
        with self._lock:
            return {group.id.hex(): footprint for footprint, group in self._groups}

    def _replace(self, wanted: Sequence[Footprint]) -> None:
        avoided = tuple(sorted(self._taken.union(self._held)))
        if avoided != self._avoided:
            for _, group in self._groups:
                remove(group)
            self._groups, self._avoided = [], avoided
        missing, kept, before = Counter(wanted), list[tuple[Footprint, Any]](), self._groups
        self._groups = kept  # now, so that an exception below loses no group
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


class Autoscaler:
    """The cluster's autoscaler. Its report is read every LOOK_S s, less often if that is expensive.
    Thread-safe.
    """

    def __init__(
        self,
        report: Callable[[], AutoscalerReport | None],
        now_s: Callable[[], float] = time.monotonic,
        used_s: Callable[[], float] = time.thread_time,
        types: Callable[[], Iterable[NodeType]] = tuple,
    ) -> None:
        self._read_types, self._types = types, tuple[NodeType, ...]()
        self._report, self._now_s, self._lock = report, now_s, threading.Lock()
        self._look = CachedFor(self._read, LOOK_S, now_s, used_s)
        self._stamp: object = None  # of its last new report, and when that was read
        self._stamped_s, self._reports = now_s(), 0
        self._first: AutoscalerReport | None = None  # launches that failed before it do not count
        # footprint -> consecutive reports that call it infeasible
        self._infeasible: Counter[Footprint] = Counter()

    def growth(self, groups: Callable[[], Mapping[str, Footprint]]) -> Growth:
        """What it reports. ``groups``: see ``DesiredNodes.groups``."""
        with self._lock:
            return self._look(groups)

    def _read(self, groups: Callable[[], Mapping[str, Footprint]]) -> Growth:
        report, read_s = self._report(), self._now_s()
        if report is None:
            return Growth()
        if report.configured is None:
            return Growth()
        if not report.configured:
            return Growth(may=False)
        if report.stamp not in (None, self._stamp):
            self._stamp, self._stamped_s = report.stamp, read_s
            self._reports += 1
            self._types = self._types or tuple(self._read_types())
            there = groups()
            found = {there[name] for name in report.infeasible if name in there}
            self._infeasible = Counter(
                {footprint: self._infeasible[footprint] + 1 for footprint in found}
            )
        silent = (
            f"an autoscaler is configured and has not reported for {SILENT_S:g} s: see its "
            "log, or the operator's"
        )
        silent = silent if read_s - self._stamped_s >= SILENT_S else ""
        silent = f"the autoscaler ended: {report.error}" if report.error else silent
        refused = self._refused(report)
        # a group that is only too large for now is called infeasible, too: believe it while no node
        # of its types is up
        alone = len(set(report.types)) <= 1 and not report.coming
        impossible = [
            footprint
            for footprint, reports in self._infeasible.items()
            if alone and reports >= REPORTS
        ]
        return Growth(
            True, silent, report.coming, refused, frozenset(impossible), self._types, self._reports
        )

    def _refused(self, report: AutoscalerReport) -> dict[str, tuple[int, str]]:
        """Node type -> failed launches since the first look, and why; version 1 tells only the last
        of each type.
        """
        first = self._first = self._first or report
        more = {
            kind: (said[0] - first.refused.get(kind, (0,))[0], said[1])
            for kind, said in report.refused.items()
        }
        refused = {kind: one for kind, one in more.items() if one[0] > 0}
        for kind, (at_s, why) in report.last_refused.items():
            if at_s > first.last_refused.get(kind, (0.0,))[0]:
                refused[kind] = refused.get(kind, (0,))[0] + 1, why
        return refused

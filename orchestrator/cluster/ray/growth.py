"""Asks Ray's autoscaler for nodes, through pending placement groups, and reads what it reports
about them.

Nothing runs in these groups: our own admission pins launches to nodes that exist. The groups must
never take a node from a launch. So they exclude the nodes that launches hold, and are made anew
when these change.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from orchestrator.cluster.base import (
    MOST_GROUPS,
    Bundle,
    Footprint,
    Growth,
    NodeType,
    RefusedNodes,
)
from orchestrator.cluster.cached_for import CachedFor
from orchestrator.cluster.ray.private import AutoscalerReport

NODE_ID = "ray.io/node-id"
LOOK_S = 3.0  # how often the autoscaler's report is read
SILENT_S = 60.0  # an autoscaler without a new report for so long is silent; usual are 5 s
# A footprint counts as impossible once so many reports in a row call its group infeasible.
LEAST_REPORTS = 2
NONE_REFUSED = RefusedNodes(0, "")


class PendingGroup(NamedTuple):
    """A placement group that asks for nodes, and the footprint that it asks for."""

    footprint: Footprint
    group: PlacementGroup


def _amounts(bundle: Bundle) -> dict[str, float]:
    """The resources of one bundle, as Ray names them."""
    amounts = {"CPU": bundle.cpus, "GPU": float(bundle.gpus)}
    positive = {name: amount for name, amount in amounts.items() if amount}
    return positive or {"memory": 1.0}  # Ray refuses an empty bundle


def group_of(footprint: Footprint, selectors: Sequence[dict[str, str]]) -> PlacementGroup:
    """A placement group for one replica: one node, or a node for each bundle. It ends with the
    driver. ``selectors``: of each bundle, further labels that its node must have.
    """
    bundles = [_amounts(bundle) for bundle in footprint.bundles]
    return placement_group(
        bundles,
        strategy="STRICT_SPREAD" if len(bundles) > 1 else "STRICT_PACK",
        bundle_label_selector=[dict(footprint.labels) | selector for selector in selectors],
    )


def remove(group: PlacementGroup) -> None:
    """Removes a group and frees its resources at once. Otherwise Ray would place a group that lost
    its node again, before everything else.
    """
    with suppress(RayError):
        remove_placement_group(group)


class DesiredNodes:
    """The pending groups that ask for nodes, in addition to those that launches hold.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # nodes on which launches place bundles or have placed them: node id -> how many bundles
        self._held: Counter[str] = Counter()
        # nodes that admission had given to launches at the last ``desire``, placed or not yet
        self._taken: frozenset[str] = frozenset()
        self._avoided: tuple[str, ...] = ()  # the nodes that the pending groups exclude
        self._pending: list[PendingGroup] = []

    def desire(self, footprints: Sequence[Footprint], taken: Collection[str] = ()) -> None:
        """See ``Cluster.desire``. Footprints of several nodes come first, at most MOST_GROUPS.

        ``taken`` takes effect before any group is made: a group that was made on a launch's node
        and removed within the same millisecond left the launch waiting for that node forever (Ray
        2.60).
        """
        wanted = sorted(footprints, key=lambda footprint: -len(footprint.bundles))[:MOST_GROUPS]
        with self._lock:
            self._taken = frozenset(taken)
            self._replace(wanted)

    def hold(self, nodes: Iterable[str]) -> None:
        """Moves pending groups off these nodes, which a launch is about to take."""
        with self._lock:
            self._held.update(nodes)
            self._replace([pending.footprint for pending in self._pending])

    def give_back(self, nodes: Iterable[str]) -> None:
        """Lets pending groups use these nodes again from the next ``desire`` on, because a launch
        has left them.
        """
        with self._lock:
            self._held -= Counter(nodes)

    def groups(self) -> dict[str, Footprint]:
        """Placement group id -> footprint that it asks for."""
        with self._lock:
            return {pending.group.id.hex(): pending.footprint for pending in self._pending}

    def _replace(self, wanted: Sequence[Footprint]) -> None:
        """Keeps a pending group for each wanted footprint, removes the others and makes those that
        are missing. Makes all of them anew when the nodes to avoid have changed.
        """
        avoided = tuple(sorted(self._taken.union(self._held)))
        if avoided != self._avoided:
            for pending in self._pending:
                remove(pending.group)
            self._pending = []
            self._avoided = avoided
        missing = Counter(wanted)
        before = self._pending
        self._pending = []  # filled step by step, so that an exception below loses no group
        for pending in before:
            if missing[pending.footprint] > 0:
                missing[pending.footprint] -= 1
                self._pending.append(pending)
            else:
                remove(pending.group)
        selector = {NODE_ID: f"!in({','.join(avoided)})"} if avoided else {}
        for footprint in wanted:
            if missing[footprint] > 0:
                missing[footprint] -= 1
                group = group_of(footprint, [selector] * len(footprint.bundles))
                self._pending.append(PendingGroup(footprint, group))


class Autoscaler:
    """The cluster's autoscaler. Its report is read every LOOK_S seconds, or less often if reading
    is expensive. Thread-safe.
    """

    def __init__(
        self,
        report: Callable[[], AutoscalerReport | None],
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.thread_time,
        types: Callable[[], Iterable[NodeType]] = tuple,
    ) -> None:
        """``report`` reads the autoscaler's last report, ``types`` its node types. ``now_s``,
        ``cpu_s``: see ``CachedFor``.
        """
        self._read_types = types
        self._types: tuple[NodeType, ...] = ()
        self._read_report = report
        self._now_s = now_s
        self._lock = threading.Lock()
        self._cached_growth = CachedFor(self._read_growth, LOOK_S, now_s, cpu_s)
        self._last_stamp: object = None  # of the last new report
        self._last_new_s = now_s()  # when that report was read
        self._new_reports = 0
        self._first_report: AutoscalerReport | None = None
        # footprint -> consecutive reports that call it infeasible
        self._infeasible: Counter[Footprint] = Counter()

    def growth(self, groups: Callable[[], Mapping[str, Footprint]]) -> Growth:
        """What it reports. ``groups``: see ``DesiredNodes.groups``."""
        with self._lock:
            return self._cached_growth(groups)

    def _read_growth(self, groups: Callable[[], Mapping[str, Footprint]]) -> Growth:
        """Reads its report anew. ``groups``: see ``DesiredNodes.groups``."""
        report = self._read_report()
        read_s = self._now_s()
        if report is None or report.configured is None:
            return Growth()
        if not report.configured:
            return Growth(may_grow=False)
        if report.stamp not in (None, self._last_stamp):
            self._last_stamp = report.stamp
            self._last_new_s = read_s
            self._new_reports += 1
            self._types = self._types or tuple(self._read_types())
            self._count_infeasible(report.infeasible, groups())
        if self._first_report is None:
            self._first_report = report
        return Growth(
            may_grow=True,
            silent=self._silence(report, read_s),
            coming=report.coming,
            refused=_refused_since(self._first_report, report),
            impossible=self._impossible(report),
            types=self._types,
            reports=self._new_reports,
        )

    def _count_infeasible(
        self, group_ids: Iterable[str], footprints: Mapping[str, Footprint]
    ) -> None:
        """Counts the footprints whose groups a new report calls infeasible. Others start at 0
        again. ``footprints``: by group id.
        """
        infeasible = {footprints[name] for name in group_ids if name in footprints}
        counts = {footprint: self._infeasible[footprint] + 1 for footprint in infeasible}
        self._infeasible = Counter(counts)

    def _silence(self, report: AutoscalerReport, read_s: float) -> str:
        """Why the autoscaler does not report, as a sentence; empty if it does."""
        if report.error:
            return f"the autoscaler ended: {report.error}"
        if read_s - self._last_new_s < SILENT_S:
            return ""
        return (
            f"an autoscaler is configured and has not reported for {SILENT_S:g} s: see its "
            "log, or the operator's"
        )

    def _impossible(self, report: AutoscalerReport) -> frozenset[Footprint]:
        """Desired footprints for which there is no node type.

        Ray also calls a group infeasible that is too large only for the moment. So the reports are
        believed only while no node of the autoscaler's types is up.
        """
        only_head_is_up = len(set(report.types)) <= 1 and not report.coming
        if not only_head_is_up:
            return frozenset()
        counts = self._infeasible.items()
        return frozenset(footprint for footprint, reports in counts if reports >= LEAST_REPORTS)


def _refused_since(first: AutoscalerReport, report: AutoscalerReport) -> dict[str, RefusedNodes]:
    """Node type -> launches of its nodes that failed after the ``first`` report.

    Version 1 of the autoscaler reports no numbers, only the last failed launch of each type. That
    one counts if it is later than the one in the first report.
    """
    refused: dict[str, RefusedNodes] = {}
    for node_type, total in report.refused.items():
        already = first.refused.get(node_type, NONE_REFUSED)
        if total.number > already.number:
            refused[node_type] = RefusedNodes(total.number - already.number, total.why)
    for node_type, last in report.last_refused.items():
        already_last = first.last_refused.get(node_type)
        if already_last is None or last.at_s > already_last.at_s:
            number = refused.get(node_type, NONE_REFUSED).number
            refused[node_type] = RefusedNodes(number + 1, last.why)
    return refused

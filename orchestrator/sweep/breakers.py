"""Circuit breakers: a node on which launches fail rests, and a sweep that fails in the same way
everywhere pauses.

After its rest a node is tried again, and after a pause one launch goes ahead as a probe. After each
further failure the wait is twice as long.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.base.errors import Failure, FailureClass, FailureKind
from orchestrator.cluster.base import Machine
from orchestrator.results.events import Event

# A node rests after so many failures of class infra in a row, with nothing measured on it in
# between.
NODE_FAILURES = 2
# The sweep pauses after so many failures of one class in a row on as many nodes, with nothing
# measured anywhere in between.
SAME_NODES = 3
FIRST_WAIT_S = 120.0
LONGEST_WAIT_S = 3600.0
# Failures of the infrastructure for which the engine's nodes are not to blame. A node that is taken
# back is not chosen again anyway.
NOT_NODE_FAULT = frozenset(
    {
        FailureKind.NO_CLIENT,
        FailureKind.CLIENT_LOST,
        FailureKind.NO_ROOM,
        FailureKind.INTERNAL,
        FailureKind.PREEMPTED,
    }
)
# classes of failures that are the fault of one configuration, however many nodes it was tried on
OF_THE_CONFIGURATION = frozenset({FailureClass.BAD_CONFIG, FailureClass.CLIENT_BOUND})


@dataclass(slots=True)
class _Wait:
    """A wait until ``until_s``. ``wait_s``: how long the next wait will be."""

    until_s: float = 0.0
    wait_s: float = FIRST_WAIT_S

    def begin(self, now_s: float) -> float:
        """Begin the next wait; returns its length in seconds."""
        length_s = self.wait_s
        self.until_s = now_s + length_s
        self.wait_s = min(LONGEST_WAIT_S, 2 * length_s)
        return length_s


class Breakers:
    """Counts a sweep's failures, and decides which nodes rest and when the sweep pauses.
    Thread-safe.
    """

    def __init__(self, now_s: Callable[[], float], tell: Callable[[Event], None]) -> None:
        self._now_s = now_s
        self._tell = tell
        self._lock = threading.RLock()
        # node id -> infra failures since something was measured there
        self._failures: dict[str, int] = {}
        self._rests: dict[str, _Wait] = {}
        # failure class -> the nodes of each launch that failed with it since anything was measured
        self._same: dict[FailureClass, set[frozenset[str]]] = {}
        self._pause: _Wait | None = None
        self._probe: str | None = None  # the deployment that went ahead after a pause

    def failed(self, failure: Failure, nodes: Iterable[str]) -> None:
        """A launch on these nodes failed."""
        kind = failure.kind
        launch_nodes = frozenset(nodes)
        is_node_fault = kind not in NOT_NODE_FAULT
        if kind.failure_class in OF_THE_CONFIGURATION or not is_node_fault or not launch_nodes:
            return
        with self._lock:
            if kind.failure_class is FailureClass.INFRA:
                self._count_on_nodes(failure, launch_nodes)
            launches = self._same.setdefault(kind.failure_class, set())
            launches.add(launch_nodes)
            failed_nodes = frozenset[str]().union(*launches)
            # a launch on many nodes is still one failure
            is_everywhere = min(len(launches), len(failed_nodes)) >= SAME_NODES
            if is_everywhere and (self._pause is None or self._probe is not None):
                self._begin_pause(failure, failed_nodes)

    def _count_on_nodes(self, failure: Failure, nodes: Iterable[str]) -> None:
        """Let nodes rest that have failed too often in a row."""
        for node in nodes:
            failures = self._failures.get(node, 0) + 1
            self._failures[node] = failures
            if failures >= NODE_FAILURES:
                self.rest(node, f"{failures} launches on it failed; the last: {failure.sentence}")

    def _begin_pause(self, failure: Failure, nodes: Collection[str]) -> None:
        """Pause the sweep; after a failed probe, pause it for longer than the last time."""
        self._pause = self._pause or _Wait()
        self._probe = None
        wait_s = self._pause.begin(self._now_s())
        text = (
            f"launches failed in the same way ({failure.failure_class}) on {len(nodes)} nodes, "
            f"nothing was measured meanwhile: no new one for {wait_s:g} s, "
            f"then one as a probe; the last: {failure.sentence}"
        )
        self._tell(Event("paused", text, data={"nodes": sorted(nodes), "wait_s": wait_s}))

    def rest(self, node: str, why: str) -> None:
        """Start no launch on a node for a while."""
        with self._lock:
            wait = self._rests.setdefault(node, _Wait())
            if self._now_s() < wait.until_s:
                return
            wait_s = wait.begin(self._now_s())
        text = f"node {node[:12]} rests for {wait_s:g} s: {why}"
        self._tell(Event("node_rests", text, data={"node": node, "wait_s": wait_s}))

    def measured(self, nodes: Iterable[str]) -> None:
        """A point was measured on these nodes: they need no rest, and the sweep no pause."""
        with self._lock:
            for node in nodes:
                self._failures.pop(node, None)
                self._rests.pop(node, None)
            self._same.clear()
            if self._pause is not None:
                self._pause = None
                self._probe = None
                self._tell(Event("goes_on", "a point was measured: the sweep goes on"))

    def admitted(self, deployment_id: str) -> None:
        """A launch of the deployment begins."""
        with self._lock:
            self._probe = deployment_id if self._pause is not None else None

    def ended(self, deployment_id: str) -> None:
        """The deployment's launch is over. If it was the probe and came to nothing, another launch
        may go ahead as the probe.
        """
        with self._lock:
            if self._probe == deployment_id:
                self._probe = None

    def usable(self, machines: Sequence[Machine]) -> list[Machine]:
        """The machines that do not rest."""
        with self._lock:
            now_s = self._now_s()
            resting = {node for node, rest in self._rests.items() if rest.until_s > now_s}
        return [machine for machine in machines if machine.node_id not in resting]

    def paused(self) -> bool:
        """Whether no launch may begin, because the sweep pauses or its probe is running."""
        with self._lock:
            if self._pause is None:
                return False
            return self._probe is not None or self._now_s() < self._pause.until_s

"""What every launch of a sweep shares."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from orchestrator.cluster.base import Cluster
from orchestrator.cluster.clients import Clients, sweep_tag
from orchestrator.errors import Failure, FailureKind, InputError, PlacementError, ResultsError
from orchestrator.plan.model import Deployment, Plan
from orchestrator.results.events import Event, Listener, Phase
from orchestrator.results.spool import ROOM
from orchestrator.results.store import Store
from orchestrator.runner.admission import Cost
from orchestrator.runner.breakers import Breakers
from orchestrator.runner.clock import Clock
from orchestrator.runner.last_events import commit_events
from orchestrator.runner.state import SweepState, cost_of, used_up
from orchestrator.runner.watched import WatchedCluster

if TYPE_CHECKING:
    from orchestrator.runner.todo import Todo

FIGURES_EVERY_S = 30.0  # whoever reads the results sooner computes what is not stored yet


@dataclass
class SweepContext:
    """The plan, the cluster, the store and the shared state of one sweep. Thread-safe.

    ``listener`` hears events and phases, from several threads. ``stop`` is set when the user ends the sweep.
    ``retry_failed``: also measure what failed before with a wrong configuration. ``most_nodes``: see ``admission``.
    """

    plan: Plan
    cluster: Cluster
    store: Store
    listener: Listener | None = None
    placement_timeout_s: float = 900.0
    storage_timeout_s: float = 900.0
    retry_failed: bool = False
    most_nodes: float = math.inf
    clock: Clock = field(default_factory=Clock)
    state: SweepState = field(default_factory=SweepState)
    stop: threading.Event = field(default_factory=threading.Event)
    left_s: Callable[[], float] = lambda: 0.0  # estimated rest of the sweep
    gives_way: Callable[[Todo], bool] = lambda todo: False  # whether its launch should end for others of its race

    def __post_init__(self) -> None:
        self.began_s = self.clock.now_s()
        self.tag = sweep_tag(self.store)
        self._lock = threading.Lock()
        self._unwritten: list[Event] = []
        self._waited: set[str] = set()  # labels of deployments whose wait for nodes was reported
        self.cluster = cast(Cluster, WatchedCluster(self.cluster, self.tell))
        self.breakers = Breakers(self.clock.now_s, self.tell)
        self._storage, self._disks = self.store.patience, (self.store.patience, ROOM)
        for one in self._disks:
            one.now_s, one.wait = self.clock.now_s, partial(self.clock.wait, self.stop)
            one.tell, one.given_up = lambda text: self.tell(Event("storage", text)), ""

    def tell(self, item: Event | Phase) -> None:
        """Pass an event or phase on, and keep events for the store. A first phase "wait for nodes" is an event, too."""
        if isinstance(item, Phase) and item.name == "wait for nodes" and item.deployment not in self._waited:
            self._waited.add(item.deployment)
            text = f"there is no room for {item.detail} now: waits up to {item.total_s:g} s for others"
            self.tell(Event("waiting", text, item.deployment))
        if isinstance(item, Event):
            with self._lock:
                self._unwritten.append(item)
        if self.listener:
            self.listener(item)  # outside the lock: the listener has its own

    def take_events(self) -> list[Event]:
        """The events since the last call, for the launch that stores them."""
        with self._lock:
            events, self._unwritten = self._unwritten, []
        return events

    def give_back_events(self, events: list[Event]) -> None:
        """Events that could not be stored: the next launch takes them."""
        with self._lock:
            self._unwritten[:0] = events

    def over_budget(self, next_s: float = 0.0, launch: Deployment | None = None) -> str | None:
        """Which part of the budget is used up, or will be after a next point of ``next_s``, should that overrun as
        much as the worst one did; None if none is.

        ``launch``: the deployment that would have to be started for that point.
        """
        if self.plan.budget is None:
            return None
        for ahead_s, said in (
            (0.0, "is used up"),
            (next_s + self.state.overrun_s, "would be exceeded by the next point"),
        ):
            now_s = self.clock.now_s() + ahead_s
            # for a new launch count what others used until now: they may end sooner, and ask for themselves
            spent = self.state.spent(now_s if launch is None else self.clock.now_s())
            spent += cost_of(launch, ahead_s) if launch is not None else Cost()
            if over := used_up(self.plan.budget, spent, now_s - self.began_s):
                return f"{over} {said}"
        return None

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Inside the block calls that the storage refuses are retried for ``storage_timeout_s``, engines stay up; and
        figures of attempts are stored every FIGURES_EVERY_S. Afterwards the events are stored that no launch took."""
        with self.store.computed.held_back(FIGURES_EVERY_S, self.clock.now_s):
            for one in self._disks:
                one.limit_s = self.storage_timeout_s
            try:
                yield
            finally:
                for one in self._disks:
                    one.limit_s = 0.0
                with suppress(ResultsError):  # they were printed
                    commit_events(self.store, self.take_events())

    def may_start(self) -> bool:
        """Whether launches may start: not while the storage refuses, nor while all launches fail in the same way.

        Raises ResultsError when the storage has refused for too long.
        """
        if why := "; ".join(one.given_up for one in self._disks if one.given_up):
            raise ResultsError(f"{why}; what was committed is kept: run the same command again to continue")
        return not any(one.refusing for one in self._disks) and not self.breakers.paused()

    def taken_back(self, nodes: Iterable[str], needs_s: float) -> Failure | None:
        """A failure if one of these nodes will be gone within ``needs_s``, or if that is infinite, ever."""
        if not (leaving := self.cluster.leaving()):
            return None
        first = min((node for node in nodes if node in leaving), key=leaving.__getitem__, default=None)
        if first is None or leaving[first] >= needs_s != math.inf:
            return None
        left_s = leaving[first]
        when = f"in {left_s:.0f} s" if math.isfinite(left_s) else "at an unknown time"
        return Failure(FailureKind.PREEMPTED, f"Its node {first[:12]} is being taken back {when} (it drains).")

    def borrow_clients(self, deployment_id: str, count: int | None = None) -> Clients:
        """``count`` load clients, by default as many as a point begins with. Raises PlacementError."""
        first = min(self.plan.clients or 1, self.cluster.most_clients())
        began_s = self.clock.now_s()
        try:
            return self.cluster.clients(count or first, self.state.avoid(deployment_id))
        except PlacementError:
            with suppress(InputError):
                self.store.check_writable()  # waits while the storage refuses, which is not the client node's fault
            if self._storage.ended_s < began_s:
                raise
        return self.cluster.clients(count or first, self.state.avoid(deployment_id))

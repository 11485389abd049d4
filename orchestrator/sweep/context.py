"""What every launch of a sweep shares."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from orchestrator.base.clock import Clock
from orchestrator.base.errors import (
    Failure,
    FailureKind,
    InputError,
    NoClient,
    PlacementError,
    ResultsError,
)
from orchestrator.cluster.clients import UNFIT, BorrowedClients, owner_of
from orchestrator.cluster.protocol import Cluster
from orchestrator.plan.model import Deployment, Plan
from orchestrator.results.events import Event, Listener, Phase, PhaseName
from orchestrator.results.store import Store
from orchestrator.results.validity import MOST_AGAIN
from orchestrator.sweep.admission import Cost
from orchestrator.sweep.breakers import Breakers
from orchestrator.sweep.last_events import commit_events
from orchestrator.sweep.state import SweepState, cost_of, used_up
from orchestrator.sweep.watched import WatchedCluster

if TYPE_CHECKING:
    from orchestrator.sweep.todo import Todo

NOTHING = Cost()
CLIENT_TRIES = 3  # to start clients; after a failure that is not the storage's on other nodes
FIGURES_EVERY_S = 30.0  # whoever reads the results sooner computes what is not stored yet


@dataclass
class SweepContext:
    """The plan, the cluster, the store and the shared state of one sweep. Thread-safe.

    ``listener`` hears events and phases, from several threads. ``stop`` is set when the user ends
    the sweep. ``retry_failed``: also measure what failed before with a wrong configuration.
    ``most_again``: how often what was spoilt is measured again. ``most_nodes``: see ``admission``.
    """

    plan: Plan
    cluster: Cluster
    store: Store
    listener: Listener | None = None
    placement_timeout_s: float = 900.0
    storage_timeout_s: float = 900.0
    retry_failed: bool = False
    most_nodes: float = math.inf
    most_again: int = MOST_AGAIN
    clock: Clock = field(default_factory=Clock)
    state: SweepState = field(default_factory=SweepState)
    stop: threading.Event = field(default_factory=threading.Event)
    left_s: Callable[[], float] = lambda: 0.0  # estimated rest of the sweep
    # whether its launch should end for others of its race
    gives_way: Callable[[Todo], bool] = lambda todo: False
    # whether nodes that a launch's wait for a host keeps idle would do for others, or others for it
    better_off: Callable[[Deployment], bool] = lambda deployment: False

    def __post_init__(self) -> None:
        self.began_s = self.clock.now_s()
        self.owner = owner_of(self.store)
        self._lock, self._admits = threading.Lock(), threading.Lock()
        self._unwritten: list[Event] = []
        self._waited: set[str] = set()  # labels of deployments whose wait for nodes was reported
        self.watched = WatchedCluster(self.cluster, self.tell)
        self.cluster = cast(Cluster, self.watched)
        self.breakers = Breakers(self.clock.now_s, self.tell)
        self._storage = self.store.patience
        self._storage.now_s = self.clock.now_s
        self._storage.wait = partial(self.clock.wait, self.stop)
        self._storage.tell = lambda text: self.tell(Event("storage", text))
        self._storage.given_up = ""

    def tell(self, item: Event | Phase) -> None:
        """Pass an event or phase on, and keep events for the store. A first phase "wait for nodes"
        is an event, too.
        """
        if (
            isinstance(item, Phase)
            and item.name == PhaseName.WAIT_FOR_NODES
            and item.deployment not in self._waited
        ):
            self._waited.add(item.deployment)
            text = (
                f"there is no room for {item.detail} now: waits up to {item.total_s:g} s for others"
            )
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

    def over_budget(
        self,
        deployment: Deployment,
        next_s: float,
        others: Cost = NOTHING,
        spent: Cost | None = None,
    ) -> str | None:
        """Which part of the budget is used up, or would be if a deployment ran for ``next_s`` and
        that overran as much as the worst point did; None if none. ``others``: what launches are
        expected to use until what they do now ends. ``spent``: what is used until now, if that is
        known.
        """
        if self.plan.budget is None:
            return None
        now_s = self.clock.now_s()
        spent = self.state.spent(now_s) if spent is None else spent
        wall_s = now_s - self.began_s
        if over := used_up(self.plan.budget, spent, wall_s):
            return f"{over} is used up"
        ahead_s = next_s + self.state.overrun_s
        if over := used_up(
            self.plan.budget, spent + others + cost_of(deployment, ahead_s), wall_s + ahead_s
        ):
            return f"{over} would be exceeded by the next point"
        return None

    def admit(self, deployment: Deployment, next_s: float) -> str | None:
        """As ``over_budget``, but what other launches do now counts up to its estimated end. If it
        says None, so does this: its ``next_s`` begin now, or when its launch holds its devices.
        """
        if self.plan.budget is None:
            return None
        with self._admits:  # of two that ask at once the second sees what the first one got
            now_s = self.clock.now_s()
            over = self.over_budget(deployment, next_s, self.state.aside(now_s, deployment.id))
            if over is None:
                self.state.set_aside(deployment, next_s + self.state.overrun_s, now_s)
            return over

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Inside the block calls that the storage refuses are retried for ``storage_timeout_s``,
        engines stay up; and figures of attempts are stored every FIGURES_EVERY_S. Afterwards the
        events are stored that no launch took.
        """
        with self.store.computed.buffered(FIGURES_EVERY_S, self.clock.now_s):
            self._storage.limit_s = self.storage_timeout_s
            try:
                yield
            finally:
                self._storage.limit_s = 0.0
                with suppress(ResultsError):  # they were printed
                    commit_events(self.store, self.take_events())

    def may_start(self) -> bool:
        """Whether launches may start: not while the storage refuses, nor while all launches fail in
        the same way.

        Raises ResultsError when the storage has refused for too long.
        """
        if self._storage.given_up:
            raise ResultsError(
                f"{self._storage.given_up}; what was committed is kept: run the same command again to continue"
            )
        return not self._storage.refusing and not self.breakers.paused()

    def taken_back(self, nodes: Iterable[str], needs_s: float) -> Failure | None:
        """A failure if one of these nodes will be gone within ``needs_s``, or if that is infinite,
        ever.
        """
        if not (leaving := self.cluster.leaving()):
            return None
        first = min(
            (node for node in nodes if node in leaving), key=leaving.__getitem__, default=None
        )
        if first is None or leaving[first] >= needs_s != math.inf:
            return None
        left_s = leaving[first]
        when = f"in {left_s:.0f} s" if math.isfinite(left_s) else "at an unknown time"
        return Failure(
            FailureKind.PREEMPTED, f"Its node {first[:12]} is being taken back {when} (it drains)."
        )

    def borrow_clients(
        self, deployment_id: str, count: int | None = None, unfit: Collection[str] = ()
    ) -> BorrowedClients:
        """``count`` load clients, by default as many as a point begins with; on ``unfit`` nodes
        only if there are no others. Raises PlacementError.
        """
        first = min(self.plan.clients or 1, self.cluster.most_clients())
        avoid = self.state.avoid(deployment_id) | dict.fromkeys(unfit, UNFIT)
        for _ in range(CLIENT_TRIES - 1):
            began_s = self.clock.now_s()
            try:
                return self.cluster.clients(count or first, avoid)
            except PlacementError as error:
                with suppress(InputError):
                    # waits while the storage refuses, which is not the nodes' fault
                    self.store.check_writable()
                if self.stop.is_set():
                    raise
                if self._storage.ended_s >= began_s:
                    continue
                if not isinstance(error, NoClient):
                    raise
                avoid |= dict.fromkeys(error.nodes, UNFIT + 1)
        return self.cluster.clients(count or first, avoid)

"""What every launch of a sweep shares."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.cluster.base import Cluster
from orchestrator.cluster.clients import Clients
from orchestrator.plan.model import Plan
from orchestrator.results.events import Event, Listener, Phase
from orchestrator.results.store import Store
from orchestrator.runner.clock import Clock
from orchestrator.runner.state import SweepState, used_up


@dataclass
class SweepContext:
    """The plan, where it is carried out, and what is told meanwhile. ``stop`` is set when the user ends the sweep.
    ``retry_failed``: also what failed before because the configuration is wrong.

    Its launches use it from several threads, and so is ``listener`` called.
    """

    plan: Plan
    cluster: Cluster
    store: Store
    listener: Listener | None = None
    placement_timeout_s: float = 900.0
    retry_failed: bool = False
    clock: Clock = field(default_factory=Clock)
    state: SweepState = field(default_factory=SweepState)
    stop: threading.Event = field(default_factory=threading.Event)
    left_s: Callable[[], float] = lambda: 0.0  # how long what is left will take, as far as is known

    def __post_init__(self) -> None:
        self.began_s = self.clock.now_s()
        self._lock = threading.Lock()
        self._unwritten: list[Event] = []

    def tell(self, item: Event | Phase) -> None:
        """Keep an event for the store, show either."""
        if isinstance(item, Event):
            with self._lock:
                self._unwritten.append(item)
        if self.listener:
            self.listener(item)  # outside the lock: it has one of its own

    def take_events(self) -> list[Event]:
        """Those that were not taken yet."""
        with self._lock:
            events, self._unwritten = self._unwritten, []
        return events

    def over_budget(self) -> str | None:
        """Which part of the budget is used up, launches under way included; None while none is."""
        now_s = self.clock.now_s()
        return used_up(self.plan.budget, self.state.spent(now_s), now_s - self.began_s)

    def borrow_clients(self, deployment_id: str, count: int | None = None) -> Clients:
        """``count`` load clients; None: as many as a point begins with. Raises PlacementError."""
        first = min(self.plan.clients or 1, self.cluster.most_clients())
        return self.cluster.clients(count or first, self.state.avoid(deployment_id))

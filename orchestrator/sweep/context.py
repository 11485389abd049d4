"""What every launch of a sweep shares."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field
from functools import partial

from orchestrator.base.clock import Clock
from orchestrator.base.errors import (
    Failure,
    FailureKind,
    InputError,
    NoClient,
    PlacementError,
    ResultsError,
)
from orchestrator.cluster.base import Avoidance
from orchestrator.cluster.clients import BorrowedClients
from orchestrator.cluster.protocol import Cluster
from orchestrator.plan.model import Plan
from orchestrator.results.events import Event, Listener
from orchestrator.results.phases import Phase
from orchestrator.results.records import Committed
from orchestrator.results.store import Store
from orchestrator.results.validity import MOST_AGAIN
from orchestrator.sweep.breakers import Breakers
from orchestrator.sweep.budget import SweepBudget
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.forming_answer import FormingAnswer
from orchestrator.sweep.last_events import commit_events
from orchestrator.sweep.news import SweepNews
from orchestrator.sweep.node_events import ClusterWithEvents
from orchestrator.sweep.state import SweepState

# How often starting clients is tried. After a failure that the storage did not cause, the next try
# uses other nodes.
CLIENT_TRIES = 3
# how often figures are stored; a reader of the results computes those that are not stored yet
FIGURES_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What the user chose for one run of a sweep; it stays the same until the run ends.

    ``retry_failed``: also make the measurements that failed before because of a wrong
    configuration. ``most_again``: how often a spoilt measurement is made again. ``most_nodes``: see
    ``admission``. ``decided_within``: see ``within`` of ``FormingAnswer``.
    """

    placement_timeout_s: float = 900.0
    storage_timeout_s: float = 900.0
    retry_failed: bool = False
    most_nodes: float = math.inf
    most_again: int = MOST_AGAIN
    decided_within: float | None = None


@dataclass(eq=False)
class SweepContext:
    """The plan, the cluster, the store and the shared state of one sweep. Thread-safe.

    ``joined``: the cluster as it was joined. ``listener`` hears events and phases, from several
    threads. ``stop`` is set when the user ends the sweep.
    """

    plan: Plan
    joined: InitVar[Cluster]
    store: Store
    listener: InitVar[Listener | None] = None
    settings: SweepSettings = field(default_factory=SweepSettings)
    clock: Clock = field(default_factory=Clock)
    state: SweepState = field(default_factory=SweepState)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self, joined: Cluster, listener: Listener | None) -> None:
        self.news = SweepNews(listener)
        self.cluster = ClusterWithEvents(joined, self.tell)
        self.budget = SweepBudget(self.plan.budget, self.state, self.clock.now_s)
        self.answer = FormingAnswer(self.plan, self.settings.decided_within)
        self.breakers = Breakers(self.clock.now_s, self.tell)
        self.store.patience.attach(
            self.clock.now_s, partial(self.clock.wait, self.stop), self._tell_storage
        )

    def _tell_storage(self, text: str) -> None:
        self.tell(Event("storage", text))

    def tell(self, item: Event | Phase) -> None:
        """Tell the user of an event or phase: see ``SweepNews.tell``."""
        self.news.tell(item)

    def tell_standing(self, work: DeploymentWork, committed: Committed) -> None:
        """Tell which deployment leads after a measurement, and how many can still beat it."""
        for lead in self.answer.note(work, committed):
            self.tell(self.answer.event(lead))

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Inside the block, calls that the storage refuses are retried for ``storage_timeout_s``
        of the settings, while engines stay up, and figures of attempts are stored every FIGURES_EVERY_S. At the end
        of the block, events that no launch took are stored.
        """
        with self.store.computed.buffered(FIGURES_EVERY_S, self.clock.now_s):
            try:
                with self.store.patience.lasting(self.settings.storage_timeout_s):
                    yield
            finally:
                with suppress(ResultsError):  # the user has seen them all the same
                    commit_events(self.store, self.news.take_events())

    def may_start(self) -> bool:
        """Whether launches may start: not while the storage refuses, nor while all launches fail in
        the same way.

        Raises ResultsError when the storage has refused for too long.
        """
        storage = self.store.patience
        if storage.given_up:
            raise ResultsError(
                f"{storage.given_up}; what was committed is kept: run the same command "
                "again to continue"
            )
        return not storage.refusing and not self.breakers.paused()

    def taken_back(self, nodes: Iterable[str], needs_s: float) -> Failure | None:
        """A failure if one of these nodes will be gone within ``needs_s`` seconds or, where
        ``needs_s`` is infinite, if one of them is draining at all; None otherwise.
        """
        leaving = self.cluster.leaving()
        if not leaving:
            return None
        draining = [node for node in nodes if node in leaving]
        if not draining:
            return None
        first = min(draining, key=lambda node: leaving[node])
        left_s = leaving[first]
        if left_s >= needs_s and math.isfinite(needs_s):
            return None
        when = f"in {left_s:.0f} s" if math.isfinite(left_s) else "at an unknown time"
        return Failure(
            FailureKind.PREEMPTED, f"Its node {first[:12]} is being taken back {when} (it drains)."
        )

    def borrow_clients(
        self, deployment_id: str, count: int | None = None, unfit: Collection[str] = ()
    ) -> BorrowedClients:
        """Borrow ``count`` load clients, by default as many as a point begins with. They run on
        ``unfit`` nodes only if there are no others. Raises PlacementError if none can be started.
        """
        if count is None:
            count = min(self.plan.clients or 1, self.cluster.most_clients())
        avoid = self.state.avoid(deployment_id) | dict.fromkeys(unfit, Avoidance.UNFIT)
        for _ in range(CLIENT_TRIES - 1):
            began_s = self.clock.now_s()
            try:
                return self.cluster.clients(count, avoid)
            except PlacementError as error:
                with suppress(InputError):
                    self.store.check_writable()  # waits while the storage refuses
                if self.stop.is_set():
                    raise
                storage_refused = self.store.patience.ended_s >= began_s
                if storage_refused:
                    continue  # the same nodes again: it was not their fault
                if not isinstance(error, NoClient):
                    raise
                avoid |= dict.fromkeys(error.nodes, Avoidance.NO_START)
        return self.cluster.clients(count, avoid)

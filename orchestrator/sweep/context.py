"""What every launch of a sweep shares."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
from orchestrator.cluster.clients import UNFIT, BorrowedClients, owner_of
from orchestrator.cluster.protocol import Cluster
from orchestrator.plan.model import Deployment, Plan
from orchestrator.results.events import Event, Listener
from orchestrator.results.phases import Phase, PhaseName
from orchestrator.results.records import Committed
from orchestrator.results.store import Store
from orchestrator.results.validity import MOST_AGAIN
from orchestrator.sweep.admission import Spending
from orchestrator.sweep.breakers import Breakers
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.forming_answer import FormingAnswer
from orchestrator.sweep.last_events import commit_events
from orchestrator.sweep.node_events import ClusterWithEvents
from orchestrator.sweep.state import SweepState, cost_of, used_up

NOTHING = Spending()
# How often starting clients is tried. After a failure that the storage did not cause, the next try
# uses other nodes.
CLIENT_TRIES = 3
# how often figures are stored; a reader of the results computes those that are not stored yet
FIGURES_EVERY_S = 30.0


@dataclass
class SweepContext:
    """The plan, the cluster, the store and the shared state of one sweep. Thread-safe.

    ``listener`` hears events and phases, from several threads. ``stop`` is set when the user ends
    the sweep. ``retry_failed``: also make the measurements that failed before because of a wrong
    configuration. ``most_again``: how often a spoilt measurement is made again. ``most_nodes``: see
    ``admission``. ``decided_within``: see ``within`` of ``FormingAnswer``.
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
    decided_within: float | None = None
    clock: Clock = field(default_factory=Clock)
    state: SweepState = field(default_factory=SweepState)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.began_s = self.clock.now_s()
        self.owner = owner_of(self.store)
        self._events_lock = threading.Lock()
        self._budget_lock = threading.Lock()
        self._unwritten: list[Event] = []
        self._announced_waits: set[str] = set()  # labels of deployments that wait for nodes
        self._shown: set[str] = set()  # labels under which something is shown
        self._described_hosts: set[str] = set()  # whose facts were told
        self.node_events = ClusterWithEvents(self.cluster, self.tell)
        self.cluster = self.node_events
        self.answer = FormingAnswer(self.plan, self.decided_within)
        self.breakers = Breakers(self.clock.now_s, self.tell)
        self._storage = self.store.patience
        self._storage.attach(
            self.clock.now_s, partial(self.clock.wait, self.stop), self._tell_storage
        )

    def _tell_storage(self, text: str) -> None:
        self.tell(Event("storage", text))

    def tell(self, item: Event | Phase) -> None:
        """Pass an event or phase on to the listener, and keep events for the store.

        The first phase WAIT_FOR_NODES of a deployment is also told as an event. The phase that ends
        a deployment is passed on only if the deployment was shown.
        """
        if isinstance(item, Event):
            with self._events_lock:
                self._unwritten.append(item)
        else:
            was_shown = self._note_shown(item)
            if item.is_over and not was_shown:
                return
            if item.name is PhaseName.WAIT_FOR_NODES:
                self._announce_wait(item)
        if self.listener:
            self.listener(item)  # outside the lock: the listener has its own

    def is_new_host(self, name: str) -> bool:
        """Whether nothing was started on this host in this run yet, as far as was asked here."""
        with self._events_lock:
            is_new = name not in self._described_hosts
            self._described_hosts.add(name)
            return is_new

    def _note_shown(self, phase: Phase) -> bool:
        """Note whether the phase's deployment is shown from now on. Returns whether it was shown
        before.
        """
        with self._events_lock:
            was_shown = phase.deployment in self._shown
            if phase.is_over:
                self._shown.discard(phase.deployment)
            else:
                self._shown.add(phase.deployment)
            return was_shown

    def _announce_wait(self, phase: Phase) -> None:
        """Tell, once for each deployment, that it waits for nodes."""
        if phase.deployment in self._announced_waits:
            return
        self._announced_waits.add(phase.deployment)
        limit = f"waits up to {phase.total_s:g} s for others"
        text = f"there is no room for {phase.detail} now: {limit}"
        self.tell(Event("waiting", text, phase.deployment))

    def tell_standing(self, work: DeploymentWork, committed: Committed) -> None:
        """Tell which deployment leads after a measurement, and how many can still beat it."""
        for lead in self.answer.note(work, committed):
            self.tell(self.answer.event(lead))

    def take_events(self) -> list[Event]:
        """Take the events since the last call, for the launch that stores them."""
        with self._events_lock:
            events = self._unwritten
            self._unwritten = []
        return events

    def give_back_events(self, events: list[Event]) -> None:
        """Return events that could not be stored, so that the next launch takes them."""
        with self._events_lock:
            self._unwritten[:0] = events

    def over_budget(
        self,
        deployment: Deployment,
        next_s: float,
        others: Spending = NOTHING,
        spent: Spending | None = None,
    ) -> str | None:
        """Says which part of the budget is used up, or would be if a deployment ran for ``next_s``
        seconds and overran them by as much as the worst attempt did; None if the budget suffices.

        ``others``: what other launches are expected to use until what they do now ends. ``spent``:
        what has been used until now; None means that it is added up here.
        """
        if self.plan.budget is None:
            return None
        now_s = self.clock.now_s()
        if spent is None:
            spent = self.state.spent(now_s)
        wall_s = now_s - self.began_s
        over = used_up(self.plan.budget, spent, wall_s)
        if over is not None:
            return f"{over} is used up"
        ahead_s = next_s + self.state.overrun_s
        then_spent = spent + others + cost_of(deployment, ahead_s)
        over = used_up(self.plan.budget, then_spent, wall_s + ahead_s)
        if over is not None:
            return f"{over} would be exceeded by the next point"
        return None

    def admit(self, deployment: Deployment, next_s: float) -> str | None:
        """Ask for the part of the budget that a deployment needs to run for ``next_s`` seconds, and
        set it aside. Returns None, or why it is refused.

        The reason is that of ``over_budget``; what other launches do now counts up to its estimated
        end. The seconds begin now, or once the deployment's launch holds its devices.
        """
        if self.plan.budget is None:
            return None
        # of two launches that ask at once, the second sees what the first was granted
        with self._budget_lock:
            now_s = self.clock.now_s()
            others = self.state.aside_for_others(now_s, deployment.id)
            over = self.over_budget(deployment, next_s, others)
            if over is None:
                self.state.set_aside(deployment, next_s + self.state.overrun_s, now_s)
            return over

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Inside the block, calls that the storage refuses are retried for ``storage_timeout_s``
        while engines stay up, and figures of attempts are stored every FIGURES_EVERY_S. At the end
        of the block, events that no launch took are stored.
        """
        with self.store.computed.buffered(FIGURES_EVERY_S, self.clock.now_s):
            try:
                with self._storage.lasting(self.storage_timeout_s):
                    yield
            finally:
                with suppress(ResultsError):  # the user has seen them all the same
                    commit_events(self.store, self.take_events())

    def may_start(self) -> bool:
        """Whether launches may start: not while the storage refuses, nor while all launches fail in
        the same way.

        Raises ResultsError when the storage has refused for too long.
        """
        if self._storage.given_up:
            raise ResultsError(
                f"{self._storage.given_up}; what was committed is kept: run the same command "
                "again to continue"
            )
        return not self._storage.refusing and not self.breakers.paused()

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
        avoid = self.state.avoid(deployment_id) | dict.fromkeys(unfit, UNFIT)
        for _ in range(CLIENT_TRIES - 1):
            began_s = self.clock.now_s()
            try:
                return self.cluster.clients(count, avoid)
            except PlacementError as error:
                with suppress(InputError):
                    self.store.check_writable()  # waits while the storage refuses
                if self.stop.is_set():
                    raise
                storage_refused = self._storage.ended_s >= began_s
                if storage_refused:
                    continue  # the same nodes again: it was not their fault
                if not isinstance(error, NoClient):
                    raise
                avoid |= dict.fromkeys(error.nodes, UNFIT + 1)
        return self.cluster.clients(count, avoid)

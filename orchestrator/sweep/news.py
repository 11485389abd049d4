"""What the user is told of a sweep, and which of it still has to be stored."""

from __future__ import annotations

import threading

from orchestrator.results.events import Event, Listener
from orchestrator.results.phases import Phase, PhaseName


class SweepNews:
    """Passes the events and phases of a sweep on to its ``listener``, and keeps the events until a
    launch stores them. Thread-safe; the listener hears several threads.
    """

    def __init__(self, listener: Listener | None = None) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._unwritten: list[Event] = []
        self._announced_waits: set[str] = set()  # labels of deployments that wait for nodes
        self._shown: set[str] = set()  # labels under which something is shown
        self._described_hosts: set[str] = set()  # whose facts were told

    def tell(self, item: Event | Phase) -> None:
        """Pass an event or phase on to the listener, and keep events for the store.

        The first phase WAIT_FOR_NODES of a deployment is also told as an event. The phase that ends
        a deployment is passed on only if the deployment was shown.
        """
        if isinstance(item, Event):
            with self._lock:
                self._unwritten.append(item)
        else:
            was_shown = self._note_shown(item)
            if item.is_over and not was_shown:
                return
            if item.name is PhaseName.WAIT_FOR_NODES:
                self._announce_wait(item)
        if self._listener:
            self._listener(item)  # outside the lock: the listener has its own

    def take_events(self) -> list[Event]:
        """Take the events since the last call, for the launch that stores them."""
        with self._lock:
            events = self._unwritten
            self._unwritten = []
        return events

    def give_back_events(self, events: list[Event]) -> None:
        """Return events that could not be stored, so that the next launch takes them."""
        with self._lock:
            self._unwritten[:0] = events

    def is_new_host(self, name: str) -> bool:
        """Whether nothing was started on this host in this run yet, as far as was asked here."""
        with self._lock:
            is_new = name not in self._described_hosts
            self._described_hosts.add(name)
            return is_new

    def _note_shown(self, phase: Phase) -> bool:
        """Note whether the phase's deployment is shown from now on. Returns whether it was shown
        before.
        """
        with self._lock:
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

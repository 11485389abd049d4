"""The point's one global schedule, and which part of it a client takes.

The schedule is a pure function of the point: every client computes it whole and takes every n-th session. So the
merged schedule of 1, 2 or 8 clients is the same, and what a dead client had to do is known without asking it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as counting

import numpy as np
from numpy.typing import NDArray

from orchestrator.load.arrivals import ARRIVALS
from orchestrator.load.point import LoadPoint

# Closed loop: slots start this far apart. All at one instant, the later ones of 512 would be late by the time the
# client needs to send the earlier ones, and that lateness would be ours, not the engine's.
SLOT_STAGGER_NS = 200_000

ARRIVAL_STREAM = 0  # random streams of a point's seed: arrivals, lengths, prompts
LENGTH_STREAM = 1
PROMPT_STREAM = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of the schedule. ``due_ns`` counts from the point's start."""

    index: int  # request_index: session * turns + turn
    session: int
    turn: int
    due_ns: int


def stream(seed: int, *path: int) -> np.random.Generator:
    """The random stream of one purpose, independent of all others of the same seed."""
    return np.random.default_rng([seed & 0xFFFFFFFFFFFFFFFF, *path])


def share(total: int, client: int, clients: int) -> int:
    """How much of ``total`` client ``client`` of ``clients`` takes; the parts differ by at most 1."""
    return total // clients + (client < total % clients)


class Schedule:
    """Sessions of ``turns`` requests each (1: plain requests) and when they are due."""

    def __init__(self, point: LoadPoint, turns: int) -> None:
        """Raises InputError when the arrivals cannot be drawn."""
        self.turns = turns
        self.requests = point.requests
        self.open_loop = point.level.control == "request_rate"
        self.warmup_ns = round(point.warmup_s * 1e9)
        self.end_ns = None if point.duration_s is None else round((point.warmup_s + point.duration_s) * 1e9)
        self.slots = 0 if self.open_loop else max(1, int(point.level.value))
        self._max_in_flight = point.max_in_flight
        self.due_ns: NDArray[np.int64] = np.empty(0, np.int64)
        if self.open_loop:
            self.due_ns = self._arrivals(point)

    def _arrivals(self, point: LoadPoint) -> NDArray[np.int64]:
        """Sessions arrive at rate/turns, so that the level stays a number of requests per second."""
        process = ARRIVALS[point.arrivals.process]
        horizon_s = None if point.duration_s is None else point.warmup_s + point.duration_s
        sessions = None if self.requests is None else -(-self.requests // self.turns)
        rng = stream(point.seed, ARRIVAL_STREAM)
        offsets_s = process(point.arrivals, point.level.value / self.turns, horizon_s, sessions, rng)
        return np.round(offsets_s * 1e9).astype(np.int64)

    @property
    def sessions(self) -> int | None:
        """Sessions in all; None: as many as the time allows (closed loop)."""
        if self.open_loop:
            return len(self.due_ns)
        return None if self.requests is None else -(-self.requests // self.turns)

    def parts(self, clients: int) -> int:
        """Clients that get work: one that may have nothing in flight would never send its part."""
        limits = [clients, self.slots or clients, self._max_in_flight or clients]
        return max(1, min(limits))

    def cap(self, client: int, clients: int) -> int | None:
        """The part of ``max_in_flight`` that one client may use; None: no cap."""
        if self._max_in_flight is None:
            return None
        return share(self._max_in_flight, client, self.parts(clients))

    def stripe(self, client: int, clients: int) -> Iterator[int]:
        """The sessions of one client, in order."""
        parts = self.parts(clients)
        if client >= parts:
            return iter(())
        sessions = self.sessions
        return counting(client, parts) if sessions is None else iter(range(client, sessions, parts))

    def slot_starts(self, client: int, clients: int) -> list[int]:
        """Closed loop: when each of a client's slots starts, ns."""
        parts = self.parts(clients)
        return [slot * SLOT_STAGGER_NS for slot in range(client, self.slots, parts)] if client < parts else []

    def entry(self, session: int, turn: int, due_ns: int | None = None) -> Entry | None:
        """A request of the schedule, None when it lies beyond the point's number of requests or its time.

        ``due_ns`` is given for turns and closed loops, where it follows from what happened before.
        """
        index = session * self.turns + turn
        if turn >= self.turns or (self.requests is not None and index >= self.requests):
            return None
        due = int(self.due_ns[session]) if due_ns is None else due_ns
        if self.end_ns is not None and due >= self.end_ns:
            return None
        return Entry(index, session, turn, due)

    def length(self, session: int) -> int:
        """Turns of a session within the point's number of requests (whether its time suffices is only known then)."""
        left = self.turns if self.requests is None else self.requests - session * self.turns
        return max(0, min(self.turns, left))

    def phase(self, due_ns: int) -> str:
        """``warmup`` before the end of the warm-up, ``measure`` after it."""
        return "warmup" if due_ns < self.warmup_ns else "measure"

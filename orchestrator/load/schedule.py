"""The one global schedule of a point, the share of it that a client takes, and what is due when.

The schedule is a pure function of the point: every client computes all of it and takes every n-th
session. So 1, 2 or 8 clients send the same requests at the same times, and what a dead client had
to do is known without asking it. Nothing here uses a clock or a socket.
"""

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as counting

import numpy as np
from numpy.typing import NDArray

from orchestrator.base.errors import InputError
from orchestrator.load.arrivals import ArrivalRequest, Offsets
from orchestrator.load.point import LoadPoint
from orchestrator.spec.load import ARRIVALS, MOST_REQUESTS, MOST_SECONDS
from orchestrator.workloads.kind import ARRIVAL_STREAM, WorkloadKind, stream

# Closed loop: slots start this far apart. If all 512 started at once, the last ones would be late
# by the time that the client needs to send the others, and that lateness would be the client's, not
# the engine's.
SLOT_STAGGER_NS = 200_000


# closed loop: pause of a slot after a failed request, doubled up to the maximum
BACKOFF_NS = 100_000_000
MAX_BACKOFF_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the schedule. ``due_ns`` counts from the point's start."""

    index: int  # request_index: numbers the turns of all sessions, in order
    session: int
    turn: int
    due_ns: int


def share(total: int, client: int, clients: int) -> int:
    """How much of ``total`` goes to client ``client`` of ``clients``; shares differ by at most 1."""
    return total // clients + (client < total % clients)


class Schedule:
    """Sessions of one or more requests, when they are due, and the share of client ``client`` of
    ``clients``.

    ``sessions``: how many in all; None: as many as the time allows (closed loop). The client's
    share: ``slot_starts``, when each of its slots starts (closed loop), ns; ``cap``, its part of
    ``max_in_flight``.
    """

    def __init__(
        self, point: LoadPoint, kind: WorkloadKind, client: int = 0, clients: int = 1
    ) -> None:
        """Raises InputError where the arrivals cannot be drawn, or would be too many."""
        self._kind = kind
        # first request_index of every session, as far as was asked for
        self._first_index = array("q", [0])
        self.requests = point.requests
        self.open_loop = point.level.control == "request_rate"
        self.warmup_ns = round((point.warmup_s or 0.0) * 1e9)
        self.end_ns = None if point.ends_s is None else round(point.ends_s * 1e9)
        self.slots = 0 if self.open_loop else max(1, int(point.level.value))
        self.due_ns: NDArray[np.int64] = np.empty(0, np.int64)
        self.sessions = None if self.requests is None else self._sessions_of(self.requests)
        if self.open_loop:
            self.due_ns = self._arrivals(point)
            self.sessions = len(self.due_ns)
        # the number of clients that get work: one that may have nothing in flight would never send
        # its share
        self._parts = max(1, min(clients, self.slots or clients, point.max_in_flight or clients))
        self._client = client if client < self._parts else None
        self.slot_starts = [slot * SLOT_STAGGER_NS for slot in self._own(self.slots)]
        self.cap: int | None = None
        if point.max_in_flight is not None:
            self.cap = share(point.max_in_flight, client, self._parts)

    def own_sessions(self) -> Iterator[int]:
        """The sessions of this client, in order."""
        if self.sessions is None and self._client is not None:
            return counting(self._client, self._parts)
        return iter(self._own(self.sessions or 0))

    def _own(self, total: int) -> range:
        """This client's share of the numbers below ``total``."""
        return range(0) if self._client is None else range(self._client, total, self._parts)

    def known_requests(self) -> int:
        """How many requests of this client are known before the start; in a closed loop by time one
        per slot.
        """
        if self.sessions is None:
            return len(self.slot_starts)
        return sum(map(self.turns, self.own_sessions()))

    def _arrivals(self, point: LoadPoint) -> NDArray[np.int64]:
        """When sessions are due, ns. They arrive at rate/turns: levels (and a ramp's end) are
        requests per second.
        """
        arrivals, turns = point.arrivals, self._kind.mean_turns
        if np.isinf(point.level.value):
            if self.sessions is None:
                raise InputError("an infinite rate (all at once) needs a number of requests")
            return np.zeros(self.sessions, np.int64)
        if arrivals.to is not None:
            arrivals = arrivals.model_copy(update={"to": arrivals.to / turns})
        arrival_request = ArrivalRequest(
            arrivals, point.level.value / turns, point.ends_s, self.sessions
        )
        if arrival_request.expected > MOST_REQUESTS:
            raise InputError(
                f"{arrival_request.expected:.3g} requests would be due; a point may have "
                f"{MOST_REQUESTS:,}"
            )
        offsets_s: Offsets = ARRIVALS[arrivals.process](
            arrival_request, stream(point.seed, ARRIVAL_STREAM)
        )
        if len(offsets_s) and not offsets_s[-1] <= MOST_SECONDS:
            raise InputError(
                f"the last request would be due after {offsets_s[-1]:.3g} s;"
                f" a point may take {MOST_SECONDS:g} s"
            )
        return np.round(offsets_s * 1e9).astype(np.int64)

    def _sessions_of(self, requests: int) -> int:
        """The fewest sessions that hold ``requests`` requests."""
        sessions = 0
        while self._first(sessions) < requests:
            sessions += 1
        return sessions

    def _first(self, session: int) -> int:
        """The request_index of a session's first turn."""
        first_index = self._first_index
        while len(first_index) <= session:
            last_session = len(first_index) - 1
            first_index.append(first_index[-1] + self._kind.turns(last_session))
        return first_index[session]

    def request(self, session: int, turn: int, due_ns: int | None = None) -> PlannedRequest | None:
        """A request of the schedule; None where it lies beyond the point's number of requests or
        its time.

        ``due_ns``: for later turns and closed loops, where it follows from what happened before.
        """
        if turn >= self.turns(session):
            return None
        due = int(self.due_ns[session]) if due_ns is None else due_ns
        if self.end_ns is not None and due >= self.end_ns:
            return None
        return PlannedRequest(self._first(session) + turn, session, turn, due)

    def turns(self, session: int) -> int:
        """Requests of a session within the point's number of them (whether the time suffices is
        known only later).
        """
        turns = self._kind.turns(session)
        if self.requests is None:
            return turns
        return max(0, min(turns, self.requests - self._first(session)))

    def phase(self, due_ns: int) -> str:
        """``warmup`` before the end of the warm-up, ``measure`` after it."""
        return "warmup" if due_ns < self.warmup_ns else "measure"


class RequestQueue:
    """Hands out one client's planned requests as they become due."""

    def __init__(self, schedule: Schedule, think_time_s: float) -> None:
        self._schedule = schedule
        self._think_ns = round(think_time_s * 1e9)
        self._sessions = schedule.own_sessions()
        self._heap: list[tuple[int, int, PlannedRequest]] = []  # due, tie, request
        # closed loop, by session: failures in a row before it in its slot
        self._failures: dict[int, int] = {}
        self._ties = 0
        self._last_due_ns = 0
        self._coming = next(self._sessions, None)  # the next session
        self.scheduled = 0
        # open: only the next arrival
        for start_ns in [None] if schedule.open_loop else schedule.slot_starts:
            self._push(self._first_turn(start_ns))

    @property
    def next_due_ns(self) -> int | None:
        """When the next known request is due; None: whatever is left follows from requests in
        flight.
        """
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ns: int) -> PlannedRequest | None:
        """The next request that is due; None where none is."""
        if not self._heap or self._heap[0][0] > now_ns:
            return None
        due, _, planned = heapq.heappop(self._heap)
        self._last_due_ns = max(self._last_due_ns, due)
        self.scheduled += 1
        if self._schedule.open_loop and planned.turn == 0:
            self._push(self._first_turn(None))
        return planned

    def over(self, planned: PlannedRequest, ended_ns: int, refused: bool) -> None:
        """A request is over: schedules its session's next turn or (closed loop) the session that
        takes its slot.

        ``refused``: it failed at once. A dead engine refuses within microseconds; without a pause
        the rows would fill the disk.
        """
        is_closed_loop = not self._schedule.open_loop
        due_ns = ended_ns + self._think_ns
        failures = 0
        earlier_failures = self._failures.pop(planned.session, 0)
        if is_closed_loop and refused:
            failures = earlier_failures + 1
            due_ns += min(BACKOFF_NS << min(earlier_failures, 16), MAX_BACKOFF_NS)
        following = self._schedule.request(planned.session, planned.turn + 1, due_ns)
        if following is None and is_closed_loop:
            following = self._first_turn(due_ns)
        if following is not None and failures:
            self._failures[following.session] = failures
        self._push(following)

    def last_ns(self, now_ns: int) -> int | None:
        """The last instant at which anything is due; None while requests in flight may be followed
        by more.
        """
        end_ns = self._schedule.end_ns
        if end_ns is not None and now_ns >= end_ns:
            return end_ns
        return None if self._coming is not None else max(self._last_due_ns, end_ns or 0)

    def close(self, at_ns: int) -> None:
        """Ends the point early: nothing is due from ``at_ns`` on."""
        self._schedule.end_ns = min(at_ns, self._schedule.end_ns or at_ns)
        self._heap = [
            (due_ns, tie, planned) for due_ns, tie, planned in self._heap if due_ns < at_ns
        ]
        heapq.heapify(self._heap)

    def later_turns(self, planned: PlannedRequest, now_ns: int) -> Iterator[PlannedRequest]:
        """The turns after this one, which will never be sent."""
        for turn in range(planned.turn + 1, self._schedule.turns(planned.session)):
            later = self._schedule.request(planned.session, turn, max(now_ns, planned.due_ns))
            if later is not None:
                yield later

    def rest(self, now_ns: int) -> Iterator[PlannedRequest]:
        """Everything that was not handed out yet, for a run that is given up. Nothing is due
        afterwards.
        """
        pending = sorted(self._heap)
        self._heap = []
        for _, _, planned in pending:
            yield planned
            yield from self.later_turns(planned, now_ns)
        if self._schedule.sessions is None:
            return  # a closed loop by time: nobody knows how many would have come
        due_ns = None if self._schedule.open_loop else now_ns
        while (first_turn := self._first_turn(due_ns)) is not None:
            yield first_turn
            yield from self.later_turns(first_turn, now_ns)

    def _first_turn(self, due_ns: int | None) -> PlannedRequest | None:
        """The next session's first turn; None where no session is left, or the time is over."""
        session = self._coming
        if session is None:
            return None
        self._coming = next(self._sessions, None)
        return self._schedule.request(session, 0, due_ns)

    def _push(self, planned: PlannedRequest | None) -> None:
        if planned is not None:
            self._ties += 1
            heapq.heappush(self._heap, (planned.due_ns, self._ties, planned))

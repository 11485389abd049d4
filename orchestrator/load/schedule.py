"""The one global schedule of a point, and the share of it that a client takes.

The schedule is a pure function of the point: every client computes all of it and takes every n-th
session. So 1, 2 or 8 clients send the same requests at the same times, and what a dead client had
to do is known without asking it. Nothing here uses a clock or a socket.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count as counting

import numpy as np

from orchestrator.base.arrays import Ints
from orchestrator.base.errors import InputError
from orchestrator.load.arrivals import ArrivalRequest, Offsets
from orchestrator.load.point import LoadPoint, OpenRequests, SoFar
from orchestrator.load.request_record import EndedRequest
from orchestrator.spec.load import ARRIVALS, MOST_REQUESTS, MOST_SECONDS
from orchestrator.workloads.adapters import adapters_of
from orchestrator.workloads.kind import ARRIVAL_STREAM, Prompter, WorkloadKind, stream
from orchestrator.workloads.request_options import options_of

# Closed loop: slots start this far apart. If all 512 started at once, the last ones would be late
# by the time that the client needs to send the others, and that lateness would be the client's, not
# the engine's.
SLOT_STAGGER_NS = 200_000


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the schedule. ``due_ns`` counts from the point's start."""

    index: int  # request_index: numbers the turns of all sessions, in order
    session: int
    turn: int
    due_ns: int


def kind_of(point: LoadPoint, prompter: Prompter) -> WorkloadKind:
    """What makes the requests of a point. Raises InputError where its level cannot be had."""
    kind: WorkloadKind = point.workload.requests(prompter, point.seed)
    kind = kind.at_level(point.level, point.arrivals)
    kind.adapters = adapters_of(point.workload, point.seed)
    kind.options = options_of(point.workload, point.seed)
    return kind


def share(total: int, client: int, clients: int) -> int:
    """How much of ``total`` goes to client ``client`` of ``clients``; shares differ by at most 1."""
    return total // clients + (client < total % clients)


class Schedule:
    """Sessions of one or more requests, when they are due, and the share of client ``client`` of
    ``clients``.

    ``sessions``: how many there are in all; None: as many as the time allows (closed loop).
    ``due_ns``: when the first turn of each is due (open loop). ``end_ns``: from when on nothing is
    due. The client's share: ``slot_starts``, when each of its slots starts (closed loop), ns;
    ``cap``, its part of ``max_in_flight``.
    """

    def __init__(
        self, point: LoadPoint, kind: WorkloadKind, client: int = 0, clients: int = 1
    ) -> None:
        """Raises InputError where the arrivals cannot be drawn, or would be too many."""
        self._kind = kind
        # first request_index of every session so far; it grows with the sessions that are needed
        self._first_index = array("q", [0])
        self.requests = point.requests
        self.open_loop = point.level.control == "request_rate"
        self.warmup_ns = round((point.warmup_s or 0.0) * 1e9)
        self.end_ns = None if point.ends_s is None else round(point.ends_s * 1e9)
        self.slots = 0
        self.due_ns: Ints = np.empty(0, np.int64)
        self.sessions: int | None = None
        if self.requests is not None:
            self.sessions = self._sessions_of(self.requests)
        if self.open_loop:
            self.due_ns = self._arrivals(point)
            self.sessions = len(self.due_ns)
        else:
            self.slots = point.level.slots
        # the number of clients that get work: one that may have nothing in flight would never send
        # its share
        places = point.max_in_flight or clients
        self._parts = max(1, min(clients, self.slots or clients, places))
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

    def is_own(self, session: int) -> bool:
        """Whether this client sends a session."""
        return self._client is not None and session % self._parts == self._client

    def _own(self, total: int) -> range:
        """This client's share of the numbers below ``total``."""
        if self._client is None:
            return range(0)
        return range(self._client, total, self._parts)

    def known_requests(self) -> int:
        """How many requests of this client are known before the start; in a closed loop by time one
        per slot.
        """
        if self.sessions is None:
            return len(self.slot_starts)
        return sum(
            max(0, self.turns(session) - self.first_turn(session))
            for session in self.own_sessions()
        )

    def _arrivals(self, point: LoadPoint) -> Ints:
        """When sessions are due, ns. Levels, and the end of a ramp, are requests per second, so
        sessions arrive at the rate divided by the turns of a session.
        """
        arrivals = point.arrivals
        turns = self._kind.mean_turns
        if np.isinf(point.level.value):
            if self.sessions is None:
                raise InputError("an infinite rate (all at once) needs a number of requests")
            return np.zeros(self.sessions, np.int64)
        if arrivals.process == "trace" and arrivals.trace is None:
            return self._recorded(point)
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
        rng = stream(point.seed, ARRIVAL_STREAM)
        offsets_s: Offsets = ARRIVALS[arrivals.process](arrival_request, rng)
        _check_last(offsets_s)
        return np.round(offsets_s * 1e9).astype(np.int64)

    def _recorded(self, point: LoadPoint) -> Ints:
        """When the sessions of a recorded trace are due, ns."""
        starts_s = self._kind.starts_s(point.ends_s, self.sessions)
        if starts_s is None:
            raise InputError(f"the workload {point.workload.name!r} has no recorded times")
        if len(starts_s) > MOST_REQUESTS:
            raise InputError(
                f"{len(starts_s):,} sessions would be due; a point may have {MOST_REQUESTS:,}"
            )
        _check_last(starts_s)
        return np.round(starts_s * 1e9).astype(np.int64)

    def _sessions_of(self, requests: int) -> int:
        """The fewest sessions that hold ``requests`` requests."""
        sessions = 0
        while self._first(sessions) < requests:
            sessions += 1
        return sessions

    def _first(self, session: int) -> int:
        """The request_index of a session's first request."""
        first_index = self._first_index
        while len(first_index) <= session:
            last_session = len(first_index) - 1
            requests = self._kind.turns(last_session) - self._kind.first_turn(last_session)
            first_index.append(first_index[-1] + requests)
        return first_index[session]

    def first_request(self, session: int, due_ns: int | None = None) -> PlannedRequest | None:
        """The first request of a session that is sent; None as for ``request``."""
        return self.request(session, self.first_turn(session), due_ns)

    def request(self, session: int, turn: int, due_ns: int | None = None) -> PlannedRequest | None:
        """A request of the schedule; None where it lies beyond the point's number of requests or
        its time.

        ``due_ns``: when it is due, for later turns and closed loops, where that follows from what
        happened before.
        """
        if turn >= self.turns(session):
            return None
        due = int(self.due_ns[session]) if due_ns is None else due_ns
        if self.end_ns is not None and due >= self.end_ns:
            return None
        index = self._first(session) + turn - self.first_turn(session)
        return PlannedRequest(index, session, turn, due)

    def first_turn(self, session: int) -> int:
        """The first turn of a session that is sent."""
        return self._kind.first_turn(session)

    def turns(self, session: int) -> int:
        """How many turns of a session lie within the point's number of requests, those before its
        ``first_turn`` included. Whether the time suffices for all of them is known only later.
        """
        turns = self._kind.turns(session)
        if self.requests is None:
            return turns
        requests_left = self.requests - self._first(session)
        return max(0, min(turns, self.first_turn(session) + requests_left))

    def following_ns(self, session: int, turn: int, ended_ns: int) -> int:
        """When the request after a turn that ended at ``ended_ns`` is due: the next turn or, in a
        closed loop after a session's last turn, the next session.
        """
        pause_ns = round(self._kind.pause_s(session, turn) * 1e9)
        due_ns = ended_ns + pause_ns
        if not self.open_loop or turn + 1 >= self._kind.turns(session):
            return due_ns
        earliest_s = self._kind.earliest_s(session, turn + 1)
        if earliest_s is None:
            return due_ns
        return max(due_ns, int(self.due_ns[session]) + round(earliest_s * 1e9))

    def part(self, session: int) -> str | None:
        """The part of a mix that a session is of; None for other workloads."""
        return self._kind.part(session)

    def phase(self, due_ns: int) -> str:
        """``warmup`` before the end of the warm-up, ``measure`` after it."""
        return "warmup" if due_ns < self.warmup_ns else "measure"


def _check_last(offsets_s: Offsets) -> None:
    """Raises InputError for times that go on for longer than a point may."""
    if len(offsets_s) and not offsets_s[-1] <= MOST_SECONDS:
        raise InputError(
            f"the last request would be due after {offsets_s[-1]:.3g} s; a point may take "
            f"{MOST_SECONDS:g} s"
        )


def so_far(
    schedule: Schedule,
    now_ns: int,
    ended: tuple[EndedRequest, ...],
    silent: Iterable[PlannedRequest],
    answering: Iterable[PlannedRequest],
) -> SoFar:
    """The report of a watched client. ``silent``: open requests without any answer yet, those that
    wait to be sent included; ``answering``: the other open ones. Those of the warm-up are left out.
    """
    return SoFar(
        now_ns=now_ns,
        ended=ended,
        silent=_open_requests(schedule, silent),
        answering=_open_requests(schedule, answering),
    )


def _open_requests(schedule: Schedule, requests: Iterable[PlannedRequest]) -> OpenRequests:
    """The report on open requests, without those of the warm-up."""
    measured = [planned for planned in requests if planned.due_ns >= schedule.warmup_ns]
    parts = [schedule.part(planned.session) for planned in measured]
    return OpenRequests(
        due_ns=tuple(planned.due_ns for planned in measured),
        parts=tuple(part for part in parts if part is not None),
    )

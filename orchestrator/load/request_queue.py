"""What is due when: one client's requests, handed out as they become due.

In an open loop the schedule gives the instants. Later turns of a conversation, and all requests of
a closed loop, become due when the request before them is over. Nothing here uses a clock or a
socket.
"""

import heapq
from collections.abc import Iterator

from orchestrator.load.schedule import PlannedRequest, Schedule

# closed loop: pause of a slot after a failed request, doubled up to the maximum
BACKOFF_NS = 100_000_000
MAX_BACKOFF_NS = 5_000_000_000
MOST_DOUBLINGS = 16  # more would be over the maximum anyway


class RequestQueue:
    """Hands out one client's planned requests as they become due."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._sessions = schedule.own_sessions()
        # when a request is due, a running number for those due at one instant, the request
        self._heap: list[tuple[int, int, PlannedRequest]] = []
        # closed loop: by session, how many requests in a row failed in the slot that it took over
        self._failures_in_slot: dict[int, int] = {}
        self._pushed = 0
        self._last_due_ns = 0
        self._next_session = next(self._sessions, None)
        self.scheduled = 0  # requests that were due so far
        if schedule.open_loop:
            self._push(self._next_first_turn())  # each arrival, once it is due, pushes the next one
        else:
            for start_ns in schedule.slot_starts:
                self._push(self._next_first_turn(start_ns))

    @property
    def next_due_ns(self) -> int | None:
        """When the next known request is due. None where requests can only follow from those in
        flight.
        """
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ns: int) -> PlannedRequest | None:
        """The next request that is due at ``now_ns``; None where none is."""
        if not self._heap or self._heap[0][0] > now_ns:
            return None
        due_ns, _, planned = heapq.heappop(self._heap)
        self._last_due_ns = max(self._last_due_ns, due_ns)
        self.scheduled += 1
        # only a closed loop meets sessions at a later turn
        if self._schedule.open_loop and planned.turn == 0:
            self._push(self._next_first_turn())
        return planned

    def schedule_after(self, planned: PlannedRequest, ended_ns: int, refused: bool) -> None:
        """Schedules what follows a request that is over: the next turn of its session, or in a
        closed loop, after the last turn, the first turn of the session that takes over its slot.

        ``refused``: the request failed at once. In a closed loop what follows is then due after a
        pause: a dead engine refuses within microseconds, and the rows would fill the disk.
        """
        is_closed_loop = not self._schedule.open_loop
        due_ns = self._schedule.following_ns(planned.session, planned.turn, ended_ns)
        failures = 0
        earlier_failures = self._failures_in_slot.pop(planned.session, 0)
        if is_closed_loop and refused:
            failures = earlier_failures + 1
            doublings = min(earlier_failures, MOST_DOUBLINGS)
            due_ns += min(BACKOFF_NS << doublings, MAX_BACKOFF_NS)
        following = self._schedule.request(planned.session, planned.turn + 1, due_ns)
        if following is None and is_closed_loop:
            following = self._next_first_turn(due_ns)
        if following is not None and failures:
            self._failures_in_slot[following.session] = failures
        self._push(following)

    def last_ns(self, now_ns: int) -> int | None:
        """The last instant at which anything is due; None while requests in flight may be followed
        by more.
        """
        end_ns = self._schedule.end_ns
        if end_ns is not None and now_ns >= end_ns:
            return end_ns
        if self._next_session is not None:
            return None
        return max(self._last_due_ns, end_ns or 0)

    def close(self, at_ns: int) -> None:
        """Ends the point early: nothing is due from ``at_ns`` on."""
        end_ns = self._schedule.end_ns
        self._schedule.end_ns = at_ns if end_ns is None else min(at_ns, end_ns)
        self._heap = [entry for entry in self._heap if entry[0] < at_ns]
        heapq.heapify(self._heap)

    def later_turns(self, planned: PlannedRequest, now_ns: int) -> Iterator[PlannedRequest]:
        """The turns of a session after this one, which will never be sent."""
        for turn in range(planned.turn + 1, self._schedule.turns(planned.session)):
            later = self._schedule.request(planned.session, turn, max(now_ns, planned.due_ns))
            if later is not None:
                yield later

    def rest(self, now_ns: int) -> Iterator[PlannedRequest]:
        """All requests that were not handed out yet, for a run that is given up. Nothing is due
        afterwards.
        """
        pending = sorted(self._heap)
        self._heap = []
        for _, _, planned in pending:
            yield planned
            yield from self.later_turns(planned, now_ns)
        if self._schedule.sessions is None:
            return  # a closed loop by time: how many would have come is not known
        due_ns = None if self._schedule.open_loop else now_ns
        while (first_turn := self._next_first_turn(due_ns)) is not None:
            yield first_turn
            yield from self.later_turns(first_turn, now_ns)

    def _next_first_turn(self, due_ns: int | None = None) -> PlannedRequest | None:
        """The first turn of the next session; None where no session is left, or the time is over.

        ``due_ns``: when it is due in a closed loop; None: in an open loop, where the session has
        an instant of arrival.
        """
        session = self._next_session
        if session is None:
            return None
        self._next_session = next(self._sessions, None)
        return self._schedule.first_request(session, due_ns)

    def _push(self, planned: PlannedRequest | None) -> None:
        if planned is not None:
            self._pushed += 1
            heapq.heappush(self._heap, (planned.due_ns, self._pushed, planned))

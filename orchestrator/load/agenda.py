"""What is due when, for one client: arrivals, free slots, next turns. Pure: it knows no clock and no socket.

Instants are ns since the point's start. The open loop never waits for an answer; the closed loop gives a slot its
next session when the one before is over; the next turn of a conversation is due when the turn before ended, after
think time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from orchestrator.load.schedule import Entry, Schedule

BACKOFF_NS = 100_000_000  # closed loop: pause of a slot after a request that failed, doubled up to the maximum
MAX_BACKOFF_NS = 5_000_000_000


class Agenda:
    """Hands out entries in the order in which they are due."""

    def __init__(self, schedule: Schedule, client: int, clients: int, think_time_s: float) -> None:
        self._schedule = schedule
        self._think_ns = round(think_time_s * 1e9)
        self._sessions = schedule.stripe(client, clients)
        self._heap: list[tuple[int, int, Entry, int | None]] = []  # due, tie, entry, slot
        self._failures: dict[int, int] = {}  # of a slot, in a row
        self._ties = 0
        self._last_due_ns = 0
        self._coming = next(self._sessions, None)  # the session after those handed out
        self.scheduled = 0
        if schedule.open_loop:
            self._arrive()
        else:
            for slot, start_ns in enumerate(schedule.slot_starts(client, clients)):
                self._next_session(slot, start_ns)

    @property
    def next_due_ns(self) -> int | None:
        """When the next entry known is due."""
        return self._heap[0][0] if self._heap else None

    @property
    def empty(self) -> bool:
        """Nothing is left that does not follow from requests in flight."""
        return not self._heap

    def pop_due(self, now_ns: int) -> tuple[Entry, int | None] | None:
        """The next entry that is due and its slot (None in the open loop); None when nothing is due."""
        if not self._heap or self._heap[0][0] > now_ns:
            return None
        due, _, entry, slot = heapq.heappop(self._heap)
        self._last_due_ns = max(self._last_due_ns, due)
        self.scheduled += 1
        if slot is None and entry.turn == 0:
            self._arrive()
        return entry, slot

    def over(self, entry: Entry, slot: int | None, ended_ns: int, failed: bool) -> None:
        """A request is over: its session's next turn becomes known, or its slot's next session."""
        due = ended_ns + self._think_ns
        if slot is not None:
            due += self._backoff(slot, failed)
        if entry.turn + 1 < self._schedule.turns:
            following = self._schedule.entry(entry.session, entry.turn + 1, due)
            if following is not None:
                self._push(following, slot)
                return
        if slot is not None:
            self._next_session(slot, due)

    def last_ns(self, now_ns: int) -> int | None:
        """The last scheduled instant; None while more may follow from what is in flight."""
        end_ns = self._schedule.end_ns
        if end_ns is not None and now_ns >= end_ns:
            return end_ns
        return None if self._coming is not None else max(self._last_due_ns, end_ns or 0)

    def later_turns(self, entry: Entry, now_ns: int) -> Iterator[Entry]:
        """The turns after a given one that will not come any more."""
        for turn in range(entry.turn + 1, self._schedule.turns):
            later = self._schedule.entry(entry.session, turn, now_ns)
            if later is not None:
                yield later

    def rest(self, now_ns: int) -> Iterator[Entry]:
        """Everything not handed out yet, for a run that is given up. Nothing is due afterwards."""
        pending, self._heap = sorted(self._heap), []
        entries = [entry for _, _, entry, _ in pending]
        if self._schedule.sessions is not None:
            due_ns = None if self._schedule.open_loop else now_ns
            while self._coming is not None:
                entry = self._first_turn(due_ns)
                entries += [entry] if entry is not None else []
        for entry in entries:
            yield entry
            yield from self.later_turns(entry, now_ns)

    def _backoff(self, slot: int, failed: bool) -> int:
        """A dead engine refuses within microseconds: without a pause its rows would fill the disk."""
        failures = self._failures[slot] = self._failures.get(slot, 0) + 1 if failed else 0
        return min(BACKOFF_NS << min(failures - 1, 16), MAX_BACKOFF_NS) if failures else 0

    def _arrive(self) -> None:
        """Open loop: only the next arrival stands in the heap."""
        entry = self._first_turn(None)
        if entry is not None:
            self._push(entry, None)

    def _next_session(self, slot: int, due_ns: int) -> None:
        entry = self._first_turn(due_ns)
        if entry is not None:
            self._push(entry, slot)

    def _first_turn(self, due_ns: int | None) -> Entry | None:
        """The next session's first turn; None when there are no more, or its time is over."""
        session = self._coming
        if session is None:
            return None
        self._coming = next(self._sessions, None)
        return self._schedule.entry(session, 0, due_ns)

    def _push(self, entry: Entry, slot: int | None) -> None:
        self._ties += 1
        heapq.heappush(self._heap, (entry.due_ns, self._ties, entry, slot))

"""The load client in virtual time: sends what is due to a fleet, and ends as a real client does.

Code of ``load/`` decides when requests are due, which session goes to which replica, how slots are
filled again and how long the client waits at the end. The client's own work takes no time here.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.capacity.sequential_test import LOOK_S, next_look_s
from orchestrator.emulator.prefix import BLOCK_TOKENS
from orchestrator.load.point import LoadPoint, Progress, SoFar
from orchestrator.load.request_queue import RequestQueue
from orchestrator.load.request_record import EndedRequest
from orchestrator.load.schedule import PlannedRequest, Schedule, so_far
from orchestrator.simulation.fleet import Fleet
from orchestrator.simulation.requests import RequestEnd, VirtualRequest
from orchestrator.simulation.rows import record_of
from orchestrator.sweep.early_end import EarlyEnd
from orchestrator.workloads.kind import WorkloadKind
from orchestrator.workloads.segments import EndlessCache, PromptContents, Segment

LOOKS_UNTIL_END_S = 2.0  # seconds before its end in which a probe is no longer looked at
_REFUSED_AT_ONCE = (RequestEnd.REFUSED, RequestEnd.QUEUE_FULL)


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What a client sends: a point, its requests and when they are due."""

    point: LoadPoint
    kind: WorkloadKind
    schedule: Schedule


class _End(NamedTuple):
    """When a request ends. ``number``: a running number, so that of ends at one instant the first
    that was noted comes first.
    """

    at_s: float
    number: int
    request: VirtualRequest


class VirtualClient:
    """Loads a fleet once. ``early_end``: what may end a probe; None if the point is not a probe."""

    def __init__(
        self,
        load: ClientLoad,
        fleet: Fleet,
        contents: PromptContents | None,
        early_end: EarlyEnd | None,
    ) -> None:
        self._point = load.point
        self._kind = load.kind
        self._schedule = load.schedule
        self._queue = RequestQueue(load.schedule)
        self._fleet = fleet
        self._contents = contents
        self._endless_caches = [EndlessCache(BLOCK_TOKENS) for _ in load.point.targets]
        self._prompts: dict[VirtualRequest, list[Segment]] = {}  # of open requests
        self._early_end = early_end
        self._look_s = LOOK_S if early_end is not None else math.inf
        self._abort_s = math.inf  # when a probe aborts what is open
        self._open: dict[VirtualRequest, None] = {}  # in the order they were sent
        self._waiting: deque[PlannedRequest] = deque()  # due, while max_in_flight are in flight
        self._ends: list[_End] = []  # a heap of the ends to come, as far as the fleet knows them
        self._numbers = itertools.count()
        self._unreported: list[VirtualRequest] = []
        self._sent = 0
        self.requests: list[VirtualRequest] = []
        self.in_flight_max = 0
        self.over_s = 0.0  # when the last request was over

    def run(self) -> None:
        """Send all requests, and wait until all are over."""
        while True:
            next_s = min(self._next_s(), self._abort_s)
            ended = self._fleet.advance(next_s)
            if ended:
                for request in ended:
                    self._add_ended(request)
            elif next_s == math.inf:
                return
            elif next_s >= self._abort_s:
                self._abort()
                return
            elif self._has_drained(next_s):
                self._give_up_open(next_s)
                return
            else:
                self._act(next_s)

    # --- what happens next

    def _next_s(self) -> float:
        """When anything but the engines' steps happens next, in seconds since the start."""
        due_ns = self._queue.next_due_ns
        next_s = math.inf if due_ns is None else due_ns / 1e9
        if self._ends:
            next_s = min(next_s, self._ends[0].at_s)
        if self._open:
            first = next(iter(self._open))
            next_s = min(next_s, first.sent_s + self._point.request_timeout_s)
        if due_ns is None and (self._open or self._waiting):
            next_s = min(next_s, self._drained_s())
        if self._open or self._waiting or due_ns is not None:
            next_s = min(next_s, self._look_s)
        return next_s

    def _drained_s(self) -> float:
        """Until when the client waits for open requests once nothing more is due, in seconds since
        the start.
        """
        last_ns = self._schedule.end_ns
        if last_ns is None:
            last_ns = self._queue.last_ns(0)
        return math.inf if last_ns is None else last_ns / 1e9 + self._point.drain_s

    def _has_drained(self, now_s: float) -> bool:
        if self._queue.next_due_ns is not None or not (self._open or self._waiting):
            return False
        is_over = bool(self._ends) and self._ends[0].at_s <= now_s
        return not is_over and now_s >= self._drained_s()

    def _act(self, now_s: float) -> None:
        """Do what is due at this instant: the ends of requests first, to make room."""
        while self._ends and self._ends[0].at_s <= now_s:
            self._over(heapq.heappop(self._ends).request)
        while self._open:
            first = next(iter(self._open))
            if first.sent_s + self._point.request_timeout_s > now_s:
                break
            self._cancel(first, RequestEnd.TIMEOUT, now_s)
            self._over(first)
        now_ns = round(now_s * 1e9)
        while (planned := self._queue.pop_due(now_ns)) is not None:
            if self._waiting or not self._has_room():
                self._waiting.append(planned)
            else:
                self._send(planned, planned.due_ns / 1e9)
        if now_s >= self._look_s:
            self._look(now_s)

    # --- sending and ends

    def _has_room(self) -> bool:
        """Whether fewer than max_in_flight requests are in flight."""
        cap = self._schedule.cap
        return cap is None or len(self._open) < cap

    def _request(self, planned: PlannedRequest) -> VirtualRequest:
        """A planned request that was not sent yet."""
        session, turn = planned.session, planned.turn
        request = VirtualRequest(
            planned,
            session % len(self._point.targets),
            self._kind.input_tokens(session, turn),
            self._kind.output_tokens(session, turn),
            self._kind.part(session),
        )
        self.requests.append(request)
        return request

    def _send(self, planned: PlannedRequest, now_s: float) -> None:
        request = self._request(planned)
        request.sent_s = now_s
        segments: list[Segment] = []
        if self._contents is not None:
            phase = self._schedule.phase(planned.due_ns)
            segments = self._contents.segments(planned.session, planned.turn, phase)
        self._sent += 1
        if self._fleet.send(request, segments):
            self._open[request] = None
            if segments:
                cache = self._endless_caches[request.replica]
                request.expected_cached_tokens = cache.take(segments)
                self._prompts[request] = segments
            self.in_flight_max = max(self.in_flight_max, len(self._open))
        else:
            self._add_ended(request)

    def _add_ended(self, request: VirtualRequest) -> None:
        """Note that a request ends at ``done_s``."""
        heapq.heappush(self._ends, _End(request.done_s, next(self._numbers), request))

    def _over(self, request: VirtualRequest) -> None:
        """Note that a request has ended, and send or plan what may follow it."""
        planned = request.planned
        self._open.pop(request, None)
        self.over_s = max(self.over_s, request.done_s)
        answer = None
        if self._contents is not None:
            tokens = request.output_tokens if request.end is RequestEnd.OK else 0
            answer = self._contents.answered(planned.session, planned.turn, tokens)
        segments = self._prompts.pop(request, None)
        if request.end is RequestEnd.OK and request.rank is not None:
            request.rank.over(request, answer)
            if segments is not None and answer is not None:
                self._endless_caches[request.replica].keep(segments, answer)
        if self._early_end is not None:
            self._unreported.append(request)
        if self._waiting and self._has_room():
            self._send(self._waiting.popleft(), request.done_s)
        ended_ns = round(request.done_s * 1e9)
        self._queue.schedule_after(planned, ended_ns, refused=request.end in _REFUSED_AT_ONCE)

    def _cancel(self, request: VirtualRequest, end: RequestEnd, now_s: float) -> None:
        """End a request that the fleet still works on, or that ended there a moment later."""
        if request.end is RequestEnd.OPEN:
            assert request.rank is not None
            request.rank.cancel(request)
        else:
            self._ends = [ending for ending in self._ends if ending.request is not request]
            heapq.heapify(self._ends)
            if request.rank is not None:
                request.rank.over(request, None)
        request.finish(end, now_s)

    # --- ends of points

    def _give_up_open(self, now_s: float, end: RequestEnd = RequestEnd.NOT_DRAINED) -> None:
        """End the requests that are open, and those that were never sent. ``end``: how they end."""
        unfinished = [request.planned for request in self._open] + list(self._waiting)
        for request in list(self._open):
            self._cancel(request, end, now_s)
        self._open.clear()
        never_sent = RequestEnd.NEVER_SENT if end is RequestEnd.NOT_DRAINED else end
        for planned in self._waiting:
            self._request(planned).finish(never_sent, now_s)
        now_ns = round(now_s * 1e9)
        for planned in unfinished:
            for later in self._queue.later_turns(planned, now_ns):
                self._request(later).finish(end, now_s)
        self.over_s = max(self.over_s, now_s)

    def _abort(self) -> None:
        """End a probe whose requests come in faster than they are answered."""
        self._give_up_open(self._abort_s, RequestEnd.ABORTED)
        for planned in self._queue.rest(round(self._abort_s * 1e9)):
            self._request(planned).finish(RequestEnd.ABORTED, self._abort_s)

    # --- probes

    def _look(self, now_s: float) -> None:
        """End a probe once it knows enough."""
        assert self._early_end is not None
        self._look_s = next_look_s(now_s)
        ends_s = self._point.ends_s
        if ends_s is not None and now_s + LOOKS_UNTIL_END_S >= ends_s:
            self._look_s = math.inf
            return
        self._now_s = now_s
        progress = Progress(scheduled=self._queue.scheduled, sent=self._sent)
        stop = self._early_end.look(self, progress, now_s)
        if stop is None:
            return
        self._look_s = math.inf
        self._queue.close(round(stop.at_s * 1e9))
        if not stop.drain:
            self._abort_s = stop.at_s

    def so_far(self) -> list[SoFar]:
        """What ``EarlyEnd`` asks of a run: what has ended since the last look, and what is open."""
        ended = tuple(
            EndedRequest(record_of(request, self._point), request.gaps)
            for request in self._unreported
        )
        self._unreported = []
        silent: list[PlannedRequest] = []
        answering: list[PlannedRequest] = []
        for request in self._open:
            assert request.sequence is not None
            is_answering = request.sequence.first_token_s <= self._now_s
            of_state = answering if is_answering else silent
            of_state.append(request.planned)
        silent += self._waiting
        return [so_far(self._schedule, round(self._now_s * 1e9), ended, silent, answering)]

"""One load client: prepares its share of a point, runs it from a given instant, returns rows.

Each turn of its loop first sends the requests that are due and takes in the bytes that have come.
Only when neither is waiting does it read a bit of the finished responses, or write a request ahead.
"""

import gc
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile

from orchestrator.load.client_stats import StatsRecorder, TargetSilenceTracker
from orchestrator.load.expected import with_expected_hits
from orchestrator.load.fast_path import fast_path_of
from orchestrator.load.in_flight import InFlight
from orchestrator.load.point import ClientResult, LoadPoint, Progress, Reply, SoFar
from orchestrator.load.priority import Priority, Scheduling, quiet_memory, scheduled
from orchestrator.load.request_queue import BACKOFF_NS, RequestQueue
from orchestrator.load.requests import Assignment, RequestWriter
from orchestrator.load.response.reader import EventCounter, ResponseReader
from orchestrator.load.response_backlog import ResponseBacklog
from orchestrator.load.rows import RowCollector
from orchestrator.load.schedule import PlannedRequest, so_far
from orchestrator.load.sockets import Endpoint, Poller, raise_open_files_limit, resolve
from orchestrator.load.transport import Transport
from orchestrator.load.wire.wires import WIRES
from orchestrator.results.outcomes import ErrorClass, RequestStatus
from orchestrator.spec.address import parse_url

BEAT_NS = 10_000_000  # heartbeat: measures the loop's lag and checks timeouts
SWEEP_EVERY = 25  # beats


class Abort(Enum):
    """What becomes of requests that are open or unsent when the run ends at once."""

    WITH_ROWS = "they become aborted rows"
    WITHOUT_ROWS = "they have no rows"


class LoadClient:
    """Sends its share of one point at a time: ``prepare``, then ``run``.

    ``priority``: of the thread that calls ``run``; where ``realtime`` is not allowed, it stays
    normal. ``run`` blocks; the other methods may be called from any thread.
    """

    def __init__(self, priority: Scheduling = "realtime") -> None:
        self._priority: Scheduling = priority
        self._loop: ClientLoop | None = None
        self._progress = Progress()
        self._abort: Abort | None = None

    def prepare(self, point: LoadPoint, index: int = 0, count: int = 1) -> int:
        """Computes the schedule, looks up hosts and writes the requests of client ``index`` of
        ``count``. Returns the number of requests known so far.

        Raises InputError where the point cannot be run.
        """
        raise_open_files_limit()
        self._abort = None
        unused = self._loop  # prepared and never run
        self._loop = None
        if unused is not None:
            unused.close()
        assignment = Assignment.of(point, index, count)
        endpoints = [resolve(parse_url(target.url), target.verify_tls) for target in point.targets]
        writer = RequestWriter(assignment, [endpoint.origin for endpoint in endpoints])
        writer.prewrite()
        self._loop = ClientLoop(assignment, writer, endpoints)
        gc.collect()  # here, because it may take longer than the time between `run` and the start
        return assignment.schedule.known_requests()

    def run(self, start_ns: int) -> ClientResult:
        """Runs what was prepared from ``start_ns`` on (``time.monotonic_ns`` of this host) until
        all requests ended.

        Every scheduled request has exactly one row, whatever the servers did, unless ``abort`` left
        some out.
        """
        loop = self._loop
        if loop is None:
            raise RuntimeError("prepare a point before running it")
        if self._abort is not None:
            loop.abort(self._abort)
        with quiet_memory():
            try:
                return loop.run(start_ns, self._priority)
            finally:
                self._progress = loop.progress()
                self._loop = None

    def progress(self) -> Progress:
        """Counters of the run so far, or of the last run."""
        loop = self._loop
        return loop.progress() if loop is not None else self._progress

    def so_far(self) -> SoFar | None:
        """What a watched point has to report since the last call; None while none runs."""
        loop = self._loop  # looked at once: the run may end meanwhile
        return loop.so_far() if loop is not None else None

    def finish(self, at_ns: int, drain: bool) -> None:
        """Ends the run ``at_ns`` after its start, as if the point were no longer than that.

        ``drain``: wait for open requests; else they become ``aborted`` rows.
        """
        loop = self._loop
        if loop is not None:
            loop.finish(at_ns, drain)

    def abort(self, rows: bool = True) -> None:
        """Ends the run now, or before it begins. ``rows``: requests that are open or unsent become
        ``aborted`` rows; else they have none.
        """
        self._abort = Abort.WITH_ROWS if rows else Abort.WITHOUT_ROWS
        loop = self._loop
        if loop is not None:
            loop.abort(self._abort)


@dataclass(frozen=True, slots=True)
class RequestedEnd:
    """An end of the run that the caller wants before the point's own, ``at_ns`` after its start.
    ``drain``: open requests are waited for.
    """

    at_ns: int
    drain: bool


class ClientLoop:
    """The loop of one run. ``run`` is called once; the other public methods may be called from any
    thread.
    """

    def __init__(
        self, assignment: Assignment, writer: RequestWriter, endpoints: list[Endpoint]
    ) -> None:
        self._assignment = assignment
        point = assignment.point
        self._point = point
        self._kind = assignment.kind
        self._event_counter: EventCounter | None = fast_path_of(point.dialect.wire)
        self._writer = writer
        self._queue = RequestQueue(assignment.schedule)
        self._cap = assignment.schedule.cap
        self._poller = Poller()
        self._transport = Transport(self._poller, endpoints)
        self._open: dict[InFlight, None] = {}  # oldest first
        # due, but max_in_flight requests are in flight
        self._waiting: deque[PlannedRequest] = deque()
        self._stats = StatsRecorder(assignment.client)
        self._silence_tracker = TargetSilenceTracker(len(point.targets))
        self._priority = Priority("normal")
        self._requested_end: RequestedEnd | None = None
        self._abort: Abort | None = None
        self._replies: list[Reply] = []
        self._failed = 0
        self._done = 0
        self._start_ns = 0
        self._rows: RowCollector
        self._backlog: ResponseBacklog

    def finish(self, at_ns: int, drain: bool) -> None:
        self._requested_end = RequestedEnd(at_ns, drain)

    def so_far(self) -> SoFar | None:
        if not self._start_ns:
            return None
        # what ends after this line is reported next time, and not twice
        ended = self._rows.unreported()
        silent: list[PlannedRequest] = []
        answering: list[PlannedRequest] = []
        for request in list(self._open):
            if request.is_silent():
                silent.append(request.planned)
            else:
                answering.append(request.planned)
        silent += list(self._waiting)
        answering += [request.planned for request in self._backlog.finished()]
        return so_far(
            self._assignment.schedule,
            now_ns=time.monotonic_ns() - self._start_ns,
            ended=ended,
            silent=silent,
            answering=answering,
        )

    def abort(self, abort: Abort) -> None:
        self._abort = abort
        self._poller.wake()

    def progress(self) -> Progress:
        scheduled = self._queue.scheduled
        return Progress(
            scheduled=scheduled,
            sent=scheduled - len(self._waiting),
            done=self._done,
            failed=self._failed,
            in_flight=len(self._open),
            silences=self._silence_tracker.recent_silences(self._open, time.monotonic_ns()),
        )

    def run(self, start_ns: int, priority: Scheduling) -> ClientResult:
        """Blocks until the last request is over; returns all rows of this client."""
        self._rows = RowCollector(self._assignment)
        dialect = self._point.dialect
        wire = WIRES[dialect.wire]
        reader = ResponseReader(wire, dialect, self._event_counter, start_ns)
        self._backlog = ResponseBacklog(
            reader, self._rows, self._event_counter, self._open, self._count_read
        )
        self._start_ns = start_ns
        try:
            with scheduled(priority) as self._priority:
                while self._abort is None and time.monotonic_ns() < self._start_ns:
                    self._poller.wait(self._start_ns)
                self._stats.start(start_ns, time.monotonic_ns())
                self._run_loop()
            self._give_up_open()
            self._backlog.read_all()
            stats = self._stats.stats(self._transport, self._priority.how)
            self._rows.settle()  # after the load, hence after the stats
            requests, token_events = self._rows.parts()
            if self._abort is None:  # else the caller waits for the rows
                hits = with_expected_hits(requests, self._assignment, self._writer.answers)
                requests = hits.requests
                stats = replace(stats, no_expected_hits=hits.reason)
            return ClientResult(requests, token_events, stats, tuple(self._replies))
        finally:
            self.close()
            self._rows.close()

    def close(self) -> None:
        """Closes the sockets of a run that is over, or will never begin."""
        self._transport.close()
        self._poller.close()

    # -- the loop

    def _run_loop(self) -> None:
        transport = self._transport
        backlog = self._backlog
        clock = time.monotonic_ns
        beat = self._start_ns
        wake = 0  # the next instant at which something is to be done
        idle = False
        while self._abort is None:
            now = clock()
            if now >= wake:
                if now >= beat:
                    self._beat(now, now - beat)
                    missed_beats = (now - beat) // BEAT_NS
                    beat += BEAT_NS * (1 + missed_beats)
                self._send_due(now)
                if self._finished(now):
                    return
                due = self._queue.next_due_ns
                wake = beat if due is None else min(beat, due + self._start_ns)
            reads = transport.poll(wake if idle else 0)
            if transport.ended:
                self._take_ended()
                wake = 0  # more may be due, or nothing left
            # one step a turn is too slow where every poll ends several requests
            while backlog.is_too_large:
                backlog.step()
            if reads == 0 or backlog.must_flush:
                has_read = backlog.step()
                if not has_read and self._writer.wants_more:
                    self._writer.prewrite(1)
            idle = not backlog.has_work and not self._writer.wants_more

    def _finished(self, now: int) -> bool:
        """Whether nothing is left to do, or the drain time is over."""
        if self._queue.next_due_ns is not None:
            return False
        if not self._open and not self._waiting:
            return True
        last_ns = self._queue.last_ns(now - self._start_ns)
        if last_ns is None:
            return False
        drain_ns = round(self._point.drain_s * 1e9)
        return now - self._start_ns >= last_ns + drain_ns

    def _draining(self, now: int) -> bool:
        """Whether nothing more is due. Requests of a point by number may all be due at once: there
        half of them must be over, too.
        """
        if self._queue.next_due_ns is not None:
            return False
        last_ns = self._queue.last_ns(now - self._start_ns)
        if last_ns is None or now - self._start_ns < last_ns:
            return False
        if self._point.duration_s is not None:
            return True
        return 2 * len(self._open) <= self._stats.in_flight_max

    def _beat(self, now: int, late_ns: int) -> None:
        """Work that needs no better precision than the heartbeat."""
        self._stats.beat(late_ns, len(self._open), self._draining(now))
        if self._requested_end is not None:
            self._end_early(self._requested_end, now - self._start_ns)
        self._priority.look(now, time.thread_time_ns())
        if self._stats.beats % SWEEP_EVERY == 0:
            self._transport.sweep(now)
            self._backlog.find_countable()
        self._cancel_too_long(now)

    def _cancel_too_long(self, now: int) -> None:
        """Cancels requests that have had no end within the point's timeout."""
        timeout_s = self._point.request_timeout_s
        latest_start_ns = now - round(timeout_s * 1e9)
        too_long = takewhile(lambda request: request.started_ns <= latest_start_ns, self._open)
        for request in list(too_long):
            message = f"no end within {timeout_s:g} s"
            self._transport.cancel(request, ErrorClass.TIMEOUT, message)

    def _end_early(self, end: RequestedEnd, now_ns: int) -> None:
        self._queue.close(end.at_ns)
        if end.drain:
            self._requested_end = None
        elif now_ns >= end.at_ns:
            self.abort(Abort.WITH_ROWS)

    # -- sending

    def _send_due(self, now: int) -> None:
        while (planned := self._queue.pop_due(now - self._start_ns)) is not None:
            if self._cap is not None and len(self._open) >= self._cap:
                self._waiting.append(planned)
            else:
                self._send(planned, planned.due_ns + self._start_ns)

    def _send(self, planned: PlannedRequest, free_ns: int) -> None:
        """Sends a request. ``free_ns``: the instant from which on it could have been sent."""
        request = self._writer.take(planned)
        point = self._point
        is_needed = self._kind.needs_reply or point.count_text or point.keep_replies
        if is_needed or request.constraint is not None:
            request.parsed.texts = []
        self._open[request] = None
        self._transport.start(request)
        self._stats.sent(request.started_ns - free_ns)

    # -- ends

    def _take_ended(self) -> None:
        """Takes requests that are over from the transport. Their places are given to waiting
        requests first, so that these are sent before anything is parsed.
        """
        ended = self._transport.ended
        self._transport.ended = []
        for request in ended:
            del self._open[request]
            self._silence_tracker.over(request)
            self._done += 1
            if self._waiting:
                self._send(self._waiting.popleft(), request.ended_ns)
        for request in ended:
            if self._kind.needs_reply:
                # at once, because the conversation's next turn needs the reply
                self._backlog.read_now(request)
                self._writer.answered(request)
            else:
                self._backlog.add(request)
            ended_ns = request.ended_ns - self._start_ns
            self._queue.schedule_after(request.planned, ended_ns, _refused(request))

    def _count_read(self, request: InFlight) -> None:
        """Counts a request whose response was read, and keeps its reply where that is wanted."""
        is_ok = request.record.status is RequestStatus.OK
        if not is_ok:
            self._failed += 1
            self._give_up_after_failures()
        self._stats.coalesced_reads += request.coalesced_reads
        if self._point.keep_replies and is_ok:
            self._replies.append(self._reply(request))

    def _give_up_after_failures(self) -> None:
        """Ends the run once ``max_errors`` requests failed, if anything is left to do."""
        limit = self._point.max_errors
        if limit is None or self._failed < limit or self._abort is not None:
            return
        if self._open or self._waiting or self._queue.next_due_ns is not None:
            self._stats.gave_up = True
            self.abort(Abort.WITHOUT_ROWS)

    def _reply(self, request: InFlight) -> Reply:
        parsed = request.parsed
        prompt = request.prompt
        assert prompt is not None, "prompts are kept where replies are"
        return Reply(
            request_index=request.planned.index,
            replica=self._point.targets[request.target].replica,
            prompt="".join(message.text for message in prompt.messages),
            text="".join(parsed.texts or ()),
            token_ids=parsed.ids or None,
            logprobs=None if parsed.logprobs is None else tuple(parsed.logprobs),
        )

    def _give_up_open(self) -> None:
        """After the drain time or an abort: makes rows for what is in flight, waiting, or still to
        come.
        """
        if self._abort is Abort.WITHOUT_ROWS:
            self._stats.left_out = len(self._open) + len(self._waiting)
            self._open.clear()
            return
        error_class = ErrorClass.TIMEOUT
        why_open = f"still open {self._point.drain_s:g} s after the last was due (time to drain)"
        why_unsent = "never sent: max_in_flight requests were in flight until the end"
        if self._abort is not None:
            error_class = ErrorClass.ABORTED
            why_open = "the run was aborted"
            why_unsent = why_open
        now_ns = max(0, time.monotonic_ns() - self._start_ns)
        waiting = list(self._waiting)
        unfinished = [request.planned for request in self._open] + waiting
        for request in list(self._open):
            self._transport.cancel(request, error_class, why_open)
        for request in self._transport.ended:
            self._backlog.add(request)
        self._open.clear()
        self._add_unsent(waiting, now_ns, error_class, why_unsent)
        for planned in unfinished:
            later_turns = self._queue.later_turns(planned, now_ns)
            self._add_unsent(later_turns, now_ns, error_class, why_open)
        if self._abort is not None:
            self._add_unsent(self._queue.rest(now_ns), now_ns, error_class, why_open)

    def _add_unsent(
        self, unsent: Iterable[PlannedRequest], now_ns: int, error_class: ErrorClass, error: str
    ) -> None:
        for planned in unsent:
            self._rows.add_unsent(planned, now_ns, error_class, error)
            self._rows.flush_full()
            self._failed += 1


def _refused(request: InFlight) -> bool:
    """Whether a request failed so quickly that another one sent now would fail the same way."""
    if request.ended_ns - request.started_ns >= BACKOFF_NS:
        return False
    if request.record.error_class is not None:
        return True
    return request.head is not None and request.head.status != 200

"""One load client: prepares its share of a point, runs it from a given instant, returns rows.

Each turn of its loop first sends the requests that are due and takes in the bytes that have come.
Only when neither is waiting does it read a bit of the finished responses, or write a request ahead.
"""

import gc
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import chain, takewhile

from orchestrator.load.client_stats import Listening, StatsRecorder
from orchestrator.load.point import ClientResult, LoadPoint, Progress, Reply, Silence, SoFar
from orchestrator.load.priority import How, Priority, quiet_memory, scheduled
from orchestrator.load.requests import Assignment, RequestWriter
from orchestrator.load.response import InFlight, can_read_ahead, finish, read_ahead
from orchestrator.load.rows import Rows
from orchestrator.load.schedule import BACKOFF_NS, Entry, RequestQueue
from orchestrator.load.sockets import Endpoint, Poller, raise_open_files_limit, resolve
from orchestrator.load.transport import Transport
from orchestrator.load.wire.wires import WIRES
from orchestrator.results.outcomes import ErrorClass, Status
from orchestrator.spec.address import parse_url

BEAT_NS = 10_000_000  # heartbeat: measures the loop's lag and checks timeouts
SWEEP_EVERY = 25  # beats
# how often silent targets are looked for: with 10,000 open requests that takes 10 ms
LISTEN_NS = 5_000_000_000
# of finished responses; beyond it they are read even while bytes are waiting
OVER_BYTES = 128 * 1024 * 1024
FLIGHT_BYTES = 3_000  # memory of a response, without the bytes that came


class LoadClient:
    """Sends its share of one point at a time: ``prepare``, then ``run``.

    ``priority``: of the thread that calls ``run``; ``realtime`` only where that is allowed.
    ``run`` blocks; the other methods may be called from any thread.
    """

    def __init__(self, priority: How = "realtime") -> None:
        self._priority: How = priority
        self._driver: Driver | None = None
        self._progress = Progress()
        self._aborted = threading.Event()
        self._rows_of_rest = True

    def prepare(self, point: LoadPoint, index: int = 0, count: int = 1) -> int:
        """Computes the schedule, looks up hosts and writes the requests of client ``index`` of
        ``count``. Returns the number of requests known so far.

        Raises InputError where the point cannot be run.
        """
        raise_open_files_limit()
        self._aborted.clear()
        unused, self._driver = self._driver, None
        if unused is not None:
            unused.close()
        assignment = Assignment.of(point, index, count)
        endpoints = [resolve(parse_url(target.url), target.verify_tls) for target in point.targets]
        writer = RequestWriter(assignment, [endpoint.origin for endpoint in endpoints])
        writer.ahead()
        self._driver = Driver(assignment, writer, endpoints)
        gc.collect()  # here, because it may take longer than the time between `run` and the start
        return assignment.schedule.known_requests()

    def run(self, start_ns: int) -> ClientResult:
        """Runs what was prepared from ``start_ns`` on (``time.monotonic_ns`` of this host) until
        all requests ended.

        Every scheduled request has exactly one row, whatever the servers did, unless ``abort`` left
        some out.
        """
        driver = self._driver
        if driver is None:
            raise RuntimeError("prepare a point before running it")
        if self._aborted.is_set():
            driver.abort(self._rows_of_rest)
        with quiet_memory():
            try:
                return driver.run(start_ns, self._priority)
            finally:
                self._progress = driver.progress()
                self._driver = None

    def progress(self) -> Progress:
        """Counters of the run so far, or of the last run."""
        driver = self._driver
        return driver.progress() if driver is not None else self._progress

    def so_far(self) -> SoFar | None:
        """What a watched point has to report since the last call; None while none runs."""
        driver = self._driver  # looked at once: the run may end meanwhile
        return driver.so_far() if driver is not None else None

    def finish(self, at_ns: int, drain: bool) -> None:
        """Ends the run ``at_ns`` after its start, as if the point were no longer than that.

        ``drain``: wait for open requests; else they become ``aborted`` rows.
        """
        driver = self._driver
        if driver is not None:
            driver.finish(at_ns, drain)

    def abort(self, rows: bool = True) -> None:
        """Ends the run now, or before it begins. ``rows``: requests that are open or unsent become
        ``aborted`` rows.
        """
        self._rows_of_rest = rows
        self._aborted.set()
        driver = self._driver
        if driver is not None:
            driver.abort(rows)


class Driver:
    """The loop of one run. ``run`` is called once; the other public methods may be called from any
    thread.
    """

    def __init__(
        self, assignment: Assignment, writer: RequestWriter, endpoints: list[Endpoint]
    ) -> None:
        self._assignment = assignment
        self._point = point = assignment.point
        self._kind = assignment.kind
        self._wire = WIRES[point.dialect.wire]
        self._writer = writer
        self._queue = RequestQueue(assignment.schedule, assignment.kind.think_time_s)
        self._cap = assignment.schedule.cap
        self._poller = Poller()
        self._transport = Transport(self._poller, endpoints)
        self._open: dict[InFlight, None] = {}  # oldest first
        self._waiting: deque[Entry] = deque()  # due, but max_in_flight requests are in flight
        self._over: deque[InFlight] = deque()  # finished responses, to be read
        self._over_bytes = 0
        self._long: list[InFlight] = []  # running streams that can be read ahead
        self._reading: Iterator[None] | None = None
        self._stats = StatsRecorder(assignment.client)
        self._listening = Listening(len(point.targets))
        self._listen_ns = 0  # when to look for silent targets again
        self._silences: tuple[Silence, ...] = ()
        # rows must be flushed even while bytes wait (conversations make rows at any time)
        self._crowded = False
        self._priority = Priority("normal")
        self._closing: tuple[int, bool] | None = None
        self._aborting = False
        self._rows_of_rest = True
        self._replies: list[Reply] = []
        self._failed = 0
        self._done = 0
        self._start_ns = 0
        self._rows: Rows

    def finish(self, at_ns: int, drain: bool) -> None:
        self._closing = at_ns, drain

    def so_far(self) -> SoFar | None:
        if not self._start_ns:
            return None
        # first: what ends meanwhile is reported next time, and not twice
        ended = self._rows.untold()
        open_now = [(flight.entry.due_ns, flight.silent()) for flight in list(self._open)]
        open_now += [(entry.due_ns, True) for entry in list(self._waiting)]
        open_now += [(flight.entry.due_ns, False) for flight in list(self._over)]
        measured = [one for one in open_now if one[0] >= self._assignment.schedule.warmup_ns]
        return SoFar(time.monotonic_ns() - self._start_ns, ended, tuple(measured))

    def abort(self, rows: bool) -> None:
        self._rows_of_rest = rows
        self._aborting = True
        self._poller.wake()

    def progress(self) -> Progress:
        in_flight = len(self._open)
        sent = self._queue.scheduled - len(self._waiting)
        if (now := time.monotonic_ns()) >= self._listen_ns:
            self._listen_ns, self._silences = (
                now + LISTEN_NS,
                tuple(self._listening.silences(list(self._open), now)),
            )
        return Progress(
            self._queue.scheduled,
            sent,
            self._done,
            self._failed,
            in_flight,
            self._silences,
        )

    def run(self, start_ns: int, priority: How) -> ClientResult:
        """Blocks until the last request is over; returns all rows of this client."""
        self._rows = Rows(self._assignment, start_ns)
        self._start_ns = start_ns
        try:
            with scheduled(priority) as self._priority:
                while not self._aborting and time.monotonic_ns() < self._start_ns:
                    self._poller.wait(self._start_ns)
                self._stats.start(start_ns, time.monotonic_ns())
                self._loop()
            self._give_up_open()
            while self._read_step():
                pass
            stats = self._stats.stats(self._transport, self._priority.how)
            self._rows.recount()  # after the load, hence after the stats
            requests, token_events = self._rows.parts()
            return ClientResult((requests, token_events), stats, tuple(self._replies))
        finally:
            self.close()
            self._rows.close()

    def close(self) -> None:
        """Closes what a run that is over, or will never begin, waits with."""
        self._transport.close()
        self._poller.close()

    # -- the loop

    def _loop(self) -> None:
        transport, clock = self._transport, time.monotonic_ns
        beat = self._start_ns
        wake = 0  # the next instant at which something is to be done
        idle = False
        while not self._aborting:
            now = clock()
            if now >= wake:
                if now >= beat:
                    self._beat(now, now - beat)
                    beat += BEAT_NS * (1 + (now - beat) // BEAT_NS)
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
            while self._over_bytes > OVER_BYTES:
                self._read_step()
            if (reads == 0 or self._crowded) and not self._read_step() and self._writer.hungry:
                self._writer.ahead(1)
            idle = not (self._over or self._reading or self._long or self._writer.hungry)

    def _finished(self, now: int) -> bool:
        """Nothing is left to do, or the drain time is over."""
        if self._queue.next_due_ns is not None:
            return False
        if not self._open and not self._waiting:
            return True
        last_ns = self._queue.last_ns(now - self._start_ns)
        return last_ns is not None and now - self._start_ns >= last_ns + round(
            self._point.drain_s * 1e9
        )

    def _draining(self, now: int) -> bool:
        """Nothing more is due. For a point of N requests, which may all be due at once: and half of
        them are over.
        """
        last_ns = self._queue.last_ns(now - self._start_ns)
        if self._queue.next_due_ns is not None or last_ns is None or now - self._start_ns < last_ns:
            return False
        return (
            self._point.duration_s is not None or 2 * len(self._open) <= self._stats.in_flight_max
        )

    def _beat(self, now: int, late_ns: int) -> None:
        """Work that needs no better precision than the heartbeat."""
        self._stats.beat(late_ns, len(self._open), self._draining(now))
        if self._closing is not None:
            self._close(now - self._start_ns, *self._closing)
        self._priority.look(now, time.thread_time_ns())
        if self._stats.beats % SWEEP_EVERY == 0:
            self._transport.sweep(now)
            self._long = [flight for flight in self._open if can_read_ahead(flight)]
        limit_ns = round(self._point.request_timeout_s * 1e9)
        late = takewhile(lambda flight: now - flight.started_ns >= limit_ns, self._open)
        for flight in list(late):
            self._transport.cancel(
                flight, ErrorClass.TIMEOUT, f"no end within {self._point.request_timeout_s:g} s"
            )

    def _close(self, now_ns: int, at_ns: int, drain: bool) -> None:
        self._queue.close(at_ns)
        if drain:
            self._closing = None
        elif now_ns >= at_ns:
            self.abort(rows=True)

    # -- sending

    def _send_due(self, now: int) -> None:
        while (entry := self._queue.pop_due(now - self._start_ns)) is not None:
            if self._cap is not None and len(self._open) >= self._cap:
                self._waiting.append(entry)
            else:
                self._send(entry, entry.due_ns + self._start_ns)

    def _send(self, entry: Entry, free_ns: int) -> None:
        flight = InFlight(entry, self._writer.take(entry))
        if self._kind.needs_reply or self._point.count_text or self._point.keep_replies:
            flight.response.parsed.texts = []
        self._open[flight] = None
        self._transport.start(flight)
        self._stats.sent(flight.started_ns - free_ns)

    # -- ends

    def _take_ended(self) -> None:
        """Frees places first, so that waiting requests are sent before anything is parsed."""
        ended, self._transport.ended = self._transport.ended, []
        for flight in ended:
            del self._open[flight]
            self._listening.over(flight)
            self._done += 1
            if self._waiting:
                self._send(self._waiting.popleft(), flight.ended_ns)
        for flight in ended:
            if self._kind.needs_reply:
                self._read_now(flight)
            else:
                self._over.append(flight)
                self._over_bytes += _held_bytes(flight)
            self._queue.over(flight.entry, flight.ended_ns - self._start_ns, _refused(flight))

    def _read_step(self) -> bool:
        """One step of reading: finished responses first, else long running ones. False: nothing to
        read.
        """
        if self._reading is None and self._rows.full:
            self._reading = self._rows.flush()
        elif self._reading is None and self._over:
            flight = self._over.popleft()
            self._over_bytes -= _held_bytes(flight)
            self._reading = self._read(flight)
        if self._reading is None:
            return self._read_ahead_step()
        if next(self._reading, _END) is _END:
            self._reading, self._crowded = None, False
        return True

    def _read(self, flight: InFlight) -> Iterator[None]:
        yield from finish(flight, self._wire, self._point.dialect)
        self._add(flight)

    def _read_ahead_step(self) -> bool:
        """Reads a part of a stream that still runs. False: none is long enough."""
        while self._long:
            flight = self._long.pop()
            if flight in self._open:
                read_ahead(flight, self._wire)
                return True
        return False

    def _read_now(self, flight: InFlight) -> None:
        """Reads a whole response at once: the conversation's next turn needs the reply."""
        deque(self._read(flight), maxlen=0)
        self._crowded = self._crowded or self._rows.full
        response = flight.response
        self._writer.answered(
            flight.entry, flight.request, response.parsed, response.output_tokens or 0
        )

    def _add(self, flight: InFlight) -> None:
        response = flight.response
        if response.status is not Status.OK:
            self._failed += 1
            self._perhaps_give_up()
        self._stats.coalesced_reads += response.coalesced_reads
        self._rows.add(flight)
        if self._point.keep_replies and response.status is Status.OK:
            self._replies.append(self._reply(flight))

    def _perhaps_give_up(self) -> None:
        most, more = (
            self._point.max_errors,
            self._open or self._waiting or self._queue.next_due_ns is not None,
        )
        if most is not None and self._failed >= most and more and not self._aborting:
            self._stats.gave_up = True
            self.abort(rows=False)

    def _reply(self, flight: InFlight) -> Reply:
        parsed, prompt = flight.response.parsed, flight.request.prompt
        assert prompt is not None, "prompts are kept where replies are"
        return Reply(
            flight.entry.index,
            self._point.targets[flight.request.target].replica,
            "".join(message.text for message in prompt.messages),
            "".join(parsed.texts or ()),
            parsed.ids or None,
            None if parsed.logprobs is None else tuple(parsed.logprobs),
        )

    def _give_up_open(self) -> None:
        """After the drain time or an abort: makes rows for what is in flight, waiting, or still to
        come.
        """
        if not self._rows_of_rest:
            self._stats.left_out = len(self._open) + len(self._waiting)
            self._open.clear()
            return
        said = (
            ErrorClass.TIMEOUT,
            f"still open {self._point.drain_s:g} s after the last was due (time to drain)",
        )
        never = (
            ErrorClass.TIMEOUT,
            "never sent: max_in_flight requests were in flight until the end",
        )
        if self._aborting:
            said = never = (ErrorClass.ABORTED, "the run was aborted")
        now_ns = max(0, time.monotonic_ns() - self._start_ns)
        unsent = [(entry, never) for entry in self._waiting]
        for entry in [*(flight.entry for flight in self._open), *self._waiting]:
            unsent += [(turn, said) for turn in self._queue.later_turns(entry, now_ns)]
        for flight in list(self._open):
            self._transport.cancel(flight, *said)
        self._over.extend(self._transport.ended)
        self._open.clear()
        rest = ((entry, said) for entry in self._queue.rest(now_ns)) if self._aborting else ()
        for entry, (error_class, error) in chain(unsent, rest):
            self._rows.add_unsent(entry, now_ns, error_class, error)
            self._rows.flush_full()
            self._failed += 1


_END = object()


def _held_bytes(flight: InFlight) -> int:
    """Roughly the memory of a finished response, with the bytes that came."""
    return FLIGHT_BYTES + sum(map(len, flight.parts))


def _refused(flight: InFlight) -> bool:
    """Whether it failed so quickly that another request sent now would fail the same way."""
    bad = flight.response.error_class is not None or (
        flight.head is not None and flight.head.status != 200
    )
    return bad and flight.ended_ns - flight.started_ns < BACKOFF_NS

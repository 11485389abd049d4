"""One run of one client: sends what is due, lets the transport read, digests in the gaps.

The order of work in one turn of the loop: bytes that are there, requests that are due, then, only when neither is
waiting, a step of digesting or of writing requests ahead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import takewhile

from orchestrator.load.agenda import BACKOFF_NS, Agenda
from orchestrator.load.bodies import Bodies
from orchestrator.load.connection import Endpoint
from orchestrator.load.digest import Digest, digest
from orchestrator.load.exchange import Exchange
from orchestrator.load.meter import Meter
from orchestrator.load.outcome import failed
from orchestrator.load.point import ClientResult, LoadPoint, Progress
from orchestrator.load.poller import Poller
from orchestrator.load.priority import Priority, first_in_line
from orchestrator.load.rows import Rows
from orchestrator.load.schedule import Entry, Schedule
from orchestrator.load.settle import can_settle, settle
from orchestrator.load.transport import Transport
from orchestrator.load.wire import Parsed, Wire
from orchestrator.load.workloads import Kind

BEAT_NS = 10_000_000  # heartbeat: loop lag is measured and timeouts are looked at
SWEEP_EVERY = 25  # beats
LONG_READS = 128  # of a stream that runs, before some of them are settled
BACKLOG_BYTES = 128 * 1024 * 1024  # of finished responses; beyond it they are digested although bytes are waiting


class Driver:
    """Used once: ``run``. ``progress`` and ``abort`` from any thread."""

    def __init__(
        self,
        point: LoadPoint,
        stripe: tuple[int, int],
        schedule: Schedule,
        agenda: Agenda,
        bodies: Bodies,
        kind: Kind,
        wire: Wire,
        endpoints: list[Endpoint],
    ) -> None:
        self._point = point
        self._client = client = stripe[0]
        self._schedule = schedule
        self._agenda = agenda
        self._bodies = bodies
        self._kind = kind
        self._wire = wire
        self._cap = schedule.cap(*stripe)
        self._poller = Poller()
        self._transport = Transport(self._poller, endpoints)
        self._open: dict[Exchange, None] = {}  # in flight, oldest first
        self._waiting: deque[tuple[Entry, int | None]] = deque()  # due, but max_in_flight are in flight
        self._backlog: deque[Exchange] = deque()
        self._backlog_bytes = 0
        self._long: list[Exchange] = []  # streams with enough reads to settle some of them
        self._digesting: tuple[Exchange, Iterator[Digest | None]] | None = None
        self._meter = Meter(client)
        self._priority = Priority("nice")
        self._aborting = False
        self._failed = 0
        self._done = 0
        self._chunks = 0
        self._start_ns = 0
        self._rows = Rows(point, client, 0, kind.sessions)

    def abort(self) -> None:
        self._aborting = True
        self._poller.wake()

    def progress(self) -> Progress:
        in_flight = len(self._open)
        sent = self._agenda.scheduled - len(self._waiting)
        return Progress(self._agenda.scheduled, sent, self._done, self._failed, in_flight, self._chunks)

    def run(self, start_ns: int, host: str, pid: int) -> ClientResult:
        """All rows of this client, when its last request is over."""
        self._start_ns = start_ns
        self._rows = Rows(self._point, self._client, start_ns, self._kind.sessions)
        try:
            with first_in_line() as self._priority:
                self._wait_for_start()
                self._meter.start(start_ns, time.monotonic_ns())
                self._loop()
            self._give_up_open()
            while self._digest_step():
                pass
            requests, token_events = self._rows.tables()
            stats = self._meter.stats(start_ns, self._transport, host, pid)
            if self._point.count_text and self._point.tokenizer and self._rows.recount(self._point.tokenizer):
                requests, token_events = self._rows.tables()  # not in the stats: it happened after the load
            return ClientResult(requests, token_events, stats)
        finally:
            self._transport.close()
            self._poller.close()

    # -- the loop

    def _wait_for_start(self) -> None:
        while not self._aborting and time.monotonic_ns() < self._start_ns:
            self._poller.wait(self._start_ns)

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
                due = self._agenda.next_due_ns
                wake = beat if due is None else min(beat, due + self._start_ns)
            reads = transport.poll(wake if idle else 0)
            if transport.ended:
                self._take_ended()
                wake = 0  # more may be due, or nothing left
            quiet = reads == 0 or self._backlog_bytes > BACKLOG_BYTES
            if quiet and not self._digest_step() and self._bodies.hungry:
                self._bodies.ahead(1)
            idle = not (self._backlog or self._digesting or self._long or self._bodies.hungry)

    def _finished(self, now: int) -> bool:
        """Nothing left to do, or the time to drain is over."""
        if not self._agenda.empty:
            return False
        if not self._open and not self._waiting:
            return True
        last_ns = self._agenda.last_ns(now - self._start_ns)
        return last_ns is not None and now - self._start_ns >= last_ns + round(self._point.drain_timeout_s * 1e9)

    def _beat(self, now: int, late_ns: int) -> None:
        """What needs no better precision than the heartbeat."""
        self._meter.beat(late_ns, len(self._open))
        self._priority.look(now, time.thread_time_ns())
        if self._meter.beats % SWEEP_EVERY == 0:
            self._transport.sweep(now)
            self._long = [exchange for exchange in self._open if can_settle(exchange, self._wire, LONG_READS)]
        limit_ns = round(self._point.request_timeout_s * 1e9)
        late = takewhile(lambda exchange: now - exchange.started_ns >= limit_ns, self._open)
        for exchange in list(late):
            self._transport.cancel(exchange, "timeout", f"no end within {self._point.request_timeout_s:g} s")

    # -- sending

    def _send_due(self, now: int) -> None:
        while (popped := self._agenda.pop_due(now - self._start_ns)) is not None:
            entry, slot = popped
            if self._cap is not None and len(self._open) >= self._cap:
                self._waiting.append(popped)
            else:
                self._send(entry, slot, entry.due_ns + self._start_ns)

    def _send(self, entry: Entry, slot: int | None, free_ns: int) -> None:
        phase = self._schedule.phase(entry.due_ns)
        written = self._bodies.take(entry, phase)
        target = self._bodies.target(entry.session)
        exchange = Exchange(entry, target, written.wire_bytes, written.prompt_tokens, written.output_tokens, slot)
        if written.prompt is not None:
            exchange.prompt, exchange.parsed = written.prompt, Parsed(texts=[])
        elif self._point.count_text:
            exchange.parsed = Parsed(texts=[])
        self._open[exchange] = None
        self._transport.start(exchange)
        self._meter.sent(exchange.started_ns - free_ns)

    # -- ends

    def _take_ended(self) -> None:
        """Frees places first, so that who waits is sent before anything is parsed."""
        ended, self._transport.ended = self._transport.ended, []
        for exchange in ended:
            del self._open[exchange]
            self._done += 1
            if self._waiting:
                entry, slot = self._waiting.popleft()
                self._send(entry, slot, exchange.ended_ns)
        for exchange in ended:
            if self._kind.needs_reply:
                self._digest_now(exchange)
            else:
                self._backlog.append(exchange)
                self._backlog_bytes += sum(map(len, exchange.parts))
            self._agenda.over(exchange.entry, exchange.slot, exchange.ended_ns - self._start_ns, _refused(exchange))

    def _digest_step(self) -> bool:
        """One step of digesting what is over, else what is long. False: there is nothing to digest."""
        if self._digesting is None and self._backlog:
            exchange = self._backlog.popleft()
            self._backlog_bytes -= sum(map(len, exchange.parts))
            self._digesting = exchange, digest(exchange, self._wire, self._point.dialect)
        if self._digesting is None:
            return self._settle_step()
        exchange, steps = self._digesting
        result = next(steps)
        if result is not None:
            self._digesting = None
            self._add(exchange, result)
        return True

    def _settle_step(self) -> bool:
        """Counts some of a stream that still runs. False: none is long enough."""
        while self._long:
            exchange = self._long.pop()
            if exchange in self._open:
                settle(exchange, self._wire)
                return True
        return False

    def _digest_now(self, exchange: Exchange) -> None:
        """A conversation's next turn needs the reply."""
        result = next(r for r in digest(exchange, self._wire, self._point.dialect) if r is not None)
        self._add(exchange, result)
        assert exchange.prompt is not None
        self._bodies.answered(exchange.entry, exchange.prompt, result.parsed, result.output_tokens or 0)

    def _add(self, exchange: Exchange, result: Digest) -> None:
        self._failed += result.outcome.status != "ok"
        self._chunks += result.chunks
        self._meter.coalesced_reads += result.coalesced_reads
        self._rows.add(exchange, result, self._schedule.phase(exchange.entry.due_ns))

    def _give_up_open(self) -> None:
        """After the drain time or an abort: rows for what is in flight, waiting, or was still to come."""
        aborted = self._aborting
        said = ("timeout", "still open when the time to drain was over")
        if aborted:
            said = ("aborted", "the run was aborted")
        now_ns = max(0, time.monotonic_ns() - self._start_ns)
        later = [entry for exchange in self._open for entry in self._agenda.later_turns(exchange.entry, now_ns)]
        later += [turn for entry, _ in self._waiting for turn in self._agenda.later_turns(entry, now_ns)]
        for exchange in list(self._open):
            self._transport.cancel(exchange, *said)
        self._backlog.extend(self._transport.ended)
        self._transport.ended = []
        self._open.clear()
        never = said if aborted else ("timeout", "never sent: max_in_flight requests were in flight until the end")
        for entry, _ in self._waiting:
            self._add_unsent(entry, now_ns, *never)
        for entry in later + (list(self._agenda.rest(now_ns)) if aborted else []):
            self._add_unsent(entry, now_ns, *said)

    def _add_unsent(self, entry: Entry, now_ns: int, error_class: str, error: str) -> None:
        kind, turn = self._kind, (entry.session, entry.turn)
        lengths = (kind.input_tokens(*turn), kind.output_tokens(*turn))
        phase = self._schedule.phase(entry.due_ns)
        self._failed += 1
        outcome = failed(error_class, error)
        self._rows.add_unsent(entry, self._bodies.target(entry.session), phase, now_ns, lengths, outcome)


def _refused(exchange: Exchange) -> bool:
    """It failed at once: another try now would fail the same way."""
    bad = exchange.error_class is not None or (exchange.head is not None and exchange.head.status != 200)
    return bad and exchange.ended_ns - exchange.started_ns < BACKOFF_NS

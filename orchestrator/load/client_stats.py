"""What a client measures about itself while it runs: evidence for a point's validity."""

from __future__ import annotations

import os
import socket
import time
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from orchestrator.base.arrays import Floats
from orchestrator.load.in_flight import InFlight
from orchestrator.load.point import ClientStats, TargetSilence
from orchestrator.load.transport import Transport


@dataclass(frozen=True, slots=True)
class UsedTime:
    """Time since the start."""

    wall_ns: int
    cpu_ns: int  # of the thread that runs the loop


class StatsRecorder:
    """Collects counters and samples. Instants are ``time.monotonic_ns``.

    Most counters are fields of ``ClientStats``, which says what they count. ``beats``: heartbeats.
    """

    def __init__(self, client: int) -> None:
        self._client = client
        self._loop_delays_ns = array("q")
        self._send_delays_ns = array("q")
        self._start_ns = 0
        self._start_error_ns = 0
        self._cpu_start_ns = 0
        # the time that was used until nothing more was due; None: requests are still due
        self._used_under_load: UsedTime | None = None
        self.beats = 0
        self.in_flight_max = 0
        self.coalesced_reads = 0
        self.left_out = 0
        self.gave_up = False

    def start(self, start_ns: int, now_ns: int) -> None:
        self._start_ns = start_ns
        self._start_error_ns = now_ns - start_ns
        self._cpu_start_ns = time.thread_time_ns()

    def beat(self, late_ns: int, in_flight: int, draining: bool = False) -> None:
        """Records a heartbeat, and how late it came: bytes or a due request may have waited that
        long for this client.

        ``draining``: nothing more is due. That time does not count: waiting for the last answers is
        easy work.
        """
        self.beats += 1
        if draining:
            if self._used_under_load is None:
                self._used_under_load = self._used()
            return
        self._used_under_load = None  # a conversation went on after all
        self._loop_delays_ns.append(late_ns)
        self.in_flight_max = max(self.in_flight_max, in_flight)

    def sent(self, late_ns: int) -> None:
        """Records a request that was sent ``late_ns`` after it was due and max_in_flight allowed
        it.
        """
        self._send_delays_ns.append(late_ns)

    def _used(self) -> UsedTime:
        wall_ns = max(0, time.monotonic_ns() - self._start_ns)
        return UsedTime(wall_ns, time.thread_time_ns() - self._cpu_start_ns)

    def stats(self, transport: Transport, priority: str) -> ClientStats:
        used = self._used()
        under_load = self._used_under_load or used
        cpu_share = under_load.cpu_ns / under_load.wall_ns if under_load.wall_ns else 0.0
        loop_delay_ms = _milliseconds(self._loop_delays_ns)
        send_delay_ms = _milliseconds(self._send_delays_ns)
        return ClientStats(
            client=self._client,
            wall_s=used.wall_ns / 1e9,
            cpu_s=used.cpu_ns / 1e9,
            cpu_share=cpu_share,
            loop_lag_p99_ms=float(np.quantile(loop_delay_ms, 0.99)),
            loop_lag_max_ms=float(loop_delay_ms.max()),
            send_lag_p50_ms=float(np.quantile(send_delay_ms, 0.5)),
            send_lag_p99_ms=float(np.quantile(send_delay_ms, 0.99)),
            sockets_opened=transport.sockets_opened,
            sockets_max=transport.sockets_max,
            reads=transport.reads,
            coalesced_reads=self.coalesced_reads,
            in_flight_max=self.in_flight_max,
            start_error_ms=self._start_error_ns / 1e6,
            host=socket.gethostname(),
            pid=os.getpid(),
            priority=priority,
            left_out=self.left_out,
            gave_up=self.gave_up,
            tcp_retransmits=transport.retransmitted(),
            network_silent_max_s=transport.silent_max_ms / 1e3,
        )


def _milliseconds(delays_ns: array[int]) -> Floats:
    """The delays in milliseconds; a single 0 where there are none."""
    if not delays_ns:
        return np.zeros(1)
    return np.frombuffer(delays_ns, np.int64) / 1e6


# how often silent targets are looked for: with 10,000 open requests that takes 10 ms
SILENCE_EVERY_NS = 5_000_000_000


class TargetSilenceTracker:
    """When this client last heard from each target. Instants are ``time.monotonic_ns``."""

    def __init__(self, targets: int) -> None:
        # by target: when the last byte of the requests that are over came
        self._heard_ns: list[int | None] = [None] * targets
        # by target: the start of the first request since then that got no byte
        self._unanswered_since_ns: list[int | None] = [None] * targets
        self._recent: tuple[TargetSilence, ...] = ()
        self._next_look_ns = 0

    def over(self, request: InFlight) -> None:
        """Records that a request is over; its response is not read yet."""
        target = request.target
        if request.times:
            self._heard_ns[target] = request.times[-1]
            self._unanswered_since_ns[target] = None
        elif self._unanswered_since_ns[target] is None:
            self._unanswered_since_ns[target] = request.started_ns

    def recent_silences(
        self, open_requests: Collection[InFlight], now_ns: int
    ) -> tuple[TargetSilence, ...]:
        """What ``silences`` returned at its last look, which is at most ``SILENCE_EVERY_NS`` old.
        May be called from another thread than the one that changes ``open_requests``.
        """
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + SILENCE_EVERY_NS
            self._recent = tuple(self.silences(list(open_requests), now_ns))
        return self._recent

    def silences(self, open_requests: Iterable[InFlight], now_ns: int) -> list[TargetSilence]:
        """For each target: how long its open requests have received no byte; without open ones, how
        long ago the last byte came. Targets that were never asked are left out.
        """
        heard_ns = list(self._heard_ns)
        unanswered_since_ns = list(self._unanswered_since_ns)
        open_counts = [0] * len(heard_ns)
        for request in open_requests:
            target = request.target
            open_counts[target] += 1
            earliest_ns = unanswered_since_ns[target] or now_ns
            unanswered_since_ns[target] = min(request.started_ns, earliest_ns)
            # one or none, and a copy: the transport may take the last one out meanwhile
            last_reads_ns = request.times[-1:]
            for read_ns in last_reads_ns:
                heard_ns[target] = max(read_ns, heard_ns[target] or 0)
        silences = []
        for target, count in enumerate(open_counts):
            instants = (heard_ns[target], unanswered_since_ns[target])
            begin_ns = max((instant for instant in instants if instant is not None), default=None)
            if begin_ns is not None:
                silences.append(TargetSilence(target, count, (now_ns - begin_ns) / 1e9))
        return silences

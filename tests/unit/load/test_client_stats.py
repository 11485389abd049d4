"""A client's knowledge of itself."""

from __future__ import annotations

import os
import time

import pytest

from orchestrator.load.client_stats import StatsRecorder, TargetSilenceTracker
from orchestrator.load.in_flight import InFlight
from orchestrator.load.sockets import Poller
from orchestrator.load.transport import Transport
from tests.in_flight import sent_request

MS = 1_000_000


@pytest.fixture
def transport() -> Transport:
    poller = Poller()
    transport = Transport(poller, [])
    poller.close()
    transport.reads = 100
    transport.sockets_opened = 7
    transport.sockets_max = 5
    return transport


def test_lags_are_those_of_beats_and_sends(transport: Transport) -> None:
    meter = StatsRecorder(3)
    start = time.monotonic_ns()
    meter.start(start, start + 2 * MS)
    for late in range(100):
        meter.beat(late * MS, in_flight=late % 10)
        meter.sent(late * MS // 10)
    meter.coalesced_reads = 4
    stats = meter.stats(transport, "nice")
    assert (stats.client, stats.pid, stats.priority) == (3, os.getpid(), "nice")
    assert stats.start_error_ms == 2.0
    assert (stats.loop_lag_p99_ms, stats.loop_lag_max_ms) == (pytest.approx(98.01), 99.0)
    assert stats.send_lag_p50_ms == pytest.approx(4.95)
    assert stats.send_lag_p99_ms == pytest.approx(9.801)
    assert (stats.reads, stats.coalesced_reads) == (100, 4)
    assert (stats.sockets_opened, stats.sockets_max) == (7, 5)
    assert stats.in_flight_max == 9
    assert stats.wall_s > 0


def test_cpu_is_that_of_the_thread_that_runs_the_loop(transport: Transport) -> None:
    meter = StatsRecorder(0)
    meter.start(time.monotonic_ns(), time.monotonic_ns())
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    assert 0.015 < meter.stats(transport, "normal").cpu_s < 0.1


def test_the_final_drain_does_not_hide_a_busy_client(transport: Transport) -> None:
    meter = StatsRecorder(0)
    meter.start(time.monotonic_ns(), time.monotonic_ns())
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    meter.beat(20 * MS, in_flight=8)
    meter.beat(0, in_flight=1, draining=True)
    time.sleep(0.5)
    for _ in range(200):
        meter.beat(0, in_flight=1, draining=True)
    stats = meter.stats(transport, "normal")
    assert stats.cpu_share > 2 * stats.cpu_s / stats.wall_s
    assert (stats.loop_lag_p99_ms, meter.beats) == (20.0, 202)
    meter.beat(30 * MS, in_flight=2)  # the next turn of a conversation: there is load again
    stats = meter.stats(transport, "normal")
    assert stats.cpu_share == pytest.approx(stats.cpu_s / stats.wall_s)
    assert stats.loop_lag_max_ms == 30.0


def test_a_run_without_beats_and_requests_has_zeros(transport: Transport) -> None:
    meter = StatsRecorder(0)
    meter.start(time.monotonic_ns() + 10**9, time.monotonic_ns())
    stats = meter.stats(transport, "normal")
    assert (stats.loop_lag_p99_ms, stats.send_lag_p99_ms, stats.wall_s) == (0.0, 0.0, 0.0)


S = 1_000_000_000


def flight(target: int, started_s: int, *heard_s: int) -> InFlight:
    request = sent_request(target=target)
    request.started_ns = started_s * S
    request.times = [at * S for at in heard_s]
    return request


@pytest.mark.parametrize(
    ("over", "open_flights", "seconds"),
    [
        ([], [], []),  # never asked
        ([], [flight(0, 10)], [90]),  # the first of all waits for its first byte
        ([], [flight(0, 10), flight(0, 20, 30, 95)], [5]),  # another one is served
        ([flight(0, 5, 40)], [flight(0, 10)], [60]),  # another one was
        ([flight(0, 5, 6)], [flight(0, 97)], [3]),  # nobody had asked for long
        # those before it had their timeout, without a byte
        ([flight(0, 10), flight(0, 50)], [flight(0, 90)], [90]),
        ([flight(0, 10), flight(0, 50, 60)], [flight(0, 90)], [10]),
        ([flight(1, 1, 99)], [flight(0, 40)], [60, 1]),  # another replica
    ],
)
def test_a_target_is_silent_while_requests_are_open_and_nothing_comes(
    over: list[InFlight], open_flights: list[InFlight], seconds: list[int]
) -> None:
    tracker = TargetSilenceTracker(2)
    for request in over:
        tracker.over(request)
    silences = tracker.silences(open_flights, 100 * S)
    assert [silence.seconds for silence in silences] == seconds


def test_open_requests_are_looked_through_only_now_and_then() -> None:
    """Each look goes over all open requests, and the client's loop waits meanwhile."""
    tracker = TargetSilenceTracker(1)
    tracker.over(flight(0, 0, 1))
    seconds = [
        silence.seconds for now_s in (2, 6, 7) for silence in tracker.recent_silences([], now_s * S)
    ]
    assert seconds == [1, 1, 6]

"""Waiting: until an instant, for bytes, for another thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from orchestrator.base.errors import InputError
from orchestrator.load.sockets import (
    KEEPALIVE,
    MAX_EVENTS,
    READ,
    WRITE,
    Connection,
    Poller,
    resolve,
)
from orchestrator.spec.address import parse_url

MS = 1_000_000


@pytest.fixture
def poller() -> Iterator[Poller]:
    poller = Poller()
    yield poller
    poller.close()


def test_it_wakes_at_the_instant_and_not_before(poller: Poller) -> None:
    late = []
    for wait_ms in (0.3, 1.7, 5.4, 0.9, 3.2):
        until = time.monotonic_ns() + int(wait_ms * MS)
        while time.monotonic_ns() < until:
            poller.wait(until)
        late.append(time.monotonic_ns() - until)
    assert sorted(late)[2] < 1 * MS  # epoll alone would be up to a whole millisecond late


def test_an_instant_in_the_past_and_zero_do_not_wait(poller: Poller) -> None:
    began = time.monotonic_ns()
    poller.wait(0)
    poller.wait(began - 5 * MS)
    poller.wait(1)
    assert time.monotonic_ns() - began < 50 * MS


def test_bytes_end_the_wait(poller: Poller) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poller.register(ours.fileno(), READ)
        theirs.send(b"x")
        ready = dict(poller.wait(time.monotonic_ns() + 5000 * MS))
        assert ready[ours.fileno()] & READ
        ours.recv(1)
        assert ours.fileno() not in dict(poller.wait(0))
        poller.modify(ours.fileno(), READ | WRITE)
        assert dict(poller.wait(0))[ours.fileno()] & WRITE
        poller.unregister(ours.fileno())
        assert ours.fileno() not in dict(poller.wait(0))


def test_another_thread_ends_the_wait(poller: Poller) -> None:
    began = time.monotonic()
    threading.Timer(0.05, poller.wake).start()
    poller.wait(time.monotonic_ns() + 10_000 * MS)
    assert time.monotonic() - began < 5


def test_waking_after_the_end_is_harmless() -> None:
    poller = Poller()
    poller.close()
    poller.wake()


def test_many_wakes_do_not_block() -> None:
    poller = Poller()
    for _ in range(200_000):
        poller.wake()
    assert poller.wait(0)
    poller.close()


def test_a_descriptor_put_first_is_found_beyond_a_full_batch() -> None:
    poller = Poller()
    pairs = [socket.socketpair() for _ in range(3 * MAX_EVENTS)]
    try:
        for ours, theirs in pairs:
            poller.register(ours.fileno(), READ)
            theirs.send(b"x")
        last = pairs[-1][0].fileno()
        poller.put_first(last)
        assert len(poller.wait(0)) == MAX_EVENTS
        assert poller.first() == [(last, READ)]
        poller.put_back(last)
        assert poller.first() == []
        ready: set[int] = set()
        for _ in range(4):
            ready |= {fd for fd, _ in poller.wait(0)}
        assert last in ready
    finally:
        poller.close()
        for ours, theirs in pairs:
            ours.close()
            theirs.close()


def test_bytes_for_what_was_put_first_end_the_wait(poller: Poller) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poller.register(ours.fileno(), READ)
        poller.put_first(ours.fileno())
        assert poller.first() == []
        theirs.send(b"x")
        ready = dict(poller.wait(time.monotonic_ns() + 5000 * MS))
        assert ours.fileno() in ready or poller.first_fd in ready
        poller.unregister(ours.fileno())
        assert poller.first() == []
        assert not {ours.fileno(), poller.first_fd} & set(dict(poller.wait(0)))


def test_tcp_tells_retransmits_and_silence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        origin = parse_url(f"http://127.0.0.1:{server.getsockname()[1]}")
        connection = Connection(0, resolve(origin))
        connection.connect()
        theirs, _ = server.accept()
        with theirs, connection.sock as ours:
            connection.connected()
            ours.send(b"x")
            theirs.send(b"y")
            assert connection.silent_ms() < 500
            time.sleep(0.3)
            assert 250 < connection.silent_ms() < 2000
            assert connection.retransmitted() == 0
            asked = [
                ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in KEEPALIVE
            ]
            assert (ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), asked) == (
                1,
                [1, 1, 127],
            )
        assert (connection.silent_ms(), connection.retransmitted()) == (0, 0), (
            "of a closed one nothing is known"
        )


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".example", "no-such-host.invalid"])
def test_a_host_that_has_no_address_is_bad_input(host: str) -> None:
    with pytest.raises(InputError, match="cannot be looked up"):
        resolve(parse_url(f"http://{host}"))

"""Requests go out and raw bytes come in, over sockets of this machine."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from orchestrator.load.in_flight import InFlight
from orchestrator.load.sockets import Connection, Poller, resolve
from orchestrator.load.transport import Transport
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.address import parse_url
from tests.in_flight import sent_request

WAIT_S = 20.0  # until a test gives up
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"data: {}\n\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
END = b"0\r\n\r\n"


class Exchange:
    """A transport and the server that it sends to, both driven by the test."""

    def __init__(self, server: socket.socket, poller: Poller) -> None:
        self.server = server
        self.server.settimeout(WAIT_S)
        self.transport = Transport(poller, [resolve(parse_url(self.url))])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.getsockname()[1]}"

    def start(self) -> InFlight:
        """Starts a request, on a free connection where there is one."""
        request = sent_request()
        self.transport.start(request)
        return request

    def accept(self, request: InFlight) -> socket.socket:
        """The server's end of a new connection, once the request came on it."""
        self.poll_until(lambda: is_readable(self.server))
        connection, _ = self.server.accept()
        connection.settimeout(WAIT_S)
        self.poll_until(lambda: is_readable(connection))
        assert connection.recv(100) == request.wire_bytes
        return connection

    def poll_until(self, is_done: Callable[[], bool]) -> None:
        limit = time.monotonic() + WAIT_S
        while not is_done():
            assert time.monotonic() < limit, "it did not come"
            self.transport.poll(time.monotonic_ns() + 10_000_000)

    def take_ended(self) -> InFlight:
        """The one request that is over."""
        self.poll_until(lambda: bool(self.transport.ended))
        (request,) = self.transport.ended
        self.transport.ended = []
        return request


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    with socket.create_server(("127.0.0.1", 0)) as server, closing(Poller()) as poller:
        exchange = Exchange(server, poller)
        yield exchange
        exchange.transport.close()


def is_readable(of: socket.socket) -> bool:
    return bool(select.select([of], [], [], 0)[0])


def error_of(request: InFlight) -> tuple[ErrorClass | None, str | None]:
    return request.record.error_class, request.record.error


def test_a_stream_is_over_with_its_last_chunk(exchange: Exchange) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(HEAD + CHUNK + END)
        request = exchange.take_ended()
    assert error_of(request) == (None, None)
    assert b"".join(request.parts) == CHUNK + END
    assert request.ended_ns == request.times[-1]


def test_a_body_of_known_length_is_over_with_its_last_byte(exchange: Exchange) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")
        assert b"".join(exchange.take_ended().parts) == b"ab"


def test_a_body_without_a_length_is_over_when_the_connection_is_closed(exchange: Exchange) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(b"HTTP/1.1 200 OK\r\n\r\nab")
    request = exchange.take_ended()
    assert error_of(request) == (None, None)
    assert b"".join(request.parts) == b"ab"


def test_a_connection_is_used_again(exchange: Exchange) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(HEAD + END)
        exchange.take_ended()
        second = exchange.start()
        assert server.recv(100) == second.wire_bytes
        server.sendall(HEAD + END)
        assert exchange.take_ended() is second
    assert exchange.transport.sockets_opened == 1


def test_a_connection_whose_server_wants_it_closed_is_not_used_again(exchange: Exchange) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + END)
        exchange.take_ended()
    with exchange.accept(exchange.start()):
        assert exchange.transport.sockets_opened == 2


def test_a_request_on_a_connection_just_closed_is_sent_again(
    exchange: Exchange,
) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(HEAD + END)
        exchange.take_ended()
    request = exchange.start()  # before the transport hears of the close
    exchange.poll_until(lambda: request.retried)
    with exchange.accept(request) as server:
        server.sendall(HEAD + END)
        assert exchange.take_ended() is request
    assert error_of(request) == (None, None)


def test_a_request_on_a_new_connection_is_not_sent_again(
    exchange: Exchange,
) -> None:
    exchange.accept(exchange.start()).close()
    request = exchange.take_ended()
    assert error_of(request) == (ErrorClass.RESET, "the connection was closed before any answer")
    assert not request.retried


@pytest.mark.parametrize(("came", "where"), [(HEAD[:20], "headers"), (HEAD + CHUNK, "response")])
def test_an_answer_that_is_cut_off_is_truncated(
    exchange: Exchange, came: bytes, where: str
) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(came)
    assert error_of(exchange.take_ended()) == (
        ErrorClass.TRUNCATED,
        f"the connection was closed within the {where}",
    )


def test_what_is_no_http_is_garbage(exchange: Exchange) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(b"SSH-2.0-server\r\n")
        assert exchange.take_ended().record.error_class is ErrorClass.GARBAGE


def test_a_server_that_is_not_there_cannot_be_connected(exchange: Exchange) -> None:
    exchange.server.close()
    exchange.start()
    assert exchange.take_ended().record.error_class is ErrorClass.CONNECT


def test_a_cancelled_request_is_over_at_once(exchange: Exchange) -> None:
    request = exchange.start()
    exchange.transport.cancel(request, ErrorClass.TIMEOUT, "too late")
    assert exchange.transport.ended == [request]
    assert error_of(request) == (ErrorClass.TIMEOUT, "too late")


class NotIterable(dict[int, Connection]):
    def values(self) -> Any:
        raise AssertionError("all connections were looked at")


def test_a_request_is_cancelled_without_a_look_at_all_others(exchange: Exchange) -> None:
    """If 10,000 timed out together, each would be looked for among all, and the loop would stop for
    seconds.
    """
    transport = exchange.transport
    transport._connections = NotIterable()
    requests = [sent_request(index=index) for index in range(3)]
    for request in requests:
        transport.start(request)
    transport.cancel(requests[1], ErrorClass.TIMEOUT, "too late")
    transport.cancel(requests[1], ErrorClass.TIMEOUT, "again")
    assert transport.ended == [requests[1]]
    transport._connections = dict(transport._connections)  # so that it can be closed


def test_an_end_within_a_chunk_does_not_end_the_stream(exchange: Exchange) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(HEAD + b"%x\r\n" % (2 * len(END)) + END)
        exchange.poll_until(lambda: exchange.transport.reads > 0)
        assert exchange.transport.ended == []
        server.sendall(END + b"\r\n" + END)
        assert error_of(exchange.take_ended()) == (None, None)


def test_an_end_with_trailers_is_found_by_the_sweep(exchange: Exchange) -> None:
    with exchange.accept(exchange.start()) as server:
        server.sendall(HEAD + CHUNK)
        exchange.poll_until(lambda: exchange.transport.reads > 0)
        server.sendall(CHUNK)
        server.sendall(b"0\r\nx-trailer: 1\r\n")
        server.sendall(b"\r\n")
        limit = time.monotonic() + WAIT_S
        while not exchange.transport.ended and time.monotonic() < limit:
            exchange.transport.poll(time.monotonic_ns() + 10_000_000)
            exchange.transport.sweep(time.monotonic_ns())
        assert error_of(exchange.take_ended()) == (None, None)

"""The HTTP side against a transport that only records."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from orchestrator.emulator.http import ClientConnection, HttpRequest, chunk


class Recorder(asyncio.Transport):
    """A transport whose socket is a pipe."""

    def __init__(self) -> None:
        super().__init__()
        self.read_fd, self.write_fd = os.pipe()
        self.buffered = b""
        self.closed = ""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def fileno(self) -> int:
        return self.write_fd

    def get_write_buffer_size(self) -> int:
        return len(self.buffered)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.buffered += bytes(data)

    def close(self) -> None:
        self.closed = "close"

    def abort(self) -> None:
        self.closed = "abort"

    def sent(self) -> bytes:
        os.set_blocking(self.read_fd, False)
        try:
            return os.read(self.read_fd, 1 << 20) + self.buffered
        except BlockingIOError:
            return self.buffered


def connected() -> tuple[ClientConnection, Recorder, list[HttpRequest]]:
    seen: list[HttpRequest] = []
    transport = Recorder()
    connection = ClientConnection(lambda request, _: seen.append(request))
    connection.connection_made(transport)
    return connection, transport, seen


POST = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nX-Key: v\r\nContent-Length: 5\r\n\r\nhello"


@pytest.mark.parametrize("cut", range(1, len(POST)))
def test_a_request_is_read_whole_wherever_the_network_cuts_it(cut: int) -> None:
    connection, _, seen = connected()
    connection.data_received(POST[:cut])
    connection.data_received(POST[cut:])
    assert [
        (request.method, request.path, request.body, request.headers["x-key"]) for request in seen
    ] == [("POST", "/a", b"hello", "v")]


def test_pipelined_requests_are_answered_one_after_the_other() -> None:
    connection, transport, seen = connected()
    connection.data_received(POST + POST)
    assert len(seen) == 1
    connection.respond(200, b"{}")
    assert len(seen) == 2
    assert transport.sent().startswith(b"HTTP/1.1 200 OK\r\n")
    assert not transport.closed


def test_a_client_that_asks_for_it_is_disconnected_after_the_answer() -> None:
    connection, transport, _ = connected()
    connection.data_received(POST.replace(b"Host: x", b"Connection: close"))
    connection.respond(200, b"{}")
    assert transport.closed == "close"


def test_bytes_that_are_not_http_get_a_400() -> None:
    connection, transport, _ = connected()
    connection.data_received(b"\x16\x03\x01 not http\r\n\r\n")
    assert transport.sent().startswith(b"HTTP/1.1 400")
    assert transport.closed == "close"


def test_bytes_never_overtake_those_the_socket_did_not_take_yet() -> None:
    connection, transport, _ = connected()
    transport.buffered = b"first "
    connection.write(b"second")
    assert transport.buffered == b"first second"


def test_a_full_socket_is_left_to_the_loop() -> None:
    connection, transport, _ = connected()
    os.set_blocking(transport.write_fd, False)
    connection.write(b"x" * (1 << 20))
    assert 0 < len(transport.buffered) < 1 << 20


def test_a_client_that_leaves_is_reported_once_and_written_to_no_more() -> None:
    connection, transport, _ = connected()
    lost: list[bool] = []
    connection.on_lost = lambda: lost.append(True)
    connection.connection_lost(None)
    connection.connection_lost(None)
    connection.write(b"late")
    assert lost == [True]
    assert not connection.open
    assert transport.sent() == b""


def test_a_chunk_carries_its_length_in_hexadecimal() -> None:
    assert chunk(b"x" * 26) == b"1a\r\n" + b"x" * 26 + b"\r\n"

"""The emulator's HTTP/1.1 server side: a bare Protocol on httptools, with keep-alive and chunked
streams.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools
import orjson

MAX_BODY_BYTES = 64 * 2**20


@dataclass(slots=True)
class HttpRequest:
    """One parsed request. Header names are lower case."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    keep_alive: bool = True


Handler = Callable[[HttpRequest, "ClientConnection"], None]


class ClientConnection(asyncio.Protocol):
    """One client connection. Requests are answered one after the other: ``handler`` answers each of
    them, at once or later.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._parser = httptools.HttpRequestParser(self)
        # pipelined requests that wait until the current one is answered
        self._queue: deque[HttpRequest] = deque()
        self._busy = False
        self._request = HttpRequest()
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        # called when the client goes away before its answer is complete
        self.on_lost: Callable[[], None] | None = None

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._fd = transport.get_extra_info("socket").fileno()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fd = -1
        if self.on_lost is not None:
            self.on_lost()
            self.on_lost = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._request.keep_alive = False
            error = {"message": "not HTTP/1.1", "type": "BadRequestError", "code": 400}
            self.respond(400, {"error": error})

    # --- httptools

    def on_message_begin(self) -> None:
        self._request = HttpRequest()

    def on_url(self, url: bytes) -> None:
        self._request.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._request.body += body
        if len(self._request.body) > MAX_BODY_BYTES:
            self.abort()

    def on_message_complete(self) -> None:
        request = self._request
        request.method = self._parser.get_method().decode("latin-1")
        request.path = request.path.partition("?")[0]
        request.keep_alive = self._parser.should_keep_alive()
        self._queue.append(request)
        if not self._busy:
            self._next()

    # --- answers

    @property
    def open(self) -> bool:
        """Whether the client is still there."""
        return self._transport is not None

    def respond(
        self, status: int, content: object = b"", content_type: str = "application/json"
    ) -> None:
        """Sends a whole answer. ``content``: bytes as they are, or an object that becomes JSON."""
        body = content if isinstance(content, bytes) else orjson.dumps(content)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            "server: emulator\r\n"
            f"content-type: {content_type}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.write(head.encode("latin-1") + body)
        self.end()

    def write(self, data: bytes) -> None:
        """Writes bytes to the socket now; asyncio would keep them until the loop's turn ends."""
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() == 0:
            try:
                sent = os.write(self._fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.abort()
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._transport.write(data)

    def abort(self) -> None:
        """Closes the connection at once, which is what clients see when an engine dies."""
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """Ends an answer whose last bytes were written, and begins with the next request."""
        self.on_lost = None
        is_last_request = not self._request.keep_alive and not self._queue
        if self._transport is not None and is_last_request:
            self._transport.close()
        self._next()

    def _next(self) -> None:
        self._busy = bool(self._queue)
        if self._queue:
            self._handler(self._queue.popleft(), self)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: emulator\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)

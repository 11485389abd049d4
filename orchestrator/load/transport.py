"""Requests out, raw bytes and their times in: the hot path.

While a stream runs, a read costs one ``recv``, one clock and two appends. Nothing is parsed or decoded: only the last
bytes of a read are compared with how its response may end, and when they match the framing is checked once. One thread
calls everything here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from orchestrator.load.connection import LOCAL_LIMITS, Connection, Endpoint
from orchestrator.load.exchange import Exchange
from orchestrator.load.framing import END_MARK, since_event_chunk, unwrap, unwrap_chunks
from orchestrator.load.http import BadHttp, parse_head
from orchestrator.load.poller import MAX_EVENTS, READ, WRITE, Poller

READ_BYTES = 4_096  # made new for every read: 64 KiB cost a seventh of all CPU in malloc and page faults
FIRST_READS = 3  # headers, a role, a token: at most so many are read before what running streams have to say
LARGEST_READ_BYTES = 65_536  # one that decrypts returns whole TLS records
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
SWEEP_AFTER_NS = 250_000_000  # a stream silent for so long is looked at more closely
CONNECT_TIMEOUT_NS = 30_000_000_000

Stream = tuple[Exchange, Callable[[int], bytes], Callable[[int], None], Callable[[bytes], None]]
# an exchange, how to read, where a read's time and bytes go: looked up once, not for every read


class Transport:
    """Keep-alive connections to some endpoints, as many as there are requests in flight.

    ``ended`` collects exchanges that are over; the caller takes them out.
    """

    def __init__(self, poller: Poller, endpoints: list[Endpoint]) -> None:
        self._poller = poller
        self._endpoints = endpoints
        self._streams: dict[int, Stream] = {}  # by fd: sent whole, answer awaited
        self._connections: dict[int, Connection] = {}
        self._idle: list[list[Connection]] = [[] for _ in endpoints]  # by target
        self.ended: list[Exchange] = []
        self.reads = 0
        self.sockets_opened = 0
        self.sockets_max = 0

    def start(self, exchange: Exchange) -> None:
        """Sends a request, on the connection used last that is free, or on a new one."""
        exchange.started_ns = time.monotonic_ns()
        idle = self._idle[exchange.target]
        if idle:
            self._give(idle.pop(), exchange)
        else:
            self._connect(exchange)

    def poll(self, until_ns: int) -> int:
        """Takes in what comes until that instant (0: what is there), returns the number of reads.

        Ends earlier when something else than reads happened: an exchange is over, a connection is up, ``wake``.
        """
        streams, clock, poller = self._streams, time.monotonic_ns, self._poller
        wait, first, first_fd = poller.wait, poller.first, poller.first_fd
        reads = others = now = 0
        while True:
            ready = wait(until_ns)
            if len(ready) == MAX_EVENTS:
                ready = first() + ready
            for fd, mask in ready:
                stream = streams.get(fd)
                if stream is None:
                    others += 1
                    if fd == first_fd:
                        ready += first()  # this loop goes on with them
                    else:
                        self._other(fd, mask)
                    continue
                exchange, recv, add_time, add_part = stream
                try:
                    data = recv(READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError as error:
                    self._broken(self._connections[fd], "reset", str(error))
                    continue
                now = clock()
                add_time(now)
                add_part(data)
                if len(data) < 5 or data.endswith(exchange.mark):
                    self._look(fd, exchange, data)
            reads += len(ready)
            if others or self.ended or now >= until_ns or not ready:
                self.reads += reads - others
                return reads - others

    def cancel(self, exchange: Exchange, error_class: str, error: str) -> None:
        """Ends an exchange from our side."""
        for connection in self._connections.values():
            if connection.exchange is exchange:
                self._end(connection, error_class, error)
                return

    def sweep(self, now_ns: int) -> None:
        """Finds what the hot path does not look for: ends with trailers or followed by garbage, oversized responses,
        connections that are not accepted."""
        for connection in [c for c in self._connections.values() if c.connecting]:
            if connection.exchange and now_ns - connection.exchange.started_ns > CONNECT_TIMEOUT_NS:
                self._end(connection, "connect", f"not connected within {CONNECT_TIMEOUT_NS // 1_000_000_000} s")
        for fd, (exchange, *_) in list(self._streams.items()):
            parts = exchange.parts
            if not parts or len(parts) == exchange.swept or exchange.times[-1] > now_ns - SWEEP_AFTER_NS:
                if len(parts) * LARGEST_READ_BYTES > MAX_RESPONSE_BYTES and sum(map(len, parts)) > MAX_RESPONSE_BYTES:
                    self._end(self._connections[fd], "garbage", f"a response over {MAX_RESPONSE_BYTES} bytes")
                continue
            exchange.swept = len(parts)
            if exchange.head is not None and exchange.head.chunked and b"\r\n0" in b"".join(parts[-16:]):
                self._finish_if_whole(fd, exchange)

    def close(self) -> None:
        """Closes every socket. Exchanges still open are not ended: cancel them first."""
        for connection in list(self._connections.values()):
            self._drop(connection)

    # -- connecting and sending

    def _connect(self, exchange: Exchange) -> None:
        connection = Connection(exchange.target, self._endpoints[exchange.target])
        connection.exchange = exchange
        try:
            connection.connect()
        except OSError as error:
            self._refused(connection, error)
            return
        self._opened(connection)

    def _opened(self, connection: Connection) -> None:
        self._connections[connection.fd] = connection
        self._poller.register(connection.fd, WRITE)
        self.sockets_opened += 1
        self.sockets_max = max(self.sockets_max, len(self._connections))

    def _refused(self, connection: Connection, error: OSError) -> None:
        """Not connected: the next address, or a failed exchange."""
        ours = error.errno in LOCAL_LIMITS
        if connection.more_addresses and not ours:
            try:
                connection.connect()
            except OSError as next_error:
                self._end(connection, "connect", str(next_error))
                return
            self._opened(connection)
            return
        self._end(connection, "client" if ours else "connect", str(error))

    def _give(self, connection: Connection, exchange: Exchange) -> None:
        """Sends an exchange on a connection that is up."""
        connection.exchange = exchange
        connection.out = memoryview(exchange.wire_bytes)
        exchange.sent_ns = time.monotonic_ns()
        self._send(connection, exchange, registered=READ)

    def _send(self, connection: Connection, exchange: Exchange, registered: int) -> None:
        try:
            whole = connection.send()
        except OSError as error:
            self._broken(connection, "reset", str(error))
            return
        wanted = READ if whole else READ | WRITE
        if wanted != registered:
            self._poller.modify(connection.fd, wanted)
        if whole:
            self._await_answer(connection, exchange)

    def _await_answer(self, connection: Connection, exchange: Exchange) -> None:
        reader = connection.reader()
        self._poller.put_first(connection.fd)
        self._streams[connection.fd] = exchange, reader, exchange.times.append, exchange.parts.append

    def _other(self, fd: int, mask: int) -> None:
        """Everything that is not an answer on a connection which has sent its request."""
        connection = self._connections.get(fd)
        if connection is None:
            return  # the poller's own, or closed earlier in this batch
        exchange = connection.exchange
        if exchange is None:
            self._idle[connection.target].remove(connection)
            self._drop(connection)  # an idle connection says something: it was closed
        elif connection.connecting or connection.handshaking:
            self._go_on(connection, exchange)
        elif mask & ~WRITE:
            self._early_answer(connection, exchange)
        else:
            self._send(connection, exchange, registered=READ | WRITE)

    def _go_on(self, connection: Connection, exchange: Exchange) -> None:
        """Connected, or a step of the TLS handshake."""
        try:
            if connection.connecting:
                connection.connected()
            ready = connection.handshake() if connection.handshaking else True
        except OSError as error:
            self._poller.unregister(connection.fd)
            del self._connections[connection.fd]
            connection.sock.close()
            self._refused(connection, error)
            return
        if not ready:
            self._poller.modify(connection.fd, READ if ready is False else WRITE)
            return
        self._poller.modify(connection.fd, READ)
        self._give(connection, exchange)

    def _early_answer(self, connection: Connection, exchange: Exchange) -> None:
        """The server answers (or closes) before it took the whole request: what it says counts."""
        connection.out = None
        self._poller.modify(connection.fd, READ)
        connection.uses = -1  # half a request was sent on it: never again
        self._await_answer(connection, exchange)

    # -- ends

    def _look(self, fd: int, exchange: Exchange, data: bytes) -> None:
        """A read that may be the last one, or belongs to the head."""
        if not data:
            exchange.times.pop()
            exchange.parts.pop()
            self._closed(fd, exchange)
            return
        head = exchange.head
        if head is None:
            raw = b"".join(exchange.parts)
            try:
                head = exchange.head = parse_head(raw)
            except BadHttp as error:
                self._end(self._connections[fd], "garbage", str(error))
                return
            if head is None:
                return
            exchange.received = len(raw)
        else:
            exchange.received += len(data)
        if len(exchange.parts) >= FIRST_READS or (b"data:" in data and b'"role"' not in data):
            self._poller.put_back(fd)
            exchange.mark = END_MARK if head.chunked else b""
        if head.chunked:
            if b"".join(exchange.parts[-5:]).endswith(END_MARK):
                self._finish_if_whole(fd, exchange)
        elif head.length is not None and exchange.received >= head.size + head.length:
            self._finish(fd, exchange, reusable=exchange.received == head.size + head.length)

    def _finish_if_whole(self, fd: int, exchange: Exchange) -> None:
        """Looks at the framing. The end mark inside of a chunk is not the end."""
        assert exchange.head is not None
        raw = since_event_chunk(exchange.parts)
        try:
            if raw is None:
                raw = b"".join(exchange.parts)
                body = unwrap(raw, exchange.head)
            else:
                body = unwrap_chunks(raw)
        except BadHttp as error:
            self._end(self._connections[fd], "garbage", str(error))
            return
        if body.complete:
            self._finish(fd, exchange, reusable=body.size == len(raw))

    def _finish(self, fd: int, exchange: Exchange, reusable: bool) -> None:
        """The response is here; its end was in the last read."""
        assert exchange.head is not None
        exchange.ended_ns = exchange.times[-1]
        connection = self._connections[fd]
        self._poller.put_back(fd)
        del self._streams[fd]
        connection.exchange = None
        connection.uses += 1
        if reusable and exchange.head.keep_alive and connection.uses > 0:
            self._idle[connection.target].append(connection)
        else:
            self._drop(connection)
        self.ended.append(exchange)

    def _closed(self, fd: int, exchange: Exchange) -> None:
        """The server closed the connection in the middle of an exchange, or to end it."""
        head = exchange.head
        if not exchange.parts:
            self._broken(self._connections[fd], "reset", "the connection was closed before any answer")
        elif head is None:
            self._end(self._connections[fd], "truncated", "the connection was closed within the response headers")
        elif head.chunked or head.length is not None:
            if head.chunked and b"\r\n0" in b"".join(exchange.parts[-16:]):
                self._finish_if_whole(fd, exchange)
            if fd in self._streams:
                self._end(self._connections[fd], "truncated", "the connection was closed within the response")
        else:
            self._finish(fd, exchange, reusable=False)

    def _broken(self, connection: Connection, error_class: str, error: str) -> None:
        """A connection died. One that was idle before may have been closed while we sent: tried once on a fresh one."""
        exchange = connection.exchange
        assert exchange is not None
        if connection.uses > 0 and not exchange.parts and not exchange.retried:
            exchange.retried = True
            connection.exchange = None
            self._drop(connection)
            self._connect(exchange)
        else:
            self._end(connection, error_class, error)

    def _end(self, connection: Connection, error_class: str, error: str) -> None:
        """An exchange failed and its connection is of no use any more."""
        exchange = connection.exchange
        assert exchange is not None
        connection.exchange = None
        exchange.fail(error_class, error)
        exchange.ended_ns = time.monotonic_ns()
        self._drop(connection)
        self.ended.append(exchange)

    def _drop(self, connection: Connection) -> None:
        self._streams.pop(connection.fd, None)
        if self._connections.pop(connection.fd, None) is not None:
            self._poller.unregister(connection.fd)
            connection.sock.close()

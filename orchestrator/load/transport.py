"""Requests out, raw bytes and their times in: the hot path.

While a stream runs, a read costs one ``recv``, one look at the clock and two appends. Nothing is
parsed or decoded. Only the last bytes of a read are compared with how a response may end; on a
match the framing is checked once. One thread calls everything here.
"""

import time
from collections.abc import Callable

from orchestrator.load.http import (
    END_MARK,
    TRAILERS_MARK,
    BadHttp,
    Head,
    since_event_chunk,
    unwrap_chunks,
)
from orchestrator.load.in_flight import InFlight
from orchestrator.load.sockets import (
    LOCAL_LIMITS,
    MAX_EVENTS,
    READ,
    WRITE,
    Connection,
    Endpoint,
    Handshake,
    Poller,
)
from orchestrator.results.outcomes import ErrorClass

# A buffer of this size is allocated for every read. With 64 KiB, malloc and page faults took a
# seventh of all CPU time.
READ_BYTES = 4_096
# The first reads of a response (headers, a role, a token) are taken in before those of running
# streams: this many of them.
EARLY_READS = 3
LARGEST_READ_BYTES = 65_536  # a read that decrypts returns whole TLS records
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
SWEEP_AFTER_NS = 250_000_000  # a stream that has been silent this long is examined
ASK_AFTER_NS = 1_000_000_000  # after this much silence TCP is asked whether the other host is there
CONNECT_TIMEOUT_NS = 30_000_000_000

# A request, the function that reads from its socket, and those that keep a read's time and bytes.
# The functions are looked up once, not for every read, and a tuple is taken apart faster than a
# record.
Stream = tuple[InFlight, Callable[[int], bytes], Callable[[int], None], Callable[[bytes], None]]


class Transport:
    """Keep-alive connections to the endpoints, one per request in flight.

    ``ended`` collects requests that are over; the caller takes them out.
    """

    def __init__(self, poller: Poller, endpoints: list[Endpoint]) -> None:
        self._poller = poller
        self._endpoints = endpoints
        # by fd: requests that were sent and wait for their answer
        self._streams: dict[int, Stream] = {}
        self._connections: dict[int, Connection] = {}
        self._idle: list[list[Connection]] = [[] for _ in endpoints]  # by target
        self.ended: list[InFlight] = []
        self.reads = 0
        self.sockets_opened = 0
        self.sockets_max = 0
        self.silent_max_ms = 0  # see Connection.silent_ms
        self._sent_again = 0  # segments that TCP sent again on connections that are closed by now

    def retransmitted(self) -> int:
        """Segments that TCP sent again on connections that were up."""
        segments = self._sent_again
        for connection in self._connections.values():
            if not connection.connecting:
                segments += connection.retransmitted()
        return segments

    def start(self, request: InFlight) -> None:
        """Sends a request, on the free connection that was used last or on a new one."""
        request.started_ns = time.monotonic_ns()
        idle = self._idle[request.target]
        if idle:
            self._give(idle.pop(), request)
        else:
            self._connect_new(request)

    def poll(self, until_ns: int) -> int:
        """Takes in what comes until ``until_ns`` (0: only what is there). Returns the number of
        reads.

        Returns earlier when something else happened: a request is over, a connection is up, or
        ``wake`` was called.
        """
        # looked up once, not for every read
        streams = self._streams
        clock = time.monotonic_ns
        wait = self._poller.wait
        first = self._poller.first
        first_fd = self._poller.first_fd
        reads = 0
        others = 0  # events that are no reads of an answer
        now = 0
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
                        self._handle_other(fd, mask)
                    continue
                request, recv, add_time, add_part = stream
                try:
                    data = recv(READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError as error:
                    self._broken(self._connections[fd], ErrorClass.RESET, str(error))
                    continue
                now = clock()
                add_time(now)
                add_part(data)
                if len(data) < 5 or data.endswith(request.end_marker):
                    self._examine(fd, request, data)
            reads += len(ready)
            if others or self.ended or now >= until_ns or not ready:
                self.reads += reads - others
                return reads - others

    def cancel(self, request: InFlight, error_class: ErrorClass, error: str) -> None:
        """Ends a request from the client's side."""
        connection = self._connections.get(request.fd)
        if connection is not None and connection.request is request:
            self._end(connection, error_class, error)

    def sweep(self, now_ns: int) -> None:
        """Finds what the hot path does not look for: ends with trailers or followed by garbage,
        oversized responses, connections that are never accepted, a silent network.
        """
        self._sweep_unconnected(now_ns)
        asked_targets = set[int]()  # TCP is asked about one silent connection of each
        for fd, (request, *_) in list(self._streams.items()):
            last_ns = request.times[-1] if request.times else None
            heard_ns = request.started_ns if last_ns is None else last_ns
            if heard_ns < now_ns - ASK_AFTER_NS and request.target not in asked_targets:
                asked_targets.add(request.target)
                self.silent_max_ms = max(self.silent_max_ms, self._connections[fd].silent_ms())
            if last_ns is None:
                continue
            is_running = last_ns > now_ns - SWEEP_AFTER_NS
            if is_running or last_ns == request.swept_ns:
                if _is_oversized(request):
                    error = f"a response over {MAX_RESPONSE_BYTES} bytes"
                    self._end(self._connections[fd], ErrorClass.GARBAGE, error)
                continue
            request.swept_ns = last_ns
            if request.head is not None and request.head.chunked and request.may_end():
                self._finish_if_whole(fd, request)

    def _sweep_unconnected(self, now_ns: int) -> None:
        """Ends requests whose connection has not come up in time."""
        for connection in list(self._connections.values()):
            request = connection.request
            if request is None or not (connection.connecting or connection.handshaking):
                continue
            if now_ns - request.started_ns > CONNECT_TIMEOUT_NS:
                problem = "the TLS handshake was not over"
                if connection.connecting:
                    problem = "not connected"
                error = f"{problem} within {CONNECT_TIMEOUT_NS // 1_000_000_000} s"
                self._end(connection, ErrorClass.CONNECT, error)

    def close(self) -> None:
        """Closes every socket. Does not end requests in flight: cancel them first."""
        for connection in list(self._connections.values()):
            self._drop(connection)

    # -- connecting and sending

    def _connect_new(self, request: InFlight) -> None:
        target = request.target
        connection = Connection(target, self._endpoints[target])
        connection.request = request
        self._connect(connection)

    def _connect(self, connection: Connection) -> None:
        """Starts connecting to the next address."""
        try:
            connection.connect()
        except OSError as error:
            self._not_connected(connection, error)
            return
        assert connection.request is not None
        connection.request.fd = connection.fd
        self._connections[connection.fd] = connection
        self._poller.register(connection.fd, WRITE)
        self.sockets_opened += 1
        self.sockets_max = max(self.sockets_max, len(self._connections))

    def _not_connected(self, connection: Connection, error: OSError) -> None:
        """Tries the next address; without one the request failed."""
        if error.errno in LOCAL_LIMITS:
            self._end(connection, ErrorClass.CLIENT, str(error))
        elif connection.addresses:
            self._connect(connection)
        else:
            self._end(connection, ErrorClass.CONNECT, str(error))

    def _give(self, connection: Connection, request: InFlight) -> None:
        """Sends a request on a connection that is up."""
        connection.request = request
        request.fd = connection.fd
        connection.out = memoryview(request.wire_bytes)
        request.sent_ns = time.monotonic_ns()
        self._send(connection, request, registered=READ)

    def _send(self, connection: Connection, request: InFlight, registered: int) -> None:
        """Sends what the socket takes. ``registered``: the events that the poller waits for."""
        try:
            whole = connection.send()
        except OSError as error:
            self._broken(connection, ErrorClass.RESET, str(error))
            return
        wanted = READ if whole else READ | WRITE
        if wanted != registered:
            self._poller.modify(connection.fd, wanted)
        if whole:
            self._await_answer(connection, request)

    def _await_answer(self, connection: Connection, request: InFlight) -> None:
        reader = connection.reader()
        self._poller.put_first(connection.fd)
        self._streams[connection.fd] = request, reader, request.times.append, request.parts.append

    def _handle_other(self, fd: int, mask: int) -> None:
        """Handles all events but answers to requests that were sent."""
        connection = self._connections.get(fd)
        if connection is None:
            return  # the poller's own descriptor, or one that was closed earlier in this batch
        request = connection.request
        if request is None:  # an event on an idle connection: the server closed it
            self._idle[connection.target].remove(connection)
            self._drop(connection)
        elif connection.connecting or connection.handshaking:
            self._go_on_connecting(connection, request)
        elif mask & ~WRITE:
            self._early_answer(connection, request)
        else:
            self._send(connection, request, registered=READ | WRITE)

    def _go_on_connecting(self, connection: Connection, request: InFlight) -> None:
        """Handles a connection that came up, or a step of its TLS handshake."""
        try:
            if connection.connecting:
                connection.connected()
            handshake = connection.handshake() if connection.handshaking else Handshake.DONE
        except OSError as error:
            self._drop(connection)
            self._not_connected(connection, error)
            return
        if handshake is not Handshake.DONE:
            wanted = READ if handshake is Handshake.WANTS_TO_READ else WRITE
            self._poller.modify(connection.fd, wanted)
            return
        self._poller.modify(connection.fd, READ)
        self._give(connection, request)

    def _early_answer(self, connection: Connection, request: InFlight) -> None:
        """The server answers (or closes) before it took the whole request: its answer counts."""
        connection.out = None
        self._poller.modify(connection.fd, READ)
        connection.is_half_sent = True
        self._await_answer(connection, request)

    # -- ends

    def _examine(self, fd: int, request: InFlight, data: bytes) -> None:
        """Examines a read that may be the last one, or belongs to the head."""
        if not data:
            request.times.pop()
            request.parts.pop()
            self._closed(fd, request)
            return
        head = request.head
        if head is None:
            try:
                if not request.read_head():
                    return
            except BadHttp as error:
                self._end(self._connections[fd], ErrorClass.GARBAGE, str(error))
                return
            head = request.head
            assert head is not None
        else:
            request.received += len(data)
        if len(request.parts) >= EARLY_READS or (b"data:" in data and b'"role"' not in data):
            self._poller.put_back(fd)
            request.end_marker = _end_marker(head, data)
        if head.chunked:
            if request.may_end():
                self._finish_if_whole(fd, request)
        elif head.length is not None and request.received >= head.length:
            self._finish(fd, request, reusable=request.received == head.length)

    def _finish_if_whole(self, fd: int, request: InFlight) -> None:
        """Ends the request if the framing says so: the end mark may also occur inside a chunk."""
        assert request.head is not None
        try:
            body = unwrap_chunks(since_event_chunk(request.parts) or request.parts)
        except BadHttp as error:
            self._end(self._connections[fd], ErrorClass.GARBAGE, str(error))
            return
        if body.complete:
            self._finish(fd, request, reusable=not body.more)

    def _finish(self, fd: int, request: InFlight, reusable: bool) -> None:
        """The response is complete; its end was in the last read."""
        assert request.head is not None
        request.ended_ns = request.times[-1]
        connection = self._connections[fd]
        self._poller.put_back(fd)
        del self._streams[fd]
        connection.request = None
        connection.uses += 1
        if reusable and request.head.keep_alive and not connection.is_half_sent:
            self._idle[connection.target].append(connection)
        else:
            self._drop(connection)
        self.ended.append(request)

    def _closed(self, fd: int, request: InFlight) -> None:
        """The server closed the connection, in the middle of a response or to end it."""
        head = request.head
        if request.first_byte_ns is None:
            self._broken(
                self._connections[fd],
                ErrorClass.RESET,
                "the connection was closed before any answer",
            )
        elif head is None:
            self._end(
                self._connections[fd],
                ErrorClass.TRUNCATED,
                "the connection was closed within the headers",
            )
        elif head.chunked or head.length is not None:
            if head.chunked and request.may_end():
                self._finish_if_whole(fd, request)
            if fd in self._streams:
                self._end(
                    self._connections[fd],
                    ErrorClass.TRUNCATED,
                    "the connection was closed within the response",
                )
        else:
            self._finish(fd, request, reusable=False)

    def _broken(self, connection: Connection, error_class: ErrorClass, error: str) -> None:
        """A connection died. A reused one may have been closed as we sent: then a new one gets the
        request once.
        """
        request = connection.request
        assert request is not None
        was_reused = connection.uses > 0 and not connection.is_half_sent
        if was_reused and request.first_byte_ns is None and not request.retried:
            request.retried = True
            connection.request = None
            self._drop(connection)
            self._connect_new(request)
        else:
            self._end(connection, error_class, error)

    def _end(self, connection: Connection, error_class: ErrorClass, error: str) -> None:
        """A request failed; its connection is closed."""
        request = connection.request
        assert request is not None
        connection.request = None
        request.record.fail(error_class, error)
        request.ended_ns = time.monotonic_ns()
        self._drop(connection)
        self.ended.append(request)

    def _drop(self, connection: Connection) -> None:
        self._streams.pop(connection.fd, None)
        if self._connections.pop(connection.fd, None) is not None:
            self._poller.unregister(connection.fd)
            if not connection.connecting:
                self._sent_again += connection.retransmitted()
            connection.sock.close()


def _is_oversized(request: InFlight) -> bool:
    parts = request.parts
    if len(parts) * LARGEST_READ_BYTES <= MAX_RESPONSE_BYTES:
        return False  # most of the time: adding up takes long
    return sum(map(len, parts)) > MAX_RESPONSE_BYTES


def _end_marker(head: Head, data: bytes) -> bytes:
    """The bytes that the last read of a response may end with: those of the last chunk, or of the
    trailers after it. A stream whose own lines end like trailers needs the longer mark. ``data``: a
    read within the stream.
    """
    if not head.chunked:
        return b""
    if data.endswith(b"\r\n\r\n\r\n"):
        return END_MARK
    return TRAILERS_MARK

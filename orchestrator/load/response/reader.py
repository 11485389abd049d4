"""Reads one response: from the bytes of its reads to what the request's row needs.

While a response comes in, the transport only appends reads to an ``InFlight``. Later they are
decoded in three layers: HTTP and events (http.py), then the API's JSON (the wire). Each event gets
the instant of the read in which it was complete. This happens in steps in the client's pauses.

Most of a stream need not be decoded: an ``EventCounter`` (fast_path.py) counts its plain events,
while the stream runs and once more here, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from orchestrator.load.http import BadHttp, Body, Head, split, unwrap
from orchestrator.load.in_flight import InFlight
from orchestrator.load.response.counts import count_tokens
from orchestrator.load.response.judge import judge_no_stream, judge_stream
from orchestrator.load.wire.wires import Wire
from orchestrator.results.outcomes import ErrorClass
from orchestrator.spec.dialect import Dialect

EVENTS_AT_ONCE = 256  # decoded in one step: about 0.3 ms away from the sockets
# codings of a body that no wire can read; other names, and none, encode nothing
ENCODINGS = frozenset(
    ("gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress", "dcb", "dcz", "exi")
)


class EventCounter(Protocol):
    """A short cut that counts events of a response without decoding them."""

    def can_count(self, request: InFlight) -> bool:
        """Whether a response that still comes in holds enough events to count."""
        ...

    def count(self, request: InFlight) -> None:
        """Counts some of its events and drops their bytes. Only after ``can_count``."""
        ...

    def count_rest(self, request: InFlight) -> Iterator[None]:
        """Counts what can be counted of a response that is over, in steps."""
        ...


class ResponseReader:
    """Reads the responses of one point. ``start_ns``: the point's start, ``time.monotonic_ns``.
    ``event_counter``: the short cut; None: every event is decoded.
    """

    def __init__(
        self, wire: Wire, dialect: Dialect, event_counter: EventCounter | None, start_ns: int
    ) -> None:
        self._wire = wire
        self._dialect = dialect
        self._event_counter = event_counter
        self._start_ns = start_ns

    def finish(self, request: InFlight) -> Iterator[None]:
        """Reads the rest of a response that is over, and judges it, in steps. Never raises,
        whatever came.
        """
        self._set_times(request)
        head = request.head
        if head is None:
            # a failure that the transport recorded counts first
            request.record.fail(ErrorClass.GARBAGE, "no response")
            return
        request.record.http_status = head.status
        if self._event_counter is not None:
            yield from self._event_counter.count_rest(request)
        yield from self._decode(request, head)
        request.parts = []
        request.times = []
        running_source = self._wire.running_source
        count_tokens(request, running_source, self._dialect.tokens_per_step, self._start_ns)
        if request.record.error_class is None:
            is_framed = head.chunked or head.length is not None
            judge_stream(request, self._dialect, is_framed)

    def _set_times(self, request: InFlight) -> None:
        record = request.record
        record.done_ns = request.ended_ns - self._start_ns
        if request.sent_ns is not None:
            record.sent_ns = request.sent_ns - self._start_ns
        if request.first_byte_ns is not None:
            record.first_byte_ns = request.first_byte_ns - self._start_ns

    def _decode(self, request: InFlight, head: Head) -> Iterator[None]:
        """Decodes the body, or what is left of it, and records what is wrong with it."""
        record = request.record
        try:
            body = unwrap(request.parts, head)
        except BadHttp as error:
            record.fail(ErrorClass.GARBAGE, str(error))
            body = None
        coding = _encoding(head)
        if coding is not None:
            message = f"Content-Encoding {coding}, although only identity was asked for"
            record.fail(ErrorClass.GARBAGE, message)
            return
        if body is None:
            return
        if head.chunked and not body.complete and record.error_class is None:
            message = "the response went on after what looked like its end"
            record.fail(ErrorClass.GARBAGE, message)
            return
        if head.status != 200 or not _is_stream(request, body.content):
            judge_no_stream(record, head, body.content, self._wire)
            return
        payloads = _payloads(request, body)
        for start in range(0, len(payloads), EVENTS_AT_ONCE):
            self._wire.read(payloads[start : start + EVENTS_AT_ONCE], request.parsed)
            yield


def _encoding(head: Head) -> str | None:
    """The coding of a body that is encoded. None for names that encode nothing, as some servers
    send them against proxies that compress.
    """
    for name in head.headers.get("content-encoding", "").split(","):
        if name.strip().lower() in ENCODINGS:
            return name.strip()
    return None


def _is_stream(request: InFlight, content: bytes) -> bool:
    """Whether a body is an event stream. The Content-Type does not tell: some servers send streams
    as text/plain.
    """
    if len(request.event_ns) > 0:
        return True
    is_document = content.lstrip().startswith((b"{", b"[", b"<"))
    return not is_document or b"\ndata:" in content


def _payloads(request: InFlight, body: Body) -> list[bytes]:
    """The payloads of a body's events. Records the instant of each: that of the read in which it
    was complete.
    """
    events = split(body.content)
    piece = 0
    for end in events.ends:
        while body.ends[piece] < end:
            piece += 1
        request.event_ns.append(request.times[body.reads[piece]])
    if events.done:
        while body.ends[piece] <= events.done_at:
            piece += 1
        request.done_marker_ns = request.times[body.reads[piece]]
    return events.payloads

"""A request under way: what the transport and the decoders need of it until its record is complete."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from orchestrator.load.request_record import RequestRecord
from orchestrator.load.response.http import Head, parse_head
from orchestrator.load.schedule import PlannedRequest
from orchestrator.load.wire.parsed import Parsed
from orchestrator.workloads.kind import Prompt

FIRST_READS = 3  # the first reads of a response: they may hold headers and a role


@dataclass(slots=True, eq=False)
class InFlight:
    """One request under way, filled by the transport. Instants are ``time.monotonic_ns``.

    ``parts[i]``: the bytes of a read, ``times[i]``: when they were read; without the head and what
    was counted while the stream ran. ``end_marker``: the bytes that a read must end with to be
    perhaps the last one; while it is empty (headers, bodies of known length) every read is
    examined. ``event_ns[i]``: when event i of ``parsed.tokens`` was complete; not sorted.
    """

    planned: PlannedRequest
    record: RequestRecord
    target: int  # index of the server
    wire_bytes: bytes = field(repr=False)
    prompt: Prompt | None = None  # kept only where it will be needed
    parsed: Parsed = field(default_factory=Parsed)
    parts: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    undecoded: int = FIRST_READS  # so many of the first parts are left to be decoded
    event_ns: array[int] = field(default_factory=lambda: array("q"))
    end_marker: bytes = b""
    head: Head | None = None
    received: int = 0  # bytes of the body, counted while every read is examined
    swept_ns: int = 0  # time of the last read when ``Transport.sweep`` examined it
    retried: bool = False
    fd: int = -1  # of its connection
    started_ns: int = 0  # handed to the transport
    sent_ns: int | None = None  # first byte handed to the socket
    first_byte_ns: int | None = None
    ended_ns: int = 0
    done_marker_ns: int | None = None  # when [DONE] came
    coalesced_reads: int = 0  # reads that held more than one content event

    def is_silent(self) -> bool:
        """Whether no event has come yet, as far as the first reads show."""
        return len(self.times) <= FIRST_READS and b"data:" not in b"".join(self.parts)

    def may_end(self) -> bool:
        """Whether the last reads of a chunked body may hold its end."""
        return b"\r\n0" in b"\r\n" + b"".join(self.parts[-16:])

    def read_head(self) -> bool:
        """Takes the head off what has come so far. False: it is not complete yet. Raises BadHttp."""
        self.first_byte_ns = self.times[0]
        raw = b"".join(self.parts)
        self.head = parse_head(raw)
        if self.head is None:
            return False
        body = raw[self.head.size :]
        self.received = len(body)
        self.parts[:] = [body]
        self.times[:] = self.times[-1:]
        return True

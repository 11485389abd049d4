"""A request under way: what the transport and the decoders need of it until its record is complete.

What happens to a request, in order:

1. ``RequestQueue`` (request_queue.py) hands out the ``PlannedRequest`` when it is due.
2. ``RequestWriter.take`` (requests.py) makes the ``InFlight``: its bytes, and its ``RequestRecord``
   with what is known before anything was sent.
3. ``Transport`` (transport.py) sends it and appends each read to ``parts`` and ``times``. A request
   that fails here has its failure in the record.
4. ``FastPath.count`` (fast_path.py) may count events of a long stream while it runs.
5. ``ResponseReader.finish`` (response/reader.py), once the response is over: decodes what is left
   into ``parsed``, and fills the record and ``gaps`` (response/counts.py, response/judge.py).
6. ``RowCollector.add`` (rows.py) takes record and gaps; they become rows. The ``InFlight`` is
   dropped.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from orchestrator.load.http import Head, parse_head
from orchestrator.load.request_record import RequestRecord, TokenGaps
from orchestrator.load.schedule import PlannedRequest
from orchestrator.load.wire.parsed import Parsed
from orchestrator.spec.constraint import Constraint
from orchestrator.workloads.kind import Prompt

FIRST_READS = 3  # the first reads of a response: they may hold headers and a role


@dataclass(slots=True, eq=False)
class InFlight:
    """One request under way, filled by the transport. Instants are ``time.monotonic_ns``; those of
    its record count from the point's start.

    ``parts[i]``: the bytes of a read; ``times[i]``: when they were read. The head, and reads that
    were counted while the stream ran, are taken out of both. ``end_marker``: only a read that ends
    with these bytes may be the last one; while it is empty (headers, bodies of known length) every
    read is examined. ``event_ns[i]``: when event i of ``parsed.tokens`` was complete; not sorted.
    """

    planned: PlannedRequest
    record: RequestRecord  # becomes the row of ``requests``
    target: int  # index of the server
    wire_bytes: bytes = field(repr=False)
    prompt: Prompt | None = None  # kept only where it will be needed
    constraint: Constraint | None = None  # what its answer must be
    ends_naturally: bool = False  # it was not asked to have a certain length
    parsed: Parsed = field(default_factory=Parsed)
    gaps: TokenGaps | None = None  # becomes the row of ``token_events``; None: no content came
    parts: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    # how many of the first parts the fast path has passed over: they are decoded at the end
    undecoded: int = FIRST_READS
    event_ns: array[int] = field(default_factory=lambda: array("q"))
    end_marker: bytes = b""
    head: Head | None = None
    received: int = 0  # bytes of the body, counted while every read is examined
    swept_ns: int = 0  # time of the last read when ``Transport.sweep`` examined it
    retried: bool = False  # sent once more, on a new connection
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
        """Takes the head off what has come so far. Returns False while the head is incomplete.
        Raises BadHttp.
        """
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

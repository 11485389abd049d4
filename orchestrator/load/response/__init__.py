"""How one response is read: from the bytes of its reads to what the request's row needs.

While a response comes in, the transport only appends reads to an ``InFlight``. Later they are
decoded in three layers: HTTP and events (http.py), then the API's JSON (the wire). Each event gets
the instant of the read in which it was complete. This happens in steps in the client's pauses:
``read_ahead`` takes what is complete of a long stream while it runs, so that a token in flight
costs a few bytes and a long answer does not end in a long stop; ``finish`` takes the rest once the
stream is over.

``read_ahead`` is also the short way for most of a stream. An engine that is not held up writes one
chunk per token; such reads are recognised by their two ends and counted without being decoded.
Everything else goes the general way, with the same result (tests compare the two). This saves two
thirds of the CPU time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress, repeat
from operator import and_

import numpy as np
from numpy.typing import NDArray

from orchestrator.load.requests import Request
from orchestrator.load.response.http import (
    MOST_SAID,
    BadHttp,
    Body,
    Head,
    parse_head,
    split,
    unwrap,
)
from orchestrator.load.schedule import Entry
from orchestrator.load.wire.events import error_class
from orchestrator.load.wire.finish_reasons import is_failed_end
from orchestrator.load.wire.parsed import MOST_COUNTED, Parsed
from orchestrator.load.wire.wires import Wire
from orchestrator.results.outcomes import ErrorClass, Status
from orchestrator.spec.dialect import Dialect

AHEAD_READS = 128  # so many reads must wait before a running stream is read ahead
MIN_READS = 32  # with fewer the short way is not worth it
FIRST_READS, LAST_READS = 3, 4  # always decoded: they may hold a role, and why the stream ended
STEP = 256  # reads or events in one step: about 0.3 ms away from the sockets
# events closer than this, and than a tenth of their request's mean gap, came together
LUMP_NS = 200_000
# codings of a body that no wire can read; other names, and none, encode nothing
ENCODINGS = frozenset(
    ("gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress", "dcb", "dcz", "exi")
)
_MAX_GAP_US = 2**31 - 1
_MAX_CHUNK_TOKENS = 2**15 - 1

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Response:
    """What came back for one request, and how it ended. Instants are ``time.monotonic_ns``.

    ``event_ns[i]``: when event i of ``parsed.tokens`` was complete; not sorted. ``chunks``: events
    with content; those of one speculative step are one chunk. ``gaps_us``: times between successive
    chunks. ``tokens_per_chunk``: None where each held one, or nobody said which held how many.
    """

    parsed: Parsed = field(default_factory=Parsed)
    event_ns: array[int] = field(default_factory=lambda: array("q"))
    done: bool = False  # the [DONE] marker came
    done_ns: int | None = None  # when it came
    status: Status = Status.OK
    error_class: ErrorClass | None = None
    error: str | None = None
    http_status: int | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None  # first token after the reasoning, where that was streamed
    last_token_ns: int | None = None
    chunks: int = 0
    coalesced_chunks: int = 0
    coalesced_reads: int = 0
    output_tokens: int | None = None
    hidden_tokens: int | None = None  # those of output_tokens that were never streamed
    first_chunk_tokens: int | None = None  # None: nobody said
    counted: int | None = None
    source: str | None = None
    gaps_us: array[int] | None = None  # int32
    tokens_per_chunk: array[int] | None = None  # int16

    @property
    def itl_kind(self) -> str | None:
        shown = (self.output_tokens or 0) - (self.hidden_tokens or 0)
        one_each = self.tokens_per_chunk is None and shown == self.chunks
        return None if not self.chunks else "token" if one_each else "chunk"

    def fail(self, error_class: ErrorClass, error: str) -> None:
        """Records a failure; the first one counts."""
        if self.error_class is None:
            self.status, self.error_class, self.error = (
                error_class.status,
                error_class,
                error[:MOST_SAID],
            )

    def recount(self, total: int) -> None:
        """Sets the tokenizer's count of a reply that came without token counts."""
        self.output_tokens = self.counted = total
        self.source = "tokenizer"
        self.first_chunk_tokens = None


@dataclass(slots=True, eq=False)
class InFlight:
    """One request under way, filled by the transport. Instants are ``time.monotonic_ns``.

    ``parts[i]``: the bytes of a read, ``times[i]``: when they were read; without the head and what
    was read ahead. ``mark``: the bytes that a read must end with to be perhaps the last one; while
    it is empty (headers, bodies of known length) every read is examined.
    """

    entry: Entry
    request: Request
    response: Response = field(default_factory=Response)
    parts: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    skipped: int = FIRST_READS  # so many of the first parts are left for ``finish``
    mark: bytes = b""
    head: Head | None = None
    received: int = 0  # bytes of the body, counted while every read is examined
    swept_ns: int = 0  # time of the last read when ``Transport.sweep`` examined it
    retried: bool = False
    fd: int = -1  # of its connection
    started_ns: int = 0  # handed to the transport
    sent_ns: int | None = None  # first byte handed to the socket
    first_byte_ns: int | None = None
    ended_ns: int = 0

    def silent(self) -> bool:
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
        if self.head is not None:
            self.received = len(raw) - self.head.size
            self.parts[:], self.times[:] = [raw[self.head.size :]], self.times[-1:]
        return self.head is not None


def can_read_ahead(flight: InFlight, least: int = AHEAD_READS) -> bool:
    """Whether at least ``least`` reads may be counted undecoded. Replies that are needed as text
    stay whole.
    """
    enough = len(flight.parts) - LAST_READS - flight.skipped >= least
    return enough and flight.mark != b"" and flight.response.parsed.texts is None


def read_ahead(flight: InFlight, wire: Wire) -> None:
    """Counts the plain ones among the next reads and drops their bytes. Only after
    ``can_read_ahead``.
    """
    step = slice(flight.skipped, min(flight.skipped + STEP, len(flight.parts) - LAST_READS))
    parts, times = flight.parts[step], flight.times[step]
    matches, payloads = _single_events(parts)
    if not payloads or not wire.count(payloads, flight.response.parsed):
        flight.skipped = step.stop
        return
    flight.response.event_ns.extend(compress(times, matches))
    stays = [not match for match in matches]
    flight.parts[step] = compress(parts, stays)
    flight.times[step] = compress(times, stays)
    flight.skipped += sum(stays)


def _single_events(reads: list[bytes]) -> tuple[list[bool], list[bytes]]:
    """Which reads are exactly one chunk with one event (``data:``, JSON, an empty line), and the
    JSON of those.
    """
    lengths = list(map(len, reads))
    starts = {length: b"%x\r\ndata: {" % _chunk_bytes(length) for length in set(lengths)}
    opens = map(bytes.startswith, reads, map(starts.__getitem__, lengths))
    matches = list(map(and_, opens, map(bytes.endswith, reads, repeat(b"}\n\n\r\n"))))
    return matches, [read[len(starts[len(read)]) - 1 : -4] for read in compress(reads, matches)]


def _chunk_bytes(length: int) -> int:
    """The chunk size for which digits, CR LF, chunk and CR LF make a read of this length; 0: there
    is none.
    """
    for digits in range(1, 8):
        size = length - digits - 4
        if size > 0 and len(b"%x" % size) == digits:
            return size
    return 0


def finish(flight: InFlight, wire: Wire, dialect: Dialect) -> Iterator[None]:
    """Reads the rest of a response that is over and judges it, in steps. Never raises, whatever
    came.
    """
    response, head = flight.response, flight.head
    if head is None:
        response.fail(ErrorClass.GARBAGE, "no response")  # unless it failed before
        return
    response.http_status = head.status
    while can_read_ahead(flight, MIN_READS):
        read_ahead(flight, wire)
        yield
    try:
        body = unwrap(flight.parts, head)
    except BadHttp as error:
        response.fail(ErrorClass.GARBAGE, str(error))
        body = None
    coding = _encoding(head)
    if coding is not None:
        response.fail(
            ErrorClass.GARBAGE, f"Content-Encoding {coding}, although only identity was asked for"
        )
    elif body is not None and head.chunked and not body.complete and response.error_class is None:
        response.fail(ErrorClass.GARBAGE, "the response went on after what looked like its end")
    elif body is not None and head.status == 200 and _is_stream(response, body.content):
        payloads = _payloads(flight, body)
        for at in range(0, len(payloads), STEP):
            wire.read(payloads[at : at + STEP], response.parsed)
            yield
    elif body is not None:
        _judge_no_stream(response, head, body.content, wire)
    flight.parts, flight.times = [], []
    _count(response, wire.running_source, dialect.tokens_per_step)
    if response.error_class is None:
        framed = head.chunked or head.length is not None
        judge_stream(response, flight.request.output_tokens, dialect, framed)


def _encoding(head: Head) -> str | None:
    """The coding of a body that is encoded. None for names that encode nothing, as some servers
    send them against proxies that compress.
    """
    names = head.headers.get("content-encoding", "").split(",")
    return next((name.strip() for name in names if name.strip().lower() in ENCODINGS), None)


def _is_stream(response: Response, content: bytes) -> bool:
    """Whether a body is an event stream. The Content-Type does not tell: some servers send streams
    as text/plain.
    """
    begun = len(response.event_ns) > 0
    return begun or not content.lstrip().startswith((b"{", b"[", b"<")) or b"\ndata:" in content


def _payloads(flight: InFlight, body: Body) -> list[bytes]:
    """The payloads of a body's events. Records the instant of each: that of the read in which it
    was complete.
    """
    events = split(body.content)
    piece = 0
    for end in events.ends:
        while body.ends[piece] < end:
            piece += 1
        flight.response.event_ns.append(flight.times[body.reads[piece]])
    flight.response.done = events.done
    if events.done:
        while body.ends[piece] <= events.done_at:
            piece += 1
        flight.response.done_ns = flight.times[body.reads[piece]]
    return events.payloads


def _count(response: Response, running_source: str, tokens_per_step: int) -> None:
    """Fills in times and token counts of the content chunks."""
    parsed, tokens = response.parsed, response.parsed.tokens
    assert len(tokens) == len(response.event_ns), "one count and one instant for every event"
    at_ns = np.frombuffer(response.event_ns, np.int64)
    if response.done_ns is not None:
        _drop_late(tokens, at_ns, response.done_ns)
    parsed.settle(running_source)
    # events that were read ahead stand before earlier ones
    order = np.argsort(at_ns, kind="stable")
    at_ns, held = at_ns[order], np.array(tokens, np.int64)[order]
    content = held != 0
    stamps, held = at_ns[content], held[content] if parsed.source else np.abs(held[content])
    response.chunks = chunks = len(stamps)
    # content events that shared a read with the one before
    shared = stamps[1:] == stamps[:-1]
    if not _is_plausible(parsed, order, content, chunks - int(np.count_nonzero(shared))):
        parsed.output_tokens = None
    counted = min(sum(tokens), MOST_COUNTED) if parsed.source else chunks
    response.counted = counted or None
    response.output_tokens = (
        parsed.output_tokens if parsed.output_tokens is not None else response.counted
    )
    response.source = parsed.source or (
        "usage" if parsed.output_tokens is not None else "chunks" if chunks else None
    )
    response.hidden_tokens = _hidden(response)
    if not chunks:
        return
    response.first_answer_ns = _first_answer_ns(parsed.thoughts, order, content, at_ns)
    response.coalesced_reads = int(np.count_nonzero(shared)) - int(
        np.count_nonzero(shared[1:] & shared[:-1])
    )
    one_each = response.source == "usage" and response.output_tokens == chunks + (
        response.hidden_tokens or 0
    )
    stamps, held, response.coalesced_chunks = _steps(stamps, held, tokens_per_step)
    response.chunks = len(held)
    response.first_token_ns, response.last_token_ns = int(stamps[0]), int(stamps[-1])
    # positions are rounded, not gaps, so that rounding errors do not add up
    micros = (stamps - stamps[0] + 500) // 1000
    response.gaps_us = array(
        "i", np.minimum(micros[1:] - micros[:-1], _MAX_GAP_US).astype(np.int32).tobytes()
    )
    if not parsed.source and not one_each:
        return
    response.first_chunk_tokens = int(min(held[0], MOST_COUNTED))
    if (held != 1).any():
        response.tokens_per_chunk = array(
            "h", np.minimum(held, _MAX_CHUNK_TOKENS).astype(np.int16).tobytes()
        )


def _drop_late(tokens: list[int], at_ns: Ints, done_ns: int) -> None:
    """Removes the tokens of events that were read ahead, and that came after the [DONE]."""
    for event in np.flatnonzero(at_ns > done_ns):
        tokens[event] = 0


def _is_plausible(parsed: Parsed, order: Ints, content: Bools, arrivals: int) -> bool:
    """Whether the engine's last total can be the answer's length: no content came after it, and it
    is not below the number of instants at which content came.
    """
    if parsed.output_tokens is None:
        return True
    after = np.cumsum(order == parsed.total_event) > 0
    after &= order != parsed.total_event
    is_stale = not parsed.source and bool((after & content).any())
    return not is_stale and parsed.output_tokens >= arrivals


def _first_answer_ns(thoughts: list[int], order: Ints, content: Bools, at_ns: Ints) -> int | None:
    """When the answer began after reasoning; None where the stream did not begin with reasoning."""
    if not thoughts:
        return None
    is_thought = np.zeros(order.size, np.bool_)
    is_thought[thoughts] = True
    is_thought = is_thought[order]
    after = np.cumsum(is_thought & content) > 0
    answers = np.flatnonzero(content & ~is_thought)
    if not answers.size or not after[answers[0]]:
        return None
    return int(at_ns[answers[0]])


def _steps(stamps: Ints, held: Ints, tokens_per_step: int) -> tuple[Ints, Ints, int]:
    """Content events as chunks: the chunks' instants and tokens, and how many chunks came together
    with the one before.

    Events form a lump where hardly any time lies between them. A lump of at most as many tokens as
    the engine makes in one step is that step: it is one chunk, complete with its last event.
    """
    gaps_ns = np.diff(stamps)
    apart = gaps_ns > min(LUMP_NS, gaps_ns.sum() / (10 * max(gaps_ns.size, 1)))
    if apart.all():
        return stamps, held, 0
    begins = np.flatnonzero(np.concatenate(([True], apart)))
    sizes = np.diff(begins, append=len(stamps))
    of_one_step = np.repeat(np.add.reduceat(held, begins) <= tokens_per_step, sizes)
    ends = np.flatnonzero(np.concatenate((apart, [True])) | ~of_one_step)
    return stamps[ends], np.diff(np.cumsum(held)[ends], prepend=0), len(ends) - len(begins)


def _hidden(response: Response) -> int | None:
    """Output tokens that were counted and not streamed: reasoning that the engine reports, and what
    its running count held before the first text. None where there is nothing of either.
    """
    parsed, total = response.parsed, response.output_tokens or 0
    reasoning = parsed.reasoning_tokens
    if reasoning is None and not parsed.unseen_tokens:
        return None
    if parsed.source:
        hidden = total - (response.counted or 0)
    else:
        hidden = 0 if parsed.thoughts else reasoning or 0
    most = max(reasoning or 0, parsed.unseen_tokens)
    return max(0, min(hidden, most, total - response.chunks))


def _judge_no_stream(response: Response, head: Head, body: bytes, wire: Wire) -> None:
    """Judges an answer without a stream: a status other than 200, or a body without events, mostly
    an error object.
    """
    said = body[:MOST_SAID].decode("utf-8", "replace").strip()
    text = f"HTTP {head.status} {head.reason}: {said}".strip(": ")
    if head.status >= 400:
        found = error_class(None, said, head.status)
        # some servers say 503 when their queue is full
        refused = head.status < 500 or found is ErrorClass.HTTP_429
        response.fail(found if refused else ErrorClass.HTTP_5XX, text)
    elif "location" in head.headers:
        where = head.headers["location"]
        response.fail(
            ErrorClass.GARBAGE,
            f"HTTP {head.status} {head.reason}: it is at {where} (give that URL)",
        )
    elif head.status != 200:
        response.fail(ErrorClass.GARBAGE, text)
    elif response.error_class is None:
        parsed = Parsed()
        wire.read([body], parsed)
        if parsed.error is not None:
            response.fail(parsed.error_class, parsed.error)
        response.fail(ErrorClass.GARBAGE, f"no event stream: {said}")


def judge_stream(response: Response, asked: int, dialect: Dialect, framed: bool) -> None:
    """Judges a finished stream with status 200. ``framed``: HTTP tells where it ends, so it was not
    cut off.

    The length is judged only where the engine was told to keep it and the count is the engine's
    own, or should have been: of an answer without a count, although a trial request's had one, the
    events are counted.
    """
    parsed, output_tokens = response.parsed, response.output_tokens
    # some servers count reasoning tokens, some do not
    shown = (output_tokens or 0) - (response.hidden_tokens or 0)
    counted = output_tokens is not None and (
        parsed.source is not None or parsed.output_tokens is not None
    )
    is_judged = counted or dialect.reports_counts
    if parsed.error is not None:
        response.fail(parsed.error_class, parsed.error)
    elif parsed.finish_reason and is_failed_end(parsed.finish_reason):
        response.fail(
            ErrorClass.STREAM_ERROR,
            f"the engine gave up on it: finish_reason {parsed.finish_reason}",
        )
    elif parsed.garbage is not None:
        response.fail(ErrorClass.GARBAGE, parsed.garbage)
    elif not (
        response.done
        or parsed.ended
        or (parsed.finish_reason and (framed or not dialect.done_marker))
    ):
        response.fail(ErrorClass.NO_END, "the stream ended without its end marker")
    elif not any(parsed.tokens):
        if asked:
            response.fail(ErrorClass.WRONG_LENGTH, _no_token(parsed))
    elif (
        dialect.length_control not in ("none", "natural")
        and is_judged
        and asked not in (output_tokens, shown)
    ):
        came = f"{output_tokens} tokens" if counted else f"{output_tokens} events and no count"
        response.fail(ErrorClass.WRONG_LENGTH, f"{came} came, {asked} were asked for")


def _no_token(parsed: Parsed) -> str:
    said = "the stream held no token"
    return said if parsed.ignored is None else f"{said}; it held {parsed.ignored}"

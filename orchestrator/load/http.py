"""The HTTP/1.1 of a response: its head, the framing of its body, its events.

Nothing of this runs while a response streams. Whether the body is whole is checked once, when the
last bytes look like its end; everything else is done in the client's pauses or when the request is
over. httptools takes chunks apart. Events as engines usually send them are split in one pass of C
code; everything else that the standard allows takes a slower way to the same result.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import httptools
import orjson

from orchestrator.load.request_record import ERROR_CHARACTERS
from orchestrator.load.wire.events import is_heartbeat

MAX_HEAD_BYTES = 256 * 1024
MAX_LENGTH_DIGITS = 18  # of a Content-Length; int() takes only some thousand
END_MARK = b"0\r\n\r\n"  # how a chunked body ends when it has no trailers
TRAILERS_MARK = END_MARK[1:]  # how it ends with trailers
SEARCHED_READS = 16  # of the last reads, which are searched for one whole chunk


class BadHttp(Exception):
    """What came is not HTTP/1.x. The message goes into the row."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of a response. ``size``: bytes before the body."""

    status: int
    reason: str
    headers: dict[str, str]
    size: int
    chunked: bool
    length: int | None  # of the body; None: chunked, or until the connection closes
    keep_alive: bool


def parse_head(raw: bytes) -> Head | None:
    """The head of the final response; interim ones (1xx) are skipped. None: incomplete. Raises
    BadHttp.
    """
    start = 0
    while True:
        if raw[start : start + 7] != b"HTTP/1."[: len(raw) - start]:  # as far as it has come
            raise BadHttp(f"not an HTTP/1.x response: {raw[start : start + ERROR_CHARACTERS]!r}")
        end = raw.find(b"\r\n\r\n", start)
        if end < 0:
            if len(raw) - start > MAX_HEAD_BYTES:
                raise BadHttp(f"response headers over {MAX_HEAD_BYTES} bytes")
            return None
        head = _read_head(raw[start:end], end + 4)
        if not 100 <= head.status < 200 or head.status == 101:
            return head
        start = end + 4


def _read_head(raw: bytes, size: int) -> Head:
    if len(raw) > MAX_HEAD_BYTES:
        raise BadHttp(f"response headers over {MAX_HEAD_BYTES} bytes")
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, code_and_reason = first.partition(" ")
    code, _, reason = code_and_reason.partition(" ")
    if len(code) != 3 or not (code.isascii() and code.isdigit()):
        raise BadHttp(f"not a status line: {first[:ERROR_CHARACTERS]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadHttp(f"not a header: {line[:ERROR_CHARACTERS]!r}")
        name = name.strip().lower()
        value = value.strip()
        if name == "content-encoding" and name in headers:
            value = f"{headers[name]}, {value}"
        headers[name] = value
    status = int(code)
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    length = None if chunked else _length(status, headers)
    default_connection = "keep-alive" if version == "HTTP/1.1" else "close"
    connection = headers.get("connection", default_connection).lower()
    has_known_end = chunked or length is not None
    keep_alive = has_known_end and "close" not in connection and status != 101
    return Head(status, reason, headers, size, chunked, length, keep_alive)


def _length(status: int, headers: dict[str, str]) -> int | None:
    """The length of a body that is not chunked; None: until the connection closes."""
    if status in (204, 304):
        return 0
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > MAX_LENGTH_DIGITS:
        raise BadHttp(f"Content-Length is {text[:ERROR_CHARACTERS]!r}")
    return int(text)


# -- framing


@dataclass(frozen=True, slots=True)
class Body:
    """A body without its framing. It came in pieces: piece i ends (exclusive) at byte ``ends[i]``
    of ``content`` and came with read ``reads[i]``. ``complete``: its end has come; ``more``: bytes
    follow its end.
    """

    content: bytes
    ends: Sequence[int]
    reads: Sequence[int]
    complete: bool
    more: bool


def unwrap(reads: Sequence[bytes], head: Head) -> Body:
    """Removes the framing from what has come of a body so far.

    Raises BadHttp where it is broken.
    """
    if head.chunked:
        return unwrap_chunks(reads)
    received = b"".join(reads)
    content = received[: head.length]
    ends = [min(end, len(content)) for end in accumulate(map(len, reads))]
    return Body(
        content,
        ends,
        reads=range(len(reads)),
        complete=len(content) == head.length,
        more=len(content) < len(received),
    )


class _Pieces:
    """What httptools finds in a chunked body. ``read``: the index of the read that it parses."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.reads: list[int] = []
        self.read = 0
        self.complete = False

    def on_body(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.reads.append(self.read)

    def on_message_complete(self) -> None:
        self.complete = True


# The parser is given this head instead of the server's, because it refuses some that proxies send
# (Content-Length beside Transfer-Encoding). With "close" it reports bytes after the end as an error
# and does not take them for another response.
_CHUNKED = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


def unwrap_chunks(reads: Sequence[bytes]) -> Body:
    """Removes the framing of a chunked body, or of what follows the start of one of its chunks. An
    incomplete last chunk is kept. Raises BadHttp where the framing is broken.

    Stricter than RFC 9112 in what no engine sends: extensions of a chunk have no spaces.
    """
    pieces = _Pieces()
    more = False
    parser = httptools.HttpResponseParser(pieces)
    parser.set_dangerous_leniencies(
        lenient_chunked_length=True, lenient_spaces_after_chunk_size=True
    )
    parser.feed_data(_CHUNKED)
    try:
        for read_index, data in enumerate(reads):
            pieces.read = read_index
            parser.feed_data(data)
    except httptools.HttpParserError as error:
        if not pieces.complete:
            raise BadHttp(f"broken chunks: {error}, in {data[:ERROR_CHARACTERS]!r}") from None
        more = True
    return Body(
        b"".join(pieces.pieces),
        ends=list(accumulate(map(len, pieces.pieces))),
        reads=pieces.reads,
        complete=pieces.complete,
        more=more,
    )


def since_event_chunk(reads: Sequence[bytes]) -> Sequence[bytes] | None:
    """The reads after the last read that is exactly one chunk with one event; None: no such read
    among the last few.

    The first of them begins a chunk, so the end of a chunked body is found without reading all of
    it. What looks like a whole chunk may be a part of a larger one; ``ResponseReader.finish``
    notices that.
    """
    for back in range(2, min(len(reads), SEARCHED_READS) + 1):
        size, _, chunk = reads[-back].partition(b"\r\n")
        is_event = chunk.startswith(b"data: {") and chunk.endswith(b"}\n\n\r\n")
        if is_event and size == b"%x" % (len(chunk) - len(b"\r\n")):
            return reads[1 - back :]
    return None


# -- server-sent events of a body, or of a part that ends with an event

_FIRST = b"data: "
_BETWEEN = b"\n\ndata: "
_LAST = b"\n\ndata: [DONE]\n\n"

# an empty line after a line, with any of the three line ends; atomic, so that \r\n is never taken
# for two of them
_BLANK = re.compile(rb"(?>\r\n|\n|\r)(?:(?>\r\n|\n|\r))+")
_LINE = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Events:
    """Event i holds ``payloads[i]`` and ends (exclusive) at byte ``ends[i]``. ``done``: a [DONE]
    follows the events, from byte ``done_at`` on.
    """

    payloads: list[bytes]
    ends: list[int]
    done: bool
    done_at: int = 0


def split(body: bytes) -> Events:
    """The events of a body, without comments, pings, [DONE] and what follows it."""
    return _split_plain(body) or _split_any(body)


def _split_plain(body: bytes) -> Events | None:
    """The usual stream: every event is one line ``data: ...`` and an empty line. None where it is
    anything else.
    """
    done = body.endswith(_LAST)
    if done:
        body = body[: 2 - len(_LAST)]  # without the [DONE], with the empty line before it
    if not body.startswith(_FIRST) or not body.endswith(b"\n\n"):
        return None
    if b"\r" in body or b"[DONE]" in body:
        return None
    payloads = body[len(_FIRST) : -2].split(_BETWEEN)
    if body.count(b"\n") != 2 * len(payloads):
        return None
    # an event takes its payload, the 6 bytes of "data: " and the empty line, before which it ends
    event_bytes = [len(payload) + 8 for payload in payloads]
    ends = [end - 2 for end in accumulate(event_bytes)]
    return Events(payloads, ends, done, len(body))


def _split_any(body: bytes) -> Events:
    """Any stream that follows the standard, and a last event whose empty line is missing."""
    payloads: list[bytes] = []
    ends: list[int] = []
    done = False
    done_at = 0
    start = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    while start < len(body) and not done:
        blank = _BLANK.search(body, start)
        end = blank.start() if blank else len(body)
        event = body[start:end]
        payload = _payload(event)
        if payload is not None and payload.strip() == b"[DONE]":
            done = True
            done_at = start
        elif payload is not None:
            payloads.append(payload)
            ends.append(start + len(event.rstrip(b"\r\n")))
        start = blank.end() if blank else len(body)
    return Events(payloads, ends, done, done_at)


def _payload(event: bytes) -> bytes | None:
    """The joined data lines of one event; None: no data, or a heartbeat by its name. An event named
    ``error`` becomes an error object, and so does llama.cpp's ``error:`` field.
    """
    data: list[bytes] = []
    event_name = b""
    for line in _LINE.split(event):
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data" and colon:
            data.append(value)
        elif name == b"event" and colon:
            event_name = value.strip().lower()
        elif name == b"error" and colon:
            return b'{"error":' + value + b"}"
        elif name.lstrip().startswith(b"{"):
            return event  # bare JSON where an event should be: an error body without its framing
    payload = b"\n".join(data)
    if event_name == b"error":
        return _error_object(payload)
    if not payload.strip() or (event_name and is_heartbeat(event_name)):
        return None
    return payload


def _error_object(payload: bytes) -> bytes:
    """The error object of an event named ``error``, whose payload may be a text or anything."""
    try:
        error = orjson.loads(payload)
    except orjson.JSONDecodeError:
        error = payload.decode("utf-8", "replace")
    if isinstance(error, dict) and error.get("error"):
        return payload
    if not error or (isinstance(error, dict) and not any(error.values())):
        error = "an event named error, without a word"
    return orjson.dumps({"error": error})

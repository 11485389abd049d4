"""The HTTP/1.1 of a response: its head, the framing of its body (finding its end, removing it), its events.

Nothing of this runs while a response streams: the end is checked once, when the last bytes look like it; the rest is
done in the client's pauses or when the request is over. What engines usually send is split in one pass of C code;
everything else that the standards allow takes a slower way to the same result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

MAX_HEAD_BYTES = 256 * 1024
MAX_CHUNK_LINE_BYTES = 4096
MAX_LENGTH_DIGITS = 18  # of a Content-Length; int() takes only some thousand
END_MARK = b"0\r\n\r\n"  # how a chunked body ends when it has no trailers
TRAILERS_MARK = END_MARK[1:]  # how it ends with trailers
MOST_SAID = 2_000  # characters of an error. Rows shorten it after secrets are removed, so that none is cut in two
SEARCHED_READS = 16  # so many of the last reads are searched for one whole chunk


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
    """The head of the final response; interim ones (1xx) are skipped. None: incomplete. Raises BadHttp."""
    start = 0
    while True:
        if not b"HTTP/1."[: len(raw) - start] == raw[start : start + 7]:
            raise BadHttp(f"not an HTTP/1.x response: {raw[start : start + MOST_SAID]!r}")
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
    version, _, rest = first.partition(" ")
    code, _, reason = rest.partition(" ")
    if len(code) != 3 or not (code.isascii() and code.isdigit()):
        raise BadHttp(f"not a status line: {first[:MOST_SAID]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadHttp(f"not a header: {line[:MOST_SAID]!r}")
        headers[name.strip().lower()] = value.strip()
    status = int(code)
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    wanted = headers.get("connection", "keep-alive" if version == "HTTP/1.1" else "close").lower()
    length = None if chunked else _length(status, headers)
    keep_alive = "close" not in wanted and (chunked or length is not None) and status != 101
    return Head(status, reason, headers, size, chunked, length, keep_alive)


def _length(status: int, headers: dict[str, str]) -> int | None:
    if status in (204, 304):
        return 0
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > MAX_LENGTH_DIGITS:
        raise BadHttp(f"Content-Length is {text[:MOST_SAID]!r}")
    return int(text)


# -- framing


@dataclass(frozen=True, slots=True)
class Body:
    """A body without its framing, and where its parts lay in the raw body.

    It came in pieces (chunks, or a single one): piece i ends (exclusive) at byte ``ends[i]`` of ``content`` and at byte
    ``raw_ends[i]`` of the raw body. ``size``: raw bytes up to the end of the body; more may follow.
    """

    content: bytes
    ends: list[int]
    raw_ends: list[int]
    complete: bool
    size: int

    def raw_positions(self, positions: Sequence[int]) -> list[int]:
        """Maps exclusive ends within ``content``, ascending, to exclusive ends within the raw body."""
        found, piece = [], 0
        for position in positions:
            while self.ends[piece] < position:
                piece += 1
            found.append(self.raw_ends[piece] - self.ends[piece] + position)
        return found


def unwrap(raw: bytes, head: Head) -> Body:
    """Removes the framing from what has come of a body so far. Raises BadHttp where it is broken."""
    if head.chunked:
        return unwrap_chunks(raw)
    body = raw if head.length is None else raw[: head.length]
    return Body(body, [len(body)], [len(body)], head.length == len(body), len(body))


def unwrap_chunks(raw: bytes) -> Body:
    """The same for a chunked body, or its rest from the start of a chunk. An incomplete last chunk is kept."""
    pieces, raw_ends = _plain_chunks(raw)
    complete, size = _other_chunks(raw, raw_ends[-1] + 2 if raw_ends else 0, pieces, raw_ends)
    return Body(b"".join(pieces), list(accumulate(map(len, pieces))), raw_ends, complete, size)


_HEX = [b"%x" % size for size in range(8192)]


def _plain_chunks(raw: bytes) -> tuple[list[bytes], list[int]]:
    """Whole chunks as engines send them (lower-case sizes, no CR LF inside), and where in ``raw`` they end.

    Splitting at every CR LF, in one pass of C code, is right exactly if every second part is as long as the part before
    it says. Otherwise none are returned.
    """
    parts = raw.split(b"\r\n")
    pieces = parts[1:-1:2]
    if pieces and not pieces[-1]:
        del pieces[-1]  # the last chunk of size 0, or a part of it
    sizes, lengths = parts[: 2 * len(pieces) : 2], list(map(len, pieces))
    if not pieces or not 0 < min(lengths) <= max(lengths) < len(_HEX) or sizes != list(map(_HEX.__getitem__, lengths)):
        return [], []
    framed = [length + len(size) + 4 for length, size in zip(lengths, sizes, strict=True)]
    return pieces, [end - 2 for end in accumulate(framed)]


def _other_chunks(raw: bytes, at: int, pieces: list[bytes], raw_ends: list[int]) -> tuple[bool, int]:
    """Adds chunks by RFC 9112 section 7.1, with extensions and trailers. Returns whether the body ends, and where."""
    size_end = at
    while (line := raw.find(b"\r\n", at, at + MAX_CHUNK_LINE_BYTES)) >= 0:
        size = _chunk_size(raw[at:line])
        start = line + 2
        if size == 0:
            end = _trailers_end(raw, start)
            return end is not None, end or size_end
        at = min(start + size, len(raw))
        pieces.append(raw[start:at])
        raw_ends.append(at)
        if not b"\r\n".startswith(raw[at : at + 2]):
            raise BadHttp(f"no line end after a chunk of {size} bytes")
        at += 2
        size_end = at
    if len(raw) - at > MAX_CHUNK_LINE_BYTES:
        raise BadHttp(f"not a chunk size: {raw[at : at + MOST_SAID]!r}")
    return False, size_end


def _chunk_size(line: bytes) -> int:
    """The size on a chunk's first line, without extensions. Raises BadHttp."""
    digits = line.partition(b";")[0].strip()
    if not _DIGITS.fullmatch(digits):
        raise BadHttp(f"not a chunk size: {line[:MOST_SAID]!r}")
    return int(digits, 16)


_DIGITS = re.compile(rb"[0-9A-Fa-f]{1,16}")


def _trailers_end(raw: bytes, at: int) -> int | None:
    """Where the empty line after the trailers ends; None: it has not come yet."""
    while (line := raw.find(b"\r\n", at)) >= 0:
        if line == at:
            return line + 2
        at = line + 2
    return None


def since_event_chunk(reads: Sequence[bytes]) -> bytes | None:
    """What came after the last read that is exactly one chunk with one event; None: no such read among the last few.

    A chunk begins there, so the end of a chunked body is found without reading all of it. Only a server that sends,
    within a larger chunk, what looks like a whole chunk can deceive this; ``finish`` notices.
    """
    for back in range(2, min(len(reads), SEARCHED_READS) + 1):
        line, _, chunk = reads[-back].partition(b"\r\n")
        if chunk.startswith(b"data: {") and chunk.endswith(b"}\n\n\r\n") and line == b"%x" % (len(chunk) - 2):
            return b"".join(reads[1 - back :])
    return None


# -- server-sent events of a body, or of a part that ends with an event

_FIRST, _BETWEEN, _LAST = b"data: ", b"\n\ndata: ", b"\n\ndata: [DONE]\n\n"

# an empty line after a line, with any of the three line ends; atomic, so that \r\n is never taken for two of them
_BLANK = re.compile(rb"(?>\r\n|\n|\r)(?:(?>\r\n|\n|\r))+")
_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Events:
    """Event i holds ``payloads[i]`` and ends (exclusive) at byte ``ends[i]``. ``done``: a [DONE] follows them."""

    payloads: list[bytes]
    ends: list[int]
    done: bool


def split(body: bytes) -> Events:
    """The events of a body, without comments, pings, [DONE] and what follows it."""
    return _split_plain(body) or _split_any(body)


def _split_plain(body: bytes) -> Events | None:
    """The usual stream: every event is one line ``data: ...`` and an empty line. None where it is anything else."""
    done = body.endswith(_LAST)
    if done:
        body = body[: 2 - len(_LAST)]
    if not (body.startswith(_FIRST) and body.endswith(b"\n\n")) or b"\r" in body or b"[DONE]" in body:
        return None
    payloads = body[len(_FIRST) : -2].split(_BETWEEN)
    if body.count(b"\n") != 2 * len(payloads):
        return None
    return Events(payloads, [end - 2 for end in accumulate([len(payload) + 8 for payload in payloads])], done)


def _split_any(body: bytes) -> Events:
    """Any stream that follows the standard, and a last event whose empty line is missing."""
    payloads: list[bytes] = []
    ends: list[int] = []
    done = False
    at = 3 if body.startswith(b"\xef\xbb\xbf") else 0
    while at < len(body) and not done:
        blank = _BLANK.search(body, at)
        end = blank.start() if blank else len(body)
        payload = _payload(body[at:end])
        if payload is not None and payload.strip() == b"[DONE]":
            done = True
        elif payload is not None:
            payloads.append(payload)
            ends.append(at + len(body[at:end].rstrip(b"\r\n")))
        at = blank.end() if blank else len(body)
    return Events(payloads, ends, done)


def _payload(event: bytes) -> bytes | None:
    """The joined data lines of one event; llama.cpp's ``error:`` field becomes an error object. None: no data."""
    data = []
    for line in _LINE.split(event):
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data" and colon:
            data.append(value)
        elif name == b"error" and colon:
            return b'{"error":' + value + b"}"
        elif name.lstrip().startswith(b"{"):
            return event  # bare JSON where an event should be: an error body without its framing
    return b"\n".join(data) if data else None

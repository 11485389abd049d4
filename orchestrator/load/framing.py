"""The framing of a response's body: where it ends, and how to take it off.

Never while it streams: the end is checked once, when the last bytes look like one, and the rest is done when the
request is over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from orchestrator.load.http import BadHttp, Head

MAX_CHUNK_LINE_BYTES = 4096
END_MARK = b"0\r\n\r\n"  # how a chunked body ends when it has no trailers

LAST_READS = 16  # looked at for one whole chunk
EVENT_END = b"}\n\n\r\n"  # of a chunk that is one event
_LARGEST = 8192
_NEVER = b"\xff"  # no text begins with it


def _event_starts() -> list[bytes]:
    """By the length of a read: how it begins when it is one whole chunk with an event."""
    starts = [_NEVER] * (_LARGEST + 16)
    for size in range(len(b"data: {}\n\n"), _LARGEST):
        digits = b"%x" % size
        starts[len(digits) + 4 + size] = digits + b"\r\ndata: {"
    return starts


_STARTS = _event_starts()


def chunk_line(read: bytes) -> bytes | None:
    """The size line of a read that is exactly one chunk with one event; None when it is not."""
    start = _STARTS[len(read)] if len(read) < len(_STARTS) else _NEVER
    return start.partition(b"data")[0] if read.startswith(start) and read.endswith(EVENT_END) else None


def since_event_chunk(reads: Sequence[bytes]) -> bytes | None:
    """What came after the last read that is exactly one chunk with one event, where a chunk begins; None: not among the
    last few. It says where a chunked body ends for a fraction of the price of the whole response. Only a server that
    sends, inside of a larger chunk, what looks like a chunk of its own deceives it; digest.py looks at the whole.
    """
    for back in range(2, min(len(reads), LAST_READS) + 1):
        if chunk_line(reads[-back]) is not None:
            return b"".join(reads[1 - back :])
    return None


@dataclass(frozen=True, slots=True)
class Body:
    """An unwrapped body and where it lay in the raw response.

    It came in pieces (chunks, or one): piece i ends (exclusive) at byte ``ends[i]`` of ``content`` and at byte
    ``raw_ends[i]`` of the raw response. ``size``: raw bytes up to the end of the body; what follows is not ours.
    """

    content: bytes
    ends: list[int]
    raw_ends: list[int]
    complete: bool
    size: int

    def raw_positions(self, positions: Sequence[int]) -> list[int]:
        """Exclusive ends within ``content``, ascending, as exclusive ends within the raw response."""
        found, piece = [], 0
        for position in positions:
            while self.ends[piece] < position:
                piece += 1
            found.append(self.raw_ends[piece] - self.ends[piece] + position)
        return found


def unwrap(raw: bytes, head: Head) -> Body:
    """Takes the framing off what has come so far. Raises BadHttp when it is broken."""
    if head.chunked:
        return unwrap_chunks(raw, head.size)
    body = raw[head.size :] if head.length is None else raw[head.size : head.size + head.length]
    whole = head.length is not None and len(body) == head.length
    size = head.size + len(body)
    return Body(body, [len(body)], [size], whole, size)


def unwrap_chunks(raw: bytes, at: int = 0) -> Body:
    """The same for a chunked body, or its rest from the start of a chunk at byte ``at`` of ``raw``."""
    return _plain_chunks(raw, at) or _any_chunks(raw, at)


def _plain_chunks(raw: bytes, at: int) -> Body | None:
    """A whole body in lower-case chunks that hold no CR LF, which is what engines send; None: look more closely.

    Splitting at all CR LF in one pass of C is right exactly when every second part is as long as the part before says.
    """
    parts = raw[at:].split(b"\r\n")
    if len(parts) < 5 or parts[-3:] != [b"0", b"", b""]:
        return None
    sizes, pieces = parts[0:-3:2], parts[1:-3:2]
    lengths = list(map(len, pieces))
    if len(sizes) != len(pieces) or max(lengths) >= len(_HEX) or sizes != list(map(_HEX.__getitem__, lengths)):
        return None
    framed = [length + len(size) + 4 for length, size in zip(lengths, sizes, strict=True)]
    raw_ends = [at - 2 + end for end in accumulate(framed)]
    return Body(b"".join(pieces), list(accumulate(lengths)), raw_ends, True, len(raw))


_HEX = [b"%x" % size for size in range(8192)]


def _any_chunks(raw: bytes, at: int) -> Body:
    """RFC 9112 section 7.1, extensions and trailers too. A last chunk is kept as far as it came."""
    pieces: list[bytes] = []
    raw_ends: list[int] = []
    complete, size_end = False, at
    while (line := raw.find(b"\r\n", at, at + MAX_CHUNK_LINE_BYTES)) >= 0:
        size = _chunk_size(raw[at:line])
        start = line + 2
        if size == 0:
            end = _trailers_end(raw, start)
            complete, size_end = end is not None, end or size_end
            break
        at = min(start + size, len(raw))
        pieces.append(raw[start:at])
        raw_ends.append(at)
        if not b"\r\n".startswith(raw[at : at + 2]):
            raise BadHttp(f"no line end after a chunk of {size} bytes")
        at += 2
        size_end = at
    else:
        if len(raw) - at > MAX_CHUNK_LINE_BYTES:
            raise BadHttp(f"not a chunk size: {raw[at : at + 60]!r}")
    return Body(b"".join(pieces), list(accumulate(map(len, pieces))), raw_ends, complete, size_end)


def _chunk_size(line: bytes) -> int:
    """The number before any extension. Raises BadHttp."""
    digits = line.partition(b";")[0].strip()
    if not _DIGITS.fullmatch(digits):
        raise BadHttp(f"not a chunk size: {line[:60]!r}")
    return int(digits, 16)


_DIGITS = re.compile(rb"[0-9A-Fa-f]{1,16}")


def _trailers_end(raw: bytes, at: int) -> int | None:
    """Where the empty line after the trailers ends; None: it is not here yet."""
    while (line := raw.find(b"\r\n", at)) >= 0:
        if line == at:
            return line + 2
        at = line + 2
    return None

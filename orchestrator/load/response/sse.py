"""Server-sent events of a body, or of a part of one that ends with an event: payloads, and where each ended.

The usual stream (``data: {...}`` and an empty line, ``\\n`` only) is split in one pass of C; everything else the
standard allows takes a slower way to the same result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

_FIRST, _BETWEEN, _LAST = b"data: ", b"\n\ndata: ", b"\n\ndata: [DONE]\n\n"

# an empty line after a line, of any of the three kinds; atomic, so that \r\n is never taken for two line ends
_BLANK = re.compile(rb"(?>\r\n|\n|\r)(?:(?>\r\n|\n|\r))+")
_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Events:
    """Event i holds ``payloads[i]`` and ended (exclusive) at byte ``ends[i]``. ``done``: a [DONE] came after them."""

    payloads: list[bytes]
    ends: list[int]
    done: bool


def split(body: bytes) -> Events:
    """The events of a body without comments, pings and [DONE]. What follows [DONE] is left out."""
    return _split_plain(body) or _split_any(body)


def _split_plain(body: bytes) -> Events | None:
    """The usual stream: every event one line ``data: ...``, then an empty line; None when it is not quite that."""
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
    """The data lines of one event joined; llama.cpp's ``error:`` field becomes an error object; None: no data."""
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

"""Server-sent events of a finished body: payloads, where each ended, and their JSON.

The usual stream (``data: {...}`` and an empty line, ``\\n`` only) is split in one pass of C; everything else the
standard allows takes a slower way to the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import orjson

BATCH = 256  # events decoded at once: bounds how long one step keeps the client from its sockets

# an empty line after a line, of any of the three kinds; atomic, so that \r\n is never taken for two line ends
_BLANK = re.compile(rb"(?>\r\n|\n|\r)(?:(?>\r\n|\n|\r))+")
_LINE = re.compile(rb"\r\n|\n|\r")


@dataclass(slots=True)
class Events:
    """``payloads[i]`` ended (exclusive) at byte ``ends[i]`` of the body. ``done``: a [DONE] came after them."""

    payloads: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    done: bool = False


def split(body: bytes) -> Events:
    """The payloads of a body's events, without comments, pings and [DONE]. What follows [DONE] is left out."""
    events = _split_plain(body)
    return events if events is not None else _split_any(body)


def _split_plain(body: bytes) -> Events | None:
    """The usual stream; None when it is not quite that."""
    if b"\r" in body:
        return None
    parts = body.split(b"\n\n")
    if parts[-1]:
        return None
    parts.pop()
    head = b"data: " if body.startswith(b"data: ") else b"data:"
    skip = len(head)
    payloads = [part[skip:] for part in parts if part.startswith(head)]
    if len(payloads) != len(parts) or body.count(b"\n") != 2 * len(parts):
        return None
    ends = list(accumulate([len(part) + 2 for part in parts]))
    events = Events(payloads, [end - 2 for end in ends])
    if payloads and payloads[-1] == b"[DONE]":
        events.done = True
        payloads.pop()
        events.ends.pop()
    return None if b"[DONE]" in payloads else events


def _split_any(body: bytes) -> Events:
    """Any stream that follows the standard, and a last event whose empty line is missing."""
    events = Events()
    at = 3 if body.startswith(b"\xef\xbb\xbf") else 0
    while at < len(body) and not events.done:
        blank = _BLANK.search(body, at)
        end = blank.start() if blank else len(body)
        payload = _payload(body[at:end])
        if payload is not None and payload.strip() == b"[DONE]":
            events.done = True
        elif payload is not None:
            events.payloads.append(payload)
            events.ends.append(at + len(body[at:end].rstrip(b"\r\n")))
        at = blank.end() if blank else len(body)
    return events


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


def decode(payloads: list[bytes]) -> Iterator[list[Any]]:
    """The JSON values of payloads in batches; one that is no JSON comes as its bytes."""
    for start in range(0, len(payloads), BATCH):
        batch = payloads[start : start + BATCH]
        try:
            values = orjson.loads(b"[" + b",".join(batch) + b"]")
        except orjson.JSONDecodeError:
            values = []
        # a payload such as `1,2` would shift all after it: then each one is decoded by itself
        yield values if len(values) == len(batch) else [_decode_one(payload) for payload in batch]


def _decode_one(payload: bytes) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        pass
    try:  # bytes that are no UTF-8 inside of a string spoil a character, not the event
        return orjson.loads(payload.decode("utf-8", "replace"))
    except orjson.JSONDecodeError:
        return payload

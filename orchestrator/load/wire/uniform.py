"""Reads that differ only within their choice: the bulk of an OpenAI stream, decoded for a third of the price.

An engine that is not slowed down writes one chunk with one event per token, and all that changes from one to the next
is inside ``"choices":[…]``. Those reads are recognised by comparing their two ends with a reference; only the choice is
looked at, and where it lists token ids only those. Whatever is different in any way goes the general way. The result is
the same (tests compare the two).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from operator import and_
from typing import Any

import orjson

from orchestrator.load.framing import chunk_line

MIN_READS = 32  # fewer are not worth the looking
LAST_READS = 4  # decoded in any case: one of them says why the stream ended
_TOKEN_IDS = re.compile(rb'"token_ids": ?\[([0-9][0-9, ]*)\]')
_OPENING = re.compile(rb'"choices": ?\[')


@dataclass(frozen=True, slots=True)
class Uniform:
    """``matches[i]``: read i is uniform. ``tokens``: counts of the first of them; ``choices``: those after, decoded."""

    matches: list[bool]
    tokens: list[int]
    choices: list[Any]


def uniform_reads(reads: Sequence[bytes]) -> Uniform | None:
    """The uniform ones of some reads; None when they are not of that kind."""
    envelope = _envelope(reads[len(reads) // 2]) if len(reads) >= MIN_READS else None
    if envelope is None:
        return None
    opening, closing = envelope
    starts = {length: b"%x\r\n%b" % (_payload_bytes(length), opening) for length in set(map(len, reads))}
    opens = map(bytes.startswith, reads, map(starts.__getitem__, map(len, reads)))
    matches = list(map(and_, opens, map(bytes.endswith, reads, repeat(closing))))
    found = list(compress(reads, matches))
    tokens = [] if b'"token_ids"' in opening + closing else _count_ids(found[:-LAST_READS])
    cut = -len(closing)
    choices = _decode([read[len(starts[len(read)]) : cut] for read in found[len(tokens) :]])
    return None if choices is None else Uniform(matches, tokens, choices)


def _payload_bytes(length: int) -> int:
    """The chunk size within a read of that length: digits, CR LF, payload, CR LF. 0 when there is none."""
    for digits in range(1, 8):
        size = length - digits - 4
        if size > 0 and len(b"%x" % size) == digits:
            return size
    return 0


def _count_ids(reads: list[bytes]) -> list[int]:
    """How many token ids each read lists; nothing when they do not all list some.

    A quote inside of a JSON string is written ``\\"``, so what is found here is a name, never text.
    """
    found = _TOKEN_IDS.findall(b"".join(reads))
    if len(found) != len(reads):
        return []
    return [ids.count(b",") + 1 for ids in found] if b"," in b"".join(found) else [1] * len(found)


def _envelope(reference: bytes) -> tuple[bytes, bytes] | None:
    """What stands before and after the one choice of a plain token event; None when the read is not such a one."""
    line = chunk_line(reference)
    found = _OPENING.search(reference)
    if line is None or found is None:
        return None
    end = reference.rfind(b"]")
    try:
        event = orjson.loads(reference[len(line) + len(b"data: ") : -len(b"\n\n\r\n")])
        plain = event["choices"] == [orjson.loads(reference[found.end() : end])]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if not plain or event.get("usage") or event.get("error"):
        return None
    return reference[len(line) : found.end()], reference[end:]


def _decode(inner: list[bytes]) -> list[Any] | None:
    """Their JSON values; None when one of them is not exactly one value."""
    try:
        values: list[Any] = orjson.loads(b"[%b]" % b",".join(inner))
    except orjson.JSONDecodeError:
        return None
    return values if len(values) == len(inner) else None

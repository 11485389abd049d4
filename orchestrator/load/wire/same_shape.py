"""A short way to count OpenAI events that differ from the first one only in text and token id.

The first event is examined by the general way (openai.py). An event with the same bytes before the
text, between text and token id, and after that holds the same fields; only its text and its id are
examined here. The general way takes all events where one of them differs in anything else, so this
file saves time and decides nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

from orchestrator.load.wire.parsed import UNKNOWN, Parsed

Count = Callable[[list[bytes], Parsed], bool]

_TEXT = re.compile(rb'"(?:text|content)":"((?:[^"\\\n]|\\.)*)"')
_TOKEN_ID = re.compile(rb'"token_ids":\[([0-9]+)\]')


@dataclass(frozen=True, slots=True)
class Shape:
    """The bytes of an event around its text and its token id. ``between``: the bytes from the text
    to the id; None where the event has no id after its text.
    """

    head: bytes
    between: bytes | None
    tail: bytes


def shape_of(event: bytes) -> Shape | None:
    """The shape of an event; None where it has no text, or where a backslash outside the text makes
    it hard to say where strings end.
    """
    text = _TEXT.search(event)
    if text is None:
        return None
    head, rest = event[: text.start(1)], event[text.end(1) :]
    if b"\\" in head or b"\\" in rest:
        return None
    token_id = _TOKEN_ID.search(rest)
    if token_id is None:
        return Shape(head, None, rest)
    return Shape(head, rest[: token_id.start(1)], rest[token_id.end(1) :])


def count_same_shape(events: list[bytes], parsed: Parsed, count: Count) -> bool:
    """Counts events of one shape. ``count``: the general way. False: nothing was added."""
    shape = shape_of(events[0])
    first = Parsed()
    if shape is None or not count(events[:1], first):
        return False
    has_id = shape.between is not None
    if first.tokens != [1 if has_id else UNKNOWN]:
        return False  # its ids stand in another place
    texts = _texts(events, shape)
    if texts is None or not _are_strings(texts):
        return False
    if not has_id and not all(texts):
        return False
    parsed.tokens += first.tokens * len(events)
    parsed.source = first.source or parsed.source
    return True


def _texts(events: list[bytes], shape: Shape) -> list[bytes] | None:
    """The text of each event; None where an event has another shape."""
    removed_bytes = len(shape.head) + len(shape.tail)
    rests = list(map(bytes.removesuffix, events, repeat(shape.tail)))
    id_bytes = 0
    if shape.between is not None:
        removed_bytes += len(shape.between)
        with_ids = list(map(len, rests))
        rests = list(map(bytes.rstrip, rests, repeat(b"0123456789")))
        without_ids = list(map(len, rests))
        if any(map(operator.eq, with_ids, without_ids)):
            return None
        id_bytes = sum(with_ids) - sum(without_ids)
        rests = list(map(bytes.removesuffix, rests, repeat(shape.between)))
    texts = list(map(bytes.removeprefix, rests, repeat(shape.head)))
    # each part is removed whole or not at all, so the bytes are as few as this only if all were
    text_bytes = sum(map(len, events)) - id_bytes - removed_bytes * len(events)
    return texts if sum(map(len, texts)) == text_bytes else None


def _are_strings(texts: list[bytes]) -> bool:
    """Whether each text is the inside of a JSON string: it holds no quote that ends it, and does
    not escape the quote that follows.
    """
    lines = b"\n".join(texts)
    if lines.count(b"\n") != len(texts) - 1:
        return False
    if b"\\" in lines:
        # a run of backslashes begins with one that escapes, so pairs are taken from its left
        lines = lines.replace(rb"\\", b"").replace(rb"\"", b"")
    return b'"' not in lines and b"\\\n" not in lines and not lines.endswith(b"\\")

"""Counts the plain events of a stream without decoding them: a short cut that decides nothing.

An engine that is not held up writes one chunk per token. A read that holds exactly one such chunk
is recognised by how it begins and ends, and its tokens are counted by patterns. Everything else is
left to be decoded (response/reader.py), with the same result. That saves two thirds of the CPU
time. Reads are counted while a long stream still runs, too: so a token in flight takes only a few
bytes, and the client does not stop for long when a long answer ends.

Only client.py imports this file, and calls ``fast_path_of``. With None in place of that call all
events are decoded, and this file and its tests can be deleted.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress, repeat
from operator import and_

from orchestrator.load.in_flight import InFlight
from orchestrator.load.wire.parsed import UNKNOWN, Parsed

# Counts the events (their JSON) of one API, and adds their tokens to what was parsed. Returns
# False, and adds nothing, where one of them may hold something else.
PayloadCounter = Callable[[list[bytes], Parsed], bool]

AHEAD_READS = 128  # reads that must wait before those of a running stream are counted
MIN_READS = 32  # with fewer it is not worth it
LAST_READS = 4  # the last reads are always decoded: they may hold why the stream ended
READS_AT_ONCE = 256  # counted in one step: about 0.3 ms away from the sockets
READ_END = b"}\n\n\r\n"  # of JSON, of its event, of its chunk


class FastPath:
    """Counts the plain events of one API's streams: an ``EventCounter`` (response/reader.py)."""

    def __init__(self, counter: PayloadCounter) -> None:
        self._counter = counter

    def can_count(self, request: InFlight, least: int = AHEAD_READS) -> bool:
        """Whether at least ``least`` reads wait that may be counted. Replies that are needed as
        text are decoded whole.
        """
        if request.end_marker == b"" or request.parsed.texts is not None:
            return False
        return len(request.parts) - LAST_READS - request.undecoded >= least

    def count_rest(self, request: InFlight) -> Iterator[None]:
        """Counts the plain reads of a response that is over, in steps."""
        while self.can_count(request, MIN_READS):
            self.count(request)
            yield

    def count(self, request: InFlight) -> None:
        """Counts the plain reads among the next ones and drops their bytes. The others stay, to be
        decoded. Only after ``can_count``.
        """
        start = request.undecoded
        stop = min(start + READS_AT_ONCE, len(request.parts) - LAST_READS)
        parts = request.parts[start:stop]
        times = request.times[start:stop]
        is_plain, payloads = _single_events(parts)
        if not payloads or not self._counter(payloads, request.parsed):
            request.undecoded = stop
            return
        request.event_ns.extend(compress(times, is_plain))
        stays = [not plain for plain in is_plain]
        request.parts[start:stop] = compress(parts, stays)
        request.times[start:stop] = compress(times, stays)
        request.undecoded += sum(stays)


def fast_path_of(wire: str) -> FastPath | None:
    """The fast path of a wire; None where it has none."""
    counter = COUNTERS.get(wire)
    return None if counter is None else FastPath(counter)


def _single_events(reads: list[bytes]) -> tuple[list[bool], list[bytes]]:
    """Which reads are exactly one chunk with one event (``data:``, JSON, an empty line), and the
    JSON of those.
    """
    lengths = list(map(len, reads))
    # how a read of each length begins if it is one chunk with one event, and where its JSON begins
    beginnings = {length: b"%x\r\ndata: {" % _chunk_bytes(length) for length in set(lengths)}
    json_at = {length: len(beginning) - 1 for length, beginning in beginnings.items()}
    begins = map(bytes.startswith, reads, map(beginnings.__getitem__, lengths))
    ends = map(bytes.endswith, reads, repeat(READ_END))
    is_single = list(map(and_, begins, ends))
    payloads = [read[json_at[len(read)] : -4] for read in compress(reads, is_single)]
    return is_single, payloads


def _chunk_bytes(length: int) -> int:
    """The size of the one chunk that a read of this length holds: its digits, CR LF, the chunk and
    CR LF make up the read. 0 where no size fits.
    """
    for digits in range(1, 8):
        size = length - digits - len(b"\r\n\r\n")
        if size > 0 and len(b"%x" % size) == digits:
            return size
    return 0


# -- events of OpenAI's APIs

# The events are searched as lines of one text. _TOKEN_IDS and _PIECE match up to the end of the
# line, so that each matches at most once in an event.
_TOKEN_IDS = re.compile(rb'"token_ids":\[([0-9][0-9,]*)\][^\n]*')
_THOUGHT = re.compile(rb'"(?:reasoning\w*|thinking)":(?!null)')
_PIECE = re.compile(rb'"(?:text|content)":"[^"\n][^\n]*')
# fields that are absent or null in an event that holds nothing but tokens
_NOTHING_ELSE = (b'"usage"', b'"finish_reason"')


def count_openai(events: list[bytes], parsed: Parsed) -> bool:
    """Counts events that hold nothing but tokens. False: nothing was added."""
    return count_same_shape(events, parsed) or count_any_shape(events, parsed)


def count_any_shape(events: list[bytes], parsed: Parsed) -> bool:
    """Counts events of any shape that hold nothing but tokens. False: nothing was added."""
    joined = _joined(events)
    if not _hold_tokens_only(joined, len(events)):
        return False
    ids = _TOKEN_IDS.findall(joined)
    if not ids:
        return _count_texts(joined, len(events), parsed)
    may_think = b'"reasoning' in joined or b'"thinking' in joined
    if may_think and _THOUGHT.search(joined):
        return False  # decode, to find where the answer begins
    if len(ids) != len(events) or joined.count(b'"token_ids":[') != len(events):
        return False
    if b"," in b"".join(ids):
        parsed.tokens += [event_ids.count(b",") + 1 for event_ids in ids]
    else:
        parsed.tokens += [1] * len(events)
    parsed.source = "token_ids"
    return True


def _joined(events: list[bytes]) -> bytes:
    """The events, one a line. The fields before the choices (an id, a model) are left out where
    they are the same in all events and none of them is looked for.
    """
    common = events[0].partition(b'"choices":[{')[0]
    cut = len(common)
    if not all(map(bytes.startswith, events, repeat(common))):
        cut = 0
    if any(name in common for name in (*_NOTHING_ELSE, b'"error"')):
        cut = 0
    return b"\n".join([event[cut:] for event in events])


def _hold_tokens_only(joined: bytes, events: int) -> bool:
    """Whether each event has one choice, and none has an error, a usage or a finish reason.

    A quote within a JSON string is written \\", so what is found here are names of fields, never
    text.
    """
    if joined.count(b'"choices":[{') != events or joined.count(b"\n") != events - 1:
        return False
    if b'"error"' in joined:
        return False
    return all(_is_absent_or_null(name, joined) for name in _NOTHING_ELSE)


def _count_texts(joined: bytes, events: int, parsed: Parsed) -> bool:
    """Counts events without token ids: each must hold one text that is not empty. False:
    nothing was added.
    """
    fields = joined.count(b'"text":"') + joined.count(b'"content":"')
    if fields != events or len(_PIECE.findall(joined)) != events:
        return False
    parsed.tokens += [UNKNOWN] * events
    return True


def _is_absent_or_null(name: bytes, joined: bytes) -> bool:
    """Whether a field is absent or null in every event."""
    return joined.count(name) == joined.count(name + b":null")


# -- a still shorter way, for events that differ from the first one only in text and token id. An
# event with the same bytes before its text, between text and token id, and after the id has the
# same fields. So only its text and its id are examined.

_TEXT = re.compile(rb'"(?:text|content)":"((?:[^"\\\n]|\\.)*)"')
_TOKEN_ID = re.compile(rb'"token_ids":\[([0-9]+)\]')


@dataclass(frozen=True, slots=True)
class EventShape:
    """The bytes of an event around its text and its token id. ``between``: the bytes from the text
    to the id; None where the event has no id after its text.
    """

    head: bytes
    between: bytes | None
    tail: bytes


def shape_of(event: bytes) -> EventShape | None:
    """The shape of an event. None where it has no text, or where a backslash outside the text makes
    it hard to say where strings end.
    """
    text = _TEXT.search(event)
    if text is None:
        return None
    head = event[: text.start(1)]
    rest = event[text.end(1) :]
    if b"\\" in head or b"\\" in rest:
        return None
    token_id = _TOKEN_ID.search(rest)
    if token_id is None:
        return EventShape(head, None, rest)
    return EventShape(head, rest[: token_id.start(1)], rest[token_id.end(1) :])


def count_same_shape(events: list[bytes], parsed: Parsed) -> bool:
    """Counts events that differ from the first one only in text and token id. False: nothing was
    added.
    """
    shape = shape_of(events[0])
    first = Parsed()
    if shape is None or not count_any_shape(events[:1], first):
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


def _texts(events: list[bytes], shape: EventShape) -> list[bytes] | None:
    """The text of each event; None where an event has another shape."""
    shape_bytes = len(shape.head) + len(shape.tail)
    texts = list(map(bytes.removesuffix, events, repeat(shape.tail)))
    id_bytes = 0
    if shape.between is not None:
        shape_bytes += len(shape.between)
        lengths_with_id = list(map(len, texts))
        texts = list(map(bytes.rstrip, texts, repeat(b"0123456789")))
        lengths_without_id = list(map(len, texts))
        if any(map(operator.eq, lengths_with_id, lengths_without_id)):
            return None  # an event without an id
        id_bytes = sum(lengths_with_id) - sum(lengths_without_id)
        texts = list(map(bytes.removesuffix, texts, repeat(shape.between)))
    texts = list(map(bytes.removeprefix, texts, repeat(shape.head)))
    # from an event of another shape not all parts were removed, so more bytes than these are left
    text_bytes = sum(map(len, events)) - id_bytes - shape_bytes * len(events)
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


COUNTERS: Mapping[str, PayloadCounter] = {
    "openai_completions": count_openai,
    "openai_chat": count_openai,
}

"""A finished exchange becomes a row and its chunk gaps; the raw bytes are then dropped.

Runs in the gaps between reads, in steps: a generator that yields after every few hundred events.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise

import numpy as np

from orchestrator.load.exchange import Exchange
from orchestrator.load.framing import Body, unwrap
from orchestrator.load.http import BadHttp
from orchestrator.load.outcome import Outcome, failed, of_status, of_stream
from orchestrator.load.settle import can_settle, settle
from orchestrator.load.wire import UNKNOWN, Parsed, Wire
from orchestrator.load.wire.sse import Events, decode_one, split
from orchestrator.spec.dialect import Dialect

_MAX_GAP_US = 2**31 - 1
_MAX_CHUNK_TOKENS = 2**15 - 1


@dataclass(slots=True)
class Digest:
    """What a request's row needs beside the schedule. Instants are ``time.monotonic_ns``.

    ``gaps_us``: between successive content chunks. ``tokens_per_chunk``: None where each held one.
    """

    outcome: Outcome
    parsed: Parsed
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    chunks: int = 0
    coalesced_chunks: int = 0
    coalesced_reads: int = 0
    output_tokens: int | None = None
    counted: int | None = None
    source: str | None = None
    itl_kind: str | None = None
    http_status: int | None = None
    gaps_us: array[int] | None = None  # int32
    tokens_per_chunk: array[int] | None = None  # int16


def digest(exchange: Exchange, wire: Wire, dialect: Dialect) -> Iterator[Digest | None]:
    """Yields None after every step and the digest at the end. Never raises for what a server sent."""
    parsed = exchange.parsed
    result = Digest(failed(exchange.error_class or "garbage", exchange.error or ""), parsed)
    if exchange.times:
        result.first_byte_ns = exchange.times[0]
    head = exchange.head
    if head is None:
        yield result
        return
    result.http_status = head.status
    while can_settle(exchange, wire):
        settle(exchange, wire)
        yield None
    try:
        body = unwrap(b"".join(exchange.parts), head)
    except BadHttp as error:
        result.outcome = failed(exchange.error_class or "garbage", exchange.error or str(error))
        yield result
        return
    if head.chunked and not body.complete and exchange.error_class is None:
        result.outcome = failed("garbage", "the response went on after what looked like its end")
    elif head.status == 200 and (exchange.settled or _is_stream(body.content)):
        events = split(body.content)
        for batch in events.decode():
            wire.read(batch, parsed)
            yield None
        _count(result, exchange, _reads_of(events, body, exchange.parts))
        if exchange.error_class is None:
            result.outcome = of_stream(parsed, events.done, exchange.output_tokens, result.output_tokens, dialect)
    elif exchange.error_class is None:
        result.outcome = of_status(head, body.content) or _no_stream(body.content, parsed, wire)
    yield result


def _reads_of(events: Events, body: Body, parts: list[bytes]) -> list[int]:
    """The read in which each event was complete."""
    ends = list(accumulate(map(len, parts)))
    found, read = [], 0
    for position in body.raw_positions(events.ends):
        while ends[read] < position:
            read += 1
        found.append(read)
    return found


def _is_stream(content: bytes) -> bool:
    """Told by the body, not by its Content-Type: some servers send streams as text/plain."""
    return not content.lstrip().startswith((b"{", b"[", b"<")) or b"\ndata:" in content


def _no_stream(content: bytes, parsed: Parsed, wire: Wire) -> Outcome:
    """A body without events in a response with status 200: an error object, mostly."""
    wire.read([decode_one(content)], parsed)
    if parsed.error is not None:
        return failed("stream_error", parsed.error)
    return failed("garbage", f"no event stream: {content[:200].decode('utf-8', 'replace')}")


def _count(result: Digest, exchange: Exchange, reads: list[int]) -> None:
    """Times and token counts of the content chunks. ``reads``: those of the events that were not settled."""
    parsed, tokens = result.parsed, result.parsed.tokens
    if UNKNOWN in tokens:
        parsed.source = None  # some events told their count, others did not: the parts do not make a whole
    result.chunks = chunks = len(tokens) - tokens.count(0)
    counted = sum(tokens) if parsed.source else chunks
    result.counted = counted or None
    result.output_tokens = parsed.output_tokens if parsed.output_tokens is not None else result.counted
    result.source = parsed.source or ("usage" if parsed.output_tokens is not None else "chunks" if chunks else None)
    if not chunks:
        return
    _count_coalesced(result, list(compress(reads, tokens[len(exchange.settled) :])))
    at_ns = np.array([*exchange.settled, *map(exchange.times.__getitem__, reads)], np.int64)
    held = np.array(tokens, np.int64)
    assert len(held) == len(at_ns), "one count and one instant for every event"
    if exchange.settled:  # those that were not settled stand between them
        order = np.argsort(at_ns, kind="stable")
        at_ns, held = at_ns[order], held[order]
    content = held != 0
    stamps = at_ns[content]
    result.first_token_ns, result.last_token_ns = int(stamps[0]), int(stamps[-1])
    # rounded as positions, so that the gaps' rounding does not add up
    micros = (stamps - stamps[0] + 500) // 1000
    result.gaps_us = array("i", np.minimum(micros[1:] - micros[:-1], _MAX_GAP_US).astype(np.int32).tobytes())
    if not parsed.source:
        result.tokens_per_chunk = spread(result.output_tokens or chunks, chunks)
    elif counted != chunks or tokens.count(1) != chunks:
        result.tokens_per_chunk = array("h", np.minimum(held[content], _MAX_CHUNK_TOKENS).astype(np.int16).tobytes())
    result.itl_kind = "token" if result.tokens_per_chunk is None else "chunk"


def _count_coalesced(result: Digest, reads: list[int]) -> None:
    """Content events that shared a read (a settled read holds one event)."""
    shared = [b for a, b in pairwise(reads) if a == b]
    result.coalesced_chunks = len(shared)
    result.coalesced_reads = len(set(shared))


def spread(total: int, chunks: int) -> array[int] | None:
    """A known total over chunks of unknown counts, as evenly as whole numbers go; None: one each."""
    if total == chunks:
        return None
    edges = [at * total // chunks for at in range(chunks + 1)]
    return array("h", [min(b - a, _MAX_CHUNK_TOKENS) for a, b in pairwise(edges)])

"""A finished exchange becomes a row and its chunk gaps; the raw bytes are then dropped.

Runs in the gaps between reads, in steps: a generator that yields after every few hundred events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.load.exchange import Exchange
from orchestrator.load.http import BadHttp, Body, unwrap
from orchestrator.load.outcome import Outcome, failed, of_status, of_stream
from orchestrator.load.wire import UNKNOWN, Parsed, Wire
from orchestrator.load.wire.sse import Events, decode, split
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
    gaps_us: NDArray[np.int32] | None = None
    tokens_per_chunk: NDArray[np.int16] | None = None


def digest(exchange: Exchange, wire: Wire, dialect: Dialect, want_reply: bool = False) -> Iterator[Digest | None]:
    """Yields None after every step and the digest at the end. Never raises for what a server sent."""
    parsed = Parsed(texts=[] if want_reply else None)
    result = Digest(failed(exchange.error_class or "garbage", exchange.error or ""), parsed)
    if exchange.times:
        result.first_byte_ns = exchange.times[0]
    head = exchange.head
    if head is None:
        yield result
        return
    result.http_status = head.status
    raw_ends = np.cumsum(np.fromiter(map(len, exchange.parts), np.int64, len(exchange.parts)))
    body = exchange.body or _unwrap(exchange, result)
    content = b"".join(body.pieces)
    if head.status == 200 and _is_stream(content):
        events = split(content)
        for batch in decode(events.payloads):
            wire.read(batch, parsed)
            yield None
        done = events.done
        _count(result, events, body, raw_ends, exchange.times, exchange.output_tokens)
        if exchange.error_class is None and result.outcome.error_class != "truncated":
            result.outcome = of_stream(parsed, done, exchange.output_tokens, result.output_tokens, dialect)
    elif exchange.error_class is None:
        result.outcome = of_status(head, content) or _no_stream(content, parsed, wire)
    yield result


def _unwrap(exchange: Exchange, result: Digest) -> Body:
    """The body of a response whose end the transport did not have to look for, or that was cut."""
    assert exchange.head is not None
    try:
        return unwrap(b"".join(exchange.parts), exchange.head)
    except BadHttp as error:
        result.outcome = failed(exchange.error_class or "garbage", exchange.error or str(error))
        return Body()


def _is_stream(content: bytes) -> bool:
    """Told by the body, not by its Content-Type: some servers send streams as text/plain."""
    return not content.lstrip().startswith((b"{", b"[", b"<")) or b"\ndata:" in content


def _no_stream(content: bytes, parsed: Parsed, wire: Wire) -> Outcome:
    """A body without events in a response with status 200: an error object, mostly."""
    for batch in decode([content]):
        wire.read(batch, parsed)
    if parsed.error is not None:
        return failed("stream_error", parsed.error)
    return failed("garbage", f"no event stream: {content[:200].decode('utf-8', 'replace')}")


def _count(
    result: Digest, events: Events, body: Body, raw_ends: NDArray[np.int64], times: list[int], asked: int
) -> None:
    """Times and token counts of the content chunks."""
    parsed = result.parsed
    tokens = np.array(parsed.tokens, dtype=np.int64)
    content = tokens != 0
    result.chunks = chunks = int(np.count_nonzero(content))
    if bool((tokens == UNKNOWN).any()):
        parsed.source = None  # some events told their count, others did not: the parts do not make a whole
    known = parsed.source is not None
    result.counted = int(tokens.clip(0).sum()) if known else (chunks or None)
    result.output_tokens = parsed.output_tokens if parsed.output_tokens is not None else result.counted
    result.source = parsed.source or ("usage" if parsed.output_tokens is not None else "chunks" if chunks else None)
    if not chunks:
        return
    reads = _reads_of(np.array(events.ends, dtype=np.int64)[content], body, raw_ends)
    stamps = np.array(times, dtype=np.int64)[reads]
    result.first_token_ns, result.last_token_ns = int(stamps[0]), int(stamps[-1])
    micros = (stamps - stamps[0] + 500) // 1000  # rounded as positions, so that the gaps' rounding does not add up
    result.gaps_us = np.minimum(np.diff(micros), _MAX_GAP_US).astype(np.int32)
    same_read = np.diff(reads) == 0
    result.coalesced_chunks = int(np.count_nonzero(same_read))
    if result.coalesced_chunks:
        result.coalesced_reads = len(np.unique(reads[1:][same_read]))
    per_chunk = tokens[content]
    if not known:
        per_chunk = _spread(result.output_tokens or chunks, chunks)
    if bool((per_chunk != 1).any()):
        result.tokens_per_chunk = per_chunk.clip(0, _MAX_CHUNK_TOKENS).astype(np.int16)
    result.itl_kind = "token" if result.tokens_per_chunk is None else "chunk"


def _reads_of(ends: NDArray[np.int64], body: Body, raw_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The read in which each byte position (exclusive ends within the body) arrived."""
    piece_ends = np.array(body.piece_ends(), dtype=np.int64)
    piece = np.searchsorted(piece_ends, ends, side="left")
    raw = np.array(body.raw_ends, dtype=np.int64)[piece] - (piece_ends[piece] - ends)
    return np.searchsorted(raw_ends, raw, side="left")


def _spread(total: int, chunks: int) -> NDArray[np.int64]:
    """A known total over chunks of unknown counts, as evenly as whole numbers go."""
    return np.diff(np.arange(chunks + 1, dtype=np.int64) * total // chunks)

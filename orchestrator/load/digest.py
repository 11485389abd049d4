"""A finished exchange becomes a row and its chunk gaps; the raw bytes are then dropped.

Runs in the gaps between reads, in steps: a generator that yields after every few hundred events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.load.exchange import Exchange
from orchestrator.load.framing import Body, unwrap
from orchestrator.load.http import BadHttp
from orchestrator.load.outcome import Outcome, failed, of_status, of_stream
from orchestrator.load.settle import can_settle, settle
from orchestrator.load.wire import UNKNOWN, Parsed, Wire
from orchestrator.load.wire.sse import Events, decode_one, split
from orchestrator.spec.dialect import Dialect

Ints = NDArray[np.int64]

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
    if head.status == 200 and (exchange.settled or _is_stream(body.content)):
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


def _reads_of(events: Events, body: Body, parts: list[bytes]) -> Ints:
    """The read in which each event was complete."""
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
    return np.searchsorted(ends, body.raw_positions(events.ends), side="left")


def _is_stream(content: bytes) -> bool:
    """Told by the body, not by its Content-Type: some servers send streams as text/plain."""
    return not content.lstrip().startswith((b"{", b"[", b"<")) or b"\ndata:" in content


def _no_stream(content: bytes, parsed: Parsed, wire: Wire) -> Outcome:
    """A body without events in a response with status 200: an error object, mostly."""
    wire.read([decode_one(content)], parsed)
    if parsed.error is not None:
        return failed("stream_error", parsed.error)
    return failed("garbage", f"no event stream: {content[:200].decode('utf-8', 'replace')}")


def _count(result: Digest, exchange: Exchange, event_reads: Ints) -> None:
    """Times and token counts of the content chunks. ``event_reads``: the reads of the events that were not settled."""
    parsed = result.parsed
    tokens = np.array(parsed.tokens, dtype=np.int64)
    if bool((tokens == UNKNOWN).any()):
        parsed.source = None  # some events told their count, others did not: the parts do not make a whole
    content = tokens != 0
    result.chunks = chunks = int(np.count_nonzero(content))
    known = parsed.source is not None
    result.counted = int(tokens.clip(0).sum()) if known else (chunks or None)
    result.output_tokens = parsed.output_tokens if parsed.output_tokens is not None else result.counted
    result.source = parsed.source or ("usage" if parsed.output_tokens is not None else "chunks" if chunks else None)
    if not chunks:
        return
    settled = len(exchange.settled)
    _count_coalesced(result, event_reads[content[settled:]])
    times = np.array(exchange.times, dtype=np.int64)[event_reads]
    stamps = np.concatenate([np.frombuffer(exchange.settled, np.int64), times])[content] if settled else times[content]
    order = np.argsort(stamps, kind="stable")
    stamps, tokens = stamps[order], tokens[content][order]
    result.first_token_ns, result.last_token_ns = int(stamps[0]), int(stamps[-1])
    micros = (stamps - stamps[0] + 500) // 1000  # rounded as positions, so that the gaps' rounding does not add up
    result.gaps_us = np.minimum(np.diff(micros), _MAX_GAP_US).astype(np.int32)
    if not known:
        tokens = _spread(result.output_tokens or chunks, chunks)
    if bool((tokens != 1).any()):
        result.tokens_per_chunk = tokens.clip(0, _MAX_CHUNK_TOKENS).astype(np.int16)
    result.itl_kind = "token" if result.tokens_per_chunk is None else "chunk"


def _count_coalesced(result: Digest, reads: Ints) -> None:
    """Content events that shared a read (a settled read holds one event)."""
    same_read = np.diff(reads) == 0
    result.coalesced_chunks = int(np.count_nonzero(same_read))
    if result.coalesced_chunks:
        result.coalesced_reads = len(np.unique(reads[1:][same_read]))


def _spread(total: int, chunks: int) -> Ints:
    """A known total over chunks of unknown counts, as evenly as whole numbers go."""
    return np.diff(np.arange(chunks + 1, dtype=np.int64) * total // chunks)

"""Token counts, and the times of chunks, from what a wire read of a stream."""

from __future__ import annotations

from array import array

import numpy as np

from orchestrator.base.arrays import Bools, Ints
from orchestrator.load.in_flight import InFlight
from orchestrator.load.request_record import RequestRecord, TokenGaps
from orchestrator.load.wire.parsed import MOST_COUNTED, Parsed
from orchestrator.results.outcomes import TokenCounts

# events closer than this, and than a tenth of their request's mean gap, came together
LUMP_NS = 200_000
MAX_GAP_US = 2**31 - 1
MAX_CHUNK_TOKENS = 2**15 - 1


def count_tokens(
    request: InFlight, running_source: str, tokens_per_step: int, start_ns: int
) -> None:
    """Fills in token counts, and the times of the chunks with content.

    ``running_source``: what a running count of this API is called. ``tokens_per_step``: so many
    tokens the engine makes in one step at most. ``start_ns``: the instant that times count from.
    """
    record, parsed = request.record, request.parsed
    assert len(parsed.tokens) == len(request.event_ns), "one count and one instant for every event"
    at_ns = np.frombuffer(request.event_ns, np.int64)
    if request.done_marker_ns is not None:
        _drop_late(parsed.tokens, at_ns, request.done_marker_ns)
    parsed.settle(running_source)
    # events that were counted while the stream ran stand before earlier ones
    order = np.argsort(at_ns, kind="stable")
    at_ns = at_ns[order]
    tokens_per_event = np.array(parsed.tokens, np.int64)[order]
    has_content = tokens_per_event != 0
    content_ns = at_ns[has_content]
    # content events that shared a read with the one before
    is_shared = content_ns[1:] == content_ns[:-1]
    arrivals = len(content_ns) - int(np.count_nonzero(is_shared))
    if not _is_plausible(parsed, order, has_content, arrivals):
        parsed.output_tokens = None
    _set_counts(record, parsed, len(content_ns))
    record.input_tokens = parsed.input_tokens
    record.cached_tokens = parsed.cached_tokens
    record.finish_reason = parsed.finish_reason
    if not len(content_ns):
        return
    first_answer_ns = _first_answer_ns(parsed.thoughts, order, has_content, at_ns)
    if first_answer_ns is not None:
        record.first_answer_ns = first_answer_ns - start_ns
    request.coalesced_reads = int(np.count_nonzero(is_shared)) - int(
        np.count_nonzero(is_shared[1:] & is_shared[:-1])
    )
    is_one_token_each = _is_one_token_each(record)
    chunk_ns, tokens_per_chunk, record.coalesced_chunks = _chunks(
        content_ns, np.abs(tokens_per_event[has_content]), tokens_per_step
    )
    record.chunks = len(chunk_ns)
    record.first_token_ns = int(chunk_ns[0]) - start_ns
    record.last_token_ns = int(chunk_ns[-1]) - start_ns
    several = None  # tokens of each chunk, where they are known and not all one
    if parsed.source is not None or is_one_token_each:
        record.first_chunk_tokens = int(min(tokens_per_chunk[0], MOST_COUNTED))
        if (tokens_per_chunk != 1).any():
            capped = np.minimum(tokens_per_chunk, MAX_CHUNK_TOKENS)
            several = array("h", capped.astype(np.int16).tobytes())
    record.gaps = TokenGaps(record.request_index, _gaps_us(chunk_ns), several)
    record.set_itl_kind()


def _set_counts(record: RequestRecord, parsed: Parsed, content_events: int) -> None:
    """Sets how many tokens came, as far as the stream says, and who says so."""
    record.chunks = content_events
    counted = content_events
    if parsed.source is not None:
        counted = min(sum(parsed.tokens), MOST_COUNTED)
    record.output_tokens_counted = counted or None
    record.output_tokens = record.output_tokens_counted
    if parsed.output_tokens is not None:
        record.output_tokens = parsed.output_tokens
    if parsed.source is not None:
        record.token_count_source = parsed.source
    elif parsed.output_tokens is not None:
        record.token_count_source = TokenCounts.USAGE
    elif content_events:
        record.token_count_source = TokenCounts.CHUNKS
    record.hidden_tokens = _hidden_tokens(record, parsed)


def _is_one_token_each(record: RequestRecord) -> bool:
    """Whether the engine's total shows that each event with content held one token."""
    streamed_tokens = record.chunks + (record.hidden_tokens or 0)
    return (
        record.token_count_source == TokenCounts.USAGE and record.output_tokens == streamed_tokens
    )


def _gaps_us(chunk_ns: Ints) -> array[int]:
    """The times between successive chunks. Positions are rounded, not gaps, so that rounding errors
    do not add up.
    """
    positions_us = (chunk_ns - chunk_ns[0] + 500) // 1000
    gaps_us = np.minimum(positions_us[1:] - positions_us[:-1], MAX_GAP_US)
    return array("i", gaps_us.astype(np.int32).tobytes())


def _drop_late(tokens: list[int], at_ns: Ints, done_ns: int) -> None:
    """Removes the tokens of events that came after the [DONE] and were counted without being
    decoded.
    """
    for event in np.flatnonzero(at_ns > done_ns):
        tokens[event] = 0


def _is_plausible(parsed: Parsed, order: Ints, has_content: Bools, arrivals: int) -> bool:
    """Whether the engine's last total can be the answer's length: no content came after it, and it
    is not below the number of instants at which content came.
    """
    if parsed.output_tokens is None:
        return True
    after = np.cumsum(order == parsed.total_event) > 0
    after &= order != parsed.total_event
    is_stale = not parsed.source and bool((after & has_content).any())
    return not is_stale and parsed.output_tokens >= arrivals


def _first_answer_ns(
    thoughts: list[int], order: Ints, has_content: Bools, at_ns: Ints
) -> int | None:
    """When the answer began after reasoning; None where the stream did not begin with reasoning."""
    if not thoughts:
        return None
    is_thought = np.zeros(order.size, np.bool_)
    is_thought[thoughts] = True
    is_thought = is_thought[order]
    after = np.cumsum(is_thought & has_content) > 0
    answers = np.flatnonzero(has_content & ~is_thought)
    if not answers.size or not after[answers[0]]:
        return None
    return int(at_ns[answers[0]])


def _chunks(at_ns: Ints, tokens: Ints, tokens_per_step: int) -> tuple[Ints, Ints, int]:
    """Content events as chunks: the chunks' instants and tokens, and how many chunks came together
    with the one before.

    Events form a lump where hardly any time lies between them. A lump of at most as many tokens as
    the engine makes in one step is that step: it is one chunk, complete with its last event.
    """
    gaps_ns = np.diff(at_ns)
    is_apart = gaps_ns > min(LUMP_NS, gaps_ns.sum() / (10 * max(gaps_ns.size, 1)))
    if is_apart.all():
        return at_ns, tokens, 0
    lump_starts = np.flatnonzero(np.concatenate(([True], is_apart)))
    lump_sizes = np.diff(lump_starts, append=len(at_ns))
    lump_tokens = np.add.reduceat(tokens, lump_starts)
    is_of_one_step = np.repeat(lump_tokens <= tokens_per_step, lump_sizes)
    chunk_ends = np.flatnonzero(np.concatenate((is_apart, [True])) | ~is_of_one_step)
    tokens_per_chunk = np.diff(np.cumsum(tokens)[chunk_ends], prepend=0)
    return at_ns[chunk_ends], tokens_per_chunk, len(chunk_ends) - len(lump_starts)


def _hidden_tokens(record: RequestRecord, parsed: Parsed) -> int | None:
    """Output tokens that were counted and not streamed: reasoning that the engine reports, and what
    its running count held before the first text. None where there is nothing of either.
    """
    total = record.output_tokens or 0
    reasoning = parsed.reasoning_tokens
    if reasoning is None and not parsed.unseen_tokens:
        return None
    if parsed.source is not None:
        hidden = total - (record.output_tokens_counted or 0)
    elif parsed.thoughts:
        hidden = 0
    else:
        hidden = reasoning or 0
    most = max(reasoning or 0, parsed.unseen_tokens)
    return max(0, min(hidden, most, total - record.chunks))

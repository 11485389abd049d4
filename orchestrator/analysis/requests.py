"""Rows of ``requests`` and ``token_events`` as numpy arrays over the Arrow buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.base.arrays import Bools, Floats, Ints
from orchestrator.results.columns import AT_ONCE, came_in_lumps, or_zero
from orchestrator.results.lazy_rows import Rows, slices
from orchestrator.results.outcomes import BUFFERED_SHARE, EXACT_SOURCES, RequestStatus
from orchestrator.results.window import MeasuredWindow

ROWS_PER_BLOCK = 8_192  # some 1.6 million gaps: a block's temporaries stay below 50 MB


@dataclass(frozen=True, slots=True)
class RequestParts:
    """Which part of a mix each request is of. ``codes``: indices of ``names``; below 0: of none."""

    names: tuple[str, ...]
    codes: Ints

    def of(self, name: str) -> Bools:
        """Which requests are of a part."""
        if name not in self.names:
            return np.zeros(self.codes.size, np.bool_)
        return np.asarray(self.codes == self.names.index(name))

    def recoded(self, code_of_name: dict[str, int]) -> Ints:
        """The codes by another numbering of names, which is extended by the names it lacks."""
        new_codes = [code_of_name.setdefault(name, len(code_of_name)) for name in self.names]
        # code -1 (of no part) picks the last entry, and stays -1
        recoded: Ints = np.array([*new_codes, -1])[self.codes]
        return recoded


@dataclass(frozen=True, slots=True)
class RequestArrays:
    """Some requests of one attempt; every array but ``position`` has one entry for each.

    Times are in ns since the point's start; a value is NaN where it is unknown. ``rows``: the rows
    of the requests. ``position``: for each row of ``token_events``, the index of its request in the
    other arrays.
    """

    rows: Rows
    index: npt.NDArray[np.int32]
    ok: Bools
    measured: Bools  # phase 'measure'
    part: RequestParts
    scheduled_ns: Floats
    sent_ns: Floats
    first_ns: Floats
    answer_ns: Floats  # first token after the reasoning, where that was streamed
    last_ns: Floats
    done_ns: Floats
    # as the engine counted them, else as asked for; NaN where the prompt came from a file and the
    # engine did not count it
    input_tokens: Floats
    output_tokens: Floats  # N of throughput
    shown_tokens: Floats  # N of TPOT and ITL: without tokens that were never streamed
    first_tokens: Floats  # tokens of the first chunk; 1 where that is not known
    in_lumps: Bools  # the answer came whole, or in a few lumps: times between tokens are unknown
    # more than BUFFERED_SHARE of the attempt came in lumps: the times of its events say nothing
    # about its tokens
    buffered: bool
    token_events: Rows | None
    position: npt.NDArray[np.int32]

    @property
    def intervals(self) -> Floats:
        """Number of gaps from the first chunk to the last streamed token; NaN where unknown."""
        if self.buffered:
            return np.full(self.ok.size, np.nan)
        return np.where(self.in_lumps, np.nan, self.shown_tokens - self.first_tokens)

    @property
    def has_token_times(self) -> Bools:
        """Which requests have gaps that count."""
        return np.zeros(self.ok.size, np.bool_) if self.buffered else ~self.in_lumps

    @property
    def finished_ns(self) -> Floats:
        """When a request was complete: at its last content token; ``done`` where it had none."""
        return np.where(np.isnan(self.last_ns), self.done_ns, self.last_ns)

    def scheduled_in(self, window: MeasuredWindow) -> Bools:
        """Which requests count for latencies and attainment: measured ones due in the window."""
        return self.measured & within(self.scheduled_ns, window)

    def blocks(self) -> Iterator[TokenEventBlock]:
        """``token_events`` in blocks of bounded size."""
        if self.token_events is None:
            return
        start = 0
        for batch in self.token_events.to_batches(max_chunksize=ROWS_PER_BLOCK):
            request = self.position[start : start + batch.num_rows].astype(np.int64)
            start += batch.num_rows
            yield _block(
                self.shown_tokens[request], request, batch["gaps_us"], batch["tokens_per_chunk"]
            )


def request_arrays(requests: Rows, token_events: Rows | None) -> Iterator[RequestArrays]:
    """Yields the requests of one attempt, AT_ONCE at a time.

    They come all at once if token_events are in another order than requests. Raises ValueError
    where rows of several attempts are mixed: a request_index occurs twice, or token_events have one
    that requests do not have.
    """
    is_buffered = _is_buffered(requests)
    for block in _blocks_of_requests(requests, token_events):
        events = None
        if token_events is not None:
            events = token_events.slice(block.first_event, block.events)
        yield _arrays(requests.slice(block.first_request, block.requests), events, is_buffered)
        # Arrow keeps the memory that decoding took, and numpy cannot use it. Giving it back walks
        # the whole heap, which is not worth it for few rows.
        if requests.num_rows > AT_ONCE:
            pa.default_memory_pool().release_unused()


@dataclass(frozen=True, slots=True)
class _RequestBlock:
    """Requests that are decoded together, and their rows in token_events.

    ``requests``, ``events``: how many rows; fewer where the table ends before.
    """

    first_request: int
    requests: int
    first_event: int = 0
    events: int = 0


def _blocks_of_requests(requests: Rows, token_events: Rows | None) -> list[_RequestBlock]:
    """The blocks in which requests are decoded. Raises ValueError as ``request_arrays`` does."""
    index = _index(requests)
    if (np.diff(np.sort(index)) == 0).any():
        raise ValueError("requests of more than one attempt: the same request_index occurs twice")
    starts = range(0, max(index.size, 1), AT_ONCE)
    if token_events is None:
        return [_RequestBlock(start, AT_ONCE) for start in starts]
    ends = _ends(index, _index(token_events))
    if ends is None:
        return [_RequestBlock(0, max(index.size, 1), 0, token_events.num_rows)]
    blocks: list[_RequestBlock] = []
    first_event = 0
    for start, end in zip(starts, ends, strict=True):
        blocks.append(_RequestBlock(start, AT_ONCE, first_event, end - first_event))
        first_event = end
    return blocks


def _arrays(requests: Rows, token_events: Rows | None, buffered: bool) -> RequestArrays:
    index = _index(requests)
    first_tokens = _floats(requests, "first_chunk_tokens")
    position = np.zeros(0, np.int32)
    if token_events is not None:
        position = _positions(index, _index(token_events))
    return RequestArrays(
        rows=requests,
        index=index,
        ok=equals(requests, "status", RequestStatus.OK),
        measured=equals(requests, "phase", "measure"),
        part=_parts(requests),
        scheduled_ns=_scheduled_ns(requests),
        sent_ns=_floats(requests, "sent_ns"),
        first_ns=_floats(requests, "first_token_ns"),
        answer_ns=_floats(requests, "first_answer_ns"),
        last_ns=_floats(requests, "last_token_ns"),
        done_ns=_floats(requests, "done_ns"),
        input_tokens=_input_tokens(requests),
        output_tokens=_floats(requests, "output_tokens"),
        shown_tokens=_shown_tokens(requests),
        first_tokens=np.where(np.isnan(first_tokens), 1, first_tokens),
        in_lumps=_in_lumps(requests),
        buffered=buffered,
        token_events=token_events,
        position=position,
    )


def _parts(requests: Rows) -> RequestParts:
    """The part of a mix that each request is of."""
    column = requests["part"]
    if column.null_count == requests.num_rows:
        return RequestParts((), np.full(requests.num_rows, -1))
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    encoded = column.unify_dictionaries().combine_chunks()
    names = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return RequestParts(tuple(names), codes.astype(np.int64))


def _scheduled_ns(requests: Rows) -> Floats:
    """When requests were due; when they were sent where no schedule is known (imported ones)."""
    scheduled_ns = _floats(requests, "scheduled_ns")
    if not requests["scheduled_ns"].null_count:
        return scheduled_ns
    return np.where(np.isnan(scheduled_ns), _floats(requests, "sent_ns"), scheduled_ns)


def _index(rows: Rows) -> npt.NDArray[np.int32]:
    return np.asarray(rows["request_index"].to_numpy(), np.int32)


def _is_buffered(requests: Rows) -> bool:
    """Whether the stream was buffered, so that the times of events say nothing about tokens.

    It was where more than BUFFERED_SHARE of the chunks of measured requests came together with the
    chunk before, or where more than that share of their ok answers came in lumps. Only answers that
    could have come in several events count.
    """
    chunks = 0.0
    coalesced_chunks = 0.0
    divisible_answers = 0
    answers_in_lumps = 0
    for part in slices(requests):
        is_measured = equals(part, "phase", "measure")
        chunks += _floats(part, "chunks")[is_measured].sum()
        coalesced_chunks += _floats(part, "coalesced_chunks")[is_measured].sum()
        is_ok = equals(part, "status", RequestStatus.OK)
        is_divisible = is_measured & is_ok & _of_several_tokens(part)
        divisible_answers += int(is_divisible.sum())
        answers_in_lumps += int((is_divisible & _in_lumps(part)).sum())
    return bool(
        coalesced_chunks > BUFFERED_SHARE * chunks
        or answers_in_lumps > BUFFERED_SHARE * divisible_answers
    )


def _shown_tokens(requests: Rows) -> Floats:
    return _floats(requests, "output_tokens") - or_zero(_floats(requests, "hidden_tokens"))


def _of_several_tokens(requests: Rows) -> Bools:
    is_uncounted = equals(requests, "token_count_source", "chunks")
    asked = _floats(requests, "output_tokens_asked")
    return (_shown_tokens(requests) > 1) | (is_uncounted & (asked > 1))


def _in_lumps(requests: Rows) -> Bools:
    is_exact = np.zeros(requests.num_rows, np.bool_)
    for source in EXACT_SOURCES:
        is_exact |= equals(requests, "token_count_source", source)
    return came_in_lumps(
        _floats(requests, "chunks"),
        _shown_tokens(requests),
        _floats(requests, "output_tokens_asked"),
        is_exact,
        equals(requests, "token_count_source", "chunks"),
    )


def _ends(index: npt.NDArray[np.int32], event_index: npt.NDArray[np.int32]) -> list[int] | None:
    """For each block of AT_ONCE requests, where its rows in token_events end.

    None: the tables are not in the same order. Clients write both in the order in which requests
    end. ``index``, ``event_index``: the request_index of requests and of token_events.
    """
    if index.size <= AT_ONCE:
        return [event_index.size]
    ends: list[int] = []
    end = 0
    for start in range(0, index.size, AT_ONCE):
        requests = index[start : start + AT_ONCE]
        # a request has one row at most, so the block has no more rows than requests
        possible_rows = event_index[end : end + requests.size]
        is_of_another_block = ~np.isin(possible_rows, requests)
        if is_of_another_block.any():
            end += int(is_of_another_block.argmax())
        else:
            end += possible_rows.size
        ends.append(end)
    return ends if end == event_index.size else None


def within(times_ns: Floats, window: MeasuredWindow) -> Bools:
    """Which instants lie in a window; an unknown instant (NaN) does not."""
    return (times_ns >= window.start_ns) & (times_ns < window.end_ns)


def equals(table: Rows, name: str, value: str) -> Bools:
    """In which rows a string column holds ``value``; False where it is null."""
    is_equal = pc.equal(table[name], value)
    if is_equal.null_count:
        is_equal = is_equal.fill_null(False)
    return np.asarray(is_equal.to_numpy(), dtype=np.bool_)


def _input_tokens(requests: Rows) -> Floats:
    asked = _floats(requests, "input_tokens_asked")
    reported = _floats(requests, "input_tokens")
    asked_or_unknown = np.where(asked > 0, asked, np.nan)
    return np.where(np.isnan(reported), asked_or_unknown, reported)


def _floats(table: Rows, name: str) -> Floats:
    """A column as float64, null as NaN. Times in ns are exact for 104 days."""
    return np.asarray(table[name].to_numpy(), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class TokenEventBlock:
    """Some rows of ``token_events``.

    ``request``: the index of each row's request in RequestArrays. ``gaps_us``: the gaps of all
    rows, one row after the other. ``starts``: where the gaps of each row begin, and where all end
    (one entry more than rows). ``tokens``: tokens of the chunk after each gap; None: one each.
    ``first_tokens``: tokens of each row's first chunk.
    """

    request: Ints
    gaps_us: npt.NDArray[np.int32]
    starts: Ints
    tokens: Ints | None
    first_tokens: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.starts)

    @property
    def row_of_gap(self) -> Ints:
        return np.repeat(np.arange(self.request.size), self.lengths)


def _positions(
    index: npt.NDArray[np.int32], event_index: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """For each row of token_events, the place of its request in ``index``.

    Raises ValueError where a request is missing.
    """
    problem = "token_events holds a request_index that requests does not"
    if not index.size:
        if event_index.size:
            raise ValueError(problem)
        return np.zeros(0, np.int32)
    order = np.argsort(index, kind="stable").astype(np.int32)
    place_in_order = np.searchsorted(index, event_index, sorter=order)
    position = order[np.minimum(place_in_order, order.size - 1)]
    if (index[position] != event_index).any():
        raise ValueError(problem)
    return position


def _block(
    total: Floats, request: Ints, gaps: pa.ListArray, tokens: pa.ListArray
) -> TokenEventBlock:
    """Makes a block of rows. ``total``: the streamed output tokens of each row's request."""
    offsets = gaps.offsets.to_numpy().astype(np.int64)
    values = gaps.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy()
    starts = offsets - offsets[0]
    chunks = np.diff(starts) + 1
    has_counts = _lengths(tokens) > 0  # neither null nor an empty list says anything
    # the row has more tokens than chunks, and does not say how many each chunk held
    is_uncounted = ~has_counts & (total > chunks)
    in_several_chunks = is_uncounted & (chunks > 1)
    in_one_chunk = is_uncounted & (chunks == 1)
    first = np.where(in_one_chunk, total, 1.0).astype(np.int64)
    if not has_counts.any() and not in_several_chunks.any():
        return TokenEventBlock(request, values, starts, None, first)
    after = np.ones(values.size, np.int64)
    if in_several_chunks.any():
        _spread_evenly(after, starts, in_several_chunks, total)
    if has_counts.any():
        _take_counts(after, first, starts, has_counts, tokens)
    return TokenEventBlock(request, values, starts, after, first)


def _spread_evenly(after: Ints, starts: Ints, rows: Bools, total: Floats) -> None:
    """Spreads all tokens but the first of each of these rows over its gaps; writes to ``after``.

    The tokens are spread as evenly as whole tokens allow, so that the mean ITL equals TPOT.
    ``after``: tokens after each gap.
    """
    lengths = np.where(rows, np.diff(starts), 0)
    nth = _counting(lengths)
    gaps = np.repeat(lengths, lengths)
    tokens = np.repeat(np.where(rows, total - 1, 0).astype(np.int64), lengths)
    place = np.repeat(starts[:-1], lengths) + nth
    after[place] = (nth + 1) * tokens // gaps - nth * tokens // gaps


def _take_counts(after: Ints, first: Ints, starts: Ints, rows: Bools, tokens: pa.ListArray) -> None:
    """Writes the counts of ``tokens_per_chunk`` of these rows, which have some, to ``first`` and
    ``after``.

    ``first``: tokens of each row's first chunk. ``after``: tokens after each gap. Raises ValueError
    where a row has more or fewer counts than chunks.
    """
    lengths = _lengths(tokens)
    expected = np.diff(starts) + 1
    wrong = rows & (lengths != expected)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"token_events: {lengths[row]} tokens_per_chunk for {expected[row] - 1} gaps; want "
            "one more"
        )
    values = np.maximum(tokens.flatten().to_numpy().astype(np.int64), 1)
    nth = _counting(lengths)
    first[rows] = values[nth == 0]
    is_later = nth > 0
    gap_before = np.repeat(starts[:-1], lengths) + nth - 1
    after[gap_before[is_later]] = values[is_later]


def _lengths(lists: pa.ListArray) -> Ints:
    """How many values each list has; 0 for null."""
    lengths: Ints = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _counting(lengths: Ints) -> Ints:
    """0, 1, … lengths[0]-1, 0, 1, … lengths[1]-1, …"""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if ends.size else 0) - np.repeat(ends - lengths, lengths)

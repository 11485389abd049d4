"""Rows of ``requests`` and ``token_events`` as numpy arrays over the Arrow buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.results.lazy_rows import Rows
from orchestrator.results.outcomes import BUFFERED_SHARE, Status

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
WindowNs = tuple[int, int]  # [start, end) in ns since the point's start

ROWS_PER_BLOCK = 8_192  # some 1.6 million gaps: a block's temporaries stay below 50 MB


@dataclass(frozen=True, slots=True)
class RequestArrays:
    """One entry per request of one attempt. Times in ns since the point's start; NaN where a value is unknown.

    ``position``: for each row of ``token_events`` the index of its request in the other arrays.
    """

    ok: Bools
    measured: Bools  # phase 'measure'
    scheduled_ns: Floats
    sent_ns: Floats
    first_ns: Floats
    answer_ns: Floats  # first token after the reasoning, where that was streamed
    last_ns: Floats
    done_ns: Floats
    input_tokens: Floats  # as the engine counted them, else as asked for (of a prompt file nobody knows it)
    output_tokens: Floats  # N of throughput
    shown_tokens: Floats  # N of TPOT and ITL: without tokens that were never streamed
    buffered: bool  # the stream came in lumps: the times of its events say nothing of tokens
    token_events: Rows | None
    position: npt.NDArray[np.int32]

    @property
    def intervals(self) -> Floats:
        """Number of gaps between the first and the last streamed token; NaN where token times are unknown."""
        return np.full(self.ok.size, np.nan) if self.buffered else self.shown_tokens - 1

    @property
    def finished_ns(self) -> Floats:
        """When a request was complete: at its last content token; ``done`` where it had none."""
        return np.where(np.isnan(self.last_ns), self.done_ns, self.last_ns)

    def scheduled_in(self, window_ns: WindowNs) -> Bools:
        """Measured requests that were due in the window: latencies and attainment are theirs."""
        return self.measured & within(self.scheduled_ns, window_ns)

    def blocks(self) -> Iterator[Block]:
        """``token_events`` in blocks of bounded size."""
        start = 0
        for batch in () if self.token_events is None else self.token_events.to_batches(max_chunksize=ROWS_PER_BLOCK):
            request = self.position[start : start + batch.num_rows].astype(np.int64)
            start += batch.num_rows
            yield _block(self.shown_tokens[request], request, batch["gaps_us"], batch["tokens_per_chunk"])


def request_arrays(requests: Rows, token_events: Rows | None) -> RequestArrays:
    """Raises ValueError where rows of several attempts are mixed: a request_index occurs twice or has no request."""
    index = requests["request_index"].to_numpy()
    if np.unique(index).size != index.size:
        raise ValueError("requests of more than one attempt: the same request_index occurs twice")
    output_tokens = _floats(requests, "output_tokens")
    measured = equals(requests, "phase", "measure")
    chunks, coalesced = (_floats(requests, name)[measured].sum() for name in ("chunks", "coalesced_chunks"))
    found = RequestArrays(
        ok=equals(requests, "status", Status.OK),
        measured=measured,
        scheduled_ns=_floats(requests, "scheduled_ns"),
        sent_ns=_floats(requests, "sent_ns"),
        first_ns=_floats(requests, "first_token_ns"),
        answer_ns=_floats(requests, "first_answer_ns"),
        last_ns=_floats(requests, "last_token_ns"),
        done_ns=_floats(requests, "done_ns"),
        input_tokens=_input_tokens(requests),
        output_tokens=output_tokens,
        shown_tokens=output_tokens - np.nan_to_num(_floats(requests, "hidden_tokens")),
        buffered=bool(coalesced > BUFFERED_SHARE * chunks),
        token_events=token_events,
        position=np.zeros(0, np.int32) if token_events is None else _positions(index, token_events),
    )
    pa.default_memory_pool().release_unused()  # what decoding took: Arrow keeps it, numpy never uses it
    return found


def within(times_ns: Floats, window_ns: WindowNs) -> Bools:
    """Which instants lie in a window; unknown ones do not."""
    return (times_ns >= window_ns[0]) & (times_ns < window_ns[1])


def equals(table: Rows, name: str, value: str) -> Bools:
    """Where a string column holds ``value``; False where it is null."""
    return np.asarray(pc.fill_null(pc.equal(table[name], value), False).to_numpy(), dtype=np.bool_)


def _input_tokens(requests: Rows) -> Floats:
    asked, reported = _floats(requests, "input_tokens_asked"), _floats(requests, "input_tokens")
    return np.where(np.isnan(reported), np.where(asked > 0, asked, np.nan), reported)


def _floats(table: Rows, name: str) -> Floats:
    """A column as float64, null as NaN. Times in ns are exact for 104 days."""
    return np.asarray(table[name].to_numpy(), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of ``token_events``.

    ``request``: the index of each row's request in RequestArrays. ``gaps_us``: the gaps of all rows, one row after the
    other; ``starts``: where each row's begin (length rows + 1). ``tokens``: tokens of the chunk after each gap; None:
    each holds one. ``first_tokens``: tokens of each row's first chunk.
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


def _positions(index: npt.NDArray[np.int32], token_events: Rows) -> npt.NDArray[np.int32]:
    wanted = token_events["request_index"].to_numpy()
    order = np.argsort(index, kind="stable").astype(np.int32)
    found = np.searchsorted(index, wanted, sorter=order)
    position = order[np.minimum(found, max(order.size - 1, 0))] if order.size else np.zeros(0, np.int32)
    if wanted.size and (not order.size or (index[position] != wanted).any()):
        raise ValueError("token_events holds a request_index that requests does not")
    return position


def _block(total: Floats, request: Ints, gaps: pa.ListArray, tokens: pa.ListArray) -> Block:
    """``total``: the streamed output tokens of each row's request."""
    offsets = gaps.offsets.to_numpy().astype(np.int64)
    values = gaps.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy()
    starts = offsets - offsets[0]
    chunks = np.diff(starts) + 1
    given = tokens.is_valid().to_numpy(zero_copy_only=False)
    several = ~given & (total > chunks) & (chunks > 1)  # more tokens than chunks, and nobody said which held how many
    first = np.where(~given & (total > chunks) & (chunks == 1), total, 1.0).astype(np.int64)
    if not given.any() and not several.any():
        return Block(request, values, starts, None, first)
    after = np.ones(values.size, np.int64)
    if several.any():
        _spread_evenly(after, starts, several, total)
    if given.any():
        _take_given(after, first, starts, given, tokens)
    return Block(request, values, starts, after, first)


def _spread_evenly(after: Ints, starts: Ints, rows: Bools, total: Floats) -> None:
    """Spread N - 1 whole tokens as evenly as possible over the gaps of a row: then mean ITL equals TPOT."""
    lengths = np.where(rows, np.diff(starts), 0)
    at = np.repeat(starts[:-1], lengths) + _counting(lengths)
    gaps, tokens = np.repeat(lengths, lengths), np.repeat(np.where(rows, total - 1, 0).astype(np.int64), lengths)
    nth = _counting(lengths)
    after[at] = (nth + 1) * tokens // gaps - nth * tokens // gaps


def _take_given(after: Ints, first: Ints, starts: Ints, rows: Bools, tokens: pa.ListArray) -> None:
    lengths = tokens.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    expected = np.diff(starts) + 1
    wrong = rows & (lengths != expected) & (lengths > 0)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"token_events: {lengths[row]} tokens_per_chunk for {expected[row] - 1} gaps; want one more")
    rows = rows & (lengths > 0)
    lengths = np.where(rows, lengths, 0)
    values = np.maximum(tokens.flatten().to_numpy().astype(np.int64), 1)
    nth = _counting(lengths)
    first[rows] = values[nth == 0]
    later = nth > 0
    after[(np.repeat(starts[:-1], lengths) + nth - 1)[later]] = values[later]


def _counting(lengths: Ints) -> Ints:
    """0, 1, … lengths[0]-1, 0, 1, … lengths[1]-1, …"""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if ends.size else 0) - np.repeat(ends - lengths, lengths)

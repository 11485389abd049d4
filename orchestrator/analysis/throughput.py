"""What was delivered by an instant: requests, prompt tokens and output tokens, the basis of every throughput.

``delivered(x)`` is a non-decreasing function of time, so that windows side by side add up to the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from orchestrator.analysis.columns import Block, Floats, Ints, RequestColumns, blocks, positions


def requests_by(columns: RequestColumns, edges_ns: Sequence[float]) -> Floats:
    """Ok requests whose last content token came before each edge."""
    return _steps(columns.finished_ns[columns.ok], None, edges_ns)


def input_tokens_by(columns: RequestColumns, edges_ns: Sequence[float]) -> Floats:
    """Prompt tokens of ok requests whose first token came before each edge: by then the prompt was worked off."""
    ok = columns.ok & ~np.isnan(columns.first_ns)
    return _steps(columns.first_ns[ok], np.nan_to_num(columns.input_tokens[ok]), edges_ns)


def output_tokens_by(columns: RequestColumns, token_events: pa.Table | None, edges_ns: Sequence[float]) -> Floats:
    """Output tokens of ok requests that came before each edge.

    A token came with its chunk: the first at first_token_ns, the others after the gaps of ``token_events``. A request
    without gaps there had its N tokens evenly between its first and its last. The tokens of a request sum to its N.
    """
    known = columns.ok & (np.nan_to_num(columns.output_tokens) > 0) & ~np.isnan(columns.first_ns + columns.last_ns)
    row = _rows_by_request(columns, token_events)
    return np.array([_output_tokens_before(columns, known, token_events, row, edge) for edge in edges_ns])


def basis(columns: RequestColumns, token_events: pa.Table | None) -> str:
    """Where token times come from: ``chunk_times``, ``interpolated`` or ``mixed``."""
    ok = np.flatnonzero(columns.ok & (np.nan_to_num(columns.output_tokens) > 1))
    timed = _rows_by_request(columns, token_events)[ok] >= 0
    return "interpolated" if not timed.any() else "chunk_times" if timed.all() else "mixed"


def _steps(times: Floats, weights: Floats | None, edges_ns: Sequence[float]) -> Floats:
    order = np.argsort(times)
    summed = np.concatenate([[0.0], np.cumsum(np.ones(times.size) if weights is None else weights[order])])
    return np.asarray(summed[np.searchsorted(times[order], edges_ns, side="left")], dtype=np.float64)


def _rows_by_request(columns: RequestColumns, token_events: pa.Table | None) -> Ints:
    """Row of ``token_events`` of each request, -1 where it has none."""
    row = np.full(columns.index.size, -1)
    if token_events is not None:
        row[positions(columns, token_events)] = np.arange(token_events.num_rows)
    return row


def _output_tokens_before(
    columns: RequestColumns, known: np.ndarray, token_events: pa.Table | None, row: Ints, edge: float
) -> float:
    """Only requests under way at the edge need their gaps: the others count whole or not at all."""
    whole = float(columns.output_tokens[known & (columns.last_ns < edge)].sum())
    under_way = known & (columns.first_ns < edge) & (columns.last_ns >= edge)
    evenly = np.flatnonzero(under_way & (row < 0))
    timed = np.flatnonzero(under_way & (row >= 0))
    part = float(_evenly_before(columns, evenly, edge).sum())
    if token_events is not None and timed.size:
        events = token_events.take(pa.array(row[timed]))
        for block in blocks(columns, events, timed):
            part += float(_timed_before(columns, block, edge).sum())
    return whole + part


def _evenly_before(columns: RequestColumns, at: Ints, edge: float) -> Floats:
    """Token j of N at first + j (last - first) / (N - 1)."""
    tokens, first = columns.output_tokens[at], columns.first_ns[at]
    step = (columns.last_ns[at] - first) / np.maximum(tokens - 1, 1)
    count = np.ceil((edge - first) / np.where(step > 0, step, np.inf))
    return np.clip(count, np.minimum(tokens, 1), tokens)


def _timed_before(columns: RequestColumns, block: Block, edge: float) -> Floats:
    rows, size = block.row_of_gap, block.request.size
    summed = np.concatenate([[0], np.cumsum(block.gaps_us, dtype=np.int64)])
    since_first = summed[1:] - np.repeat(summed[block.starts[:-1]], block.lengths)
    came = columns.first_ns[block.request][rows] + since_first * 1e3 < edge
    tokens = np.ones(rows.size, np.int64) if block.tokens is None else block.tokens
    before = block.first_tokens + np.bincount(rows, weights=tokens * came, minlength=size)
    total = block.first_tokens + np.bincount(rows, weights=tokens, minlength=size)
    return np.asarray(before / total * columns.output_tokens[block.request], dtype=np.float64)

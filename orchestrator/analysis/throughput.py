"""Output tokens that had come by an instant. The count never falls, so adjacent windows add up to
the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.analysis.requests import RequestArrays, TokenEventBlock, WindowNs
from orchestrator.base.arrays import Bools, Floats, Ints
from orchestrator.results.columns import or_zero

BATCHES = 10  # parts of each repeat, for intervals.py


@dataclass(frozen=True, slots=True)
class Batches:
    """One repeat cut in order of time: the amount in each batch, and the batch's size (requests, or
    seconds).
    """

    amounts: Floats
    sizes: Floats


def output_tokens_by(columns: RequestArrays, edges_ns: Sequence[float]) -> Floats:
    """Output tokens of ok requests that came before each edge.

    A token came with its chunk: the first at first_token_ns, the others after the gaps of
    ``token_events``. Where a request has no gaps there, its N tokens count as evenly spread from
    first to last. They add up to N in any case.
    """
    edges = np.asarray(edges_ns, dtype=np.float64)
    known = (
        columns.ok
        & (or_zero(columns.output_tokens) > 0)
        & ~np.isnan(columns.first_ns + columns.last_ns)
    )
    came = np.zeros(edges.size)
    for block in columns.blocks():
        came += _timed_before(columns, block, known, edges)
    return came + _evenly_before(columns, np.flatnonzero(known & ~_timed(columns)), edges)


def token_batches(columns: RequestArrays, window_ns: WindowNs) -> Batches:
    """Output tokens in each of BATCHES equal parts of the window, and the parts' lengths in
    seconds.
    """
    edges = np.linspace(window_ns[0], max(window_ns), BATCHES + 1)
    return Batches(np.diff(output_tokens_by(columns, edges.tolist())), np.diff(edges) / 1e9)


def basis(columns: RequestArrays) -> frozenset[str]:
    """Where the times of tokens come from: ``chunk_times``, ``interpolated`` or both."""
    timed = _timed(columns)[columns.ok & (or_zero(columns.output_tokens) > 1)]
    return frozenset("chunk_times" if one else "interpolated" for one in np.unique(timed))


def _timed(columns: RequestArrays) -> Bools:
    """Which requests have a row in ``token_events``."""
    found = np.zeros(columns.ok.size, np.bool_)
    found[columns.position] = True
    return found


def _evenly_before(columns: RequestArrays, at: Ints, edges: Floats) -> Floats:
    """Tokens before each edge, with token j of N at first + j (last - first) / (N - 1)."""
    if not at.size:
        return np.zeros(edges.size)
    tokens, first, last = columns.output_tokens[at], columns.first_ns[at], columns.last_ns[at]
    step = (last - first) / np.maximum(tokens - 1, 1)
    step = np.where(step > 0, step, np.inf)
    found = np.empty(edges.size)
    for place, edge in enumerate(edges):
        count = np.clip(np.ceil((edge - first) / step), 1, tokens)
        found[place] = np.where(first >= edge, 0, np.where(last < edge, tokens, count)).sum()
    return found


def _timed_before(
    columns: RequestArrays, block: TokenEventBlock, known: Bools, edges: Floats
) -> Floats:
    """Tokens of a block before each edge: requests under way there are counted by their gaps,
    others whole or not.

    The running sums over all gaps of the block are sorted, so a request's place in them is found by
    bisection.
    """
    rows = np.flatnonzero(known[block.request])
    request = block.request[rows]
    first, last, output = (
        columns.first_ns[request],
        columns.last_ns[request],
        columns.output_tokens[request],
    )
    elapsed_us = _running(block.gaps_us)
    tokens = np.arange(elapsed_us.size) if block.tokens is None else _running(block.tokens)
    over = last < edges[:, None]
    edge, at = np.nonzero((first < edges[:, None]) & ~over)
    start, end = block.starts[rows[at]], block.starts[rows[at] + 1]
    limit_us = np.ceil((edges[edge] - first[at]) / 1e3).astype(np.int64) + elapsed_us[start]
    chunk = np.clip(np.searchsorted(elapsed_us, limit_us, side="left") - 1, start, end)
    in_first = block.first_tokens[rows[at]]
    share = (in_first + tokens[chunk] - tokens[start]) / (in_first + tokens[end] - tokens[start])
    came, ends = share * output[at], np.searchsorted(edge, np.arange(edges.size + 1))
    found: Floats = over @ output  # whole numbers: exact in any order
    for place in np.flatnonzero(np.diff(ends)):
        found[place] += came[ends[place] : ends[place + 1]].sum()
    return found


def _running(values: npt.NDArray[np.integer[Any]]) -> Ints:
    summed = np.zeros(values.size + 1, np.int64)
    np.cumsum(values, out=summed[1:])
    return summed

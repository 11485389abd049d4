"""Counts the output tokens that had come by an instant.

The tokens of a window are those by its end less those by its start, so adjacent windows add up to
the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.analysis.requests import RequestArrays, TokenEventBlock
from orchestrator.base.arrays import Bools, Floats, Ints
from orchestrator.results.columns import or_zero
from orchestrator.results.window import MeasuredWindow

BATCHES = 10  # into which each repeat is cut for its interval (analysis/intervals.py)


@dataclass(frozen=True, slots=True)
class Batches:
    """One repeat, cut into batches in order of time.

    ``amounts``: what each batch has (requests that met a test, or tokens). ``sizes``: how large
    each batch is (in requests, or in seconds).
    """

    amounts: Floats
    sizes: Floats

    def as_one(self) -> "Batches":
        """The whole as one batch, for a run whose parts are not alike: that of requests which are
        due at once first computes prompts and at last drains.
        """
        return Batches(self.amounts.sum(keepdims=True), self.sizes.sum(keepdims=True))


def output_tokens_by(columns: RequestArrays, edges_ns: Sequence[float]) -> Floats:
    """Output tokens of ok requests that came before each edge.

    A token comes with its chunk: the first chunk at first_token_ns, the others after the gaps of
    ``token_events``. Where a request has no row there, its N tokens count as evenly spread from the
    first to the last. Either way, the tokens of a request add up to N.
    """
    edges = np.asarray(edges_ns, dtype=np.float64)
    has_output = columns.ok & (or_zero(columns.output_tokens) > 0)
    is_counted = has_output & ~np.isnan(columns.first_ns + columns.last_ns)
    came = np.zeros(edges.size)
    for block in columns.blocks():
        came += _timed_before(columns, block, is_counted, edges)
    untimed = np.flatnonzero(is_counted & ~_timed(columns))
    return came + _evenly_before(columns, untimed, edges)


def token_batches(columns: RequestArrays, window: MeasuredWindow) -> Batches:
    """Output tokens in each of BATCHES equal parts of the window. Sizes are in seconds."""
    # the end of an empty window may lie before its start
    edges_ns = np.linspace(window.start_ns, max(window), BATCHES + 1)
    tokens = np.diff(output_tokens_by(columns, edges_ns.tolist()))
    return Batches(tokens, np.diff(edges_ns) / 1e9)


def basis(columns: RequestArrays) -> frozenset[str]:
    """Where the times of tokens come from: ``chunk_times``, ``interpolated`` or both.

    Requests of one token do not count.
    """
    is_timed = _timed(columns)[columns.ok & (or_zero(columns.output_tokens) > 1)]
    names = set()
    if is_timed.any():
        names.add("chunk_times")
    if not is_timed.all():
        names.add("interpolated")
    return frozenset(names)


def _timed(columns: RequestArrays) -> Bools:
    """Which requests have a row in ``token_events``."""
    is_timed = np.zeros(columns.ok.size, np.bool_)
    is_timed[columns.position] = True
    return is_timed


def _evenly_before(columns: RequestArrays, requests: Ints, edges: Floats) -> Floats:
    """Tokens of these requests before each edge (ns), if they came evenly.

    Token j of N, counted from 0, came at first + j * (last - first) / (N - 1).
    """
    if not requests.size:
        return np.zeros(edges.size)
    tokens = columns.output_tokens[requests]
    first_ns = columns.first_ns[requests]
    last_ns = columns.last_ns[requests]
    step_ns = (last_ns - first_ns) / np.maximum(tokens - 1, 1)
    step_ns = np.where(step_ns > 0, step_ns, np.inf)  # where all came at once: no second step
    came = np.empty(edges.size)
    for place, edge_ns in enumerate(edges):
        if_under_way = np.clip(np.ceil((edge_ns - first_ns) / step_ns), 1, tokens)
        if_begun = np.where(last_ns < edge_ns, tokens, if_under_way)
        came[place] = np.where(first_ns < edge_ns, if_begun, 0).sum()
    return came


def _timed_before(
    columns: RequestArrays, block: TokenEventBlock, is_counted: Bools, edges: Floats
) -> Floats:
    """Tokens of the requests of a block before each edge (ns).

    A request that is over at an edge counts in full. One that is under way counts by the share of
    its tokens that its chunks had shown by then. The running sum over all gaps of the block rises,
    so a request's last chunk before an edge is found in it by bisection.
    """
    rows = np.flatnonzero(is_counted[block.request])
    requests = block.request[rows]
    first_ns = columns.first_ns[requests]
    last_ns = columns.last_ns[requests]
    output_tokens = columns.output_tokens[requests]
    is_over = last_ns < edges[:, None]
    came: Floats = is_over @ output_tokens  # whole numbers: exact in any order

    # from here on, one entry for each pair of an edge and a request that is under way there
    place_of_edge, place_of_request = np.nonzero((first_ns < edges[:, None]) & ~is_over)
    row = rows[place_of_request]
    # of the request's gaps, as indices of the block's gaps and of the running sums
    start = block.starts[row]
    end = block.starts[row + 1]
    elapsed_us = _running_sum(block.gaps_us)
    since_first_ns = edges[place_of_edge] - first_ns[place_of_request]
    since_first_us = np.ceil(since_first_ns / 1e3).astype(np.int64)
    # the edge as a value of the running sum, in which the request's first chunk lies at its start
    edge_us = elapsed_us[start] + since_first_us
    chunk = np.clip(np.searchsorted(elapsed_us, edge_us, side="left") - 1, start, end)

    if block.tokens is None:
        tokens = np.arange(elapsed_us.size)  # one for each chunk
    else:
        tokens = _running_sum(block.tokens)
    in_first_chunk = block.first_tokens[row]
    shown_by_edge = in_first_chunk + tokens[chunk] - tokens[start]
    shown_in_all = in_first_chunk + tokens[end] - tokens[start]
    under_way = shown_by_edge / shown_in_all * output_tokens[place_of_request]
    # for each edge, how many pairs the edges before it have: they come in the order of edges
    pairs_before = np.searchsorted(place_of_edge, np.arange(edges.size + 1))
    for place in np.flatnonzero(np.diff(pairs_before)):
        came[place] += under_way[pairs_before[place] : pairs_before[place + 1]].sum()
    return came


def _running_sum(values: npt.NDArray[np.integer[Any]]) -> Ints:
    """The sum of ``values[:i]``, for each i up to the length."""
    sums = np.zeros(values.size + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums

"""Output tokens that had come by an instant: a non-decreasing function, so windows side by side add up to the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.analysis.requests import Block, Bools, Floats, Ints, RequestArrays, WindowNs

BATCHES = 10  # of each repeat, for intervals.py


@dataclass(frozen=True, slots=True)
class Batches:
    """One repeat cut in order of time: what each batch amounts to, and its size (requests, or seconds)."""

    amounts: Floats
    sizes: Floats


def output_tokens_by(columns: RequestArrays, edges_ns: Sequence[float]) -> Floats:
    """Output tokens of ok requests that came before each edge.

    A token came with its chunk: the first at first_token_ns, the others after the gaps of ``token_events``. A request
    without gaps there had its N tokens evenly between its first and its last. The tokens of a request sum to its N.
    """
    edges = np.asarray(edges_ns, dtype=np.float64)
    known = columns.ok & (np.nan_to_num(columns.output_tokens) > 0) & ~np.isnan(columns.first_ns + columns.last_ns)
    came = np.zeros(edges.size)
    for block in columns.blocks():
        came += _timed_before(columns, block, known, edges)
    return came + _evenly_before(columns, np.flatnonzero(known & ~_timed(columns)), edges)


def token_batches(columns: RequestArrays, window_ns: WindowNs) -> Batches:
    """Output tokens of each of BATCHES equal parts of the window, and their length in seconds."""
    edges = np.linspace(window_ns[0], max(window_ns), BATCHES + 1)
    return Batches(np.diff(output_tokens_by(columns, edges.tolist())), np.diff(edges) / 1e9)


def basis(columns: RequestArrays) -> str:
    """Where token times come from: ``chunk_times``, ``interpolated`` or ``mixed``."""
    timed = _timed(columns)[columns.ok & (np.nan_to_num(columns.output_tokens) > 1)]
    return "interpolated" if not timed.any() else "chunk_times" if timed.all() else "mixed"


def _timed(columns: RequestArrays) -> Bools:
    """Requests that have a row of ``token_events``."""
    found = np.zeros(columns.ok.size, np.bool_)
    found[columns.position] = True
    return found


def _evenly_before(columns: RequestArrays, at: Ints, edges: Floats) -> Floats:
    """Token j of N at first + j (last - first) / (N - 1)."""
    tokens, first, last = columns.output_tokens[at], columns.first_ns[at], columns.last_ns[at]
    step = (last - first) / np.maximum(tokens - 1, 1)
    step = np.where(step > 0, step, np.inf)
    found = np.empty(edges.size)
    for place, edge in enumerate(edges):
        count = np.clip(np.ceil((edge - first) / step), 1, tokens)
        found[place] = np.where(first >= edge, 0, np.where(last < edge, tokens, count)).sum()
    return found


def _timed_before(columns: RequestArrays, block: Block, known: Bools, edges: Floats) -> Floats:
    """Requests under way at an edge are counted by their gaps, the others whole or not at all.

    Running sums over all gaps of the block are sorted, so a request's place in them is found by bisection.
    """
    rows = np.flatnonzero(known[block.request])
    request = block.request[rows]
    first, last, output = columns.first_ns[request], columns.last_ns[request], columns.output_tokens[request]
    elapsed_us = _running(block.gaps_us)
    tokens = np.arange(elapsed_us.size) if block.tokens is None else _running(block.tokens)
    found = np.empty(edges.size)
    for place, edge in enumerate(edges):
        at = np.flatnonzero((first < edge) & (last >= edge))
        start, end = block.starts[rows[at]], block.starts[rows[at] + 1]
        limit_us = np.ceil((edge - first[at]) / 1e3).astype(np.int64) + elapsed_us[start]
        chunk = np.clip(np.searchsorted(elapsed_us, limit_us, side="left") - 1, start, end)
        in_first = block.first_tokens[rows[at]]
        share = (in_first + tokens[chunk] - tokens[start]) / (in_first + tokens[end] - tokens[start])
        found[place] = output[last < edge].sum() + (share * output[at]).sum()
    return found


def _running(values: npt.NDArray[np.integer[Any]]) -> Ints:
    summed = np.zeros(values.size + 1, np.int64)
    np.cumsum(values, out=summed[1:])
    return summed

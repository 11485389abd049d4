"""Counts token gaps by whole microseconds.

So the quantiles of hundreds of millions of gaps are exact and take little memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.analysis.requests import TokenEventBlock
from orchestrator.base.arrays import Bools, Floats, Ints

# gaps below about one second are counted in an array; the few longer ones are sorted and counted
_DENSE_US = 1 << 20


@dataclass(frozen=True, slots=True)
class GapCounts:
    """How often each gap occurred. ``us``: the distinct gaps, sorted; ``counts``: of each gap."""

    us: Ints
    counts: Ints

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def mean_us(self) -> float:
        """The mean gap; there must be at least one gap."""
        return float(self.us @ self.counts) / self.total

    def std_us(self) -> float:
        """The standard deviation of the gaps; there must be at least one gap."""
        squares = (self.us - self.mean_us()) ** 2
        # a product of matrices would sum in an order that depends on the processor
        return float(np.sqrt(np.add.reduce(squares * self.counts) / self.total))

    def quantiles_us(self, probabilities: Iterable[float]) -> Floats:
        """The quantiles in us, as ``numpy.quantile`` computes them from the single gaps.

        Linear interpolation, Hyndman and Fan's type 7.
        """
        ends = np.cumsum(self.counts)
        rank = np.asarray(list(probabilities)) * (ends[-1] - 1)
        low = np.floor(rank)
        below = self.us[np.searchsorted(ends, low, side="right")]
        above = self.us[np.searchsorted(ends, np.ceil(rank), side="right")]
        return np.asarray(below + (above - below) * (rank - low), dtype=np.float64)


NO_GAPS = GapCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class BlockGaps:
    """Every gap between two tokens of a block. ``row``: the row of the block that each is in."""

    us: Ints
    row: Ints


@dataclass(frozen=True, slots=True)
class _WeightedGaps:
    """Gaps in us. ``counts``: how many tokens have each; None: one token each."""

    us: npt.NDArray[np.integer[Any]]
    counts: Ints | None

    def chosen(self, mask: Bools) -> _WeightedGaps:
        counts = None if self.counts is None else self.counts[mask]
        return _WeightedGaps(self.us[mask], counts)

    def count_each(self) -> Ints:
        return np.ones(self.us.size, np.int64) if self.counts is None else self.counts


def merge_gaps(parts: Iterable[GapCounts]) -> GapCounts:
    """The gaps of several measurements pooled."""
    measurements = list(parts)
    if len(measurements) == 1:
        return measurements[0]
    return _grouped([part.us for part in measurements], [part.counts for part in measurements])


def count_gaps(blocks: Iterable[TokenEventBlock], chosen: Bools) -> GapCounts:
    """Counts the inter-token gaps of the chosen requests (a mask over RequestArrays).

    A gap before a chunk of k tokens counts as k gaps, in whole microseconds, that add up to it.
    """
    dense_counts = np.zeros(0, np.int64)  # how often each gap below _DENSE_US occurred
    long_us: list[Ints] = []
    long_counts: list[Ints] = []
    for block in blocks:
        for gaps in _weighted_gaps(block, chosen[block.request]):
            is_long = gaps.us >= _DENSE_US
            if is_long.any():
                long_gaps = gaps.chosen(is_long)
                long_us.append(long_gaps.us.astype(np.int64))
                long_counts.append(long_gaps.count_each())
                short_gaps = gaps.chosen(~is_long)
            else:
                short_gaps = gaps
            counts = np.bincount(
                short_gaps.us, weights=short_gaps.counts, minlength=dense_counts.size
            ).astype(np.int64, copy=False)
            counts[: dense_counts.size] += dense_counts
            dense_counts = counts
    us = np.flatnonzero(dense_counts)
    return _grouped([us, *long_us], [dense_counts[us], *long_counts])


def token_gaps(block: TokenEventBlock) -> BlockGaps:
    """Every inter-token gap of a block. A gap before a chunk of k tokens is split into k."""
    if block.tokens is None:
        return BlockGaps(block.gaps_us.astype(np.int64), block.row_of_gap)
    whole_us, left_us = np.divmod(block.gaps_us.astype(np.int64), block.tokens)
    row = np.repeat(block.row_of_gap, block.tokens)
    first_of_chunk = np.cumsum(block.tokens) - block.tokens
    nth_of_chunk = np.arange(row.size) - np.repeat(first_of_chunk, block.tokens)
    is_one_longer = nth_of_chunk < np.repeat(left_us, block.tokens)
    return BlockGaps(np.repeat(whole_us, block.tokens) + is_one_longer, row)


def _weighted_gaps(block: TokenEventBlock, rows: Bools) -> list[_WeightedGaps]:
    """The gaps of the chosen rows.

    A gap before a chunk of k tokens is split into k gaps, which differ by at most 1 us.
    """
    gaps_us = block.gaps_us
    tokens = block.tokens
    if not rows.all():
        is_chosen = np.repeat(rows, block.lengths)
        gaps_us = gaps_us[is_chosen]
        tokens = None if tokens is None else tokens[is_chosen]
    if tokens is None:
        return [_WeightedGaps(gaps_us, None)]
    whole_us, left_us = np.divmod(gaps_us.astype(np.int64), tokens)
    return [_WeightedGaps(whole_us, tokens - left_us), _WeightedGaps(whole_us + 1, left_us)]


def _grouped(us: list[Ints], counts: list[Ints]) -> GapCounts:
    distinct, place = np.unique(np.concatenate([NO_GAPS.us, *us]), return_inverse=True)
    all_counts = np.concatenate([NO_GAPS.counts, *counts])
    sums = np.bincount(place, weights=all_counts, minlength=distinct.size)
    occurred = sums > 0
    return GapCounts(distinct[occurred].astype(np.int64), sums[occurred].astype(np.int64))

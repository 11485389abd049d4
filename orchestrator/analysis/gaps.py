"""Token gaps counted by whole microseconds: exact quantiles of hundreds of millions of gaps in
little memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.analysis.requests import TokenEventBlock
from orchestrator.base.arrays import Bools, Floats, Ints

# gaps below about one second are counted in an array, the few longer ones by sorting
_DENSE_US = 1 << 20


@dataclass(frozen=True, slots=True)
class GapCounts:
    """How often each gap occurred. ``us``: sorted, distinct; ``counts``: of the same length."""

    us: Ints
    counts: Ints

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def mean_us(self) -> float:
        """The mean gap; there must be one."""
        return float(self.us @ self.counts) / self.total

    def std_us(self) -> float:
        """The standard deviation of the gaps; there must be one."""
        return float(np.sqrt(((self.us - self.mean_us()) ** 2 @ self.counts) / self.total))

    def quantiles_us(self, probabilities: Iterable[float]) -> Floats:
        """What ``numpy.quantile`` gives for the single gaps (linear interpolation, Hyndman and
        Fan's type 7).
        """
        ends = np.cumsum(self.counts)
        rank = np.asarray(list(probabilities)) * (ends[-1] - 1)
        low = np.floor(rank)
        below = self.us[np.searchsorted(ends, low, side="right")]
        above = self.us[np.searchsorted(ends, np.ceil(rank), side="right")]
        return np.asarray(below + (above - below) * (rank - low), dtype=np.float64)


NO_GAPS = GapCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))


def merge_gaps(parts: Iterable[GapCounts]) -> GapCounts:
    """The gaps of several measurements pooled."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    return _grouped([part.us for part in found], [part.counts for part in found])


def count_gaps(blocks: Iterable[TokenEventBlock], chosen: Bools) -> GapCounts:
    """Inter-token gaps of the chosen requests (a mask over RequestArrays).

    A gap before a chunk of k tokens counts as k gaps in whole microseconds that add up to it.
    """
    dense = np.zeros(0, np.int64)
    large: list[Ints] = []
    weights: list[Ints] = []
    for block in blocks:
        for us, weight in _token_gaps(block, chosen[block.request]):
            above = us >= _DENSE_US
            if above.any():
                large.append(us[above].astype(np.int64))
                weights.append(np.ones(above.sum(), np.int64) if weight is None else weight[above])
                us, weight = us[~above], None if weight is None else weight[~above]
            counts = np.bincount(us, weights=weight, minlength=dense.size).astype(
                np.int64, copy=False
            )
            counts[: dense.size] += dense
            dense = counts
    us = np.flatnonzero(dense)
    return _grouped([us, *large], [dense[us], *weights])


def token_gaps(block: TokenEventBlock) -> tuple[Ints, Ints]:
    """Every inter-token gap of a block in us, and the row of the block it belongs to."""
    if block.tokens is None:
        return block.gaps_us.astype(np.int64), block.row_of_gap
    whole, rest = np.divmod(block.gaps_us.astype(np.int64), block.tokens)
    row = np.repeat(block.row_of_gap, block.tokens)
    nth = np.arange(row.size) - np.repeat(np.cumsum(block.tokens) - block.tokens, block.tokens)
    return np.repeat(whole, block.tokens) + (nth < np.repeat(rest, block.tokens)), row


def _token_gaps(
    block: TokenEventBlock, rows: Bools
) -> Iterable[tuple[npt.NDArray[np.integer[Any]], Ints | None]]:
    """(gaps in us, how often each) of the chosen rows."""
    gaps, tokens = block.gaps_us, block.tokens
    if not rows.all():
        keep = np.repeat(rows, block.lengths)
        gaps, tokens = gaps[keep], None if tokens is None else tokens[keep]
    if tokens is None:
        return [(gaps, None)]
    whole, rest = np.divmod(gaps.astype(np.int64), tokens)
    return [(whole, tokens - rest), (whole + 1, rest)]


def _grouped(us: list[Ints], counts: list[Ints]) -> GapCounts:
    distinct, place = np.unique(np.concatenate([NO_GAPS.us, *us]), return_inverse=True)
    summed = np.bincount(
        place, weights=np.concatenate([NO_GAPS.counts, *counts]), minlength=distinct.size
    )
    found = summed > 0
    return GapCounts(distinct[found].astype(np.int64), summed[found].astype(np.int64))

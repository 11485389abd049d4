"""Columns of numbers that grow, and their quantiles."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.results.outcomes import FEW_CHUNKS, MANY_TOKENS

AT_ONCE = 1 << 16  # rows whose columns are in memory together: some 10 MB of them


def came_in_lumps(
    chunks: npt.NDArray[np.float64],
    shown_tokens: npt.NDArray[np.float64],
    asked_tokens: npt.NDArray[np.float64],
    is_exact: npt.NDArray[np.bool_],
    is_uncounted: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Which answers say nothing of the time between their tokens: all of it came in one event, or
    in a few of many tokens each, where nobody knows how many.

    ``shown_tokens``: that were streamed; ``is_exact``: what each event held is known;
    ``is_uncounted``: nobody counted tokens, so that each event counts as one.
    """
    came_whole = (chunks == 1) & ((shown_tokens > 1) | (is_uncounted & (asked_tokens > 1)))
    in_few = (chunks > 1) & (chunks < FEW_CHUNKS) & (shown_tokens > MANY_TOKENS * chunks)
    found: npt.NDArray[np.bool_] = came_whole | (in_few & ~is_exact)
    return found


class NumberColumn:
    """Numbers of one type, kept in memory; they are added one slice of rows after the other."""

    def __init__(self, dtype: npt.DTypeLike = np.float64) -> None:
        self._dtype = np.dtype(dtype)
        self._slices: list[npt.NDArray[Any]] = []

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append the numbers of further rows."""
        self._slices.append(values.astype(self._dtype, copy=False))

    def taken(self, order: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """All of them in another order."""
        return self.values()[order]

    def values(self) -> npt.NDArray[Any]:
        """All of them, for the caller to change."""
        if not self._slices:
            return np.zeros(0, self._dtype)
        return np.concatenate(self._slices)


def quantiles(
    values: npt.NDArray[np.float64], probabilities: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Quantiles as numpy computes them (linear), which for few values takes five times as long.
    Values are partly sorted where they lie; there must be one.
    """
    at = np.multiply(probabilities, values.size - 1)
    below = at.astype(np.intp)
    above = np.minimum(below + 1, values.size - 1)
    values.partition(np.concatenate([below, above]))
    weight, low, high = at - below, values[below], values[above]
    step = high - low
    found: npt.NDArray[np.float64] = np.where(
        weight < 0.5, low + step * weight, high - step * (1 - weight)
    )
    return found


def or_zero(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Values, and 0 where one is unknown (NaN). numpy's ``nan_to_num`` takes six times as long for
    few.
    """
    return np.where(np.isnan(values), 0.0, values)

"""Columns of numbers that grow, and their quantiles."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.results.outcomes import FEW_CHUNKS, MANY_TOKENS

AT_ONCE = 1 << 16  # rows of a table that are read into memory together: some 10 MB


def came_in_lumps(
    chunks: npt.NDArray[np.float64],
    shown_tokens: npt.NDArray[np.float64],
    asked_tokens: npt.NDArray[np.float64],
    is_exact: npt.NDArray[np.bool_],
    is_uncounted: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Whether each answer came in lumps, which say nothing of the time between its tokens.

    It did if all of it came in one event, or if it came in a few events of many tokens each and how
    many each held is unknown.

    All arrays have one value for each answer. ``chunks``: how many events had content.
    ``shown_tokens``: tokens that were streamed. ``asked_tokens``: tokens that the request asked
    for. ``is_exact``: how many tokens each event held is known. ``is_uncounted``: the tokens were
    not counted, so that each event counts as one.
    """
    has_several_tokens = (shown_tokens > 1) | (is_uncounted & (asked_tokens > 1))
    came_whole = (chunks == 1) & has_several_tokens
    came_in_few = (chunks > 1) & (chunks < FEW_CHUNKS)
    has_lumps = shown_tokens > MANY_TOKENS * chunks
    in_lumps: npt.NDArray[np.bool_] = came_whole | (came_in_few & has_lumps & ~is_exact)
    return in_lumps


class NumberColumn:
    """A column of numbers of one type in memory, to which slices of rows are added."""

    def __init__(self, dtype: npt.DTypeLike = np.float64) -> None:
        self._dtype = np.dtype(dtype)
        self._slices: list[npt.NDArray[Any]] = []

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append the numbers of further rows."""
        self._slices.append(values.astype(self._dtype, copy=False))

    def taken(self, order: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """The numbers in this order. ``order``: for each place, the row whose number stands there."""
        return self.values()[order]

    def values(self) -> npt.NDArray[Any]:
        """The numbers of all rows, as a copy that the caller may change."""
        if not self._slices:
            return np.zeros(0, self._dtype)
        return np.concatenate(self._slices)


def quantiles(
    values: npt.NDArray[np.float64], probabilities: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Quantiles by numpy's default method (linear). For few values ``numpy.quantile`` takes five
    times as long. ``values``: at least one; they are partly sorted in place.
    """
    position = np.multiply(probabilities, values.size - 1)  # in order of size, between two values
    below = position.astype(np.intp)
    above = np.minimum(below + 1, values.size - 1)
    values.partition(np.concatenate([below, above]))
    low = values[below]
    high = values[above]
    step = high - low
    weight = position - below
    # from the nearer one, as numpy does: the result is the same to the last bit
    from_below = low + step * weight
    from_above = high - step * (1 - weight)
    interpolated: npt.NDArray[np.float64] = np.where(weight < 0.5, from_below, from_above)
    return interpolated


def or_zero(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The values, with 0 where one is unknown (NaN). For few values numpy's ``nan_to_num`` takes
    six times as long.
    """
    return np.where(np.isnan(values), 0.0, values)

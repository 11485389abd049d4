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
    in a few events of many tokens each whose numbers are unknown.

    One value for each answer. ``chunks``: its events with content. ``shown_tokens``: tokens that
    were streamed. ``asked_tokens``: tokens that the request asked for. ``is_exact``: what each
    event held is known. ``is_uncounted``: nobody counted tokens, so that each event counts as one.
    """
    has_several_tokens = (shown_tokens > 1) | (is_uncounted & (asked_tokens > 1))
    came_whole = (chunks == 1) & has_several_tokens
    came_in_few = (chunks > 1) & (chunks < FEW_CHUNKS)
    has_lumps = shown_tokens > MANY_TOKENS * chunks
    in_lumps: npt.NDArray[np.bool_] = came_whole | (came_in_few & has_lumps & ~is_exact)
    return in_lumps


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
    """Quantiles by numpy's default method (linear). For few values ``numpy.quantile`` takes five
    times as long. ``values``: at least one; they are partly sorted in place.
    """
    position = np.multiply(probabilities, values.size - 1)
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

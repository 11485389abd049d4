"""Columns of numbers that grow: many of them lie on disk, one at a time is read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from orchestrator.results.outcomes import FEW_CHUNKS, MANY_TOKENS
from orchestrator.results.spool import append, nameless_file, path_of, room

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


class Column:
    """Numbers of one type, more than AT_ONCE of them in a temporary file."""

    def __init__(self, dtype: npt.DTypeLike = np.float64) -> None:
        self._held = np.zeros(0, dtype)
        self._file: pa.NativeFile | None = None

    def add(self, values: npt.NDArray[Any]) -> None:
        """Raises ResultsError where there is no room for them."""
        values = np.concatenate([self._held, values.astype(self._held.dtype, copy=False)])
        if self._file is None and values.size > AT_ONCE:
            self._file = nameless_file()
        if self._file is None:
            self._held = values
        else:
            self._held = self._held[:0]
            append(self._file, values)

    def taken(self, order: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """All of them in another order, to read only: on disk where they are many."""
        found, values = Column(self._held.dtype), self.values()
        for start in range(0, order.size, AT_ONCE):
            found.add(values[order[start : start + AT_ONCE]])
        if found._file is None:
            return found._held
        # stays mapped; np.memmap would keep it open, too
        with room(), pa.memory_map(path_of(found._file)) as file:
            return np.frombuffer(file.read_buffer(), found._held.dtype)

    def values(self) -> npt.NDArray[Any]:
        """All of them, in memory, for the caller to change."""
        if self._file is None:
            return self._held.copy()
        with room():
            return np.fromfile(path_of(self._file), self._held.dtype)


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

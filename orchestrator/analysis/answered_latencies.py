"""The latencies of the answered requests of one attempt, beside columns that divide them: what asked
for an adapter and what did not, what was constrained and what was free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis.requests import RequestArrays, request_arrays
from orchestrator.base.arrays import Bools, Floats
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.schemas import REQUESTS
from orchestrator.results.window import MeasuredWindow

PART = "part"
LEAST_REQUESTS = 5  # medians of fewer say little


@dataclass(frozen=True, slots=True)
class AnsweredLatencies:
    """Of the answered requests that were due in the window; every array has one entry for each.
    TTFT counts from when a request was due; a TPOT is NaN where it is unknown.
    """

    columns: Mapping[str, pa.ChunkedArray]
    ttft_ms: Floats
    tpot_ms: Floats

    @classmethod
    def of(cls, requests: Rows, window: MeasuredWindow, names: Sequence[str]) -> AnsweredLatencies:
        """``names``: of the columns, beside the part of a mix. ``requests``: not empty."""
        names = [*names, PART]
        chunks: dict[str, list[pa.Array]] = {name: [] for name in names}
        ttft_ms: list[Floats] = []
        tpot_ms: list[Floats] = []
        for arrays in request_arrays(requests, None):
            chosen = arrays.ok & arrays.scheduled_in(window)
            for name in names:
                column = arrays.rows[name].filter(pa.array(chosen))
                # texts are read as dictionaries, each block with its own
                chunks[name] += column.cast(REQUESTS.field(name).type).chunks
            ttft_ms.append((arrays.first_ns - arrays.scheduled_ns)[chosen] / 1e6)
            tpot_ms.append(_tpot_ns(arrays)[chosen] / 1e6)
        columns = {
            name: pa.chunked_array(chunks[name], REQUESTS.field(name).type) for name in names
        }
        return cls(columns, np.concatenate(ttft_ms), np.concatenate(tpot_ms))

    def comparable(self, chosen: Bools) -> Bools:
        """The requests of those parts of a mix that have both chosen requests and others: requests
        of different parts differ by their prompts, too. All requests if the workload is no mix.
        """
        parts = self.columns[PART]
        if parts.null_count == len(parts):
            return np.ones(chosen.size, np.bool_)
        comparable = np.zeros(chosen.size, np.bool_)
        for name in parts.drop_null().unique().to_pylist():
            is_of_part: Bools = pc.equal(parts, name).fill_null(False).to_numpy()
            if np.any(is_of_part & chosen) and np.any(is_of_part & ~chosen):
                comparable |= is_of_part
        return comparable


def _tpot_ns(arrays: RequestArrays) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot_ns = (arrays.last_ns - arrays.first_ns) / arrays.intervals
    return np.where(arrays.intervals > 0, tpot_ns, np.nan)


def median_of(values: Floats, chosen: Bools) -> float | None:
    """The median of the chosen values that are known; None of fewer than LEAST_REQUESTS."""
    known = values[chosen & ~np.isnan(values)]
    return float(np.median(known)) if known.size >= LEAST_REQUESTS else None

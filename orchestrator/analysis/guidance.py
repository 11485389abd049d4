"""What constraints on answers came to in one attempt, and what they cost: the latencies of
constrained requests beside those of the free ones of the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.requests import RequestArrays, WindowNs, request_arrays
from orchestrator.base.arrays import Bools, Floats
from orchestrator.results.lazy_rows import Rows

# medians of fewer requests say little
LEAST_REQUESTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """Of the answered requests that were due in the window. Each field is the column of ``points``
    with the same name. Latencies are medians, in ms, from when a request was due; None: of fewer
    than LEAST_REQUESTS. End-to-end times are not compared: constrained answers are as long as they
    are.
    """

    constrained_share: float
    constraint_violations: int
    constraint_cut_share: float
    constrained_ttft_ms: float | None
    free_ttft_ms: float | None
    constrained_tpot_ms: float | None
    free_tpot_ms: float | None


def guidance_of(requests: Rows, window_ns: WindowNs) -> Guidance | None:
    """What constraints came to; None where no answered request of the window was constrained."""
    constraints = requests["constraint"]
    if constraints.null_count == len(constraints):
        return None
    blocks = [_Block.of(arrays, window_ns) for arrays in request_arrays(requests, None)]
    is_constrained = np.concatenate([block.is_constrained for block in blocks])
    met = np.concatenate([block.met for block in blocks])[is_constrained]
    ttft_ms = np.concatenate([block.ttft_ms for block in blocks])
    tpot_ms = np.concatenate([block.tpot_ms for block in blocks])
    if not is_constrained.any():
        return None
    return Guidance(
        constrained_share=float(is_constrained.mean()),
        constraint_violations=int(np.count_nonzero(met == 0)),
        constraint_cut_share=float(np.isnan(met).mean()),
        constrained_ttft_ms=_median(ttft_ms[is_constrained]),
        free_ttft_ms=_median(ttft_ms[~is_constrained]),
        constrained_tpot_ms=_median(tpot_ms[is_constrained]),
        free_tpot_ms=_median(tpot_ms[~is_constrained]),
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Some answered requests of the window. ``met``: 1, 0 or NaN."""

    is_constrained: Bools
    met: Floats
    ttft_ms: Floats
    tpot_ms: Floats

    @classmethod
    def of(cls, arrays: RequestArrays, window_ns: WindowNs) -> _Block:
        chosen = arrays.ok & arrays.scheduled_in(window_ns)
        is_constrained = arrays.rows["constraint"].is_valid().to_numpy()
        met = arrays.rows["constraint_met"].cast("int8").to_numpy().astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot_ns = (arrays.last_ns - arrays.first_ns) / arrays.intervals
        tpot_ns = np.where(arrays.intervals > 0, tpot_ns, np.nan)
        ttft_ns = arrays.first_ns - arrays.scheduled_ns
        return cls(
            is_constrained[chosen], met[chosen], ttft_ns[chosen] / 1e6, tpot_ns[chosen] / 1e6
        )


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size >= LEAST_REQUESTS else None

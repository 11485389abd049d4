"""What constraints on answers came to in one attempt, and what they cost: the latencies of
constrained requests beside those of the free ones of the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.analysis.answered_latencies import AnsweredLatencies, median_of
from orchestrator.base.arrays import Bools
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.outcomes import is_cut_end
from orchestrator.results.window import MeasuredWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """What constraints came to among the answered requests that were due in the window. Each field
    is the column of ``points`` with the same name.

    Latencies are medians in ms, TTFT from when a request was due; None: there were fewer than
    LEAST_REQUESTS. In a mix they are about the parts that have requests of both kinds. End-to-end
    times are not compared, because a constraint changes how long answers are.
    """

    constrained_share: float
    constraint_violations: int
    constraint_cut_share: float
    constraint_unchecked_share: float
    constrained_ttft_ms: float | None
    free_ttft_ms: float | None
    constrained_tpot_ms: float | None
    free_tpot_ms: float | None


def guidance_of(requests: Rows, window: MeasuredWindow) -> Guidance | None:
    """What constraints came to; None where no answered request of the window was constrained."""
    constraints = requests["constraint"]
    if constraints.null_count == len(constraints):
        return None
    answered = AnsweredLatencies.of(
        requests, window, ["constraint", "constraint_met", "finish_reason"]
    )
    is_constrained = answered.columns["constraint"].is_valid().to_numpy()
    if not is_constrained.any():
        return None
    # 1: met, 0: violated, NaN: not checked
    all_met = answered.columns["constraint_met"].cast("int8").to_numpy().astype(np.float64)
    met = all_met[is_constrained]
    is_unchecked = np.isnan(met)
    is_cut = _are_cut(answered.columns["finish_reason"])[is_constrained]
    is_comparable = answered.comparable(is_constrained)
    constrained = is_constrained & is_comparable
    free = ~is_constrained & is_comparable
    return Guidance(
        constrained_share=float(is_constrained.mean()),
        constraint_violations=int(np.count_nonzero(met == 0)),
        constraint_cut_share=float((is_unchecked & is_cut).mean()),
        constraint_unchecked_share=float((is_unchecked & ~is_cut).mean()),
        constrained_ttft_ms=median_of(answered.ttft_ms, constrained),
        free_ttft_ms=median_of(answered.ttft_ms, free),
        constrained_tpot_ms=median_of(answered.tpot_ms, constrained),
        free_tpot_ms=median_of(answered.tpot_ms, free),
    )


def _are_cut(reasons: pa.ChunkedArray) -> Bools:
    """Which finish reasons say that an answer was cut."""
    different = reasons.drop_null().unique().to_pylist()
    cut_ends = [reason for reason in different if is_cut_end(reason)]
    are_cut: Bools = pc.is_in(reasons, value_set=pa.array(cut_ends, pa.string())).to_numpy()
    return are_cut

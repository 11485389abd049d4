"""What LoRA adapters cost in one attempt: the latencies of requests that asked for an adapter beside
those of the requests of the same time that asked for the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.requests import RequestArrays, WindowNs, request_arrays
from orchestrator.base.arrays import Bools, Floats
from orchestrator.results.lazy_rows import Rows

LEAST_REQUESTS = 5  # medians of fewer say little


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCost:
    """Of the answered requests that were due in the window. Each field is the column of ``points``
    with the same name. Latencies are medians in ms, TTFT from when a request was due; None: of
    fewer than LEAST_REQUESTS.
    """

    adapter_share: float
    adapters_asked: int
    adapter_ttft_ms: float | None
    base_ttft_ms: float | None
    adapter_tpot_ms: float | None
    base_tpot_ms: float | None


def adapter_cost_of(requests: Rows, window_ns: WindowNs) -> AdapterCost | None:
    """What adapters cost; None where no answered request of the window asked for one."""
    adapters = requests["adapter"]
    if adapters.null_count == len(adapters):
        return None
    blocks = [_Block.of(arrays, window_ns) for arrays in request_arrays(requests, None)]
    has_adapter = np.concatenate([block.has_adapter for block in blocks])
    if not has_adapter.any():
        return None
    ttft_ms = np.concatenate([block.ttft_ms for block in blocks])
    tpot_ms = np.concatenate([block.tpot_ms for block in blocks])
    names: set[str] = set()
    for block in blocks:
        names |= block.names
    return AdapterCost(
        adapter_share=float(has_adapter.mean()),
        adapters_asked=len(names),
        adapter_ttft_ms=_median(ttft_ms[has_adapter]),
        base_ttft_ms=_median(ttft_ms[~has_adapter]),
        adapter_tpot_ms=_median(tpot_ms[has_adapter]),
        base_tpot_ms=_median(tpot_ms[~has_adapter]),
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Some answered requests of the window. ``names``: the adapters that they asked for."""

    has_adapter: Bools
    names: set[str]
    ttft_ms: Floats
    tpot_ms: Floats

    @classmethod
    def of(cls, arrays: RequestArrays, window_ns: WindowNs) -> _Block:
        chosen = arrays.ok & arrays.scheduled_in(window_ns)
        adapters = arrays.rows["adapter"].filter(chosen)
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot_ns = (arrays.last_ns - arrays.first_ns) / arrays.intervals
        tpot_ns = np.where(arrays.intervals > 0, tpot_ns, np.nan)
        ttft_ns = arrays.first_ns - arrays.scheduled_ns
        return cls(
            has_adapter=adapters.is_valid().to_numpy(),
            names={*adapters.drop_null().unique().to_pylist()},
            ttft_ms=ttft_ns[chosen] / 1e6,
            tpot_ms=tpot_ns[chosen] / 1e6,
        )


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size >= LEAST_REQUESTS else None

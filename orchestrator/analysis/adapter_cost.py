"""What LoRA adapters cost in one attempt: the latencies of requests that asked for an adapter beside
those of the requests of the same time that asked for the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.analysis.answered_latencies import AnsweredLatencies, median_of
from orchestrator.results.lazy_rows import Rows
from orchestrator.results.window import MeasuredWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterCost:
    """What adapters cost among the answered requests that were due in the window. Each field is the
    column of ``points`` with the same name.

    Latencies are medians in ms, TTFT from when a request was due; None: there were fewer than
    LEAST_REQUESTS. In a mix they are about the parts that have requests of both kinds.
    """

    adapter_share: float
    adapters_asked: int
    adapter_ttft_ms: float | None
    base_ttft_ms: float | None
    adapter_tpot_ms: float | None
    base_tpot_ms: float | None


def adapter_cost_of(requests: Rows, window: MeasuredWindow) -> AdapterCost | None:
    """What adapters cost; None where no answered request of the window asked for one."""
    if requests["adapter"].null_count == len(requests["adapter"]):
        return None
    answered = AnsweredLatencies.of(requests, window, ["adapter"])
    adapters = answered.columns["adapter"]
    has_adapter = adapters.is_valid().to_numpy()
    if not has_adapter.any():
        return None
    is_comparable = answered.comparable(has_adapter)
    asked = has_adapter & is_comparable
    base = ~has_adapter & is_comparable
    return AdapterCost(
        adapter_share=float(has_adapter.mean()),
        adapters_asked=len(adapters.drop_null().unique()),
        adapter_ttft_ms=median_of(answered.ttft_ms, asked),
        base_ttft_ms=median_of(answered.ttft_ms, base),
        adapter_tpot_ms=median_of(answered.tpot_ms, asked),
        base_tpot_ms=median_of(answered.tpot_ms, base),
    )

"""What the engines said of themselves during a measurement, in a few figures beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc


def summarize(samples: pa.Table) -> dict[str, float | None] | None:
    """Figures of one attempt's ``engine_metrics``, over all replicas, warm-up included; None without samples.

    Gauges are the highest of the readings, counters the growth from the first to the last one; null: the engine does
    not tell it. A counter that fell (the engine was started anew) tells nothing.
    """
    if not samples.num_rows:
        return None
    replicas = [
        samples.filter(pc.equal(samples["replica"], one)).sort_by("unix_ns")
        for one in sorted(set(samples["replica"].to_pylist()))
    ]

    def grown(column: str) -> float | None:
        return _all(replicas, lambda one: _growth(one[column].drop_null().to_pylist()), sum)

    def highest(column: str) -> float | None:
        return _all(replicas, lambda one: pc.max(one[column]).as_py(), max)

    return {
        "running_max": highest("running"),
        "waiting_max": highest("waiting"),
        "kv_usage_max": highest("kv_usage"),
        "preemptions": grown("preemptions_total"),
        "prompt_tokens": grown("prompt_tokens_total"),
        "generation_tokens": grown("generation_tokens_total"),
        "queue_time_mean_ms": _ratio(grown("queue_time_s_sum"), grown("queue_time_count"), 1e3),
        "ttft_mean_ms": _ratio(grown("ttft_s_sum"), grown("ttft_count"), 1e3),
        "prefix_hit_share": _ratio(grown("prefix_hit_tokens_total"), grown("prefix_query_tokens_total")),
        "spec_accepted_share": _ratio(grown("spec_accepted_tokens_total"), grown("spec_draft_tokens_total")),
    }


def _growth(values: list[float]) -> float | None:
    if len(values) < 2 or values[-1] < values[0]:
        return None
    return values[-1] - values[0]


def _all(
    replicas: list[pa.Table],
    figure: Callable[[pa.Table], float | None],
    combine: Callable[[list[float]], float],
) -> float | None:
    """Over replicas; None when one of them did not tell: a part of a sum would be taken for the whole."""
    values = [value for one in replicas if (value := figure(one)) is not None and math.isfinite(value)]
    return combine(values) if len(values) == len(replicas) else None


def _ratio(above: float | None, below: float | None, scale: float = 1.0) -> float | None:
    return scale * above / below if above is not None and below else None

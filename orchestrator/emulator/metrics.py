"""The emulator's ``/metrics``: Prometheus text in vLLM's names with vLLM 0.32's buckets, so that
dashboards work.
"""

from bisect import bisect_left
from collections.abc import Mapping

_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_ITERATION = (1.0, *(2.0**power for power in range(3, 15)))
_TOKENS = tuple(float(step * 10**power) for power in range(7) for step in (1, 2, 5))
_BUCKETS = {
    "time_to_first_token_seconds": _FIRST_TOKEN,
    "inter_token_latency_seconds": _BETWEEN_TOKENS,
    "request_time_per_output_token_seconds": _BETWEEN_TOKENS,
    "e2e_request_latency_seconds": _LATENCY,
    "request_queue_time_seconds": _LATENCY,
    "request_inference_time_seconds": _LATENCY,
    "request_prefill_time_seconds": _LATENCY,
    "request_decode_time_seconds": _LATENCY,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "request_max_num_generation_tokens": _TOKENS,
    "iteration_tokens_total": _ITERATION,
}


class Histograms:
    """vLLM's histograms, by their names without the prefix ``vllm:``. The buckets of those that
    count tokens end at the longest possible request.
    """

    def __init__(self, max_model_len: int) -> None:
        possible_tokens = tuple(bound for bound in _TOKENS if bound <= max_model_len)
        self._bounds: dict[str, tuple[float, ...]] = {}
        self._counts: dict[str, list[int]] = {}  # by bucket, the last one without a bound
        self._sums = dict.fromkeys(_BUCKETS, 0.0)
        for name, bounds in _BUCKETS.items():
            self._bounds[name] = possible_tokens if bounds is _TOKENS else bounds
            self._counts[name] = [0] * (len(self._bounds[name]) + 1)

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Counts a value ``times`` times."""
        self._counts[name][bisect_left(self._bounds[name], value)] += times
        self._sums[name] += value * times

    def lines(self, labels: str) -> list[str]:
        """Prometheus text format, version 0.0.4."""
        lines = []
        for name, bounds in self._bounds.items():
            metric = f"vllm:{name}"
            lines.append(f"# TYPE {metric} histogram")
            total = 0
            for bound, count in zip((*bounds, "+Inf"), self._counts[name], strict=True):
                total += count
                lines.append(f'{metric}_bucket{{{labels},le="{bound}"}} {total}')
            lines.append(f"{metric}_sum{{{labels}}} {self._sums[name]}")
            lines.append(f"{metric}_count{{{labels}}} {total}")
        return lines


def exposition(
    model: str,
    values: Mapping[str, float | Mapping[str, float]],
    histograms: Histograms | None = None,
) -> str:
    """The page in Prometheus' text format, version 0.0.4. A metric with a label of its own has a
    mapping as its value: ``{'reason="stop"': 3}``.
    """
    model_name = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'engine="0",model_name="{model_name}"'
    lines = []
    for metric, value in values.items():
        lines.append(f"# TYPE {metric} {_metric_type(metric)}")
        if isinstance(value, Mapping):
            lines += [f"{metric}{{{labels},{label}}} {number}" for label, number in value.items()]
        else:
            lines.append(f"{metric}{{{labels}}} {value}")
    if histograms is not None:
        lines += histograms.lines(labels)
    return "\n".join(lines) + "\n"


def _metric_type(metric: str) -> str:
    """The type of a metric, by the end of its name (Prometheus' conventions)."""
    if metric.endswith("_total"):
        return "counter"
    if metric.endswith(("_sum", "_count")):
        return "untyped"
    return "gauge"

"""The emulator's /metrics: vLLM's names, so that telemetry needs no second list, and its own timing error."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

_BOUNDS_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)


@dataclass(slots=True)
class Histogram:
    """Prometheus histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))
    total_s: float = 0.0

    def add(self, value_s: float) -> None:
        self.counts[bisect_left(_BOUNDS_S, value_s)] += 1
        self.total_s += value_s

    def lines(self, name: str, labels: str) -> Iterator[str]:
        yield f"# TYPE {name} histogram"
        seen = 0
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{le="{bound}",{labels}}} {seen}'
        yield f"{name}_sum{{{labels}}} {self.total_s}"
        yield f"{name}_count{{{labels}}} {seen}"


@dataclass(slots=True)
class Counters:
    """What the server counts over its life."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    succeeded: int = 0
    aborted: int = 0
    rejected: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)


def exposition(
    model: str, counters: Counters, gauges: dict[str, float], totals: dict[str, float], info: dict[str, str]
) -> str:
    """Prometheus text format, version 0.0.4."""
    labels = f'engine="0",model_name="{_escape(model)}"'
    lines: list[str] = []
    for kind, values in (("gauge", gauges), ("counter", totals)):
        for name, value in values.items():
            lines += [f"# TYPE {name} {kind}", f"{name}{{{labels}}} {value}"]
    finished = {"length": counters.succeeded, "abort": counters.aborted}
    lines.append("# TYPE vllm:request_success_total counter")
    lines += [
        f'vllm:request_success_total{{{labels},finished_reason="{why}"}} {count}' for why, count in finished.items()
    ]
    histograms = {
        "vllm:time_to_first_token_seconds": counters.ttft,
        "vllm:e2e_request_latency_seconds": counters.e2e,
        "vllm:request_time_per_output_token_seconds": counters.tpot,
        "vllm:request_queue_time_seconds": counters.queue,
    }
    for name, histogram in histograms.items():
        lines += histogram.lines(name, labels)
    facts = ",".join(f'{key}="{_escape(value)}"' for key, value in info.items())
    lines += ["# TYPE vllm:cache_config_info gauge", f'vllm:cache_config_info{{{facts},engine="0"}} 1.0']
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

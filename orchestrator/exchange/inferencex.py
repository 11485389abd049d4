"""Rows as InferenceX publishes them: a closed loop at one concurrency, per GPU.

Names and units are those of its ``utils/process_result.py``: seconds, and tokens/s for ``intvty``,
the interactivity 1 / TPOT. ``p99_intvty`` is that of the p99 of TPOT, so it is the slow end. Rows
have no place for a verdict, nor for what was not measured on the hardware that they name, so only
valid points of real engines are written. A row stands for all that the GPUs did, so a mix has one
row and its parts have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from orchestrator.analysis.points import StoredPoint
from orchestrator.exchange.exported import ExportedFile, ExportItem, LeftOutParts, LeftOutPoint
from orchestrator.plan.current import StoredExperiment
from orchestrator.results.records import Distribution

_LATENCIES = {
    "ttft": "ttft_from_sent_ms",
    "tpot": "tpot_ms",
    "itl": "itl_ms",
    "e2el": "e2e_from_sent_ms",
}
_STATISTICS = {"mean": "mean", "median": "p50", "std": "std", "p90": "p90", "p99": "p99"}


class InferenceX:
    """See the module."""

    title = "InferenceX rows"

    def files(self, experiment: StoredExperiment) -> Iterator[ExportItem]:
        """One file with a row for each valid closed-loop point."""
        rows: list[Mapping[str, object]] = []
        for point in experiment.points().current:
            reason = _reason_to_leave_out(point)
            if reason is not None:
                yield LeftOutPoint(point, reason)
                continue
            rows.append(_row(point))
            if point.part_figures:
                yield LeftOutParts(point, "a row stands for all that the GPUs did")
        if rows:
            yield ExportedFile(f"agg_{experiment.name}.json", rows, len(rows))


FORMAT = InferenceX()


def _reason_to_leave_out(point: StoredPoint) -> str | None:
    if not point.used_repeats:
        return "it failed"
    if point.source is not None:
        return f"it was measured by {point.source}"
    if point.simulated:
        return "it is simulated"
    if point.emulated:
        return "it is emulated"
    if point.validity != "valid":
        return f"it is {point.validity}"
    if point.head.control != "concurrency":
        return "it is no closed loop: rows are per concurrency"
    if not point.deployment.devices:
        return "how many GPUs it has is not known"
    return None


def _row(point: StoredPoint) -> dict[str, object]:
    deployment = point.deployment
    figures = point.figures
    settings = deployment.settings
    shards = _number(settings, "tensor_parallel_size")
    copies = _number(settings, "data_parallel_size")
    has_experts = settings.get("enable_expert_parallel") is True
    row: dict[str, object] = {
        "hw": deployment.hardware,
        "conc": int(point.head.level),
        "image": settings.get("image"),
        "model": deployment.model,
        "infmax_model_prefix": None,  # their own short name of the model, which no rule gives
        "framework": deployment.engine,
        "precision": deployment.quantization or settings.get("dtype"),
        "spec_decoding": _drafting_method(settings),
        "disagg": bool(settings.get("roles")),
        "is_multinode": _number(settings, "nnodes") > 1,
        "isl": _mean(figures.input_tokens),
        "osl": _mean(figures.output_tokens),
        "tp": shards,
        "pp": _number(settings, "pipeline_parallel_size"),
        "ep": shards * copies if has_experts else 1,
        "dp_attention": copies > 1,
    }
    rates = {
        "tput_per_gpu": figures.total_token_throughput,
        "output_tput_per_gpu": figures.output_token_throughput,
        "input_tput_per_gpu": figures.input_token_throughput,
    }
    for name, rate in rates.items():
        row[name] = None if rate is None else rate / deployment.devices
    for name, figure in _LATENCIES.items():
        latencies: Distribution | None = getattr(figures, figure)
        for statistic, field in _STATISTICS.items():
            if latencies is None:
                continue
            value_ms = getattr(latencies, field)
            row[f"{statistic}_{name}"] = value_ms / 1e3
            # the inverse of a standard deviation means nothing
            if name == "tpot" and statistic != "std" and value_ms > 0:
                row[f"{statistic}_intvty"] = 1e3 / value_ms
    return row


def _drafting_method(settings: Mapping[str, object]) -> str:
    """``none`` without speculation; ``unknown`` where the engine finds the method out itself."""
    speculative = settings.get("speculative")
    if not isinstance(speculative, Mapping):
        return "none"
    return str(speculative.get("method") or "unknown")


def _number(settings: Mapping[str, object], name: str) -> int:
    """A setting that is 1 unless it is given."""
    value = settings.get(name)
    return value if isinstance(value, int) else 1


def _mean(values: Distribution | None) -> int | None:
    return None if values is None or math.isnan(values.mean) else round(values.mean)

"""The columns of a point that say what was sent: reuse of prompts, a trace's fidelity, constraints on
answers and what these cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from orchestrator.report.column import ReportColumn
from orchestrator.report.documents.point import PointDocument

_SHARES = {
    "offered_rate": "requests/s that were due in the steady window of an open loop",
    "later_turns_share": "share of requests that are later turns of a session",
    "cached_share": "share of prompt tokens found in the engine's prefix cache",
    "expected_cached_share": "the share that a prefix cache of unlimited size would have held",
    "recorded_rate": "requests/s of the recorded trace that was sent at its times",
    "rate_factor": "rate asked for over the recorded one",
    "thinned_share": "share of the recorded sessions that were left out",
    "distinct_times_share": "distinct recorded times per request",
}

_ADAPTERS = {
    "adapter_share": ("", "share of answered requests that asked for a LoRA adapter"),
    "adapters_asked": ("", "different LoRA adapters that answered"),
    "adapter_ttft_ms": ("ms", "median TTFT of requests for adapters"),
    "base_ttft_ms": ("ms", "median TTFT of the requests for the model itself beside them"),
    "adapter_tpot_ms": ("ms", "median TPOT of requests for adapters"),
    "base_tpot_ms": ("ms", "median TPOT of the requests for the model itself beside them"),
}
_GUIDANCE = {
    "constrained_share": ("", "share of answered requests that were constrained"),
    "constraint_violations": ("", "constrained answers that are not what they had to be"),
    "constraint_cut_share": ("", "share of constrained answers that were cut too early to tell"),
    "constraint_unchecked_share": (
        "",
        "share of constrained answers whose check took too long, or was ended",
    ),
    "constrained_ttft_ms": ("ms", "median TTFT of constrained requests"),
    "free_ttft_ms": ("ms", "median TTFT of the free requests beside them"),
    "constrained_tpot_ms": ("ms", "median TPOT of constrained requests"),
    "free_tpot_ms": ("ms", "median TPOT of the free requests beside them"),
}
# What constraints add to a latency, as a share of that of the free requests of the same point.
_COSTS = {
    "guidance_ttft_cost": ("constrained_ttft_ms", "free_ttft_ms", "TTFT"),
    "guidance_tpot_cost": ("constrained_tpot_ms", "free_tpot_ms", "TPOT"),
}


def fact_columns() -> Iterator[ReportColumn[PointDocument]]:
    """What prompts are made of, and the mean over repeats of all else."""
    description = "what prompts are made of: random, text, file or mixed"
    yield ReportColumn("content", "", description, _content, str)
    for name, description in _SHARES.items():
        yield ReportColumn(name, "", description, partial(mean_of_repeats, name))
    for name, (unit, description) in _ADAPTERS.items():
        yield ReportColumn(name, unit, description, partial(mean_of_repeats, name))
    for name, (unit, description) in _GUIDANCE.items():
        yield ReportColumn(name, unit, description, partial(mean_of_repeats, name))
    for name, (_, _, latency) in _COSTS.items():
        description = f"how much longer the {latency} of constrained requests is: 0.1 is 10 %"
        yield ReportColumn(name, "", description, partial(_cost, name))


def fact_fields(document: PointDocument) -> dict[str, str | float | None]:
    """The same by name."""
    fields: dict[str, str | float | None] = {"content": _content(document)}
    for name in (*_SHARES, *_ADAPTERS, *_GUIDANCE):
        fields[name] = mean_of_repeats(name, document)
    for name in _COSTS:
        fields[name] = _cost(name, document)
    return fields


def _cost(name: str, document: PointDocument) -> float | None:
    constrained_name, free_name, _ = _COSTS[name]
    constrained = mean_of_repeats(constrained_name, document)
    free = mean_of_repeats(free_name, document)
    if constrained is None or not free:
        return None
    return constrained / free - 1


def _content(document: PointDocument) -> str | None:
    return document.point.head.content


def mean_of_repeats(name: str, document: PointDocument) -> float | None:
    """The mean of a field of the repeats that count; None where one of them does not have it."""
    values = [getattr(repeat.head, name) for repeat in document.point.used_repeats]
    if not values or None in values:
        return None
    return float(sum(values) / len(values))

"""The columns of a point about efficiency: MBU, MFU, their numerators and denominators, and what
tokens cost. docs/reference/efficiency.md defines the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from orchestrator.analysis.cost import AllocatedUsd, MillionTokens, usd_per_million
from orchestrator.analysis.efficiency import Efficiency
from orchestrator.analysis.energy import PointEnergy
from orchestrator.catalog.work import Peaks
from orchestrator.report.column import ReportColumn, field_of
from orchestrator.report.documents.point import PointDocument
from orchestrator.report.efficiency_words import efficiency_note_text, energy_note_text
from orchestrator.report.formats import JsonObject

PointColumn = ReportColumn[PointDocument]
_USD = "USD per million"
_ENERGY_PER = {
    "output_token": "output token",
    "token": "token of prompts and answers",
    "request": "request",
}
_PEAK = "peak."  # before the name of a column about peaks; an object in JSON
_USD_CONVENTIONS = {
    "output": "output tokens, which carry the whole hour",
    "blended": "tokens, input and output alike",
    "input_only": "input tokens, which carry the whole hour: do not add it to the price of output",
}


@cache
def efficiency_columns() -> tuple[PointColumn, ...]:
    """The columns about efficiency; None where it is not known, and ``efficiency_note`` says why."""
    return tuple(_efficiency_columns())


def _efficiency_columns() -> Iterator[PointColumn]:
    yield from _bounds(
        "decode_mbu", "", "share of the peak bandwidth that the tokens needed", "mbu"
    )
    mfu = field_of(_efficiency, "mfu")
    yield ReportColumn("mfu", "", "share of the peak FLOP/s that the tokens needed", mfu)
    description = "bytes that the tokens made one device read and write"
    yield from _bounds("device_bytes_s", "B/s", description, "bytes_s")
    description = "floating-point operations that the tokens needed of one device"
    flops_s = field_of(_efficiency, "flops_s")
    yield ReportColumn("device_flops_s", "FLOP/s", description, flops_s)
    description = "requests that decode at a time on one data-parallel rank"
    yield ReportColumn("running_per_rank", "", description, field_of(_efficiency, "running"))
    yield ReportColumn("step_s", "s", "time of a step", field_of(_efficiency, "step_s"))
    description = "output tokens of one request in a step"
    tokens_per_step = field_of(_efficiency, "tokens_per_step")
    yield ReportColumn("tokens_per_step", "tokens", description, tokens_per_step)
    yield from _peak_columns()
    yield from _checking_columns()
    description = "what to know of efficiency, or why it is not known"
    yield ReportColumn("efficiency_note", "", description, efficiency_note, str)
    for name, description in _USD_CONVENTIONS.items():
        price = field_of(_million_tokens, name)
        yield ReportColumn(f"usd_per_m_{name}", _USD, description, price)
    for name in ("input", "output"):
        description = f"{name} tokens, if prices of input and output together pay for all workloads"
        price = field_of(_allocated, name)
        yield ReportColumn(f"usd_allocated_{name}", _USD, description, price)
    yield from _energy_columns()


def _checking_columns() -> Iterator[PointColumn]:
    description = "device_flops_s as the engine estimates it"
    yield ReportColumn(
        "engine_flops_s", "FLOP/s", description, field_of(_efficiency, "engine_flops_s")
    )
    description = "device_bytes_s as the engine estimates it"
    yield ReportColumn(
        "engine_bytes_s", "B/s", description, field_of(_efficiency, "engine_bytes_s")
    )
    description = "share of its bandwidth that a GPU used, by its own counters"
    yield ReportColumn("dram_share", "", description, field_of(_energy, "dram_share"))
    description = "share of the time in which tensor cores ran, by the GPU's own counters"
    yield ReportColumn("tensor_share", "", description, field_of(_energy, "tensor_share"))


def _energy_columns() -> Iterator[PointColumn]:
    def of(name: str) -> Callable[[PointDocument], Any]:
        return field_of(_energy, name)

    yield ReportColumn("energy_j", "J", "energy of all GPUs in the window", of("energy_j"))
    description = "the same, by the integral of the power that was read"
    yield ReportColumn("energy_integral_j", "J", description, of("integral_j"))
    yield ReportColumn("power_mean_w", "W", "mean power of all GPUs together", of("power_w"))
    for name, what in _ENERGY_PER.items():
        yield ReportColumn(f"j_per_{name}", "J", f"energy per {what}", of(f"j_per_{name}"))
    description = "output tokens for a joule"
    yield ReportColumn("output_tokens_per_j", "tokens/J", description, of("output_tokens_per_j"))
    description = "what to know of the energy, or why it is not known"
    yield ReportColumn("energy_note", "", description, _energy_note, str)


def _energy(document: PointDocument) -> PointEnergy | None:
    return document.point.energy


def _energy_note(document: PointDocument) -> str | None:
    return energy_note_text(document.point)


def _peak_columns() -> Iterator[PointColumn]:
    yield _of_peaks("device", "", "the device whose peaks these are", str)
    yield _of_peaks("bandwidth_bytes_s", "B/s", "memory bandwidth of one device", float)
    yield _of_peaks("flops_s", "FLOP/s", "dense arithmetic of one device in that type", float)
    yield _of_peaks("compute_type", "", "type in which matrices are multiplied", str)
    yield _of_peaks("source", "", "where the peaks were published", str)
    yield _of_peaks("as_of", "", "when they were looked up", str)
    yield _of_peaks("is_overridden", "", "whether the bandwidth is the experiment file's", bool)


def _of_peaks(name: str, unit: str, description: str, kind: type) -> PointColumn:
    return ReportColumn(f"{_PEAK}{name}", unit, description, field_of(_peaks, name), kind)


def _bounds(name: str, unit: str, description: str, field_name: str) -> Iterator[PointColumn]:
    bounds = field_of(_efficiency, field_name)
    yield ReportColumn(name, unit, description, field_of(bounds, "estimate"))
    of_experts = {
        "lower": "if all tokens of a step choose the same experts",
        "upper": "if no two of them do",
    }
    for end, when in of_experts.items():
        yield ReportColumn(f"{name}.{end}", unit, f"{name} {when}", field_of(bounds, end))


def _efficiency(document: PointDocument) -> Efficiency | None:
    result = document.point.efficiency
    return result if isinstance(result, Efficiency) else None


def _peaks(document: PointDocument) -> Peaks | None:
    efficiency = _efficiency(document)
    return None if efficiency is None else efficiency.peaks


def efficiency_note(document: PointDocument) -> str | None:
    """What to know of the efficiency of a point, or why it is not known; None: nothing."""
    return efficiency_note_text(document.point)


def _million_tokens(document: PointDocument) -> MillionTokens:
    return usd_per_million(document.point)


def _allocated(document: PointDocument) -> AllocatedUsd | None:
    return document.allocated


def efficiency_names() -> list[str]:
    """The names of all these columns but those of peaks."""
    return [column.name for column in efficiency_columns() if not _is_of_peaks(column)]


def _is_of_peaks(column: PointColumn) -> bool:
    return column.name.startswith(_PEAK)


def efficiency_fields(document: PointDocument) -> JsonObject:
    """The same values for JSON; the peaks are an object."""
    fields: dict[str, Any] = {}
    peaks: dict[str, Any] = {}
    for column in efficiency_columns():
        if _is_of_peaks(column):
            peaks[column.name.removeprefix(_PEAK)] = column.value(document)
        else:
            fields[column.name] = column.value(document)
    return {**fields, "peak": peaks}

"""What the GPUs of a deployment did in the steady window of an attempt, and the energy of its tokens.

The energy is the growth of each GPU's own counter. The integral of the power that was read stands
beside it as a check: a driver samples power for a part of the time only (arXiv 2312.02741). Both are
of the boards alone, without CPUs, network, fans and power supplies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa

from orchestrator.analysis.counters import CounterFell, Readings, TimeWindow, readings
from orchestrator.base.arrays import Floats, Ints
from orchestrator.results.records import DeviceSide, Figures

LEAST_WINDOW_S = 5.0  # a counter moves every 20 to 100 ms, which is 2 % of 5 s
MOST_DIFFERENCE = 0.05  # between the counter and the integral of power, as a share of the integral
MOST_FOREIGN_BYTES = 64 << 20  # what a program holds that only looks at a GPU
DRAWS_NOTHING_W = 1.0  # a GPU that is on draws more, even while it idles
_MILLI = 1e-3


class EnergyNote(StrEnum):
    """What a reader of an energy must know. With any but the last two notes, no energy is given."""

    NO_COUNTER = "no_counter"
    SHORT_WINDOW = "short_window"
    RESET = "reset"  # the counter fell: its driver was loaded again
    # the counter did not move, and no reading of power says that the GPU drew nothing
    STANDS_STILL = "stands_still"
    GPU_LOST = "gpu_lost"  # a GPU was not read for a part of the window, or for all of it
    DISAGREES = "disagrees"  # the counters and the integral of power differ
    FOREIGN = "foreign"  # other programs used a GPU


@dataclass(frozen=True, slots=True)
class _Gpu:
    """The readings of one GPU."""

    energy_j: Readings
    power_w: Readings
    dram_share: Readings
    tensor_share: Readings
    foreign_bytes: Readings

    def counted_j(self, window: TimeWindow) -> float | EnergyNote:
        """Joules by the counter, or why there are none."""
        if not self.energy_j.values.size:
            return EnergyNote.NO_COUNTER if self.power_w.covered(window) else EnergyNote.GPU_LOST
        try:
            counted_w = self.energy_j.rate(window)
        except CounterFell:
            return EnergyNote.RESET
        if math.isnan(counted_w):
            return EnergyNote.GPU_LOST
        counter_stands = counted_w < DRAWS_NOTHING_W
        # False too where power was not read in the window, since its mean is NaN then
        draws_nothing = self.power_w.mean(window) < DRAWS_NOTHING_W
        if counter_stands and not draws_nothing:
            return EnergyNote.STANDS_STILL
        return counted_w * window.length_s

    def integral_j(self, window: TimeWindow) -> float:
        """Joules by the integral of power; NaN where power was not read in the window."""
        return self.power_w.mean(window) * window.length_s


def device_side(telemetry: pa.Table, window: TimeWindow, devices: int) -> DeviceSide | None:
    """What the GPUs of an attempt did in its window; None without readings.

    ``telemetry``: its rows of the table. ``devices``: how many GPUs its deployment has.
    """
    if not telemetry.num_rows or window.length_s <= 0:
        return None
    gpus = _gpus(telemetry)
    notes: list[EnergyNote] = []
    if len(gpus) < devices:
        notes.append(EnergyNote.GPU_LOST)
    if window.length_s < LEAST_WINDOW_S:
        notes.append(EnergyNote.SHORT_WINDOW)
    energy_j = 0.0
    for gpu in gpus:
        counted_j = gpu.counted_j(window)
        if isinstance(counted_j, EnergyNote):
            notes.append(counted_j)
        else:
            energy_j += counted_j
    has_energy = not notes
    integral_j = _sum([gpu.integral_j(window) for gpu in gpus])
    if has_energy and integral_j is not None and _differ(energy_j, integral_j):
        notes.append(EnergyNote.DISAGREES)
    if any((gpu.foreign_bytes.values > MOST_FOREIGN_BYTES).any() for gpu in gpus):
        notes.append(EnergyNote.FOREIGN)
    return DeviceSide(
        gpus=len(gpus),
        window_s=window.length_s,
        energy_j=energy_j if has_energy else None,
        integral_j=integral_j,
        dram_share=_mean([gpu.dram_share.mean(window) for gpu in gpus]),
        tensor_share=_mean([gpu.tensor_share.mean(window) for gpu in gpus]),
        energy_notes=_each_once(notes),
    )


def _each_once(notes: Sequence[EnergyNote]) -> tuple[EnergyNote, ...]:
    """The notes without repetitions, in the order in which each came first."""
    return tuple(dict.fromkeys(notes))


def _differ(energy_j: float, integral_j: float) -> bool:
    return abs(energy_j - integral_j) > MOST_DIFFERENCE * integral_j


def _gpus(telemetry: pa.Table) -> list[_Gpu]:
    """The GPUs that were read, in the order in which each comes first in the table."""
    uuids = np.asarray(telemetry["gpu_uuid"].to_pylist(), dtype=object)
    offset_ns = _numbers(telemetry, "clock_offset_ns")
    at_s = (_numbers(telemetry, "unix_ns") - np.nan_to_num(offset_ns)) / 1e9
    in_order = np.argsort(at_s, kind="stable")
    gpus: list[_Gpu] = []
    for uuid in dict.fromkeys(uuids.tolist()):
        rows = in_order[uuids[in_order] == uuid]
        gpus.append(_gpu(telemetry, at_s, rows))
    return gpus


def _gpu(telemetry: pa.Table, at_s: Floats, rows: Ints) -> _Gpu:
    """One GPU. ``at_s``: when each row of the table was read. ``rows``: those of the GPU, in the
    order of time.
    """

    def column(name: str) -> Readings:
        return readings(at_s[rows], _numbers(telemetry, name)[rows])

    energy_mj = column("energy_mj")
    return _Gpu(
        energy_j=Readings(energy_mj.at_s, energy_mj.values * _MILLI),
        power_w=column("power_w"),
        dram_share=column("dram_share"),
        tensor_share=column("tensor_share"),
        foreign_bytes=column("foreign_bytes"),
    )


def _numbers(telemetry: pa.Table, column: str) -> Floats:
    """A column as numbers, NaN where it is null."""
    return np.asarray(telemetry[column].to_numpy(), dtype=np.float64)


def _sum(values: Sequence[float]) -> float | None:
    """The sum; None where any value is unknown."""
    total = sum(values)
    return None if math.isnan(total) else total


def _mean(values: Sequence[float]) -> float | None:
    total = _sum(values)
    return None if total is None else total / len(values)


@dataclass(frozen=True, slots=True)
class PointEnergy:
    """The energy of a point's tokens, over the steady windows of its repeats.

    ``energy_j``: by the GPUs' counters, ``integral_j``: by the integral of power; None: not known.
    ``tokens``: of prompts and answers; None: prompts were not counted. ``dram_share``: mean share
    of its bandwidth that a GPU used, ``tensor_share``: of the time in which its tensor cores ran.
    """

    energy_j: float | None
    integral_j: float | None
    window_s: float
    output_tokens: float
    tokens: float | None
    requests: float
    dram_share: float | None
    tensor_share: float | None
    notes: tuple[EnergyNote, ...]

    @property
    def power_w(self) -> float | None:
        """The mean power of all GPUs together."""
        return _ratio(self.energy_j, self.window_s)

    @property
    def j_per_output_token(self) -> float | None:
        return _ratio(self.energy_j, self.output_tokens)

    @property
    def j_per_token(self) -> float | None:
        return _ratio(self.energy_j, self.tokens)

    @property
    def j_per_request(self) -> float | None:
        return _ratio(self.energy_j, self.requests)

    @property
    def output_tokens_per_j(self) -> float | None:
        return _ratio(self.output_tokens, self.energy_j)


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    if numerator is None or not denominator:
        return None
    return numerator / denominator


@dataclass(frozen=True, slots=True)
class RepeatEnergy:
    """What the GPUs did in one repeat, and its figures."""

    devices: DeviceSide
    figures: Figures


def point_energy(repeats: Sequence[RepeatEnergy]) -> PointEnergy | None:
    """The energy of several repeats together; None without repeats."""
    if not repeats:
        return None
    notes: list[EnergyNote] = []
    for repeat in repeats:
        notes += [EnergyNote(note) for note in repeat.devices.energy_notes]
    window_s = [repeat.devices.window_s for repeat in repeats]
    figures = [repeat.figures for repeat in repeats]
    return PointEnergy(
        energy_j=_sum_of_all([repeat.devices.energy_j for repeat in repeats]),
        integral_j=_sum_of_all([repeat.devices.integral_j for repeat in repeats]),
        window_s=sum(window_s),
        output_tokens=_amount([each.output_token_throughput for each in figures], window_s) or 0.0,
        tokens=_amount([each.total_token_throughput for each in figures], window_s),
        requests=_amount([each.request_throughput for each in figures], window_s) or 0.0,
        dram_share=_weighted([repeat.devices.dram_share for repeat in repeats], window_s),
        tensor_share=_weighted([repeat.devices.tensor_share for repeat in repeats], window_s),
        notes=_each_once(notes),
    )


def _sum_of_all(values: Sequence[float | None]) -> float | None:
    """The sum; None where any value is unknown."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if len(numbers) == len(values) else None


def _amount(rates: Sequence[float | None], window_s: Sequence[float]) -> float | None:
    """What came in all windows together; None where a rate is unknown."""
    amounts = [
        None if rate is None else rate * seconds
        for rate, seconds in zip(rates, window_s, strict=True)
    ]
    return _sum_of_all(amounts)


def _weighted(shares: Sequence[float | None], window_s: Sequence[float]) -> float | None:
    amount = _amount(shares, window_s)
    return None if amount is None else amount / sum(window_s)

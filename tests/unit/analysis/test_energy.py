"""The energy of tokens, from counters that move, stand still, fall, end or disagree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.analysis.counters import TimeWindow
from orchestrator.analysis.energy import (
    EnergyNote,
    PointEnergy,
    RepeatEnergy,
    device_side,
    point_energy,
)
from orchestrator.results.records import DeviceSide, Figures
from orchestrator.results.schemas import TABLES
from tests.unit.results.builders import gpu_readings

BEGAN_S = 1_700_000_000
WINDOW = TimeWindow(BEGAN_S + 2.0, BEGAN_S + 12.0)  # 10 s
MIB = 1 << 20


def of_gpu(
    uuid: str = "GPU-0",
    power_w: float = 500.0,
    seconds: float = 14.0,
    energy_mj: Callable[[float], int | None] | None = None,
    **columns: Any,
) -> list[dict[str, Any]]:
    """Readings of one GPU twice a second. ``energy_mj``: of the second; None: its power's."""
    rows = gpu_readings(power_w, seconds, uuid, began_ns=BEGAN_S * 10**9, **columns)
    if energy_mj is not None:
        for step, row in enumerate(rows):
            row["energy_mj"] = energy_mj(step / 2)
    return rows


def side(
    *gpus: Sequence[dict[str, Any]], window: TimeWindow = WINDOW, devices: int | None = None
) -> DeviceSide:
    rows = [row for gpu in gpus for row in gpu]
    table = pa.Table.from_pylist(rows, schema=TABLES["telemetry"])
    result = device_side(table, window, len(gpus) if devices is None else devices)
    assert result is not None
    return result


def test_the_energy_of_a_window_is_the_growth_of_all_counters() -> None:
    # 500 W and 300 W for 10 s
    both = side(of_gpu(), of_gpu("GPU-1", power_w=300.0))
    assert both.energy_j == pytest.approx(8000)
    assert both.integral_j == pytest.approx(8000)
    assert both.gpus == 2
    assert both.energy_notes == ()


def test_readings_are_laid_on_the_clock_of_the_driver() -> None:
    # the host's clock is 100 s ahead, and so are its readings
    ahead = of_gpu()
    for row in ahead:
        row["unix_ns"] += 100_000_000_000
        row["clock_offset_ns"] = 100_000_000_000
    assert side(ahead).energy_j == pytest.approx(5000)


def test_without_readings_nothing_is_known() -> None:
    assert device_side(TABLES["telemetry"].empty_table(), WINDOW, 1) is None


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (of_gpu(energy_mj=lambda at_s: 7_000_000), EnergyNote.STANDS_STILL),
        (of_gpu(energy_mj=lambda at_s: round(at_s * 5e5) % 4_000_000), EnergyNote.RESET),
        (of_gpu(energy_mj=lambda at_s: None), EnergyNote.NO_COUNTER),
        (of_gpu(seconds=6.0), EnergyNote.GPU_LOST),
        (of_gpu(energy_mj=lambda at_s: round(at_s * 5e5) if at_s < 6 else None),
         EnergyNote.GPU_LOST),
    ],
)  # fmt: skip
def test_a_counter_that_cannot_be_trusted_gives_no_energy(
    rows: list[dict[str, Any]], note: EnergyNote
) -> None:
    spoilt = side(rows)
    assert spoilt.energy_j is None
    assert spoilt.energy_notes == (note,)
    # one bad counter of two spoils the sum
    assert side(rows, of_gpu("GPU-1")).energy_j is None


def test_a_gpu_without_any_reading_is_lost() -> None:
    lost = side(of_gpu(), devices=2)
    assert (lost.energy_j, lost.energy_notes) == (None, (EnergyNote.GPU_LOST,))


def test_a_window_of_less_than_5_s_is_too_short() -> None:
    short = side(of_gpu(), window=TimeWindow(BEGAN_S + 2.0, BEGAN_S + 6.9))
    assert (short.energy_j, short.energy_notes) == (None, (EnergyNote.SHORT_WINDOW,))
    assert short.integral_j == pytest.approx(2450)
    assert side(of_gpu(), window=TimeWindow(BEGAN_S + 2.0, BEGAN_S + 7.0)).energy_j is not None


def test_a_counter_that_disagrees_with_the_power_is_kept_and_noted() -> None:
    near = side(of_gpu(energy_mj=lambda at_s: round(at_s * 480e3)))  # 4 % less
    assert near.energy_notes == ()
    far = side(of_gpu(energy_mj=lambda at_s: round(at_s * 470e3)))  # 6 % less
    assert far.energy_j == pytest.approx(4700)
    assert far.integral_j == pytest.approx(5000)
    assert far.energy_notes == (EnergyNote.DISAGREES,)


def test_other_programs_on_a_gpu_are_noted() -> None:
    assert side(of_gpu(foreign_bytes=2000 * MIB)).energy_notes == (EnergyNote.FOREIGN,)
    assert side(of_gpu(foreign_bytes=10 * MIB)).energy_notes == ()


def test_power_that_was_never_read_leaves_the_counter_unchecked() -> None:
    rows = of_gpu()
    for row in rows:
        row["power_w"] = None
    unchecked = side(rows)
    assert unchecked.energy_j == pytest.approx(5000)
    assert unchecked.integral_j is None


def test_a_counter_that_stands_still_where_power_was_never_read_is_no_energy() -> None:
    rows = of_gpu(energy_mj=lambda at_s: 7_000_000)
    for row in rows:
        row["power_w"] = None
    still = side(rows)
    assert (still.energy_j, still.energy_notes) == (None, (EnergyNote.STANDS_STILL,))


def test_shares_are_means_over_the_window_and_the_gpus() -> None:
    both = side(of_gpu(dram_share=0.6, tensor_share=0.2), of_gpu("GPU-1", dram_share=0.4))
    assert both.dram_share == pytest.approx(0.5)
    assert both.tensor_share is None  # of one GPU it is not known


def repeat(energy_j: float | None, output_tokens_s: float = 100.0, **changes: Any) -> RepeatEnergy:
    devices = DeviceSide(
        gpus=1,
        window_s=10.0,
        energy_j=energy_j,
        integral_j=energy_j,
        dram_share=changes.get("dram_share"),
        tensor_share=None,
        energy_notes=changes.get("notes", ()),
    )
    figures = SimpleNamespace(
        output_token_throughput=output_tokens_s,
        total_token_throughput=5 * output_tokens_s,
        request_throughput=output_tokens_s / 50,
    )
    return RepeatEnergy(devices, cast(Figures, figures))


def as_energy(repeats: Sequence[RepeatEnergy]) -> PointEnergy:
    energy = point_energy(repeats)
    assert energy is not None
    return energy


def test_tokens_and_requests_share_the_energy() -> None:
    # 5,000 J and 3,000 J in 10 s each, 1,000 output tokens each: 4 J a token; 5,000 tokens in all
    # each: 0.8 J; 20 requests each: 200 J
    energy = as_energy([repeat(5000), repeat(3000)])
    assert energy.energy_j == 8000
    assert energy.power_w == pytest.approx(400)
    assert energy.j_per_output_token == pytest.approx(4)
    assert energy.j_per_token == pytest.approx(0.8)
    assert energy.j_per_request == pytest.approx(200)


def test_one_repeat_without_energy_leaves_none() -> None:
    energy = as_energy([repeat(5000), repeat(None, notes=("short_window",))])
    assert energy.energy_j is None
    assert energy.output_tokens_per_j is None
    assert energy.notes == (EnergyNote.SHORT_WINDOW,)


def test_without_repeats_there_is_no_energy() -> None:
    assert point_energy([]) is None


@given(energy_j=st.floats(1e-3, 1e9), output_tokens_s=st.floats(1e-3, 1e6))
def test_tokens_per_joule_times_joules_per_token_is_1(
    energy_j: float, output_tokens_s: float
) -> None:
    energy = as_energy([repeat(energy_j, output_tokens_s)])
    assert energy.output_tokens_per_j is not None
    assert energy.j_per_output_token is not None
    assert energy.output_tokens_per_j * energy.j_per_output_token == pytest.approx(1)


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=8))
def test_the_energy_of_gpus_is_the_sum_of_each_alone(powers_w: list[float]) -> None:
    gpus = [of_gpu(f"GPU-{index}", power_w) for index, power_w in enumerate(powers_w)]
    alone = [side(gpu).energy_j for gpu in gpus]
    assert all(energy_j is not None for energy_j in alone)
    assert side(*gpus).energy_j == pytest.approx(sum(energy_j or 0 for energy_j in alone))

"""What disturbed a GPU: shares of time from counters or reasons, foreign memory, loss."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.telemetry.gpu_condition import GpuCondition, gpu_conditions
from orchestrator.telemetry.gpu_sample import GpuSample, LostGpu
from orchestrator.telemetry.node_sampler import NodeTelemetry

SECOND = 10**9


def condition(*readings: dict[str, Any]) -> GpuCondition:
    """One reading a second."""
    samples = [GpuSample("GPU-a", at * SECOND, values) for at, values in enumerate(readings)]
    (result,) = gpu_conditions([NodeTelemetry(gpu_samples=samples, host="h")])
    return result


def test_a_quiet_gpu_has_nothing() -> None:
    counters = {"throttled_ns_power": 5, "throttled_ns_hw": 9, "event_reasons": 0x84}
    counters["ecc_uncorrected"] = 2
    assert condition(counters, counters, {**counters, "foreign_bytes": 0}) == GpuCondition(
        "GPU-a", "h", power_limited_share=0.0, braked_share=0.0, foreign_bytes=0, ecc_errors=0
    )


def test_what_a_gpu_does_not_report_is_unknown() -> None:
    assert condition({"power_w": 1.0}, {"power_w": 1.0}) == GpuCondition("GPU-a", "h")


def test_counters_give_the_share_of_the_time() -> None:
    result = condition(
        {"throttled_ns_power": 0, "throttled_ns_thermal": 3, "throttled_ns_hw": 0},
        {"throttled_ns_power": SECOND, "throttled_ns_thermal": 3, "throttled_ns_hw": SECOND // 2},
        {"throttled_ns_power": SECOND, "throttled_ns_thermal": 3, "throttled_ns_hw": SECOND // 2},
    )
    assert (result.power_limited_share, result.braked_share) == (0.5, 0.25)


def test_a_counter_that_is_read_now_and_then_gives_the_share_between_its_readings() -> None:
    nothing: dict[str, Any] = {}
    first, last = {"throttled_ns_power": 0}, {"throttled_ns_power": SECOND}
    result = condition(first, nothing, last, nothing, nothing)
    assert result.power_limited_share == 0.5


@pytest.mark.parametrize(
    ("reasons", "power_limited", "braked"),
    [([0, 0x4, 0x4, 0], 0.5, 0.0), ([0x40, 0x8, 0x20, 0x80], 0.0, 1.0), ([0x2, 0, 0, 0], 0.0, 0.0)],
)
def test_without_counters_the_reasons_of_samples_count(
    reasons: list[int], power_limited: float, braked: float
) -> None:
    result = condition(*({"event_reasons": reason} for reason in reasons))
    assert (result.power_limited_share, result.braked_share) == (power_limited, braked)


def test_reasons_count_in_place_of_a_counter_that_is_missing() -> None:
    result = condition(
        {"throttled_ns_thermal": 0, "event_reasons": 0x40},
        {"throttled_ns_thermal": SECOND // 4, "event_reasons": 0x20},
    )
    assert result.braked_share == 0.5, "of hardware alone: heat by software has its counter"
    result = condition(
        {"throttled_ns_thermal": 0, "event_reasons": 0x40},
        {"throttled_ns_thermal": 3 * SECOND // 4, "event_reasons": 0x20},
    )
    assert result.braked_share == 0.75


def test_a_counter_that_was_reset_is_not_used() -> None:
    result = condition(
        {"throttled_ns_hw": 9 * SECOND, "ecc_uncorrected": 7, "event_reasons": 0},
        {"throttled_ns_hw": 0, "ecc_uncorrected": 0, "event_reasons": 0x8},
    )
    assert (result.braked_share, result.ecc_errors) == (0.5, None)


def test_the_most_foreign_memory_and_new_memory_errors_count() -> None:
    result = condition(
        {"foreign_bytes": 0, "ecc_uncorrected": 2},
        {"foreign_bytes": 9, "ecc_uncorrected": 2},
        {"ecc_uncorrected": 5},
    )
    assert (result.foreign_bytes, result.ecc_errors) == (9, 3)


def test_a_gpu_may_be_lost_before_its_first_sample_or_later() -> None:
    node = NodeTelemetry(
        gpu_samples=[GpuSample("GPU-a", 0, {}), GpuSample("GPU-b", 0, {})],
        lost_gpus=[LostGpu("GPU-b", 1, "lost"), LostGpu("GPU-c", 0, "lost")],
        host="h",
    )
    lost = {gpu.gpu_uuid: gpu.is_lost for gpu in gpu_conditions([node])}
    assert lost == {"GPU-a": False, "GPU-b": True, "GPU-c": True}

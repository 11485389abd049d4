"""One of NVIDIA's GPUs, reading after reading: units, what it lacks, and what happens when it is
lost.
"""

from __future__ import annotations

import time
from itertools import count

import pynvml
import pytest

from orchestrator.results.schemas import TABLES
from orchestrator.telemetry.gpu_sample import GpuLost
from orchestrator.telemetry.nvidia import FIELDS, LEAST_GPM_INTERVAL_S, NvidiaGpu, NvidiaGpus
from tests.unit.telemetry.fake_nvml import GIB, LOST, NOT_SUPPORTED, FakeGpu, FakeNvml


def reader_of(gpu: FakeGpu) -> NvidiaGpu:
    """A reader whose clock goes on by half a second each time it is asked."""
    return NvidiaGpu(gpu.uuid, FakeNvml(gpu), count(step=0.5).__next__)


def test_a_reading_has_every_column_in_its_unit() -> None:
    reader = reader_of(FakeGpu("GPU-a"))
    reader.read()
    assert reader.read() == {
        "power_w": 650.0,
        "energy_mj": 1_000_000,
        "memory_temperature_c": 70,
        "ecc_uncorrected": 0,
        "throttled_ns_power": 5_000_000,
        "throttled_ns_thermal": 6_000_000,
        "throttled_ns_hw": 17_000_000,
        "nvlink_bytes": 30 * 1024,
        "field_latency_us": 271,
        "sm_mhz": 1755,
        "memory_mhz": 2619,
        "temperature_c": 61,
        "event_reasons": 4,
        "used_bytes": 70 * GIB,
        "busy_share": 0.97,
        "dram_share": 0.6,
        "tensor_share": 0.3,
    }
    assert set(reader.read()) <= set(TABLES["telemetry"].names)


def test_one_call_reads_all_fields() -> None:
    gpu = FakeGpu("GPU-a")
    reader = reader_of(gpu)
    for _ in range(3):
        reader.read()
    assert gpu.calls["nvmlDeviceGetFieldValues"] == 3
    assert len(gpu.asked_fields[0]) == len(FIELDS)
    assert (138, 0xFFFFFFFF) in gpu.asked_fields[0], "of all links together"


def test_shares_begin_with_the_second_reading() -> None:
    first = reader_of(FakeGpu("GPU-a")).read()
    assert "dram_share" not in first and "tensor_share" not in first


def test_samples_of_shares_that_are_too_close_say_nothing() -> None:
    gpu = FakeGpu("GPU-a")
    times_s = iter([0.0, 0.5, 0.55, 1.0])
    reader = NvidiaGpu("GPU-a", FakeNvml(gpu), times_s.__next__)
    has_shares = ["dram_share" in reader.read() for _ in range(4)]
    assert has_shares == [False, True, False, True]
    assert gpu.calls["nvmlGpmSampleGet"] == 3, "the sample before stays for the next reading"


def test_an_older_driver_has_another_function_for_the_temperature() -> None:
    not_found = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    gpu = FakeGpu("GPU-a", errors={"nvmlDeviceGetTemperatureV": not_found})
    reader = reader_of(gpu)
    assert [reader.read()["temperature_c"] for _ in range(3)] == [61, 61, 61]
    assert gpu.calls["nvmlDeviceGetTemperatureV"] == 1
    assert gpu.calls["nvmlDeviceGetTemperature"] == 3


def test_what_a_gpu_lacks_is_asked_for_once() -> None:
    lacks = {138: NOT_SUPPORTED, 139: NOT_SUPPORTED, 83: pynvml.NVML_ERROR_INVALID_ARGUMENT,
             "nvmlDeviceGetUtilizationRates": NOT_SUPPORTED, "nvmlGpmSampleGet": NOT_SUPPORTED}  # fmt: skip
    gpu = FakeGpu("GPU-a", errors=lacks)
    reader = reader_of(gpu)
    for _ in range(3):
        values = reader.read()
        assert not {"nvlink_bytes", "energy_mj", "busy_share", "dram_share"} & set(values)
        assert values["power_w"] == 650.0
    assert [len(keys) for keys in gpu.asked_fields] == [10, 7, 7]
    assert gpu.calls["nvmlDeviceGetUtilizationRates"] == gpu.calls["nvmlGpmSampleGet"] == 1
    assert gpu.calls["nvmlDeviceGetClockInfo"] == 6, "two clocks at each reading"


@pytest.mark.parametrize(
    ("lacking", "column"),
    [
        (138, "nvlink_bytes"),
        (139, "nvlink_bytes"),
        (270, "throttled_ns_hw"),
        (271, "throttled_ns_hw"),
    ],
)
def test_a_sum_of_which_a_gpu_lacks_a_part_is_not_reported(lacking: int, column: str) -> None:
    gpu = FakeGpu("GPU-a", errors={lacking: NOT_SUPPORTED})
    reader = reader_of(gpu)
    for _ in range(3):
        values = reader.read()
        assert column not in values, "a part of a sum would be taken for the whole"
        assert {"energy_mj", "throttled_ns_thermal"} <= set(values)
    assert [len(keys) for keys in gpu.asked_fields] == [10, 8, 8]


def test_an_older_driver_counts_heat_in_another_field() -> None:
    reader = reader_of(FakeGpu("GPU-a", errors={269: NOT_SUPPORTED}))
    assert "throttled_ns_thermal" not in reader.read()
    assert reader.read()["throttled_ns_thermal"] == 7_000_000


def test_an_error_that_passes_is_a_gap_in_one_reading() -> None:
    gpu = FakeGpu("GPU-a", errors={139: pynvml.NVML_ERROR_TIMEOUT})
    reader = reader_of(gpu)
    assert "nvlink_bytes" not in reader.read(), "a part of a sum would be taken for the whole"
    gpu.errors = {}
    assert reader.read()["nvlink_bytes"] == 30 * 1024


@pytest.mark.parametrize(
    "where", [83, "nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryInfo", "nvmlGpmSampleGet"]
)
def test_a_gpu_that_fell_off_the_bus_is_lost(where: object) -> None:
    gpu = FakeGpu("GPU-a")
    reader = reader_of(gpu)
    reader.read()
    gpu.errors = {where: LOST}
    with pytest.raises(GpuLost):
        reader.read()


def test_a_gpu_that_its_driver_does_not_list_is_lost() -> None:
    with pytest.raises(GpuLost, match="does not list"):
        NvidiaGpu("GPU-z", FakeNvml(FakeGpu("GPU-a")))


@pytest.mark.parametrize(
    ("processes", "foreign_bytes"),
    [
        ([(11, 60 * GIB)], 0),
        ([(11, 60 * GIB), (99, 5 * GIB), (98, GIB)], 6 * GIB),
        ([(99, 5 * GIB)], None),  # its own process is not there: the numbers are another host's
        ([], None),
        ([(11, 60 * GIB), (99, None)], None),
    ],
)
def test_memory_of_processes_that_are_not_the_launchs_is_foreign(
    processes: list[tuple[int, int | None]], foreign_bytes: int | None
) -> None:
    reader = reader_of(FakeGpu("GPU-a", processes=processes))
    assert reader.foreign_bytes({11, 12}) == foreign_bytes


def test_what_draws_is_foreign_too_and_counts_once() -> None:
    gpu = FakeGpu(
        "GPU-a",
        processes=[(11, 60 * GIB), (99, 5 * GIB)],
        graphics_processes=[(99, 5 * GIB), (97, 2 * GIB)],
    )
    reader = reader_of(gpu)
    assert reader.foreign_bytes({11}) == 7 * GIB
    gpu.errors = {"nvmlDeviceGetGraphicsRunningProcesses": NOT_SUPPORTED}
    assert reader.foreign_bytes({11}) == 5 * GIB


def test_gpm_samples_are_freed_and_nvml_is_closed() -> None:
    nvml = FakeNvml(FakeGpu("GPU-a"))
    group = NvidiaGpus(["GPU-a"], nvml)
    group.open()
    reader = group.reader("GPU-a")
    reader.read()
    assert (nvml.open, nvml.gpm_samples) == (1, 2)
    reader.close()
    group.close()
    assert (nvml.open, nvml.gpm_samples) == (0, 0)


def test_no_driver_is_no_group() -> None:
    with pytest.raises(GpuLost):
        NvidiaGpus(["GPU-a"], FakeNvml(has_driver=False)).open()


def test_the_real_nvml_reads_a_real_gpu() -> None:
    """Needs a GPU: power is measured, and counters do not fall."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no GPU here, so the real NVML is not read: {error}")
    try:
        uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
        reader = NvidiaGpu(uuid)
        first = reader.read()
        time.sleep(2 * LEAST_GPM_INTERVAL_S)  # for the real clock of a real GPU
        second = reader.read()
        reader.close()
    finally:
        pynvml.nvmlShutdown()
    assert set(second) <= set(TABLES["telemetry"].names)
    assert second["used_bytes"] > 0
    if "energy_mj" in second:
        assert second["energy_mj"] >= first["energy_mj"]
    if "power_w" in second:
        assert 1 < second["power_w"] < 3000
    for share in ("dram_share", "tensor_share", "busy_share"):
        assert 0 <= second.get(share, 0) <= 1

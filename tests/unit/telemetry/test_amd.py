"""AMD's GPUs through a fake amdsmi: units, names of two releases, and what is missing."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.results.schemas import TABLES
from orchestrator.telemetry.amd import AmdGpu, AmdGpus, AmdsmiLibrary, amd_group, amd_health
from orchestrator.telemetry.gpu_sample import GpuLost, GpuReader

MIB = 2**20


class AmdSmiException(Exception): ...


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self._code = code

    def get_error_code(self) -> int:
        return self._code


NOT_SUPPORTED = AmdSmiLibraryException(2)
IO_ERROR = AmdSmiLibraryException(12)
BUSY = AmdSmiLibraryException(30)


class FakeAmdsmi:
    """Two GPUs, as ROCm 6.2 and later answer; ``answers`` replaces some of it. ``error``: what every
    question about a GPU raises.
    """

    AmdSmiException = AmdSmiException
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot", VRAM="vram")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, **answers: Any) -> None:
        self.open = 0
        self.error: Exception | None = None
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {
            "power_info": {"current_socket_power": 610, "average_socket_power": "N/A"},
            "energy_count": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3},
            "gpu_vram_usage": {"vram_total": 196_000, "vram_used": 150_000},
            "gpu_activity": {"gfx_activity": 97, "umc_activity": 40},
            "gpu_asic_info": {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002"},
            "gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.10.5"},
            "power_cap_info": {"power_cap": 750_000_000, "max_power_cap": 750_000_000},
            "gpu_metrics_info": {"accumulation_counter": "N/A", "ppt_residency_acc": "N/A"},
            "gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 1},
            "gpu_process_list": [
                {"pid": 11, "memory_usage": {"vram_mem": 100 * MIB}},
                {"pid": 99, "memory_usage": {"vram_mem": 7 * MIB}},
            ],
        } | answers

    def amdsmi_init(self) -> None:
        self.open = 1  # amdsmi does not count

    def amdsmi_shut_down(self) -> None:
        self.open = 0

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_clock_info(self, handle: int, kind: str) -> dict[str, int]:
        self._raise_error()
        return {"clk": {"gfx": 2100, "mem": 1300}[kind]}

    def amdsmi_get_temp_metric(self, handle: int, sensor: str, metric: str) -> int:
        self._raise_error()
        return {"hotspot": 80, "vram": 60}[sensor]

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def __getattr__(self, name: str) -> Any:
        what = name.removeprefix("amdsmi_get_")
        if what not in self.answers:
            raise AttributeError(name)

        def answer(handle: int) -> Any:
            self.asked.append(what)
            self._raise_error()
            if isinstance(self.answers[what], Exception):
                raise self.answers[what]
            return self.answers[what]

        return answer


def read(amdsmi: FakeAmdsmi) -> dict[str, int | float]:
    group = AmdGpus(["amd-1"], AmdsmiLibrary(amdsmi))
    group.open()
    try:
        return group.reader("amd-1").read()
    finally:
        group.close()


def test_a_reading_has_its_columns_in_their_units() -> None:
    amdsmi = FakeAmdsmi()
    values = read(amdsmi)
    assert values == {
        "power_w": 610.0,
        "energy_mj": 15_300,
        "sm_mhz": 2100,
        "memory_mhz": 1300,
        "temperature_c": 80,
        "memory_temperature_c": 60,
        "used_bytes": 150_000 * MIB,
        "busy_share": 0.97,
        "ecc_uncorrected": 1,
    }
    assert set(values) <= set(TABLES["telemetry"].names)
    assert amdsmi.open == 0


def test_older_releases_have_other_names() -> None:
    values = read(
        FakeAmdsmi(
            power_info={"average_socket_power": 300},
            energy_count={"power": 2_000_000, "counter_resolution": 15.0},
        )
    )
    assert (values["power_w"], values["energy_mj"]) == (300.0, 30_000)


def test_what_a_gpu_lacks_is_asked_for_once() -> None:
    amdsmi = FakeAmdsmi(
        gpu_activity={"gfx_activity": "N/A"}, energy_count=AmdSmiException("not supported")
    )
    group = AmdGpus(["amd-0"], AmdsmiLibrary(amdsmi))
    group.open()
    reader = group.reader("amd-0")
    for _ in range(3):
        assert not {"busy_share", "energy_mj"} & set(reader.read())
    assert amdsmi.asked.count("gpu_activity") == amdsmi.asked.count("energy_count") == 1
    assert amdsmi.asked.count("power_info") == 3


def reader_of(amdsmi: FakeAmdsmi) -> GpuReader:
    group = AmdGpus(["amd-0"], AmdsmiLibrary(amdsmi))
    group.open()
    return group.reader("amd-0")


@pytest.mark.parametrize(
    ("what", "answer", "column"),
    [
        ("gpu_activity", {"gfx_activity": "N/A"}, "busy_share"),
        ("power_info", {"average_socket_power": "N/A"}, "power_w"),
        ("energy_count", IO_ERROR, "energy_mj"),
        ("energy_count", BUSY, "energy_mj"),
    ],
)
def test_what_was_reported_before_and_fails_once_is_a_gap_in_one_reading(
    what: str, answer: object, column: str
) -> None:
    amdsmi = FakeAmdsmi()
    reader = reader_of(amdsmi)
    before = reader.read()
    amdsmi.answers |= {what: answer}
    assert reader.read() == {name: before[name] for name in before if name != column}
    amdsmi.answers |= {what: FakeAmdsmi().answers[what]}
    assert reader.read() == before


def test_a_driver_that_is_busy_at_the_first_reading_is_asked_again() -> None:
    amdsmi = FakeAmdsmi()
    amdsmi.error = BUSY
    reader = reader_of(amdsmi)
    assert reader.read() == {}
    amdsmi.error = None
    assert reader.read() == read(FakeAmdsmi())


def test_what_a_gpu_no_longer_supports_is_not_asked_for_again() -> None:
    amdsmi = FakeAmdsmi()
    reader = reader_of(amdsmi)
    reader.read()
    amdsmi.answers |= {"energy_count": NOT_SUPPORTED}
    for _ in range(3):
        assert "energy_mj" not in reader.read()
    assert amdsmi.asked.count("energy_count") == 2


def counters(readings: int, **grown: int) -> dict[str, Any]:
    """What the firmware of an MI300 counted; causes that are not named did not hold down clocks."""
    causes = ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")
    counted = {f"{cause}_residency_acc": 1_000 + grown.get(cause, 0) for cause in causes}
    return {"accumulation_counter": 50_000 + readings, "temperature_edge": 40, **counted}


def throttled_after(*metrics: Any, every_s: float = 2.0) -> dict[str, int | float]:
    """The columns of throttling in the last of these readings."""
    amdsmi = FakeAmdsmi()
    reader = AmdGpu("amd-0", 0, amdsmi, count(step=every_s).__next__)
    for answer in metrics:
        amdsmi.answers["gpu_metrics_info"] = answer
        values = reader.read()
    return {name: value for name, value in values.items() if name.startswith("throttled")}


def test_throttling_is_the_share_of_the_firmwares_readings_times_the_time() -> None:
    nothing_yet = {"throttled_ns_power": 0, "throttled_ns_thermal": 0, "throttled_ns_hw": 0}
    assert throttled_after(counters(0)) == nothing_yet
    assert throttled_after(
        counters(0),
        counters(2_000, ppt=500, socket_thm=100, hbm_thm=200),
        counters(4_000, ppt=500, socket_thm=100, hbm_thm=200, prochot=2_000),
    ) == {
        "throttled_ns_power": 500_000_000,  # a quarter of 2 s
        "throttled_ns_thermal": 200_000_000,  # a tenth: causes may come together
        "throttled_ns_hw": 2_000_000_000,
    }


def test_counters_of_throttling_that_were_reset_add_nothing() -> None:
    reset = {**counters(1_000), "ppt_residency_acc": 3}
    assert throttled_after(counters(0), reset)["throttled_ns_power"] == 0
    stands_still = throttled_after(counters(0), counters(0, ppt=5))
    assert stands_still["throttled_ns_power"] == 0


@pytest.mark.parametrize("gap", [IO_ERROR, {"accumulation_counter": "N/A"}])
def test_counters_of_throttling_that_fail_once_are_a_gap_in_one_reading(gap: Any) -> None:
    assert throttled_after(counters(0), gap) == {}
    after_gap = throttled_after(counters(0), gap, counters(4_000, ppt=1_000))
    assert after_gap["throttled_ns_power"] == 1_000_000_000  # a quarter of 4 s


def test_throttling_is_read_now_and_then_and_not_at_all_where_nothing_counts_it() -> None:
    counted = [counters(1_000 * number) for number in range(3)]
    assert throttled_after(*counted[:2], every_s=1.0) == {}
    assert throttled_after(*counted, every_s=1.0) != {}
    amdsmi = FakeAmdsmi()
    reader = AmdGpu("amd-0", 0, amdsmi, count(step=2.0).__next__)
    for _ in range(3):
        reader.read()
    assert amdsmi.asked.count("gpu_metrics_info") == 1, "an older GPU says N/A"


@pytest.mark.parametrize("error", [IO_ERROR, NOT_SUPPORTED, AmdSmiException("gone")])
def test_a_gpu_that_answers_nothing_any_more_is_lost(error: Exception) -> None:
    amdsmi = FakeAmdsmi()
    reader = reader_of(amdsmi)
    reader.read()
    amdsmi.error = error
    with pytest.raises(GpuLost, match="no question"):
        reader.read()


def test_a_gpu_whose_driver_is_busy_is_not_lost() -> None:
    amdsmi = FakeAmdsmi()
    reader = reader_of(amdsmi)
    before = reader.read()
    amdsmi.error = BUSY
    assert reader.read() == {}
    amdsmi.error = None
    assert reader.read() == before


def test_a_gpu_that_never_reported_anything_is_not_lost() -> None:
    amdsmi = FakeAmdsmi()
    amdsmi.error = NOT_SUPPORTED
    reader = reader_of(amdsmi)
    assert [reader.read(), reader.read()] == [{}, {}]


@pytest.mark.parametrize(("own", "foreign_bytes"), [({11}, 7 * MIB), ({11, 99}, 0), ({5}, None)])
def test_foreign_memory(own: set[int], foreign_bytes: int | None) -> None:
    group = AmdGpus(["amd-0"], AmdsmiLibrary(FakeAmdsmi()))
    group.open()
    assert group.reader("amd-0").foreign_bytes(own) == foreign_bytes


def test_a_gpu_that_is_not_there_is_lost() -> None:
    group = AmdGpus(["amd-7"], AmdsmiLibrary(FakeAmdsmi()))
    group.open()
    with pytest.raises(GpuLost):
        group.reader("amd-7")


def test_there_is_no_group_without_gpus_or_for_names_that_amdsmi_does_not_have() -> None:
    assert amd_group([]) is None
    assert amd_group(["amd-GPU-a1b2"]) is None


def test_amdsmi_stays_open_until_its_last_user_has_closed_it() -> None:
    amdsmi = FakeAmdsmi()
    library = AmdsmiLibrary(amdsmi)
    watched = AmdGpus(["amd-0"], library)
    watched.open()
    assert amd_health(["amd-1"], lambda: library)["driver"] == "6.10.5"
    assert amdsmi.open == 1, "the other one still reads"
    watched.close()
    assert amdsmi.open == 0


# -- what they are


def health(amdsmi: FakeAmdsmi, *names: str) -> dict[str, Any]:
    library = AmdsmiLibrary(amdsmi)
    return amd_health(names, lambda: library)


def test_driver_and_gpus_are_those_of_the_launch() -> None:
    amdsmi = FakeAmdsmi()
    gpu = {
        "uuid": "amd-1",
        "name": "AMD Instinct MI300X",
        "memory_bytes": 196_000 * MIB,
        "power_limit_w": 750.0,
        "mig": None,
    }
    assert health(amdsmi, "amd-1") == {"driver": "6.10.5", "gpus": [gpu]}
    assert amdsmi.open == 0


def test_what_a_gpu_does_not_say_is_none() -> None:
    amdsmi = FakeAmdsmi(
        gpu_asic_info={"market_name": "N/A"},
        gpu_vram_usage={"vram_total": "N/A"},
        power_cap_info=NOT_SUPPORTED,
        gpu_driver_info={},
    )
    nothing = {"name": None, "memory_bytes": None, "power_limit_w": None, "mig": None}
    assert health(amdsmi, "amd-0") == {"driver": None, "gpus": [{"uuid": "amd-0", **nothing}]}


def test_gpus_that_are_not_listed_or_not_amds_have_no_facts() -> None:
    assert health(FakeAmdsmi(), "amd-7") == {"driver": None, "gpus": []}
    assert health(FakeAmdsmi(), "GPU-a") == health(FakeAmdsmi()) == {}
    assert amd_health(["amd-0"], lambda: None) == {}

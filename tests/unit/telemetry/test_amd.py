"""AMD's GPUs through a fake amdsmi: units, names of two releases, and what is missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.results.schemas import TABLES
from orchestrator.telemetry.amd import AmdGpus, amd_group
from orchestrator.telemetry.gpu_sample import GpuLost

MIB = 2**20


class AmdSmiException(Exception): ...


class FakeAmdsmi:
    """Two GPUs, as ROCm 6.2 and later answer; ``answers`` replaces some of it."""

    AmdSmiException = AmdSmiException
    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot", VRAM="vram")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, **answers: Any) -> None:
        self.open = 0
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {
            "power_info": {"current_socket_power": 610, "average_socket_power": "N/A"},
            "energy_count": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3},
            "gpu_vram_usage": {"vram_total": 196_000, "vram_used": 150_000},
            "gpu_activity": {"gfx_activity": 97, "umc_activity": 40},
            "gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 1},
            "gpu_process_list": [
                {"pid": 11, "memory_usage": {"vram_mem": 100 * MIB}},
                {"pid": 99, "memory_usage": {"vram_mem": 7 * MIB}},
            ],
        } | answers

    def amdsmi_init(self) -> None:
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_clock_info(self, handle: int, kind: str) -> dict[str, int]:
        return {"clk": {"gfx": 2100, "mem": 1300}[kind]}

    def amdsmi_get_temp_metric(self, handle: int, sensor: str, metric: str) -> int:
        return {"hotspot": 80, "vram": 60}[sensor]

    def __getattr__(self, name: str) -> Any:
        what = name.removeprefix("amdsmi_get_")
        if what not in self.answers:
            raise AttributeError(name)

        def answer(handle: int) -> Any:
            self.asked.append(what)
            if isinstance(self.answers[what], Exception):
                raise self.answers[what]
            return self.answers[what]

        return answer


def read(amdsmi: FakeAmdsmi) -> dict[str, int | float]:
    group = AmdGpus(["amd-1"], amdsmi)
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
    group = AmdGpus(["amd-0"], amdsmi)
    group.open()
    reader = group.reader("amd-0")
    for _ in range(3):
        assert not {"busy_share", "energy_mj"} & set(reader.read())
    assert amdsmi.asked.count("gpu_activity") == amdsmi.asked.count("energy_count") == 1
    assert amdsmi.asked.count("power_info") == 3


@pytest.mark.parametrize(("own", "foreign_bytes"), [({11}, 7 * MIB), ({11, 99}, 0), ({5}, None)])
def test_foreign_memory(own: set[int], foreign_bytes: int | None) -> None:
    group = AmdGpus(["amd-0"], FakeAmdsmi())
    group.open()
    assert group.reader("amd-0").foreign_bytes(own) == foreign_bytes


def test_a_gpu_that_is_not_there_is_lost() -> None:
    group = AmdGpus(["amd-7"], FakeAmdsmi())
    group.open()
    with pytest.raises(GpuLost):
        group.reader("amd-7")


def test_there_is_no_group_without_gpus_or_for_names_that_amdsmi_does_not_have() -> None:
    assert amd_group([]) is None
    assert amd_group(["amd-GPU-a1b2"]) is None

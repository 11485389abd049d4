"""GPUs through a fake NVML: what is here, what is ours, and when its memory is back."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from orchestrator.telemetry.gpus import DIRTY_BYTES, Gpu, await_release, chosen, gpus, health

GIB = 2**30


@dataclass
class Memory:
    total: int
    used: int


@dataclass
class FakeNvml:
    """Two GPUs, or a node without a driver."""

    driver: bool = True
    open: int = 0
    names: list[str] = field(default_factory=lambda: ["GPU-aaaa", "GPU-bbbb"])

    class NVMLError(Exception): ...

    def nvmlInit(self) -> None:
        if not self.driver:
            raise self.NVMLError("driver not loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Memory:
        return Memory(80 * GIB, handle * GIB)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.names[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100 80GB HBM3"


def test_every_gpu_is_listed_and_nvml_is_closed_again() -> None:
    nvml = FakeNvml()
    assert [(gpu.index, gpu.uuid, gpu.used_bytes) for gpu in gpus(nvml)] == [
        (0, "GPU-aaaa", 0),
        (1, "GPU-bbbb", GIB),
    ]
    assert nvml.open == 0


def test_a_node_without_a_driver_has_no_gpus() -> None:
    assert gpus(FakeNvml(driver=False)) == []


def test_devices_are_named_by_index_or_uuid() -> None:
    found = gpus(FakeNvml())
    assert [gpu.index for gpu in chosen(("1",), found)] == [1]
    assert [gpu.index for gpu in chosen(("GPU-bbbb", "GPU-aa"), found)] == [1, 0]


def reading(used: list[int]) -> tuple[list[float], list[str]]:
    """Run await_release over these readings, one per look; the sleeps and what stayed dirty."""
    sleeps: list[float] = []
    left = list(used)

    def read() -> list[Gpu]:
        return [Gpu(0, "GPU-aaaa", "x", left.pop(0) if len(left) > 1 else left[0])]

    dirty = await_release({"GPU-aaaa": GIB}, read, 10.0, lambda: sum(sleeps), sleeps.append)
    return sleeps, dirty


def test_it_waits_until_the_memory_is_back() -> None:
    sleeps, dirty = reading([70 * GIB, 30 * GIB, GIB + DIRTY_BYTES])
    assert dirty == []
    assert len(sleeps) == 2


def test_a_gpu_whose_memory_stays_is_named_when_the_time_is_over() -> None:
    sleeps, dirty = reading([70 * GIB])
    assert dirty == ["GPU-aaaa"]
    assert sum(sleeps) >= 10.0


def test_gpus_of_others_are_not_waited_for() -> None:
    assert (
        await_release(
            {"GPU-other": 0}, lambda: [Gpu(0, "GPU-aaaa", "x", GIB)], sleep=lambda _: None
        )
        == []
    )


# -- health

HEALTHY: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-0",
    "power_limit_w": 700.0,
    "name": "NVIDIA H100 80GB HBM3",
    "memory_bytes": 80 * GIB,
    "used_bytes": 0,
    "pids": [],
    "mig": False,
    "ecc_errors": 0,
    "slowed": [],
    "fabric": None,
}


class Fabric(ctypes.Structure):
    _fields_ = [("state", ctypes.c_uint)]


class HealthyNvml(SimpleNamespace):
    """Two GPUs; what a test sets is what NVML says."""

    class NVMLError(Exception): ...

    c_nvmlGpuFabricInfo_t = Fabric
    reason, ecc, fabric, lost = 0, 0, 3, ()

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12080

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.lost:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000

    def nvmlDeviceGetName(self, handle: int) -> str:
        return HEALTHY["name"]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 * GIB, used=0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=42)]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        raise self.NVMLError("not supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self.reason

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)  # uncorrected, since the driver was loaded
        return self.ecc

    def nvmlDeviceGetGpuFabricInfo(self, handle: int, info: Any) -> int:
        info._obj.state = self.fabric
        return 0


def test_health_of_gpus_is_none_where_they_do_not_report_it() -> None:
    said = health(HealthyNvml())
    assert (said["driver"], said["cuda"]) == ("570.86.15", "12.8")
    assert said["gpus"][0] == HEALTHY | {
        "mig": None,
        "pids": [42],
        "fabric": True,
    }
    assert [gpu["index"] for gpu in said["gpus"]] == [0, 1]


class NewerNvml(HealthyNvml):
    """Without the old function, as NVML 14 will be."""

    c_nvmlGpuFabricInfo_v2_t = Fabric

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, info: Any) -> int:
        info._obj.state = self.fabric
        return 0

    def nvmlDeviceGetGpuFabricInfo(self, handle: int, info: Any) -> int:
        raise self.NVMLError("function not found")


def test_newer_drivers_tell_the_state_of_the_fabric_too() -> None:
    assert health(NewerNvml())["gpus"][0]["fabric"] is True
    assert health(NewerNvml(fabric=2))["gpus"][0]["fabric"] is False


def test_gpus_that_are_slowed_or_lost_are_seen() -> None:
    first, second = health(HealthyNvml(reason=0x40 | 0x1, ecc=7, fabric=1, lost=(1,)))["gpus"]
    assert first["slowed"] == ["too hot (hardware)"]
    assert (first["ecc_errors"], first["fabric"]) == (7, False)
    assert second == {"index": 1, "lost": True}
    assert health(HealthyNvml(fabric=0))["gpus"][0]["fabric"] is None


def test_node_without_a_driver_has_no_health() -> None:
    class NoDriver(HealthyNvml):
        def nvmlInit(self) -> None:
            raise self.NVMLError("driver not loaded")

    assert health(NoDriver()) == {}

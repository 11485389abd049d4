"""An NVML whose GPUs do what a test wants. It stands for the module pynvml."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 2**30
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
ENERGY = 83  # number of the field
# of an H100 under load: field -> value
FIELDS = {
    186: 650_000,  # mW
    ENERGY: 1_000_000,  # mJ
    82: 70,
    4: 0,
    74: 5_000_000,  # ns
    269: 6_000_000,
    75: 7_000_000,
    270: 8_000_000,
    271: 9_000_000,
    138: 10,  # KiB
    139: 20,
}


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class FakeGpu:
    """``errors``: function, or number of a field -> code that it answers with. ``block_s``: how long
    a call takes. ``energy_step_mj``: by how much its counter of energy grows from reading to reading.
    """

    uuid: str
    fields: dict[int, int] = field(default_factory=lambda: dict(FIELDS))
    errors: dict[object, int] = field(default_factory=dict)
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    graphics_processes: list[tuple[int, int | None]] = field(default_factory=list)
    has_gpm: bool = True
    block_s: float = 0.0
    energy_step_mj: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    asked_fields: list[Sequence[tuple[int, int]]] = field(default_factory=list)

    def reset_energy(self) -> None:
        """The counter of energy begins at 0 again, as when the driver is loaded again."""
        self.fields[ENERGY] = 0


class FakeNvml:
    """Several GPUs. ``open``: how often NVML is initialized and not shut down."""

    NVMLError = NvmlError
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, *gpus: FakeGpu, has_driver: bool = True) -> None:
        self.gpus = gpus
        self.has_driver = has_driver
        self.open = 0
        self.gpm_samples = 0

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise NvmlError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return self._called(gpu, "nvmlDeviceGetHandleByUUID")
        raise NvmlError(pynvml.NVML_ERROR_NOT_FOUND)

    def _called(self, gpu: FakeGpu, function: str) -> FakeGpu:
        gpu.calls[function] += 1
        if gpu.block_s:
            time.sleep(gpu.block_s)
        if function in gpu.errors:
            raise NvmlError(gpu.errors[function])
        return gpu

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, keys: Sequence[tuple[int, int]]) -> list[Any]:
        self._called(gpu, "nvmlDeviceGetFieldValues")
        gpu.asked_fields.append(keys)
        answers = []
        for number, _ in keys:
            value = SimpleNamespace(ullVal=gpu.fields.get(number, 0))
            answers.append(
                SimpleNamespace(
                    nvmlReturn=gpu.errors.get(number, 0),
                    value=value,
                    valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
                    latencyUsec=number,
                )
            )
        gpu.fields[ENERGY] += gpu.energy_step_mj
        return answers

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:
        self._called(gpu, "nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(total=80 * GIB, used=70 * GIB)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        self._called(gpu, "nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        self._called(gpu, "nvmlDeviceGetClockInfo")
        return {1: 1755, 2: 2619}[kind]

    def nvmlDeviceGetTemperatureV(self, gpu: FakeGpu, sensor: int) -> int:
        self._called(gpu, "nvmlDeviceGetTemperatureV")
        return 61

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        self._called(gpu, "nvmlDeviceGetTemperature")
        return 61

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        self._called(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
        return 0x4

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        self._called(gpu, "nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        self._called(gpu, "nvmlDeviceGetGraphicsRunningProcesses")
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.graphics_processes
        ]

    def nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu) -> Any:
        self._called(gpu, "nvmlGpmQueryDeviceSupport")
        return SimpleNamespace(isSupportedDevice=int(gpu.has_gpm))

    def nvmlGpmSampleAlloc(self) -> Any:
        self.gpm_samples += 1
        return SimpleNamespace(number=0)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self.gpm_samples -= 1

    def nvmlGpmSampleGet(self, gpu: FakeGpu, sample: Any) -> None:
        self._called(gpu, "nvmlGpmSampleGet")
        sample.number = gpu.calls["nvmlGpmSampleGet"]

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(4)]
        return SimpleNamespace(metrics=metrics)

    def nvmlGpmMetricsGet(self, question: Any) -> Any:
        """DRAM 60 %, tensor cores 30 %, if the samples are one after the other."""
        assert question.sample2.number == question.sample1.number + 1
        shares = {10: 60.0, 5: 30.0}
        for metric in question.metrics[: question.numMetrics]:
            metric.value = shares[metric.metricId]
        return question

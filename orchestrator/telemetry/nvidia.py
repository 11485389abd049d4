"""Reads NVIDIA's GPUs through NVML while a point runs.

Most columns come from one ``nvmlDeviceGetFieldValues`` per reading. Throughput over PCIe is left
out, because NVML takes 20 ms to measure it.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

from orchestrator.telemetry.gpu_sample import GpuLost, GpuReader

ALL_LINKS = 0xFFFFFFFF  # scope of a field: all NVLinks together
CLOCK_SM, CLOCK_MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
CHIP = 0  # NVML_TEMPERATURE_GPU
# codes of NVMLError
LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
# The next reading may succeed. Any other error means that the GPU or its driver cannot tell.
PASSING = frozenset(
    {pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_NOT_READY, pynvml.NVML_ERROR_UNKNOWN}
)
# the member of the union c_nvmlValue_t that holds a value, by the value's type
MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
GPM_METRICS = {
    "dram_share": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "tensor_share": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
}
# NVML refreshes GPM samples every 100 ms: two that are closer say nothing (nvml.h, nvmlGpmMetricsGet)
LEAST_GPM_INTERVAL_S = 0.11


@dataclass(frozen=True, slots=True)
class Field:
    """A field of NVML and the column that it belongs to. Its value times ``scale`` has the column's
    unit; the fields of one column add up, so a GPU that lacks one of them has no value there.
    ``fallback``: the field to read where the GPU lacks this one.
    """

    number: int
    column: str
    scale: int = 1
    scope: int = 0
    fallback: "Field | None" = None


POWER_MW = "power_mw"  # becomes the column power_w
THERMAL_POLICY = Field(75, "throttled_ns_thermal")  # NVML_FI_DEV_PERF_POLICY_THERMAL
FIELDS = (
    Field(186, POWER_MW),  # NVML_FI_DEV_POWER_INSTANT
    Field(83, "energy_mj"),  # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
    Field(82, "memory_temperature_c"),  # NVML_FI_DEV_MEMORY_TEMP
    Field(4, "ecc_uncorrected"),  # NVML_FI_DEV_ECC_DBE_VOL_TOTAL
    Field(74, "throttled_ns_power"),  # NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP
    # NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    Field(269, "throttled_ns_thermal", fallback=THERMAL_POLICY),
    Field(270, "throttled_ns_hw"),  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    Field(271, "throttled_ns_hw"),  # NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
    Field(138, "nvlink_bytes", 1024, ALL_LINKS),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, in KiB
    Field(139, "nvlink_bytes", 1024, ALL_LINKS),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, in KiB
)


class NvidiaGpu:
    """One GPU (``GpuReader``). NVML must be initialized as long as the GPU is read.

    Raises GpuLost if the driver does not list it.
    """

    def __init__(
        self, uuid: str, nvml: Any = pynvml, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.uuid = uuid
        self._nvml = nvml
        self._unsupported: set[tuple[object, ...]] = set()
        self._fields = list(FIELDS)
        self._handle = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        if self._handle is None:
            raise GpuLost("its driver does not list it")
        self._gpm: _Gpm | None = None
        support = self._ask("nvmlGpmQueryDeviceSupport", self._handle)
        if support is not None and support.isSupportedDevice:
            self._gpm = _Gpm(self._nvml, self._handle, clock)

    def read(self) -> dict[str, int | float]:
        """The columns that it reports now. Raises GpuLost."""
        values = self._field_values() | self._other_values()
        if self._gpm is not None:
            values |= self._gpm.shares()
        return values

    def foreign_bytes(self, own_pids: Collection[int]) -> int | None:
        """Bytes that all processes but ``own_pids`` use, be it for computing or for graphics.

        None if the driver does not say. None also if it lists none of ``own_pids``: then its process
        ids are not those of this host, as in some containers.
        """
        computing = self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle)
        if computing is None or not any(process.pid in own_pids for process in computing):
            return None
        drawing = self._ask("nvmlDeviceGetGraphicsRunningProcesses", self._handle) or ()
        # a process that does both is in both lists, with all its memory
        used_bytes = {process.pid: process.usedGpuMemory for process in (*drawing, *computing)}
        foreign = [used for pid, used in used_bytes.items() if pid not in own_pids]
        return None if None in foreign else sum(foreign)

    def close(self) -> None:
        """Frees what reading it took."""
        if self._gpm is not None:
            self._gpm.close()

    def _field_values(self) -> dict[str, int | float]:
        """The columns made of fields, and the longest time that the driver took for a field."""
        fields = tuple(self._fields)  # ``_replace`` changes them for the next reading
        keys = tuple((field.number, field.scope) for field in fields)
        answers = self._ask("nvmlDeviceGetFieldValues", self._handle, keys)
        if answers is None:
            return {}
        values: dict[str, int | float] = {"field_latency_us": 0}
        incomplete: set[str] = set()  # columns of which a field failed this time
        for field, answer in zip(fields, answers, strict=True):
            if answer.nvmlReturn in LOST:
                raise GpuLost(f"NVML answers field {field.number} with error {answer.nvmlReturn}")
            if answer.nvmlReturn in PASSING:
                incomplete.add(field.column)
            elif answer.nvmlReturn:
                incomplete.add(field.column)
                self._replace(field)
            else:
                value = getattr(answer.value, MEMBERS[answer.valueType]) * field.scale
                values[field.column] = values.get(field.column, 0) + value
                values["field_latency_us"] = max(values["field_latency_us"], answer.latencyUsec)
        for column in incomplete:
            values.pop(column, None)
        if POWER_MW in values:
            values["power_w"] = values.pop(POWER_MW) / 1e3
        return values

    def _replace(self, field: Field) -> None:
        """Reads the fallback from now on instead of a field that the GPU lacks. Without a fallback it
        reads no field of that column any more: a part of a sum would be taken for the whole.
        """
        if field.fallback is not None:
            self._fields.remove(field)
            self._fields.append(field.fallback)
        else:
            self._fields = [other for other in self._fields if other.column != field.column]

    def _other_values(self) -> dict[str, int | float]:
        """The columns for which NVML has no field."""
        handle = self._handle
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        use = self._ask("nvmlDeviceGetUtilizationRates", handle)
        answers = {
            "sm_mhz": self._ask("nvmlDeviceGetClockInfo", handle, CLOCK_SM),
            "memory_mhz": self._ask("nvmlDeviceGetClockInfo", handle, CLOCK_MEMORY),
            "temperature_c": self._temperature_c(),
            "event_reasons": self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle),
            "used_bytes": memory.used if memory is not None else None,
            "busy_share": use.gpu / 100 if use is not None else None,
        }
        return {column: answer for column, answer in answers.items() if answer is not None}

    def _temperature_c(self) -> Any:
        """The chip's. NVML 13 has a new function for it and 14 removes the old one."""
        celsius = self._ask("nvmlDeviceGetTemperatureV", self._handle, CHIP)
        if celsius is None:
            celsius = self._ask("nvmlDeviceGetTemperature", self._handle, CHIP)
        return celsius

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer of an NVML function. None if it has none; a question that the GPU, its driver
        or the binding does not support is not asked again. Raises GpuLost.
        """
        question = (function, *arguments[1:])  # the first argument is always this GPU
        if question in self._unsupported:
            return None
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in LOST:
                raise GpuLost(str(error)) from error
            if error.value not in PASSING:
                self._unsupported.add(question)
        except AttributeError:  # the binding is older than the function
            self._unsupported.add(question)
        return None


class _Gpm:
    """NVML's GPU performance monitoring (since Hopper): shares of the time between two samples."""

    def __init__(self, nvml: Any, handle: Any, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._handle = handle
        self._clock = clock
        self._samples: list[Any] = []  # the older one first
        self._sampled_s: float | None = None  # when the newer one was taken; None: not yet
        self._is_supported = True

    def shares(self) -> dict[str, int | float]:
        """The shares since the last sample; empty at the first call, after an error, and less than
        LEAST_GPM_INTERVAL_S after that sample, which then stays. Raises GpuLost.
        """
        if not self._is_supported:
            return {}
        try:
            return self._shares()
        except self._nvml.NVMLError as error:
            if error.value in LOST:
                raise GpuLost(str(error)) from error
            if error.value not in PASSING:
                self._is_supported = False
            return {}

    def _shares(self) -> dict[str, int | float]:
        nvml = self._nvml
        if not self._samples:
            self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        now_s = self._clock()
        before_s = self._sampled_s
        if before_s is not None and now_s - before_s < LEAST_GPM_INTERVAL_S:
            return {}
        older, newer = self._samples
        nvml.nvmlGpmSampleGet(self._handle, older)  # writes over it
        self._samples = [newer, older]
        self._sampled_s = now_s
        if before_s is None:
            return {}
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(GPM_METRICS)
        question.sample1, question.sample2 = self._samples
        for index, metric in enumerate(GPM_METRICS.values()):
            question.metrics[index].metricId = metric
        answers = nvml.nvmlGpmMetricsGet(question).metrics
        shares: dict[str, int | float] = {}
        for index, column in enumerate(GPM_METRICS):
            if not answers[index].nvmlReturn:
                shares[column] = answers[index].value / 100
        return shares

    def close(self) -> None:
        for sample in self._samples:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)
        self._samples = []


class NvidiaGpus:
    """These GPUs, by UUID (``GpuGroup``)."""

    def __init__(self, uuids: Sequence[str], nvml: Any = pynvml) -> None:
        self.uuids = tuple(uuids)
        self._nvml = nvml

    def open(self) -> None:
        """Initializes NVML, for as long as GPUs are read. Raises GpuLost without a driver."""
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise GpuLost(str(error)) from error

    def reader(self, uuid: str) -> GpuReader:
        """Raises GpuLost if the driver does not list the GPU."""
        return NvidiaGpu(uuid, self._nvml)

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

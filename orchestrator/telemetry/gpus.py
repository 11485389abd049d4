"""The GPUs of this node through NVML: which they are, how much of their memory is in use, and their
health.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import pynvml

# A GPU is not free while it uses this much more memory than before the launch. A CUDA context that is
# being torn down uses less.
DIRTY_BYTES = 2**29
RELEASE_LIMIT_S = 30.0
# bits of nvmlDeviceGetCurrentClocksEventReasons
SLOWDOWN_REASONS = {
    0x2: "clocks are locked by application settings",
    0x8: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
# NVML 13 has the first one, and 14 removes the second one
FABRIC_QUESTIONS = (
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)
FABRIC_NOT_SUPPORTED = 0  # NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML counts them; CUDA_VISIBLE_DEVICES does not change it."""

    index: int
    uuid: str
    name: str
    used_bytes: int


@contextmanager
def _counted(nvml: Any) -> Iterator[int]:
    """Yields how many GPUs there are; 0 without a driver. Inside the block NVML can be asked about
    them.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield 0
        return
    try:
        yield nvml.nvmlDeviceGetCount()
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def gpus(nvml: Any = pynvml) -> list[Gpu]:
    """Every GPU of this node; empty without a driver. Raises NVMLError for a GPU that is lost."""
    with _counted(nvml) as count:
        return [_gpu(nvml, index) for index in range(count)]


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        index,
        nvml.nvmlDeviceGetUUID(handle),
        nvml.nvmlDeviceGetName(handle),
        nvml.nvmlDeviceGetMemoryInfo(handle).used,
    )


def chosen(devices: Sequence[str], gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, by index or by (a prefix of) their UUID."""
    return [
        gpu
        for name in devices
        for gpu in gpus
        if name == str(gpu.index) or gpu.uuid.startswith(name)
    ]


def await_release(
    before: Mapping[str, int],
    read: Callable[[], Sequence[Gpu]] = gpus,
    limit_s: float = RELEASE_LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Waits until no GPU uses more memory than ``before`` (UUID -> bytes), at most ``limit_s``.
    Returns the UUIDs of those that still do.

    The memory of a process is freed only after the process is gone. The next engine on the GPU would
    fail for lack of it.
    """
    end = clock() + limit_s
    while True:
        dirty = [
            gpu.uuid
            for gpu in read()
            if gpu.uuid in before and gpu.used_bytes > before[gpu.uuid] + DIRTY_BYTES
        ]
        if not dirty or clock() >= end:
            return dirty
        sleep(0.5)


def health(nvml: Any = pynvml) -> dict[str, Any]:
    """``driver``, ``cuda`` and ``gpus`` of this node, for sweep/doctor.py; empty without GPUs.
    What a GPU does not report is None.
    """
    with _counted(nvml) as count:
        if not count:
            return {}
        cuda = _ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")  # 12080 for 12.8
        return {
            "driver": _ask(nvml, "nvmlSystemGetDriverVersion"),
            "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpus": [_health(nvml, index) for index in range(count)],
        }


def _health(nvml: Any, index: int) -> dict[str, Any]:
    handle = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)
    if handle is None:
        return {"index": index, "lost": True}
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    power_limit_mw = _ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    mig_modes = _ask(nvml, "nvmlDeviceGetMigMode", handle)  # the current and the pending one
    clock_events = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle) or 0
    # uncorrected ones since the driver was loaded
    ecc_errors = _ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, 1, 0)
    processes = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
    return {
        "index": index,
        "uuid": _ask(nvml, "nvmlDeviceGetUUID", handle),
        "name": _ask(nvml, "nvmlDeviceGetName", handle),
        "power_limit_w": None if power_limit_mw is None else power_limit_mw / 1e3,
        "memory_bytes": None if memory is None else memory.total,
        "used_bytes": None if memory is None else memory.used,
        "pids": [process.pid for process in processes],
        "mig": None if mig_modes is None else bool(mig_modes[0]),
        "ecc_errors": ecc_errors,
        "slowed": [reason for bit, reason in SLOWDOWN_REASONS.items() if clock_events & bit],
        "fabric": _fabric(nvml, handle),
    }


def _fabric(nvml: Any, handle: Any) -> bool | None:
    """Whether the fabric manager has connected the GPU to its NVSwitch; None where the node has no
    NVSwitch, or the binding cannot ask.
    """
    status = None
    for function, structure in FABRIC_QUESTIONS:
        new_info = getattr(nvml, structure, None)
        if status is None and new_info is not None:
            info = new_info()
            status = _ask(nvml, function, handle, byref(info))  # fills ``info``
    if status is None or info.state == FABRIC_NOT_SUPPORTED:
        return None
    return bool(info.state == FABRIC_COMPLETED)


def _ask(nvml: Any, function: str, *arguments: object) -> Any:
    """The answer of an NVML function; None where this driver, binding or GPU does not support it."""
    try:
        return getattr(nvml, function)(*arguments)
    except (AttributeError, nvml.NVMLError):
        return None

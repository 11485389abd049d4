"""Facts from NVML about the health of a node's GPUs; runner/doctor.py judges them."""

from __future__ import annotations

from contextlib import suppress
from ctypes import byref
from typing import Any

import pynvml

# bits of nvmlDeviceGetCurrentClocksEventReasons
SLOWED = {
    0x2: "clocks are locked by application settings",
    0x8: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED


def health(nvml: Any = pynvml) -> dict[str, Any]:
    """``driver``, ``cuda`` and ``gpus`` of this node; empty without a driver. What a GPU does not report is None.

    ``unreachable``: indices of the GPUs whose memory this one cannot read.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}
    try:
        cuda = _ask(nvml, "nvmlSystemGetCudaDriverVersion_v2")
        count = nvml.nvmlDeviceGetCount()
        return {
            "driver": _ask(nvml, "nvmlSystemGetDriverVersion"),
            "cuda": cuda and f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpus": [_gpu(nvml, index, count) for index in range(count)],
        }
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, count: int) -> dict[str, Any]:
    if (handle := _ask(nvml, "nvmlDeviceGetHandleByIndex", index)) is None:
        return {"index": index, "lost": True}
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    mig = _ask(nvml, "nvmlDeviceGetMigMode", handle)
    slowed = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle) or 0
    ecc = _ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, 1, 0)  # uncorrected ones since the driver was loaded
    limits = [_ask(nvml, f"nvmlDeviceGetPowerManagement{name}Limit", handle) for name in ("", "Default")]
    return {
        "index": index,
        "name": _ask(nvml, "nvmlDeviceGetName", handle),
        "memory_bytes": memory and memory.total,
        "used_bytes": memory and memory.used,
        "pids": [one.pid for one in _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()],
        "mig": mig and bool(mig[0]),
        "ecc_errors": ecc,
        "slowed": [why for bit, why in SLOWED.items() if slowed & bit],
        "power_lowered": None not in limits and limits[0] < limits[1],
        "persistent": _ask(nvml, "nvmlDeviceGetPersistenceMode", handle),
        "fabric": _fabric(nvml, handle),
        "unreachable": [other for other in range(count) if other != index and not _reaches(nvml, handle, other)],
    }


def _reaches(nvml: Any, handle: Any, other: int) -> bool:
    """Whether it has read access over NVLink or PCIe; True where the driver does not say."""
    if (there := _ask(nvml, "nvmlDeviceGetHandleByIndex", other)) is None:
        return False
    status = _ask(nvml, "nvmlDeviceGetP2PStatus", handle, there, getattr(nvml, "NVML_P2P_CAPS_INDEX_READ", 0))
    return status in (None, 0)


def _fabric(nvml: Any, handle: Any) -> bool | None:
    """Whether the fabric manager has connected it to its NVSwitch; None where there is none."""
    info = getattr(nvml, "c_nvmlGpuFabricInfo_t", lambda: None)()
    if info is None or _ask(nvml, "nvmlDeviceGetGpuFabricInfo", handle, byref(info)) is None or not info.state:
        return None
    return bool(info.state == FABRIC_COMPLETED)


def _ask(nvml: Any, function: str, *arguments: object) -> Any:
    """The answer of an NVML function; None where this driver, binding or GPU does not support it."""
    try:
        return getattr(nvml, function)(*arguments)
    except (AttributeError, nvml.NVMLError):
        return None

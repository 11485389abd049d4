"""The GPUs of this node and how much of their memory is in use, through NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

DIRTY_BYTES = 2**29  # more than before the launch; a CUDA context that is being torn down holds less
RELEASE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML counts them; CUDA_VISIBLE_DEVICES does not change it."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    used_bytes: int


def gpus(nvml: Any = pynvml) -> list[Gpu]:
    """Every GPU of this node; empty without a driver. Raises NVMLError for a GPU that is lost."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        return [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    return Gpu(index, uuid, name, memory.total, memory.used)


def chosen(devices: Sequence[str], found: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, by index or by (a prefix of) their UUID."""
    return [gpu for name in devices for gpu in found if name == str(gpu.index) or gpu.uuid.startswith(name)]


def await_release(
    before: Mapping[str, int],
    read: Callable[[], Sequence[Gpu]] = gpus,
    limit_s: float = RELEASE_LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Wait until no GPU uses more memory than ``before`` (UUID -> bytes). Returns the UUIDs of those that still do.

    A process is gone before its memory is free, and the next engine on the GPU would fail for lack of it.
    """
    end = clock() + limit_s
    while True:
        dirty = [gpu.uuid for gpu in read() if gpu.uuid in before and gpu.used_bytes > before[gpu.uuid] + DIRTY_BYTES]
        if not dirty or clock() >= end:
            return dirty
        sleep(0.5)

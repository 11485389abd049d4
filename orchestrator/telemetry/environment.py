"""What a host is, as it is found when an engine starts on it: hardware, kernel and drivers."""

import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from orchestrator.telemetry.amd import amd_health
from orchestrator.telemetry.gpus import health


def host_environment(
    gpu_uuids: Sequence[str],
    root: Path = Path("/"),
    read_gpus: Callable[[], dict[str, Any]] = health,
    read_amd_gpus: Callable[[Sequence[str]], dict[str, Any]] = amd_health,
) -> dict[str, Any]:
    """``kernel``, ``system``, ``cpu``, ``cores`` and ``memory_bytes`` of this host. Where it has
    GPUs, also ``driver``, ``cuda`` (of NVIDIA's alone) and ``gpus``. None: unknown.

    ``gpu_uuids``: the GPUs that are described; AMD's go by the names by which they are leased.
    """
    facts: dict[str, Any] = {
        "kernel": platform.release(),
        "system": _value_of(root / "etc/os-release", "PRETTY_NAME", "=").strip('"') or None,
        "cpu": _value_of(root / "proc/cpuinfo", "model name", ":") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }
    gpu_facts = read_amd_gpus(gpu_uuids) or read_gpus()
    if gpu_facts:
        facts["driver"] = gpu_facts["driver"]
        if "cuda" in gpu_facts:
            facts["cuda"] = gpu_facts["cuda"]
        names = ("uuid", "name", "memory_bytes", "power_limit_w", "mig")
        facts["gpus"] = [
            {name: gpu[name] for name in names}
            for gpu in gpu_facts["gpus"]
            if gpu.get("uuid") in gpu_uuids
        ]
    return facts


def _value_of(path: Path, name: str, separator: str) -> str:
    """The value of the first line ``name<separator>value``; empty if there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(separator)
        if key.strip() == name:
            return value.strip()
    return ""

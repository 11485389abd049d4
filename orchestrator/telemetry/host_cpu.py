"""Who used a host's CPU between two instants: processes of ours, or others."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """CPU seconds used until now: by all, and by each process with the children that it has seen end."""

    at_s: float
    busy_s: float
    cores: int
    processes: dict[tuple[int, float], float]  # pid and start time


def snapshot(stat: Path = Path("/proc/stat")) -> Snapshot:
    """Of this host; where it cannot be read nobody did anything."""
    try:
        first, *rest = stat.read_text().splitlines()
    except OSError:
        return Snapshot(time.monotonic(), 0.0, 1, {})
    user, nice, system, _, _, irq, softirq, *_ = map(int, first.split()[1:])  # no idle, I/O wait, time stolen
    cores = sum(line.startswith("cpu") for line in rest)
    used: dict[tuple[int, float], float] = {}
    for process in psutil.process_iter():
        try:
            used[process.pid, process.create_time()] = sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return Snapshot(time.monotonic(), (user + nice + system + irq + softirq) / _TICKS, cores, used)


def foreign(before: Snapshot, after: Snapshot, ours: Collection[int]) -> tuple[float, float]:
    """CPU seconds that others than these processes used, and their share of the time of all cores."""
    own_s = sum(s - before.processes.get(key, 0.0) for key, s in after.processes.items() if key[0] in ours)
    foreign_s = max(0.0, after.busy_s - before.busy_s - own_s)
    return foreign_s, foreign_s / max(1e-9, (after.at_s - before.at_s) * after.cores)

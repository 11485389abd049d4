"""How much of a host's CPU other programs used between two instants."""

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

INIT = 1  # becomes the parent of every process whose own parent died
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """Identifies a process: its pid alone may be given to another one later. ``began_s``: since the
    epoch.
    """

    pid: int
    began_s: float


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds that a process used: alone, and together with its children that have ended."""

    alone_s: float
    with_children_s: float


NOT_USED = CpuTimes(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """CPU seconds used until ``at_s``: ``busy_s`` by the whole host, and those of each process.
    ``parents``: pid -> pid.
    """

    at_s: float
    busy_s: float
    cores: int
    processes: dict[ProcessKey, CpuTimes]
    parents: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForeignCpu:
    """What other programs used between two snapshots: CPU seconds, and the share of all cores'
    time.
    """

    seconds: float
    share: float


def snapshot(stat: Path = Path("/proc/stat")) -> Snapshot:
    """CPU use of this host; all zero where it cannot be read."""
    try:
        first, *others = stat.read_text().splitlines()
    except OSError:
        return Snapshot(time.monotonic(), 0.0, 1, {})
    # without interrupts: our own packets cause some
    user, nice, system, *_ = map(int, first.split()[1:])
    cores = sum(line.startswith("cpu") for line in others)
    processes: dict[ProcessKey, CpuTimes] = {}
    parents: dict[int, int] = {}
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                times = process.cpu_times()
                parents[process.pid] = process.ppid()
                key = ProcessKey(process.pid, process.create_time())
        except psutil.Error:
            continue
        alone_s = times.user + times.system
        children_s = times.children_user + times.children_system
        processes[key] = CpuTimes(alone_s, alone_s + children_s)
    busy_s = (user + nice + system) / _TICKS
    return Snapshot(time.monotonic(), busy_s, cores, processes, parents)


def foreign(
    before: Snapshot, after: Snapshot, ours: Collection[int], some_ended: bool = False
) -> ForeignCpu:
    """CPU used by processes other than ``ours`` (pids) and their descendants.

    ``some_ended``: some of our processes have ended meanwhile, and what they used is unknown. Then
    only processes that are still alive are counted as foreign.
    """
    family = _with_descendants(ours, after.parents)
    ours_s = 0.0
    others_alive_s = 0.0
    for key, used in after.processes.items():
        used_before = before.processes.get(key, NOT_USED)
        if key.pid in family:
            ours_s += used.with_children_s - used_before.with_children_s
        else:
            others_alive_s += used.alone_s - used_before.alone_s
    foreign_s = max(0.0, after.busy_s - before.busy_s - ours_s)
    if some_ended:
        foreign_s = min(foreign_s, others_alive_s)
    all_cores_s = (after.at_s - before.at_s) * after.cores
    return ForeignCpu(foreign_s, foreign_s / max(1e-9, all_cores_s))


def _with_descendants(pids: Collection[int], parents: Mapping[int, int]) -> set[int]:
    """These processes and all that descend from them."""
    family = set(pids)
    while True:
        children = {pid for pid, parent in parents.items() if parent in family and parent != INIT}
        if children <= family:
            return family
        family |= children

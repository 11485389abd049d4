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
class Snapshot:
    """CPU seconds used until ``at_s``: by the whole host, and by each process alone and with its
    ended children.
    """

    at_s: float
    busy_s: float
    cores: int
    # (pid, start time) -> (alone, with ended children)
    processes: dict[tuple[int, float], tuple[float, float]]
    parents: dict[int, int] = field(default_factory=dict)  # pid -> pid


def snapshot(stat: Path = Path("/proc/stat")) -> Snapshot:
    """CPU use of this host; all zero where it cannot be read."""
    try:
        first, *rest = stat.read_text().splitlines()
    except OSError:
        return Snapshot(time.monotonic(), 0.0, 1, {})
    # without interrupts: our own packets cause some
    user, nice, system, *_ = map(int, first.split()[1:])
    cores = sum(line.startswith("cpu") for line in rest)
    used: dict[tuple[int, float], tuple[float, float]] = {}
    parents: dict[int, int] = {}
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                times, parents[process.pid] = process.cpu_times(), process.ppid()
                used[process.pid, process.create_time()] = sum(times[:2]), sum(times[:4])
        except psutil.Error:
            continue
    return Snapshot(time.monotonic(), (user + nice + system) / _TICKS, cores, used, parents)


def foreign(
    before: Snapshot, after: Snapshot, ours: Collection[int], some_left: bool = False
) -> tuple[float, float]:
    """CPU seconds used by processes other than ``ours`` and their descendants, and their share of
    all cores' time.

    ``some_left``: some of our processes ended meanwhile, so their use is unknown: count only others
    that still live.
    """
    known = _with_descendants(ours, after.parents)
    own_s = alive_s = 0.0
    for process, (alone_s, all_s) in after.processes.items():
        alone_before_s, all_before_s = before.processes.get(process, (0.0, 0.0))
        pid, _ = process
        if pid in known:
            own_s += all_s - all_before_s
        else:
            alive_s += alone_s - alone_before_s
    foreign_s = max(0.0, after.busy_s - before.busy_s - own_s)
    if some_left:
        foreign_s = min(foreign_s, alive_s)
    return foreign_s, foreign_s / max(1e-9, (after.at_s - before.at_s) * after.cores)


def _with_descendants(pids: Collection[int], parents: Mapping[int, int]) -> set[int]:
    """These processes and all that descend from them."""
    family = set(pids)
    while True:
        children = {pid for pid, parent in parents.items() if parent in family and parent != INIT}
        if children <= family:
            return family
        family |= children

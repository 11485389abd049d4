"""The processes of a launch and of its sweep on this host, and what CPU and memory they use.

Files of /proc are read directly: psutil takes twenty times as long, and this runs beside the load.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")  # of CPU time, per second
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PROC = Path("/proc")
# places in /proc/<pid>/stat behind the process's name
_PPID = 1
_UTIME = 11
_STIME = 12
_STARTTIME = 19
_RSS = 21
LOOK_EVERY_S = 5.0  # how often new processes are looked for


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """What /proc says of a process. ``began_ticks``: since the host's boot."""

    parent: int
    cpu_s: float
    began_ticks: int
    rss_bytes: int


def read_process(pid: int, proc: Path = PROC) -> ProcessReading | None:
    """None if there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The fields of proc_pid_stat(5) from the third on: the second is the process's name, in
    # parentheses, and may hold anything.
    fields = text[text.rfind(b")") + 2 :].split()
    cpu_ticks = int(fields[_UTIME]) + int(fields[_STIME])
    return ProcessReading(
        parent=int(fields[_PPID]),
        cpu_s=cpu_ticks / TICKS,
        began_ticks=int(fields[_STARTTIME]),
        rss_bytes=int(fields[_RSS]) * _PAGE_BYTES,
    )


def _parents(proc: Path) -> dict[int, int]:
    """Every process of this host -> its parent."""
    parents: dict[int, int] = {}
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            process = read_process(int(entry.name), proc)
            if process is not None:
                parents[int(entry.name)] = process.parent
    return parents


class ProcessFamily:
    """Processes and all that descend from them. ``roots``: those that it begins with."""

    def __init__(self, roots: Collection[int], proc: Path = PROC) -> None:
        self.pids = set(roots)
        self.rss_bytes = 0  # at the last reading; pages that processes share count for each
        self._proc = proc
        self._is_first_reading = True
        # CPU seconds of each process by pid and begin, which tell it from a later one with its pid:
        # those that it had used before the first reading, and at its last reading
        self._first_s: dict[tuple[int, int], float] = {}
        self._last_s: dict[tuple[int, int], float] = {}

    def add_descendants(self, parents: Mapping[int, int]) -> None:
        """Adds new descendants and drops what has ended. ``parents``: process -> its parent, of all
        processes. An orphan stays in the family.
        """
        children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            children.setdefault(parent, []).append(pid)
        to_visit = [pid for pid in self.pids if pid in parents]
        self.pids = set()
        while to_visit:
            pid = to_visit.pop()
            if pid not in self.pids:
                self.pids.add(pid)
                to_visit += children.get(pid, ())

    def read(self) -> None:
        """Reads the CPU time and memory of each process."""
        self.rss_bytes = 0
        for pid in list(self.pids):
            process = read_process(pid, self._proc)
            if process is None:
                self.pids.discard(pid)
                continue
            key = (pid, process.began_ticks)
            if key not in self._first_s:
                # a process that the first reading did not see began after it: all its time counts
                self._first_s[key] = process.cpu_s if self._is_first_reading else 0.0
            self._last_s[key] = process.cpu_s
            self.rss_bytes += process.rss_bytes
        self._is_first_reading = False

    @property
    def cpu_s(self) -> float:
        """CPU seconds that the family has used since it was first read, ended processes included."""
        return sum(self._last_s.values()) - sum(self._first_s.values())


class SweepProcesses:
    """The processes of this host that belong to a launch, and the others of its sweep, such as
    clients.
    """

    def __init__(
        self,
        launch_roots: Collection[int],
        other_roots: Collection[int] = (),
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.launch = ProcessFamily(launch_roots, proc)
        self.others = ProcessFamily(set(other_roots) - set(launch_roots), proc)
        self._proc = proc
        self._clock = clock
        self._looked_s: float | None = None

    def look(self) -> bool:
        """Looks for new processes, if the last time was LOOK_EVERY_S ago. Returns whether it did."""
        now_s = self._clock()
        if self._looked_s is not None and now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        parents = _parents(self._proc)
        self.launch.add_descendants(parents)
        self.others.add_descendants(parents)
        self.others.pids -= self.launch.pids
        return True

    def read(self) -> None:
        """Reads the CPU time and memory of both families."""
        self.launch.read()
        self.others.read()

    @property
    def cpu_s(self) -> float:
        """CPU seconds of both families since they were first read."""
        return self.launch.cpu_s + self.others.cpu_s

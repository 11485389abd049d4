"""The processes of a launch and of its sweep on this host, and what CPU and memory they use.

Files of /proc are read directly: psutil takes twenty times as long, and this runs beside the load.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.telemetry.proc_files import ProcFiles

TICKS = os.sysconf("SC_CLK_TCK")  # of CPU time, per second
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PROC = Path("/proc")
# places in /proc/<pid>/stat behind the process's name
_PPID = 1
_UTIME = 11
_STIME = 12
_STARTTIME = 19
_RSS = 21
LOOK_EVERY_S = 5.0  # how often new processes are looked for, and the others of a sweep read


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """What /proc says of a process. ``began_ticks``: since the host's boot."""

    parent: int
    cpu_s: float
    began_ticks: int
    rss_bytes: int


def read_process(pid: int, files: ProcFiles) -> ProcessReading | None:
    """None if there is no such process."""
    try:
        text = files.beginning(f"{pid}/stat")
    except OSError:
        return None
    # The fields of proc_pid_stat(5) from the third on: the second is the process's name, in
    # parentheses, and may hold anything.
    fields = text[text.rfind(b")") + 2 :].split(maxsplit=_RSS + 1)
    cpu_ticks = int(fields[_UTIME]) + int(fields[_STIME])
    return ProcessReading(
        parent=int(fields[_PPID]),
        cpu_s=cpu_ticks / TICKS,
        began_ticks=int(fields[_STARTTIME]),
        rss_bytes=int(fields[_RSS]) * _PAGE_BYTES,
    )


def _living(proc: Path) -> set[int]:
    """The pids of this host's processes."""
    return {int(name) for name in os.listdir(proc) if name.isdecimal()}


def _parents(pids: Collection[int], proc: Path) -> dict[int, int]:
    """Each of these processes that still runs -> its parent."""
    parents: dict[int, int] = {}
    files = ProcFiles(proc)
    for pid in pids:
        process = read_process(pid, files)
        files.close()
        if process is not None:
            parents[pid] = process.parent
    return parents


class ProcessFamily:
    """Processes and all that descend from them. ``roots``: those that it begins with."""

    def __init__(self, roots: Collection[int], proc: Path = PROC) -> None:
        self.pids = set(roots)
        self.rss_bytes = 0  # at the last reading; pages that processes share count for each
        # CPU seconds that the family has used since it was first read, ended processes included
        self.cpu_s = 0.0
        self._files = ProcFiles(proc)
        self._is_first_reading = True
        # CPU seconds of each process at its last reading, by pid and begin, which tell it from a
        # later one with its pid
        self._last_s: dict[tuple[int, int], float] = {}

    def update(self, living: Collection[int], new_parents: Mapping[int, int]) -> None:
        """Adds new descendants and drops what has ended. An orphan stays in the family.

        ``living``: all processes of the host; ``new_parents``: each process that was not there at
        the last update -> its parent.
        """
        children: dict[int, list[int]] = {}
        for pid, parent in new_parents.items():
            children.setdefault(parent, []).append(pid)
        self.leave_out(self.pids.difference(living))
        to_visit = list(self.pids)
        while to_visit:
            for child in children.get(to_visit.pop(), ()):
                if child not in self.pids:
                    self.pids.add(child)
                    to_visit.append(child)

    def read(self) -> None:
        """Reads the CPU time and memory of each process."""
        self.rss_bytes = 0
        for pid in list(self.pids):
            process = read_process(pid, self._files)
            if process is None:
                self.leave_out([pid])
                continue
            key = (pid, process.began_ticks)
            # a process that the first reading did not see began after it: all its time counts
            first_s = process.cpu_s if self._is_first_reading else 0.0
            self.cpu_s += process.cpu_s - self._last_s.get(key, first_s)
            self._last_s[key] = process.cpu_s
            self.rss_bytes += process.rss_bytes
        self._is_first_reading = False

    def leave_out(self, pids: Collection[int]) -> None:
        """Reads these processes no more: they have ended, or are another family's."""
        for pid in pids:
            self.pids.discard(pid)
            self._files.forget(f"{pid}/stat")

    def close(self) -> None:
        """Ends the reading."""
        self._files.close()


class SweepProcesses:
    """The processes of this host that belong to a launch, and the others of its sweep, such as
    clients and other launches.

    Where many launches of a sweep share a host, each of them has a sampler, and the processes of all
    launches would be read once per launch. So the others are read only every LOOK_EVERY_S.
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
        self._seen: set[int] = set()  # all processes of this host at the last look

    def look(self, at_once: bool = False) -> bool:
        """Looks for new processes and reads the others, if the last time was LOOK_EVERY_S ago or
        ``at_once``. Returns whether it did.
        """
        now_s = self._clock()
        is_due = self._looked_s is None or now_s - self._looked_s >= LOOK_EVERY_S
        if not is_due and not at_once:
            return False
        self._looked_s = now_s
        living = _living(self._proc)
        # the parent of a process changes only when it is orphaned, and an orphan stays where it was
        new_parents = _parents(living - self._seen, self._proc)
        self._seen = living
        self.launch.update(living, new_parents)
        self.others.update(living, new_parents)
        self.others.leave_out(self.launch.pids)
        self.others.read()
        return True

    @property
    def cpu_s(self) -> float:
        """CPU seconds of both families since they were first read. The others' are those of the last
        look.
        """
        return self.launch.cpu_s + self.others.cpu_s

    def close(self) -> None:
        """Ends the reading."""
        self.launch.close()
        self.others.close()

"""How long an engine's threads waited for a core while others used it.

A share of a host's CPU does not tell whether others harmed an engine: on a host with idle cores a
large one harms nothing, and an engine that computes on all cores loses what others take. The kernel
counts it: of each thread the time in which it ran and the time in which it was ready and waited for a
core (/proc/<pid>/task/<tid>/schedstat, Documentation/scheduler/sched-stats.rst; the file of the
process has its first thread alone).

Waking takes a while on an idle host, too: measured were 20 µs each time in a virtual machine with two
cores. A thread that works for 100 µs at a time would thus wait for a fifth of its CPU time although
nobody takes any, so WAKING_NS of each time do not count. Where others computed on both cores, a
wait took 0.5 ms on average.

A thread that a limit on the CPU time of its control group stops waits in the same way, so nothing is
known of engines that such a limit held back.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.telemetry.processes import PROC, TICKS

CONTROL_GROUPS = Path("/sys/fs/cgroup")
WAKING_NS = 50_000


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Nanoseconds since a thread began: in which it ran, and in which it waited for a core. ``runs``:
    how often it got one.
    """

    ran_ns: int
    waited_ns: int
    runs: int


NOT_RUN = ThreadTimes(0, 0, 0)


@dataclass(frozen=True, slots=True)
class CoreUse:
    """Threads by their ids, the cores on which they may run, and seconds in which each core of the
    host was busy since its boot. ``throttles``: how often a limit stopped their control groups.
    """

    threads: Mapping[int, ThreadTimes]
    cores: frozenset[int]
    busy_s: Mapping[int, float]
    throttles: int = 0


@dataclass(frozen=True, slots=True)
class CoreWait:
    """What an engine's threads did between two instants, in seconds: ``ran_s``; ``waited_s`` for a
    core, without what waking takes; ``others_s``: what all other threads ran on the same cores.
    """

    ran_s: float
    waited_s: float
    others_s: float

    def lost_s(self, foreign_s: float) -> float:
        """CPU seconds that foreign programs took from the engine at most.

        Engines wait for their own threads, too, and foreign programs use cores that no engine may
        use, so it is the least of three bounds. ``foreign_s``: CPU seconds that foreign programs
        used on the host.
        """
        return min(self.waited_s, self.others_s, foreign_s)

    def lost_share(self, foreign_s: float) -> float:
        """The part of the CPU time needed that foreign programs took at most."""
        lost_s = self.lost_s(foreign_s)
        return lost_s / (self.ran_s + lost_s) if lost_s else 0.0


def core_use(
    pids: Collection[int], proc: Path = PROC, control_groups: Path = CONTROL_GROUPS
) -> CoreUse:
    """What the threads of these processes have used. Threads that end meanwhile are left out."""
    threads: dict[int, ThreadTimes] = {}
    cores: set[int] = set()
    for task in _tasks(pids, proc):
        try:
            ran_ns, waited_ns, runs = map(int, (task / "schedstat").read_text().split())
            cores |= _allowed_cores((task / "status").read_text())
        except (OSError, ValueError):  # it has ended, or this kernel does not count
            continue
        threads[int(task.name)] = ThreadTimes(ran_ns, waited_ns, runs)
    throttles = _throttles(pids, proc, control_groups)
    return CoreUse(threads, frozenset(cores), _busy_cores(proc), throttles)


def core_wait(before: CoreUse, after: CoreUse) -> CoreWait | None:
    """What happened between two readings; None if the kernel does not count it, no thread of the
    engine was there, or a limit on its CPU time held it back.
    """
    if not after.threads or not after.busy_s or after.throttles > before.throttles:
        return None
    ran_ns = 0
    waited_ns = 0
    for thread, times in after.threads.items():
        times_before = before.threads.get(thread, NOT_RUN)
        if times.ran_ns < times_before.ran_ns:  # another thread that has its id by now
            times_before = NOT_RUN
        ran_ns += times.ran_ns - times_before.ran_ns
        waking_ns = WAKING_NS * (times.runs - times_before.runs)
        waited_ns += max(0, times.waited_ns - times_before.waited_ns - waking_ns)
    busy_s = sum(
        seconds - before.busy_s.get(core, seconds)
        for core, seconds in after.busy_s.items()
        if core in after.cores
    )
    ran_s = ran_ns / 1e9
    return CoreWait(ran_s, waited_ns / 1e9, max(0.0, busy_s - ran_s))


def _tasks(pids: Collection[int], proc: Path) -> Iterator[Path]:
    for pid in pids:
        try:
            yield from (proc / str(pid) / "task").iterdir()
        except OSError:  # the process has ended
            continue


def _throttles(pids: Collection[int], proc: Path, control_groups: Path) -> int:
    """How often the control groups of these processes, or those above them, were stopped because
    they had used the CPU time that they may. The count has the same name in both versions of cgroups.
    """
    folders: set[Path] = set()
    for pid in pids:
        try:
            lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:  # the process has ended
            continue
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            # version 2 names no controller; of version 1 some kernels write "cpuacct,cpu", which is
            # the folder "cpu,cpuacct" with a link "cpu"
            for hierarchy in {controllers, "cpu" if controllers else ""}:
                root = control_groups / hierarchy
                group = root / path.lstrip("/")
                groups = (group, *group.parents)
                folders |= {folder for folder in groups if folder.is_relative_to(root)}
    return sum(map(_throttles_of, folders))


def _throttles_of(folder: Path) -> int:
    try:
        lines = (folder / "cpu.stat").read_text().splitlines()
    except OSError:  # there is no such group any more, or it has no limit
        return 0
    counts = [line.split() for line in lines]
    return sum(int(count) for name, count in counts if name == "nr_throttled")


def _allowed_cores(status: str) -> set[int]:
    """The cores of the line ``Cpus_allowed_list`` of /proc/<pid>/status, such as ``0-3,8``."""
    cores: set[int] = set()
    for line in status.splitlines():
        name, _, ranges = line.partition(":")
        if name != "Cpus_allowed_list":
            continue
        for text in ranges.strip().split(","):
            first, _, last = text.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    return cores


def _busy_cores(proc: Path) -> dict[int, float]:
    """Seconds that each core was busy; without interrupts, as our own packets cause some."""
    busy_s: dict[int, float] = {}
    try:
        lines = (proc / "stat").read_text().splitlines()
    except OSError:
        return busy_s
    for line in lines:
        name, *ticks = line.split()
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdecimal():
            user, nice, system = (int(count) for count in ticks[:3])
            busy_s[int(number)] = (user + nice + system) / TICKS
    return busy_s

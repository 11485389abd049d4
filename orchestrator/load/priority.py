"""How the load thread is scheduled beside an engine that may want the same cores.

Niceness alone does not put a client before an engine: under Linux's autogroups it only counts among
the processes of one session, and an engine has a session of its own. Real-time scheduling does. No
cost to the engine could be measured, even on a shared core (docs/measurements.md): the client needs
the same CPU time, only at once.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Scheduling = Literal["realtime", "nice", "normal"]

NICENESS = -10
WINDOW_NS = 50_000_000
# CPU time over a window from which on the thread counts as needing its whole core
FULL_SHARE = 0.85
REALTIME_SHARE = 0.8  # part of such a window in which it stays real-time


class Priority:
    """How the calling thread is scheduled. To be used by that thread only."""

    def __init__(self, how: Scheduling) -> None:
        self.how: Scheduling = how  # for the run as a whole
        self.now: Scheduling = how
        self._full = False
        self._window = (0, 0)  # its start, and the thread's CPU time at that instant

    def look(self, now_ns: int, cpu_ns: int) -> None:
        """Leaves real-time for a moment while the thread fills its core. To be called every 10 ms
        or so.

        Otherwise the kernel would stop a real-time thread that used 95 % of a second for the rest
        of it, 50 ms at once (sched_rt_runtime_us).
        """
        if self.how != "realtime":
            return
        start_ns, used_ns = self._window
        if now_ns - start_ns >= WINDOW_NS:
            self._full = start_ns > 0 and cpu_ns - used_ns > FULL_SHARE * (now_ns - start_ns)
            self._window = start_ns, used_ns = now_ns, cpu_ns
        now: Scheduling = (
            "nice" if self._full and now_ns - start_ns >= REALTIME_SHARE * WINDOW_NS else "realtime"
        )
        if now != self.now:
            _schedule(os.SCHED_RR if now == "realtime" else os.SCHED_OTHER, int(now == "realtime"))
            self.now = now


@contextmanager
def scheduled(wanted: Scheduling) -> Iterator[Priority]:
    """Runs the calling thread as wanted, or as near to it as is allowed, and yields how. Undone on
    exit.

    Real-time scheduling needs root, CAP_SYS_NICE or RLIMIT_RTPRIO. Without them the niceness goes
    as near to -10 as is allowed (Ray starts its workers at 15). Threads and processes started
    inside do not inherit real-time scheduling.
    """
    if wanted == "normal":
        yield Priority("normal")
        return
    niceness, before = os.getpriority(os.PRIO_PROCESS, 0), None
    lower_niceness(NICENESS)
    if wanted == "realtime":
        with suppress(AttributeError, OSError):  # not Linux, or not allowed
            policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
            _schedule(os.SCHED_RR, 1)
            before = policy, param.sched_priority
    low = os.getpriority(os.PRIO_PROCESS, 0) < 0
    try:
        yield Priority("realtime" if before else "nice" if low else "normal")
    finally:
        with suppress(OSError):
            if before is not None:
                _schedule(*before)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)


def _schedule(policy: int, priority: int) -> None:
    """Schedules the calling thread. The reset-on-fork flag stays for good: clearing it takes
    CAP_SYS_NICE.
    """
    os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(priority))


def lower_niceness(wanted: int) -> None:
    """Lowers the calling thread's niceness to ``wanted``, or the nearest value allowed (root,
    RLIMIT_NICE).
    """
    for niceness in range(wanted, os.getpriority(os.PRIO_PROCESS, 0)):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            return


@contextmanager
def quiet_memory() -> Iterator[None]:
    """No garbage collection during a run: a pass over all objects would hold up reads for
    milliseconds.
    """
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()

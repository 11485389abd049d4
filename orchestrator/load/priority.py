"""How the load thread is scheduled beside an engine that may want the same cores.

Niceness alone does not bring a client before an engine: with Linux's autogroups it only counts among the processes of
one session, and an engine is a session of its own. Real-time scheduling does. The engine pays nothing for it that could
be measured, on a shared core neither (docs/measurements.md): the client needs the same CPU time, only at once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

How = Literal["realtime", "nice", "normal"]

NICENESS = -10
WINDOW_NS = 50_000_000
FULL_SHARE = 0.85  # of a window: the thread needs nearly all of its core
REALTIME_SHARE = 0.8  # of a window in which it does


class Priority:
    """How the calling thread is scheduled. Belongs to that thread."""

    def __init__(self, how: How) -> None:
        self.how: How = how  # what it is for the whole run
        self.now: How = how
        self._full = False
        self._window = (0, 0)  # its start, and the thread's CPU time then

    def look(self, now_ns: int, cpu_ns: int) -> None:
        """Every 10 ms or so, with the CPU time of the thread: steps back for a moment while it needs all of its core.

        A real-time thread that took 95 % of a second is stopped by the kernel for the rest of it, 50 ms at once
        (sched_rt_runtime_us).
        """
        if self.how != "realtime":
            return
        start_ns, used_ns = self._window
        if now_ns - start_ns >= WINDOW_NS:
            self._full = start_ns > 0 and cpu_ns - used_ns > FULL_SHARE * (now_ns - start_ns)
            self._window = start_ns, used_ns = now_ns, cpu_ns
        now: How = "nice" if self._full and now_ns - start_ns >= REALTIME_SHARE * WINDOW_NS else "realtime"
        if now != self.now:
            _schedule(os.SCHED_RR if now == "realtime" else os.SCHED_OTHER, int(now == "realtime"))
            self.now = now


@contextmanager
def scheduled(wanted: How) -> Iterator[Priority]:
    """The calling thread runs as wanted, or as near to it as is allowed; yields how. Afterwards all is as before.

    Real-time scheduling needs root, CAP_SYS_NICE or RLIMIT_RTPRIO. Without them the nearest niceness to -10 is what
    counts (Ray starts its workers at 15). Threads and processes started inside do not inherit real-time scheduling.
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
    """Of the calling thread. The flag stays for good: clearing it takes CAP_SYS_NICE."""
    os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(priority))


def lower_niceness(wanted: int) -> None:
    """Of the calling thread, to ``wanted`` or the nearest value allowed (root, RLIMIT_NICE)."""
    for niceness in range(wanted, os.getpriority(os.PRIO_PROCESS, 0)):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            return


@contextmanager
def quiet_memory() -> Iterator[None]:
    """No garbage collection during a run: a pass over all objects would stop reads for milliseconds."""
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()

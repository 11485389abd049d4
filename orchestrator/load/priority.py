"""The load thread first: a client on an engine's cores must be woken when bytes arrive, not when the engine naps.

Niceness alone does not do it: with Linux's autogroups it only counts among the processes of one session, and an engine
is a session of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NICENESS = -10
WINDOW_NS = 50_000_000
FULL_SHARE = 0.85  # of a window: the thread needs nearly all of its core
REALTIME_SHARE = 0.8  # of a window in which it does


class Priority:
    """How the calling thread is scheduled: ``rr`` (real time) or ``nice``. Belongs to that thread."""

    def __init__(self, how: str) -> None:
        self.how = how
        self._allowed = how == "rr"
        self._full = False
        self._window = (0, 0)  # its start, and the thread's CPU time then

    def look(self, now_ns: int, cpu_ns: int) -> None:
        """Every 10 ms or so, with the CPU time of the thread: steps back for a moment while it needs all of its core.

        A real-time thread that took 95 % of a second is stopped by the kernel for the rest of it, 50 ms at once
        (sched_rt_runtime_us).
        """
        if not self._allowed:
            return
        start_ns, used_ns = self._window
        if now_ns - start_ns >= WINDOW_NS:
            self._full = start_ns > 0 and cpu_ns - used_ns > FULL_SHARE * (now_ns - start_ns)
            self._window = start_ns, used_ns = now_ns, cpu_ns
        how = "nice" if self._full and now_ns - start_ns >= REALTIME_SHARE * WINDOW_NS else "rr"
        if how != self.how:
            _schedule(os.SCHED_RR if how == "rr" else os.SCHED_OTHER, int(how == "rr"))
            self.how = how


@contextmanager
def first_in_line() -> Iterator[Priority]:
    """The calling thread runs before ordinary ones on its cores, as far as allowed; yields how.

    Real-time scheduling needs root, CAP_SYS_NICE or RLIMIT_RTPRIO. Without them the nearest niceness to -10 is what
    counts (Ray starts its workers at 15). Afterwards all is as before. Threads and processes started inside do not
    inherit real-time scheduling.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    lower_niceness(NICENESS)
    try:
        yield from _realtime()
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)


def _realtime() -> Iterator[Priority]:
    try:
        policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
        _schedule(os.SCHED_RR, 1)
    except (AttributeError, OSError):  # not Linux, or not allowed
        yield Priority("nice")
        return
    try:
        yield Priority("rr")
    finally:
        with suppress(OSError):
            _schedule(policy, param.sched_priority)


def _schedule(policy: int, priority: int) -> None:
    """Of the calling thread. The flag stays for good: clearing it takes CAP_SYS_NICE."""
    os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, os.sched_param(priority))


def lower_niceness(wanted: int) -> None:
    """Of the calling thread, to ``wanted`` or the nearest value allowed (root, RLIMIT_NICE)."""
    for niceness in range(wanted, os.getpriority(os.PRIO_PROCESS, 0)):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            return

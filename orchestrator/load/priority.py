"""How the load thread is scheduled beside an engine that may want the same cores.

Niceness alone does not put a client before an engine: under Linux's autogroups it only counts among
the processes of one session, and an engine has a session of its own. Real-time scheduling does. No
cost to the engine could be measured, even on a shared core (benchmarks/client/RESULTS.md): the
client needs the same CPU time, and only gets it at once.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Scheduling = Literal["realtime", "nice", "normal"]

NICENESS = -10
WINDOW_NS = 50_000_000
# a thread that used more of a window than this counts as needing its whole core
FULL_SHARE = 0.85
REALTIME_SHARE = 0.8  # the part of each window in which such a thread stays real-time


class Priority:
    """How the calling thread is scheduled. To be used by that thread only."""

    def __init__(self, how: Scheduling) -> None:
        self.how: Scheduling = how  # for the run as a whole
        self.current: Scheduling = how
        self._fills_core = False  # the thread needed its whole core in the last window
        self._window_start_ns = 0
        self._window_start_cpu_ns = 0  # the thread's CPU time at that instant

    def look(self, now_ns: int, cpu_ns: int) -> None:
        """Leaves real-time for a moment while the thread fills its core. To be called every 10 ms
        or so.

        Otherwise the kernel would stop a real-time thread that used 95 % of a second for the rest
        of it, 50 ms at once (sched_rt_runtime_us).
        """
        if self.how != "realtime":
            return
        if now_ns - self._window_start_ns >= WINDOW_NS:
            is_first = self._window_start_ns == 0
            window_ns = now_ns - self._window_start_ns
            used_ns = cpu_ns - self._window_start_cpu_ns
            self._fills_core = not is_first and used_ns > FULL_SHARE * window_ns
            self._window_start_ns = now_ns
            self._window_start_cpu_ns = cpu_ns
        is_late_in_window = now_ns - self._window_start_ns >= REALTIME_SHARE * WINDOW_NS
        next_scheduling: Scheduling = "realtime"
        if self._fills_core and is_late_in_window:
            next_scheduling = "nice"
        if next_scheduling == self.current:
            return
        self.current = next_scheduling
        if next_scheduling == "realtime":
            _schedule(os.SCHED_RR, 1)
        else:
            _schedule(os.SCHED_OTHER, 0)


@contextmanager
def scheduled(wanted: Scheduling) -> Iterator[Priority]:
    """Runs the calling thread as wanted, or as near to that as is allowed, and yields how it runs.
    Undone on exit.

    Real-time scheduling needs root, CAP_SYS_NICE or RLIMIT_RTPRIO. Without them the niceness goes
    as near to -10 as is allowed (Ray starts its workers at 15). Threads and processes started
    inside do not inherit real-time scheduling.
    """
    if wanted == "normal":
        yield Priority("normal")
        return
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    policy_before: tuple[int, int] | None = None  # and its priority; None: it was not changed
    lower_niceness(NICENESS)
    if wanted == "realtime":
        with suppress(AttributeError, OSError):  # not Linux, or not allowed
            policy = os.sched_getscheduler(0)
            priority = os.sched_getparam(0).sched_priority
            _schedule(os.SCHED_RR, 1)
            policy_before = (policy, priority)
    how: Scheduling = "normal"
    if policy_before is not None:
        how = "realtime"
    elif os.getpriority(os.PRIO_PROCESS, 0) < 0:
        how = "nice"
    try:
        yield Priority(how)
    finally:
        with suppress(OSError):
            if policy_before is not None:
                _schedule(*policy_before)
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
    """Turns garbage collection off during a run: a pass over all objects would hold up reads for
    milliseconds. Objects that were frozen before stay frozen.
    """
    enabled = gc.isenabled()
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()

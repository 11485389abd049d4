"""The load thread first: a client on an engine's cores must be woken when bytes arrive, not when the engine naps.

Niceness alone does not do it: with Linux's autogroups it only counts among the processes of one session, and an engine
is a session of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NICENESS = -10


@contextmanager
def first_in_line() -> Iterator[str]:
    """The calling thread runs before ordinary ones on its cores, as far as allowed; yields how: ``rr``, ``nice``.

    Real-time scheduling needs root, CAP_SYS_NICE or RLIMIT_RTPRIO. Without them the nearest niceness to -10 is taken
    (Ray starts its workers at 15). Threads and processes started inside do not inherit real-time scheduling.
    """
    try:
        policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (AttributeError, OSError):  # not Linux, or not allowed
        lower_niceness(NICENESS)
        yield "nice"
        return
    try:
        yield "rr"
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, param)  # clearing that flag takes CAP_SYS_NICE


def lower_niceness(wanted: int) -> None:
    """Of the calling thread, to ``wanted`` or the nearest value allowed (root, RLIMIT_NICE)."""
    for niceness in range(wanted, os.getpriority(os.PRIO_PROCESS, 0)):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
            return

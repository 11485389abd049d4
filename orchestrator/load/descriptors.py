"""Room for sockets, made before any time counts."""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import suppress

DESCRIPTORS = 16_384  # sockets for which there is room without the kernel's table growing


def make_room_for_sockets() -> None:
    """As many sockets as the system lets us have; the usual soft limit of 1,024 would cap the load unseen.

    The kernel's table of descriptors grows by doubling, and in a process with threads each growth waits 10 ms and more
    for all CPUs (synchronize_rcu). Taking a high number once makes it large now instead of during the run.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (ValueError, OSError):
        pass  # a sandbox may forbid it; sockets that cannot be opened become rows of class `client`
    with open(os.devnull) as any_file, suppress(OSError):
        os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, min(soft, DESCRIPTORS) - 1))

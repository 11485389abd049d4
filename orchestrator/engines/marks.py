"""Environment marks by which processes of a launch are found again, whoever their parent is by now."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import psutil

LAUNCH = "ORCHESTRATOR_LAUNCH"  # id of the launch
LEASES = "ORCHESTRATOR_LEASES"  # folder where the launch's lease lies
GUARD = "ORCHESTRATOR_GUARD"  # pid and start time of the guard: one engine process of a launch
# setproctitle overwrites the memory that /proc/<pid>/environ shows, and the marks with it, unless told not to.
KEEP = {"SPT_NOENV": "1"}


def marked(wanted: Mapping[str, str]) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Living processes whose environment holds all of ``wanted``, with that environment.

    Others' processes are skipped (their environment cannot be read), and so are those in another PID namespace:
    a container's owner may hold a lease that cannot be seen from here.
    """
    namespace = _pid_namespace(os.getpid())
    for process in psutil.process_iter():
        try:
            environ = process.environ()
            if not wanted.items() <= environ.items() or process.status() == psutil.STATUS_ZOMBIE:
                continue
        except (psutil.Error, OSError):
            continue
        if _pid_namespace(process.pid) == namespace and process.pid != os.getpid():
            yield process, environ


def kill_marked(wanted: Mapping[str, str]) -> list[int]:
    """SIGKILLs every process that ``marked`` finds, until none is found; returns their pids.

    psutil compares start times before it sends a signal, so a pid that was given to someone else is left alone.
    """
    killed: dict[int, None] = {}
    for _ in range(50):
        found = [process for process, _ in marked(wanted)]
        if not found:
            break
        for process in found:
            try:
                process.kill()
                killed[process.pid] = None
            except psutil.Error:
                continue
        psutil.wait_procs(found, timeout=0.2)
    return list(killed)


def _pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None

"""A stand-in for an engine that leaves processes everywhere: run as a program by
test_engine_process.py.

It becomes four processes: itself, a child in its own process group, a grandchild in a session of
its own, and a double-forked daemon that ignores SIGTERM. Argument ``stubborn``: itself ignores
SIGTERM too. ``exit``: it ends at once with status 7 and leaves the others behind. All have a file
in /dev/shm mapped, which none of them removes.
"""

import mmap
import os
import signal
import sys
import time


def child(ignore_term: bool = False, new_session: bool = False, orphan: bool = False) -> None:
    pid = os.fork()
    if pid:
        if orphan:
            os.waitpid(pid, 0)
        return
    if new_session:
        os.setsid()
    if orphan and os.fork():
        os._exit(0)
    if ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forever()


def forever() -> None:
    print("up", os.getpid(), flush=True)
    time.sleep(600)
    os._exit(0)


if launch := os.environ.get("ORCHESTRATOR_LAUNCH"):
    with open(f"/dev/shm/sgl_shm_mq_{launch}", "w+b") as file:
        file.truncate(4096)
        segment = mmap.mmap(file.fileno(), 4096)
child()
child(new_session=True)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child(new_session=True, orphan=True, ignore_term=True)
if "exit" in sys.argv:
    time.sleep(0.3)
    sys.exit(7)
forever()

"""Who owns a launch: a file lock held by its living owner, and tags in the environment of its
processes.

An owner (a node agent, a test) holds a shared ``flock`` on a launch's file as long as the launch
should live. However the owner dies, the kernel releases the lock; no clock or heartbeat is
involved. (filelock has no shared lock on a plain file: its read-write lock is an SQLite database.)
The tags identify a launch's processes even where their parents are gone.
"""

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from orchestrator.node.shared_memory import SharedSegment, mapped, remove

LAUNCH = "ORCHESTRATOR_LAUNCH"  # id of the launch
LOCKS = "ORCHESTRATOR_LOCKS"  # folder with the launch's lock
GUARD = (
    "ORCHESTRATOR_GUARD"  # a random tag for each EngineProcess, of which a launch may have several
)
# Without this variable, setproctitle overwrites the memory that /proc/<pid>/environ shows, and with
# it the tags.
KEEP = {"SPT_NOENV": "1"}
# 10 s in all; only processes stuck in the kernel live that long
KILL_ROUNDS = 50
KILL_WAIT_S = 0.2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class LaunchLock:
    """A launch's lock, held from construction to ``release``. It may have several owners (two ranks
    on one node).

    Raises ValueError for a name that is not a plain file name.
    """

    def __init__(self, name: str, folder: Path) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a launch id: it may have letters, digits, '.', '_' and '-' only"
            )
        self.path = folder / f"{name}.lock"
        self._file: int | None = _lock(self.path)

    def touch(self) -> None:
        """Keeps the file from looking old. If it were cleaned up, processes that its owner leaves
        behind would not be ended.
        """
        if self._file is not None:
            os.utime(self._file)

    def release(self, processes_left: bool = False) -> None:
        """Releases the lock. The last owner removes the file, unless processes are left for the
        reaper to end. Idempotent.
        """
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if not processes_left:
                forget(self.path)


def is_held(path: Path) -> bool:
    """Whether a living process holds this lock."""
    return path.exists() and not is_abandoned(path)


def is_abandoned(path: Path) -> bool:
    """Whether the lock's file exists and its owners are gone. Without a file (as in a container
    with its own /tmp) the owner is unknown.
    """
    return _if_free(path, lambda: None)


def forget(path: Path) -> None:
    """Removes the file of a lock that no process holds."""
    _if_free(path, lambda: path.unlink(missing_ok=True))  # _lock notices and creates the file again


def _if_free(path: Path, do: Callable[[], None]) -> bool:
    """If the lock exists and no process holds it, calls ``do`` while none can take it. Returns
    whether that was so.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        do()
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(file)


def _lock(path: Path) -> int:
    """An open file with a lock on the file at ``path``, not on one that was removed meanwhile."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            if os.fstat(file).st_ino == path.stat().st_ino:
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)


class TaggedProcess(NamedTuple):
    """A living process of a launch, with its environment."""

    process: psutil.Process
    environment: Mapping[str, str]


def tagged(tags: Mapping[str, str]) -> Iterator[TaggedProcess]:
    """The living processes whose environment contains ``tags``.

    Skips processes of other users, whose environment cannot be read, and of other PID namespaces:
    the owner of a container may hold a lock that cannot be seen from here.
    """
    namespace = _pid_namespace(os.getpid())
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if not tags.items() <= environment.items():
                continue
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
        except (psutil.Error, OSError):
            continue
        if _pid_namespace(process.pid) == namespace and process.pid != os.getpid():
            yield TaggedProcess(process, environment)


def kill_tagged(tags: Mapping[str, str]) -> list[int]:
    """Sends SIGKILL to every process that ``tagged`` finds until none is left, and removes their
    shared memory. Returns their pids.

    psutil compares start times before it sends a signal, so a reused pid is safe.
    """
    killed: dict[int, None] = {}  # an ordered set
    segments: set[SharedSegment] = set()
    for _ in range(KILL_ROUNDS):
        processes = [tagged_process.process for tagged_process in tagged(tags)]
        if not processes:
            break
        segments |= mapped(process.pid for process in processes)
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
                killed[process.pid] = None
        psutil.wait_procs(processes, timeout=KILL_WAIT_S)
    remove(segments)
    return list(killed)


def _pid_namespace(pid: int) -> str | None:
    """The PID namespace of a process; None if it is gone or may not be asked."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None

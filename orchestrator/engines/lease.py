"""Who is alive on this node: locks held by owners, which the kernel frees the moment an owner dies.

An owner (a node agent, a test) holds a shared ``flock`` on a launch's file for as long as it wants the launch to
live. However the owner dies, the lock goes with it; nobody has to notice, and no clock or heartbeat is involved.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from pathlib import Path

from orchestrator.errors import OrchestratorError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def node_path(name: str) -> Path:
    """``/tmp/orchestrator-<uid>/<name>``: the same for all programs of one user on a node.

    Not below TMPDIR, which batch systems set per job.
    """
    return Path("/tmp") / f"orchestrator-{os.getuid()}" / name  # noqa: S108 - node_folder checks who owns it


def node_folder(name: str) -> Path:
    """``node_path``, made private to this user. Raises OrchestratorError when someone else owns it."""
    path = node_path(name)
    for folder in (path.parent, path):
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
        if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode):
            raise OrchestratorError(f"{folder} belongs to user {facts.st_uid}, not to us: remove it")
    return path


class Lease:
    """Held from construction to ``release``. Several owners may hold the same launch (two ranks on one node).

    Raises ValueError for a name that is no plain file name, BlockingIOError when ``exclusive`` and already held.
    """

    def __init__(self, name: str, folder: Path, exclusive: bool = False) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a launch id: letters, digits, '.', '_' and '-' only")
        self.path = folder / f"{name}.lease"
        self._file: int | None = _lock(self.path, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)

    def release(self) -> None:
        """Lets go. Doing it twice is fine."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def is_held(name: str, folder: Path) -> bool:
    """Whether some living process holds the lease. A file that nobody holds is removed."""
    path = folder / f"{name}.lease"
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)  # under the exclusive lock; _lock notices and makes the file anew
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def _lock(path: Path, kind: int) -> int:
    """An open file holding the lock on the file that ``path`` names now, not on one removed meanwhile."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB if kind == fcntl.LOCK_EX else kind)
            if os.fstat(file).st_ino == path.stat().st_ino:
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)

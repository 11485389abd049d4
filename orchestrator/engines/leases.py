"""What launches hold of a host, for every driver and user on it to see: the host itself, CPU cores, ports.

Neither Ray nor a driver's admission knows what another driver's engines are bound to, so the node decides. A lease is a
small file that its holder keeps locked (flock): however the holder dies, the lease is over. The files lie directly in
/tmp, where nobody can remove another user's, and hold no secrets. Every look and every change is made under one lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from orchestrator.engines.ports import free_ports
from orchestrator.errors import Occupied, PlacementError
from orchestrator.redaction import plain

FOLDER = "ORCHESTRATOR_LEASES"  # the variable of another folder: for containers that share a host, and not its /tmp
PREFIX, LOCK = ".orchestrator-lease-", ".orchestrator-leases.lock"
LOCK_LIMIT_S = 10.0
LARGEST_BYTES = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # others' files may be links or pipes
_MAKE = os.O_CREAT | os.O_EXCL  # never to open another's file: the kernel forbids that in /tmp (fs.protected_regular)


@dataclass(frozen=True, slots=True)
class Holding:
    """What one agent holds. ``sweep``: the same for all launches of an experiment into one root."""

    launch: str
    sweep: str = ""
    exclusive: bool = False  # no other launch on this host
    cores: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    user: int = 0  # as the file's owner says

    def __str__(self) -> str:
        return f"launch {self.launch} of user {self.user}"


class Lease:
    """One agent's, from its first ``take`` to ``release`` or its death."""

    def __init__(self, launch_id: str, folder: Path | None = None) -> None:
        self._folder = folder or lease_folder()
        self._path = self._folder / f"{PREFIX}{launch_id}-{uuid.uuid4().hex[:8]}"
        self._mine = Holding(launch_id)
        self._file: int | None = None

    def take(self, sweep: str, exclusive: bool, cores: Sequence[int] = (), count: int = 0) -> tuple[int, ...]:
        """The host, and ``count`` of these cores that nobody else has: returns them.

        Raises Occupied while other launches are in the way, PlacementError when waiting for them changes nothing.
        """
        with _alone(self._folder):
            holdings = _living(self._folder)
            for other in holdings:
                if other.launch != self._mine.launch and (exclusive or other.exclusive):
                    raise Occupied(f"host {socket.gethostname()} is held by {other}")
            free = _without(cores, holdings)[:count]
            if len(free) < count:
                own = len(cores) - len(_without(cores, [one for one in holdings if one.launch == self._mine.launch]))
                text = f"host {socket.gethostname()} has {len(cores)} cores"
                if len(cores) - own < count:
                    raise PlacementError(
                        f"{text}, {own} of them for this launch's other ranks; {count} more are needed"
                    )
                raise Occupied(f"{text}, {len(cores) - len(free)} of them in use; {count} more are needed")
            self._write(replace(self._mine, sweep=sweep, exclusive=exclusive, cores=free))
        return free

    def take_ports(self, count: int, rng: np.random.Generator) -> list[int]:
        """Ports that nobody listens on and nobody else was given. Raises PlacementError when there are not so many."""
        with _alone(self._folder):
            given = {port for one in _living(self._folder) for port in one.ports}
            taken = free_ports(count, given, rng)
            self._write(replace(self._mine, ports=(*self._mine.ports, *taken)))
        return taken

    def touch(self) -> None:
        """Keep it from being taken for an old file."""
        if self._file is not None:
            os.utime(self._file)

    def release(self) -> None:
        """Others may have it now. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            self._path.unlink(missing_ok=True)
            os.close(file)

    def _write(self, holding: Holding) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | _MAKE, 0o644)
            os.fchmod(self._file, 0o644)  # whatever the umask: others must see it
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        said = json.dumps(asdict(holding)).encode()
        os.pwrite(self._file, said, 0)
        os.ftruncate(self._file, len(said))
        self._mine = holding


def lease_folder() -> Path:
    """Where the leases of this host lie."""
    return Path(os.environ.get(FOLDER) or "/tmp")  # noqa: S108 - each user's files are his own there


def living(folder: Path | None = None) -> list[Holding]:
    """What is held on this host now, by anybody. Raises PlacementError when that cannot be seen."""
    with _alone(folder or lease_folder()):
        return _living(folder or lease_folder())


def _without(cores: Sequence[int], holdings: Sequence[Holding]) -> tuple[int, ...]:
    taken = {core for one in holdings for core in one.cores}
    return tuple(core for core in cores if core not in taken)


def _living(folder: Path) -> list[Holding]:
    """Under the lock. What the dead left is removed, where it is ours."""
    found = []
    for path in sorted(folder.glob(f"{PREFIX}*")):
        with suppress(OSError):
            file = os.open(path, _READ)
            try:
                facts = os.fstat(file)
                if not stat.S_ISREG(facts.st_mode):
                    continue
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    path.unlink()
                except BlockingIOError:
                    found += _read(file, facts.st_uid)
            finally:
                os.close(file)
    return found


def _read(file: int, user: int) -> list[Holding]:
    """What a lease says; nothing of what is no lease: anybody can write files there."""
    try:
        said = json.loads(os.pread(file, LARGEST_BYTES, 0))
        cores, ports = (tuple(int(one) for one in said[name]) for name in ("cores", "ports"))
        launch, sweep = (plain(str(said[name]))[:128] for name in ("launch", "sweep"))
        return [Holding(launch, sweep, bool(said["exclusive"]), cores, ports, user)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else on this host looks at leases or changes them meanwhile. Raises Occupied, PlacementError."""
    path, end_s, file = folder / LOCK, time.monotonic() + LOCK_LIMIT_S, -1
    while file < 0:
        try:
            file = _locked(path)
        except OSError as error:
            if time.monotonic() >= end_s:
                text = f"the leases of host {socket.gethostname()} in {folder} cannot be looked at: {error}"
                raise (Occupied if isinstance(error, BlockingIOError) else PlacementError)(text) from error
            time.sleep(0.01)
    try:
        yield
    finally:
        os.close(file)


def _locked(path: Path) -> int:
    """The open file that ``path`` names now, locked. Raises OSError: somebody has it, or it was just removed."""
    make = not path.exists()
    file = os.open(path, _READ | (_MAKE if make else 0), 0o644)
    try:
        if make:
            os.fchmod(file, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_ino != path.stat().st_ino:
            raise FileNotFoundError(path)
    except BaseException:
        os.close(file)
        raise
    return file

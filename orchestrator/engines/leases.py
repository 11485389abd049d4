"""Leases: which launches and load clients use a host, its cores, GPUs and ports; every driver and
user there sees it.

Neither Ray nor a driver's admission knows what another driver's engines use, so the node decides. A
lease is a small file that its holder keeps locked (flock), so it ends however the holder dies. The
files are directly in /tmp, where users cannot remove each other's, and contain no secrets. One lock
guards all reading and writing of leases.
"""

import fcntl
import itertools
import json
import os
import socket
import stat
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from orchestrator.errors import Occupied, PlacementError
from orchestrator.redaction import plain
from orchestrator.spec.load import counted

# variable with another folder, for containers that share a host but not its /tmp
FOLDER = "ORCHESTRATOR_LEASES"
PREFIX, LOCK = ".orchestrator-lease-", ".orchestrator-leases.lock"
LOCK_LIMIT_S = 10.0
LARGEST_BYTES = 1 << 20
# Ray uses 10002-19999 for its workers, Linux 32768 and up for outgoing connections.
FIRST_PORT, LAST_PORT = 21000, 31999
# other users' files may be links or pipes
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# in /tmp the kernel forbids O_CREAT on others' files (fs.protected_regular)
_MAKE = os.O_CREAT | os.O_EXCL


@dataclass(frozen=True, slots=True)
class Holding:
    """What one agent or load client uses. ``sweep``: the same for all launches of one experiment
    and results root.
    """

    launch: str
    sweep: str = ""
    exclusive: bool = False  # no other launch on this host
    cores: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    user: int = 0  # owner of the file
    client: bool = False  # a load client of the sweep, or of a `load` (which has no sweep)
    gpus: tuple[str, ...] = ()  # UUIDs

    def __str__(self) -> str:
        return f"{'a load client' if self.client else f'launch {self.launch}'} of user {self.user}"

    def bars(self, launch: str, sweep: str, exclusive: bool) -> bool:
        """Whether this keeps a launch off the host. Clients of its own sweep may load from there."""
        if self.launch == launch or (self.client and self.sweep == sweep):
            return False
        return exclusive or self.exclusive


class Lease:
    """The lease of one agent or client, from its first ``take`` or ``share`` to ``release`` or its
    death.
    """

    def __init__(self, launch_id: str, folder: Path | None = None) -> None:
        self._folder = folder or lease_folder()
        self._path = self._folder / f"{PREFIX}{launch_id}-{uuid.uuid4().hex[:8]}"
        self._mine = Holding(launch_id)
        self._file: int | None = None

    def take(
        self,
        sweep: str,
        exclusive: bool,
        cores: Sequence[int] = (),
        count: int = 0,
        gpus: Sequence[str] = (),
    ) -> tuple[int, ...]:
        """Take the host, ``gpus`` (UUIDs) and ``count`` of ``cores`` that nobody else uses; returns
        these cores.

        Raises Occupied while other launches are in the way, PlacementError if waiting for them
        would not help.
        """
        with _alone(self._folder):
            holdings = _living(self._folder)
            for other in holdings:
                if other.bars(self._mine.launch, sweep, exclusive):
                    raise Occupied(f"host {socket.gethostname()} is held by {other}")
                # another Ray, or another container, may give the same ones
                if both := set(gpus) & set(other.gpus):
                    text = f"host {socket.gethostname()}: GPU {min(both)}"
                    if other.launch == self._mine.launch:
                        raise PlacementError(
                            f"{text} was given to two ranks of this launch: two nodes of Ray have it"
                        )
                    raise Occupied(f"{text} is held by {other}")
            free = _without(cores, holdings)[:count]
            if len(free) < count:
                own = len(cores) - len(
                    _without(cores, [one for one in holdings if one.launch == self._mine.launch])
                )
                text = f"host {socket.gethostname()} has {counted(len(cores), 'core')}"
                if len(cores) - own < count:
                    raise PlacementError(
                        f"{text}, {own} of them for this launch's other ranks; {count} more are needed"
                    )
                raise Occupied(
                    f"{text}, {len(cores) - len(free)} of them in use; {count} more are needed"
                )
            self._write(
                replace(self._mine, sweep=sweep, exclusive=exclusive, cores=free, gpus=(*gpus,))
            )
        return free

    def share(self, sweep: str) -> bool:
        """As a load client: launches of other sweeps do not get the host for themselves from now
        on.

        Returns whether one of them has it already. Raises PlacementError.
        """
        with _alone(self._folder):
            held = any(one.exclusive and one.sweep != sweep for one in _living(self._folder))
            self._write(replace(self._mine, sweep=sweep, client=True))
        return held

    def take_ports(self, count: int, rng: np.random.Generator) -> list[int]:
        """Take ports that nobody listens on and nobody else has taken. Raises PlacementError if
        there are too few.
        """
        with _alone(self._folder):
            given = {port for one in _living(self._folder) for port in one.ports}
            taken = free_ports(count, given, rng)
            self._write(replace(self._mine, ports=(*self._mine.ports, *taken)))
        return taken

    def touch(self) -> None:
        """Keep the file from looking old."""
        if self._file is not None:
            os.utime(self._file)

    def release(self) -> None:
        """Give everything back. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            self._path.unlink(missing_ok=True)
            os.close(file)

    def _write(self, holding: Holding) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | _MAKE, 0o644)
            os.fchmod(self._file, 0o644)  # whatever the umask: others must read it
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        said = json.dumps(asdict(holding)).encode()
        os.pwrite(self._file, said, 0)
        os.ftruncate(self._file, len(said))
        self._mine = holding


def lease_folder() -> Path:
    """The folder with the leases of this host."""
    return Path(os.environ.get(FOLDER) or "/tmp")  # noqa: S108 - users cannot change each other's files there


def living(folder: Path | None = None) -> list[Holding]:
    """All current leases on this host, of all users. Raises PlacementError when they cannot be
    read.
    """
    with _alone(folder or lease_folder()):
        return _living(folder or lease_folder())


def _without(cores: Sequence[int], holdings: Sequence[Holding]) -> tuple[int, ...]:
    taken = {core for one in holdings for core in one.cores}
    return tuple(core for core in cores if core not in taken)


def _living(folder: Path) -> list[Holding]:
    """All current leases; needs the lock. Our own files whose holder died are removed."""
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
    """The content of a lease; [] if it is not one: anybody can write files there."""
    try:
        said = json.loads(os.pread(file, LARGEST_BYTES, 0))
        cores, ports = (tuple(int(one) for one in said[name]) for name in ("cores", "ports"))
        launch, sweep = (plain(str(said[name]))[:128] for name in ("launch", "sweep"))
        gpus, client = (
            tuple(plain(str(one))[:128] for one in said.get("gpus", ())),
            bool(said.get("client")),
        )
        return [Holding(launch, sweep, bool(said["exclusive"]), cores, ports, user, client, gpus)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the lock on all leases of this host. Raises Occupied or PlacementError when it cannot
    be had.
    """
    path, end_s, file = folder / LOCK, time.monotonic() + LOCK_LIMIT_S, -1
    while file < 0:
        try:
            file = _locked(path)
        except OSError as error:
            if time.monotonic() >= end_s:
                text = (
                    f"the leases of host {socket.gethostname()} in {folder} cannot be read: {error}"
                )
                raise (Occupied if isinstance(error, BlockingIOError) else PlacementError)(
                    text
                ) from error
            time.sleep(0.01)
    try:
        yield
    finally:
        os.close(file)


def _locked(path: Path) -> int:
    """The locked, open file at ``path``. Raises OSError if somebody else has the lock or the file
    was just removed.
    """
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


def free_ports(count: int, given: Collection[int], rng: np.random.Generator) -> list[int]:
    """``count`` ports that nobody listens on, none of them in ``given``. Raises PlacementError if
    there are too few.

    ``rng`` chooses where the search starts, so that a port that was just freed is rarely used
    again.
    """
    first = int(rng.integers(FIRST_PORT, LAST_PORT + 1))
    ring = itertools.chain(range(first, LAST_PORT + 1), range(FIRST_PORT, first))
    found = list(
        itertools.islice((port for port in ring if port not in given and is_free(port)), count)
    )
    if len(found) < count:
        raise PlacementError(
            f"this node has fewer than {count} free ports between {FIRST_PORT} and {LAST_PORT}"
        )
    return found


def is_free(port: int) -> bool:
    """Whether nobody listens on ``port`` at any IPv4 or IPv6 address of this node."""
    dual = socket.has_dualstack_ipv6()
    try:
        socket.create_server(
            ("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual
        ).close()
    except OSError:
        return False
    return True

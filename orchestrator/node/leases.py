"""Leases: which launches and load clients use a host, its cores, GPUs and ports, for every driver
and user of the host to see.

Neither Ray nor a driver's admission knows what another driver's engines use, so the node decides. A
lease is a small file that its holder keeps locked (filelock, which uses flock here), so it ends
however the holder dies. A launch that has to wait leaves a ticket beside the leases, a file of the
same kind: launches that come later give way to it. The files are directly in /tmp, where users
cannot remove each other's, and contain no secrets. One lock guards all reading and writing of
leases and tickets.
"""

import itertools
import json
import math
import os
import pwd
import socket
import stat
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout, lock_descriptor

from orchestrator.base.errors import Occupied, PlacementError
from orchestrator.base.redaction import strip_control
from orchestrator.base.text import counted

# The environment variable that names another folder than /tmp, for containers that share a host but
# not its /tmp.
FOLDER = "ORCHESTRATOR_LEASES"
PREFIX = ".orchestrator-lease-"
LOCK = ".orchestrator-leases.lock"
TICKET_PREFIX = ".orchestrator-ticket-"
# Holders of tickets ask for their host every second. A ticket whose holder has not asked for this
# long (it was suspended, or its driver hangs) keeps no other launch out.
SILENT_S = 15.0
LOCK_LIMIT_S = 10.0
# between two tries to get the lock, which nobody keeps for more than milliseconds
LOCK_LOOK_S = 0.01
LARGEST_BYTES = 1 << 20
LONGEST_TEXT = 256
# Ray uses 10002-19999 for its workers, Linux 32768 and up for outgoing connections.
FIRST_PORT = 21000
LAST_PORT = 31999
# other users' files may be links or pipes
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# in /tmp the kernel forbids O_CREAT on others' files (fs.protected_regular)
_MAKE = os.O_CREAT | os.O_EXCL


@dataclass(frozen=True, slots=True)
class Owner:
    """The sweep or ``load`` command that uses or wants a host, in words by which people find it.

    ``sweep``: the same for all launches of one experiment and results root. ``pid``: of the driver,
    on ``host``.
    """

    sweep: str = ""
    experiment: str = ""
    results: str = ""
    pid: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a launch wants of a host. ``exclusive``: no other launch there. ``cores``: how many."""

    owner: Owner = Owner()
    exclusive: bool = False
    cores: int = 0
    gpus: tuple[str, ...] = ()  # UUIDs


@dataclass(frozen=True, slots=True)
class Holding:
    """What one agent or load client uses."""

    launch: str
    owner: Owner = Owner()
    exclusive: bool = False  # no other launch on this host
    cores: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    user: int = 0  # owner of the file
    client: bool = False  # a load client of the sweep, or of a `load`
    gpus: tuple[str, ...] = ()  # UUIDs

    @property
    def sweep(self) -> str:
        return self.owner.sweep

    def __str__(self) -> str:
        name = describe(self.owner, self.user, self.launch)
        return f"a load client of {name}" if self.client else name

    def bars(self, launch: str, sweep: str, exclusive: bool) -> bool:
        """Whether ``launch`` may not use the host beside this holding. ``exclusive``: the launch
        wants the host for itself. Load clients of the launch's own ``sweep`` are in no one's way.
        """
        if self.launch == launch or (self.client and self.sweep == sweep):
            return False
        return exclusive or self.exclusive


@dataclass(frozen=True, slots=True)
class Ticket:
    """The place in line of a launch that waits for this host."""

    launch: str
    wish: Wish
    since_ns: int
    user: int = 0

    @property
    def order(self) -> tuple[float, str]:
        """The ticket with the smallest order is served first. A launch that wants several hosts has
        the same order on all of them, so no two launches wait for each other.
        """
        return self.since_ns, self.launch

    def __str__(self) -> str:
        return describe(self.wish.owner, self.user, self.launch)


def describe(owner: Owner, user: int, launch: str) -> str:
    """Words for a sweep, its user, its driver and its results, so that people who wait can find
    them.

    ``user``: id of the user. ``launch``: the id that is named if the experiment is not known.
    """
    try:
        user_name = pwd.getpwuid(user).pw_name
    except KeyError:
        user_name = str(user)
    if not owner.experiment:
        return f"launch {launch} of user {user_name}"
    elsewhere = "" if owner.host == socket.gethostname() else f" on {owner.host}"
    who = f"user {user_name}, pid {owner.pid}{elsewhere}"
    return f"experiment {owner.experiment} ({who}, results in {owner.results})"


class Lease:
    """The lease of one agent or client, from its first ``take`` or ``share`` to ``release`` or its
    death; and its ticket while it waits.
    """

    def __init__(self, launch_id: str, folder: Path | None = None) -> None:
        self._folder = folder or lease_folder()
        name = f"{launch_id}-{uuid.uuid4().hex[:8]}"
        self._lease_file = _LockedFile(self._folder / f"{PREFIX}{name}")
        self._ticket_file = _LockedFile(self._folder / f"{TICKET_PREFIX}{name}")
        self._holding = Holding(launch_id)
        self._ticket: Ticket | None = None  # kept even after ``take``, for ``put_back``

    def take(self, wish: Wish, cores: Sequence[int] = ()) -> tuple[int, ...]:
        """Takes what is wished. Returns ``wish.cores`` of ``cores`` that no other launch uses.

        Raises Occupied while other launches are in the way or have waited for it for longer,
        PlacementError if waiting would not help.
        """
        with _exclusively(self._folder):
            self._ticket_file.touch()
            holdings = _living(self._folder)
            launch = self._holding.launch
            order = (math.inf, launch) if self._ticket is None else self._ticket.order
            earlier = [
                ticket
                for ticket in _tickets(self._folder)
                if ticket.launch != launch and ticket.order < order
            ]
            self._check_host(wish, holdings, earlier)
            self._check_gpus(wish, holdings, earlier)
            free = self._free_cores(wish, cores, holdings, earlier)
            holding = replace(
                self._holding,
                owner=wish.owner,
                exclusive=wish.exclusive,
                cores=free,
                gpus=wish.gpus,
            )
            self._lease_file.write(holding)
            self._holding = holding
            self._ticket_file.remove()
        return free

    def _check_host(
        self, wish: Wish, holdings: Sequence[Holding], earlier: Sequence[Ticket]
    ) -> None:
        """Raises Occupied if another launch has the host for itself, or came first and wants it for
        itself.
        """
        for holding in holdings:
            if holding.bars(self._holding.launch, wish.owner.sweep, wish.exclusive):
                raise Occupied(f"host {socket.gethostname()} is held by {holding}")
        for ticket in earlier:
            if wish.exclusive or ticket.wish.exclusive:
                raise Occupied(f"host {socket.gethostname()} goes first to {ticket}")

    def _check_gpus(
        self, wish: Wish, holdings: Sequence[Holding], earlier: Sequence[Ticket]
    ) -> None:
        """Raises Occupied or PlacementError if a GPU is not free: another Ray, or another
        container, may have given the same one to another launch.
        """
        wanted = set(wish.gpus)
        for holding in holdings:
            gpus_in_use = wanted.intersection(holding.gpus)
            if not gpus_in_use:
                continue
            text = f"host {socket.gethostname()}: GPU {min(gpus_in_use)}"
            if holding.launch == self._holding.launch:
                raise PlacementError(
                    f"{text} was given to two ranks of this launch: two nodes of Ray have it"
                )
            raise Occupied(f"{text} is held by {holding}")
        for ticket in earlier:
            awaited = wanted.intersection(ticket.wish.gpus)
            if awaited:
                raise Occupied(
                    f"host {socket.gethostname()}: GPU {min(awaited)} goes first to {ticket}"
                )

    def _free_cores(
        self,
        wish: Wish,
        cores: Sequence[int],
        holdings: Sequence[Holding],
        earlier: Sequence[Ticket],
    ) -> tuple[int, ...]:
        """The cores that the launch gets. Raises Occupied while others use them or come first,
        PlacementError when there are too few for this launch.
        """
        free = _without(cores, holdings)
        text = f"host {socket.gethostname()} has {counted(len(cores), 'core')}"
        if len(free) < wish.cores:
            launch = self._holding.launch
            own_holdings = [holding for holding in holdings if holding.launch == launch]
            own_cores = len(cores) - len(_without(cores, own_holdings))
            if len(cores) - own_cores < wish.cores:
                raise PlacementError(
                    f"{text}, {own_cores} of them for this launch's other ranks; "
                    f"{wish.cores} more are needed"
                )
            others = [holding for holding in holdings if holding.launch != launch]
            other_user = next(holding for holding in others if holding.cores)
            raise Occupied(
                f"{text}, {len(cores) - len(free)} of them in use; "
                f"{wish.cores} more are needed; {other_user}"
            )
        waiting_for_cores = [ticket for ticket in earlier if ticket.wish.cores]
        promised = sum(ticket.wish.cores for ticket in waiting_for_cores)
        if wish.cores and len(free) < wish.cores + promised:
            raise Occupied(f"{text}, and those that are free go first to {waiting_for_cores[0]}")
        return free[: wish.cores]

    def queue(self, wish: Wish, since_ns: int = 0) -> int:
        """Puts the launch in line for what is wished. Launches that come later give way as long as
        this one calls ``take`` every few seconds.

        ``since_ns``: the Unix time that decides its place; 0: now. Returns that time.
        """
        ticket = Ticket(self._holding.launch, wish, since_ns or time.time_ns())
        with _exclusively(self._folder):
            self._ticket_file.write(ticket)
        self._ticket = ticket
        return ticket.since_ns

    def put_back(self) -> None:
        """Undoes ``take``, because the launch did not get its other hosts. The launch gets its
        former place in line back.
        """
        with _exclusively(self._folder):
            if self._ticket is not None:
                self._ticket_file.write(self._ticket)
            self._holding = Holding(self._holding.launch)
            self._lease_file.remove()

    def share(self, owner: Owner) -> bool:
        """Leases the host for a load client. From now on no launch of another sweep gets the host
        for itself.

        Returns whether a launch of another sweep has the host for itself already, or is the next to
        get it. Raises PlacementError.
        """
        with _exclusively(self._folder):
            holdings = _living(self._folder)
            others = [holding for holding in holdings if holding.sweep != owner.sweep]
            is_held = any(holding.exclusive for holding in others)
            has_launch_here = any(
                holding.sweep == owner.sweep and not holding.client for holding in holdings
            )
            if not has_launch_here:
                is_held = is_held or any(
                    ticket.wish.exclusive and ticket.wish.owner.sweep != owner.sweep
                    for ticket in _tickets(self._folder)
                )
            self._holding = replace(self._holding, owner=owner, client=True)
            self._lease_file.write(self._holding)
        return is_held

    def take_ports(self, count: int, rng: np.random.Generator) -> list[int]:
        """Takes ports that no program listens on and no other lease has. Raises PlacementError if
        there are too few.
        """
        with _exclusively(self._folder):
            leased: set[int] = set()
            for holding in _living(self._folder):
                leased.update(holding.ports)
            ports = free_ports(count, leased, rng)
            self._holding = replace(self._holding, ports=(*self._holding.ports, *ports))
            self._lease_file.write(self._holding)
        return ports

    def touch(self) -> None:
        """Keeps the file from looking old."""
        self._lease_file.touch()

    def release(self) -> None:
        """Gives everything back, the place in line too. Idempotent."""
        self._ticket = None
        self._ticket_file.remove()
        self._lease_file.remove()


class _LockedFile:
    """A file that this process keeps locked from the first ``write`` to ``remove``, so that others
    see when it dies. Writing needs the lock on all leases.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def write(self, content: Holding | Ticket) -> None:
        """Replaces the content of the file. Raises OSError."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | _MAKE, 0o644)
            os.fchmod(self._file, 0o644)  # whatever the umask: others must read it
            lock_descriptor(self._file, blocking=False)
        document = asdict(content)
        if isinstance(content, Holding):
            document["sweep"] = content.sweep  # where older releases look for it
        text = json.dumps(document).encode()
        os.pwrite(self._file, text, 0)
        os.ftruncate(self._file, len(text))

    def touch(self) -> None:
        if self._file is not None:
            os.utime(self._file)

    def remove(self) -> None:
        """Removes the file and unlocks it. Idempotent."""
        if self._file is not None:
            file = self._file
            self._file = None
            self._path.unlink(missing_ok=True)
            os.close(file)


def lease_folder() -> Path:
    """The folder with the leases of this host."""
    # in /tmp, users cannot change each other's files
    return Path(os.environ.get(FOLDER) or "/tmp")  # noqa: S108


def folder_problem(folder: Path | None = None) -> str | None:
    """Why no launch of this user could lease anything on this host; None if all is well. Makes the
    folder of leases where it is missing.
    """
    folder = folder or lease_folder()
    try:
        _make(folder)
    except OSError as error:
        return _unusable(folder, f"cannot be made: {error.strerror}")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return _unusable(folder, "cannot be written by this user")
    return None


def _make(folder: Path) -> None:
    """Make the folder of leases, like /tmp: all users may write, and remove only their own files."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        folder.chmod(0o1777)


def _unusable(folder: Path, why: str) -> str:
    return (
        f"host {socket.gethostname()}: the folder of leases {folder} {why}; "
        f"name one in {FOLDER} that all users of the host may write (mode 1777)"
    )


def living(folder: Path | None = None) -> list[Holding]:
    """All current leases on this host, of all users. Raises PlacementError when they cannot be
    read.
    """
    with _exclusively(folder or lease_folder()):
        return _living(folder or lease_folder())


def _without(cores: Sequence[int], holdings: Sequence[Holding]) -> tuple[int, ...]:
    """The cores that no holding has."""
    cores_in_use: set[int] = set()
    for holding in holdings:
        cores_in_use.update(holding.cores)
    return tuple(core for core in cores if core not in cores_in_use)


@dataclass(frozen=True, slots=True)
class _Document:
    """What a living process wrote. ``user``: owner of the file. ``age_s``: seconds since the file
    was touched.
    """

    content: dict[str, Any]
    user: int
    age_s: float


def _living(folder: Path) -> list[Holding]:
    """All current leases. The caller holds the lock on all leases."""
    holdings = []
    for document in _documents(folder, PREFIX):
        with suppress(ValueError, TypeError, KeyError):
            holdings.append(_holding(document))
    return holdings


def _tickets(folder: Path) -> list[Ticket]:
    """The launches that wait and still ask, the oldest first. The caller holds the lock on all
    leases.
    """
    tickets = []
    for document in _documents(folder, TICKET_PREFIX):
        if document.age_s > SILENT_S:
            continue
        with suppress(ValueError, TypeError, KeyError):
            tickets.append(_ticket(document))
    return sorted(tickets, key=lambda ticket: ticket.order)


def waiting(folder: Path | None = None) -> list[Ticket]:
    """All launches that wait for this host, the first to be served first. Raises PlacementError
    when that cannot be read.
    """
    with _exclusively(folder or lease_folder()):
        return _tickets(folder or lease_folder())


def _documents(folder: Path, prefix: str) -> list[_Document]:
    """The files that a living process keeps locked. Removes files whose process died, as far as
    this user may. The caller holds the lock on all leases.
    """
    documents = []
    for path in sorted(folder.glob(f"{prefix}*")):
        with suppress(OSError):
            file = os.open(path, _READ)
            try:
                facts = os.fstat(file)
                if not stat.S_ISREG(facts.st_mode):
                    continue
                if lock_descriptor(file, blocking=False):
                    path.unlink()
                    continue
                content = _content(file)
                if content is not None:
                    age_s = time.time() - facts.st_mtime
                    documents.append(_Document(content, facts.st_uid, age_s))
            finally:
                os.close(file)
    return documents


def _content(file: int) -> dict[str, Any] | None:
    """The JSON object in a file. None if there is none: anyone can write files to that folder."""
    try:
        content = json.loads(os.pread(file, LARGEST_BYTES, 0))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _holding(document: _Document) -> Holding:
    content = document.content
    return Holding(
        launch=_short(content["launch"]),
        owner=_owner(content),
        exclusive=bool(content["exclusive"]),
        cores=tuple(int(core) for core in content["cores"]),
        ports=tuple(int(port) for port in content["ports"]),
        user=document.user,
        client=bool(content.get("client")),
        gpus=tuple(_short(gpu) for gpu in content.get("gpus", ())),
    )


def _ticket(document: _Document) -> Ticket:
    content = document.content
    wish = content["wish"]
    return Ticket(
        launch=_short(content["launch"]),
        wish=Wish(
            owner=_owner(wish),
            exclusive=bool(wish["exclusive"]),
            cores=int(wish["cores"]),
            gpus=tuple(_short(gpu) for gpu in wish["gpus"]),
        ),
        since_ns=int(content["since_ns"]),
        user=document.user,
    )


def _owner(content: dict[str, Any]) -> Owner:
    """The owner in a lease or a wish; older releases wrote only the sweep."""
    owner = content.get("owner") or {"sweep": content["sweep"]}
    return Owner(
        sweep=_short(owner["sweep"]),
        experiment=_short(owner.get("experiment", "")),
        results=_short(owner.get("results", "")),
        pid=int(owner.get("pid", 0)),
        host=_short(owner.get("host", "")),
    )


def _short(text: object) -> str:
    """Text that another user wrote, as one line of bounded length without control characters."""
    return strip_control(str(text))[:LONGEST_TEXT].replace("\n", " ")


@contextmanager
def _exclusively(folder: Path) -> Iterator[None]:
    """Holds the lock on all leases of this host. Raises Occupied when another process keeps it for
    LOCK_LIMIT_S, PlacementError when it cannot be taken at all.
    """
    try:
        _make(folder)
    except OSError as error:
        text = _unusable(folder, f"cannot be made: {error.strerror}")
        raise PlacementError(text) from error
    lock = FileLock(
        folder / LOCK,
        timeout=LOCK_LIMIT_S,
        mode=0o666,  # all users of the host take it in turn
        poll_interval=LOCK_LOOK_S,
        fallback_to_soft=False,  # the lock would outlive its holder
    )
    text = f"the leases of host {socket.gethostname()} in {folder} cannot be read"
    try:
        lock.acquire()
    except Timeout as error:
        raise Occupied(f"{text}: another process keeps {LOCK} locked") from error
    except OSError as error:
        raise PlacementError(f"{text}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def free_ports(count: int, leased: Collection[int], rng: np.random.Generator) -> list[int]:
    """``count`` ports that no program listens on, none of them in ``leased``. Raises PlacementError
    if there are too few.

    ``rng`` chooses where the search starts, so that a port that was just freed is rarely used
    again.
    """
    first = int(rng.integers(FIRST_PORT, LAST_PORT + 1))
    ring = itertools.chain(range(first, LAST_PORT + 1), range(FIRST_PORT, first))
    available = (port for port in ring if port not in leased and is_free(port))
    ports = list(itertools.islice(available, count))
    if len(ports) < count:
        raise PlacementError(
            f"this node has fewer than {count} free ports between {FIRST_PORT} and {LAST_PORT}"
        )
    return ports


def is_free(port: int) -> bool:
    """Whether no program listens on ``port`` at any IPv4 or IPv6 address of this node."""
    has_dual_stack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_dual_stack else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=has_dual_stack)
    except OSError:
        return False
    server.close()
    return True

"""Sockets: makes room for them, connects, does TLS and sends. One poller waits for sockets, an
instant and other threads at the same time.

Reading is in transport.py, where every nanosecond counts.
"""

import errno
import fcntl
import os
import resource
import select
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from orchestrator.base.errors import InputError
from orchestrator.base.http import look_up, tls_context
from orchestrator.base.timer import Timer
from orchestrator.load.in_flight import InFlight
from orchestrator.spec.address import Origin

Address = tuple[int, tuple[object, ...]]  # family, sockaddr

LOCAL_LIMITS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
)
DESCRIPTORS = 16_384  # that fit into the kernel's table before it must grow again

TCP_INFO = getattr(socket, "TCP_INFO", None)  # Linux
# While nothing else comes, the other host's kernel is asked every second whether it is there. A
# kernel answers whatever its programs do, so silence is the network's. After two minutes without an
# answer the connection is over.
KEEPALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 127}
# fields of struct tcp_info (linux/tcp.h): tcpi_total_retrans; tcpi_last_data_recv,
# tcpi_last_ack_recv
SENT_AGAIN = struct.Struct("@100x I")
HEARD = struct.Struct("@52x II")

# the same bits as EPOLLIN and EPOLLOUT
READ = select.POLLIN
WRITE = select.POLLOUT
# of one batch; it limits how long a timer, a send or a first token waits for reads before it
MAX_EVENTS = 32


def raise_open_files_limit() -> None:
    """Allows as many sockets as the system permits; the usual soft limit of 1,024 would silently
    cap the load.

    The kernel's table of descriptors grows by doubling, and in a process with threads each growth
    waits 10 ms and more for all CPUs (synchronize_rcu). Taking one high number makes it grow now
    instead of during the run.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (ValueError, OSError):
        pass  # a sandbox may forbid it; requests that find no socket become rows of class `client`
    with open(os.devnull) as any_file, suppress(OSError):
        os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD_CLOEXEC, min(soft, DESCRIPTORS) - 1))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A target whose host name was looked up, before the run and never during it."""

    origin: Origin
    addresses: tuple[Address, ...]
    tls: ssl.SSLContext | None


def resolve(origin: Origin, verify_tls: bool = True) -> Endpoint:
    """Looks up the host, IPv4 and IPv6. Raises InputError where it has no address."""
    try:
        found = look_up(origin.host, origin.port)
    except (OSError, UnicodeError) as error:
        raise InputError(f"host {origin.host!r} cannot be looked up: {error}") from None
    # without duplicates, in the order of the resolver
    addresses = tuple(dict.fromkeys((host.family, host.address) for host in found))
    context = tls_context(verify_tls) if origin.tls else None
    return Endpoint(origin, addresses, context)


class Handshake(Enum):
    """How far a TLS handshake is."""

    DONE = "done"
    WANTS_TO_READ = "wants to read"
    WANTS_TO_WRITE = "wants to write"


@dataclass(slots=True, eq=False)
class Connection:
    """A non-blocking socket to one endpoint, with at most one request on it."""

    target: int
    endpoint: Endpoint
    addresses: list[Address] = field(init=False)  # not tried yet
    request: InFlight | None = None
    out: memoryview | None = None  # what the socket has not taken yet
    uses: int = 0  # whole responses received
    is_half_sent: bool = False  # half a request was sent on it: it cannot be used again
    # segments sent again while connecting; they do not count, since a busy server may not answer
    sent_again: int = 0
    connecting: bool = True
    handshaking: bool = False
    sock: socket.socket = field(init=False)
    fd: int = -1

    def __post_init__(self) -> None:
        self.addresses = list(self.endpoint.addresses)

    def connect(self) -> None:
        """Starts connecting to the next address. Raises OSError where that fails at once."""
        family, address = self.addresses.pop(0)
        self.connecting = True
        self.handshaking = False
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.fd = self.sock.fileno()
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if TCP_INFO is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                self.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        code = self.sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            self.sock.close()
            raise OSError(code, os.strerror(code))

    def connected(self) -> None:
        """Called once the socket is writable. Raises OSError where it is not connected."""
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self.connecting = False
        self.sent_again = self.retransmitted()
        if self.endpoint.tls is not None:
            self.sock = self.endpoint.tls.wrap_socket(
                self.sock, server_hostname=self.endpoint.origin.host, do_handshake_on_connect=False
            )
            self.handshaking = True

    def handshake(self) -> Handshake:
        """Continues the TLS handshake. Raises OSError."""
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            return Handshake.WANTS_TO_READ
        except ssl.SSLWantWriteError:
            return Handshake.WANTS_TO_WRITE
        self.handshaking = False
        return Handshake.DONE

    def send(self) -> bool:
        """Sends as much as the socket takes. Returns whether that was all. Raises OSError."""
        assert self.out is not None
        while self.out:
            try:
                self.out = self.out[self.sock.send(self.out) :]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return False
        self.out = None
        return True

    def retransmitted(self) -> int:
        """Segments that TCP sent again since it was connected."""
        return int(self._tcp_info(SENT_AGAIN)[0]) - self.sent_again

    def silent_ms(self) -> int:
        """How long no packet has come from the other host: no data, no acknowledgement, no answer
        to a probe.
        """
        return int(min(self._tcp_info(HEARD)))

    def _tcp_info(self, fields: struct.Struct) -> tuple[int, ...]:
        """Fields of TCP_INFO; 0 where the system does not tell."""
        if TCP_INFO is None:
            return (0,)
        try:
            return fields.unpack(self.sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, fields.size))
        except (OSError, struct.error):
            return (0,)

    def reader(self) -> Callable[[int], bytes]:
        """The function that reads: the socket's own ``recv``; for TLS one that leaves no decrypted
        data behind.
        """
        return self._receive_decrypted if isinstance(self.sock, ssl.SSLSocket) else self.sock.recv

    def _receive_decrypted(self, size: int) -> bytes:
        """Reads all that is decrypted: a TLS record may hold more than ``size``, and the poller
        would not see the rest.

        Raises BlockingIOError where nothing is there, as a plain socket does.
        """
        sock = self.sock
        assert isinstance(sock, ssl.SSLSocket)
        try:
            data = sock.recv(size)
            while data and sock.pending():
                data += sock.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLZeroReturnError:
            return b""
        return data


class Poller:
    """Level-triggered readiness. One thread waits and registers; ``wake`` may be called from any.

    Descriptors can be put first: they are in an epoll set of their own, nested in the main one, so
    that they are found even where more events wait than one batch holds. Ask ``first`` when
    ``first_fd`` is ready or a batch is full.
    """

    def __init__(self) -> None:
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._timer_at_ns = 0
        self._put_first: set[int] = set()
        self._epoll = select.epoll()
        self._first_epoll = select.epoll()
        self._timer = Timer()
        self.first_fd = self._first_epoll.fileno()
        for fd in (self._wake_out.fileno(), self._timer.fd, self.first_fd):
            self._epoll.register(fd, READ)

    def register(self, fd: int, events: int) -> None:
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        self.put_back(fd)
        self._epoll.unregister(fd)

    def put_first(self, fd: int) -> None:
        """Moves a registered descriptor to the set that ``first`` asks."""
        if fd not in self._put_first:
            self._epoll.unregister(fd)
            self._first_epoll.register(fd, READ)
            self._put_first.add(fd)

    def put_back(self, fd: int) -> None:
        """Undoes ``put_first``; does nothing if that was not called."""
        if fd in self._put_first:
            self._put_first.remove(fd)
            self._first_epoll.unregister(fd)
            self._epoll.register(fd, READ)

    def first(self) -> list[tuple[int, int]]:
        """The descriptors put first that are ready. Does not wait."""
        return self._first_epoll.poll(0, MAX_EVENTS)

    def wait(self, until_ns: int) -> list[tuple[int, int]]:
        """The descriptors that are ready, each (fd, mask). Some may be the poller's own: ignore
        those.

        Returns at ``until_ns`` (``time.monotonic_ns``) at the latest; at once if that is 0.
        """
        if until_ns == 0:
            return self._epoll.poll(0, MAX_EVENTS)
        if until_ns != self._timer_at_ns:
            self._timer.set(until_ns)
            self._timer_at_ns = until_ns
        return self._epoll.poll(None, MAX_EVENTS)

    def wake(self) -> None:
        """Ends a ``wait`` now. From any thread."""
        try:
            self._wake_in.send(b"\0")
        except (BlockingIOError, OSError):
            return  # full: a wake-up is pending anyway; closed: nobody waits

    def close(self) -> None:
        self._epoll.close()
        self._first_epoll.close()
        self._timer.close()
        self._wake_in.close()
        self._wake_out.close()

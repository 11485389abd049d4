"""Sockets: room for them, connecting, TLS, sending, and waiting for them, an instant and other threads in one place.

The reading side is in transport.py, where every nanosecond counts.
"""

from __future__ import annotations

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
from dataclasses import dataclass

from orchestrator.errors import InputError
from orchestrator.http_control import tls_context
from orchestrator.load.requests import Origin
from orchestrator.load.response import InFlight
from orchestrator.timer import Timer

Address = tuple[int, tuple[object, ...]]  # family, sockaddr

LOCAL_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
DESCRIPTORS = 16_384  # sockets for which there is room without the kernel's table growing

TCP_INFO = getattr(socket, "TCP_INFO", None)  # Linux
# Once a second the other host's kernel is asked whether it is there (as long as nothing else comes), whatever its
# programs do: silence is then the network's. Without an answer for two minutes the connection is over.
KEEPALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 127}
SENT_AGAIN, HEARD = struct.Struct("@100x I"), struct.Struct("@52x II")  # of struct tcp_info (linux/tcp.h)

READ, WRITE = select.POLLIN, select.POLLOUT  # the same bits as EPOLLIN and EPOLLOUT
MAX_EVENTS = 32  # one batch; bounds how long a timer, a send or a first token waits behind reads


def raise_open_files_limit() -> None:
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


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A target whose name was looked up: before the run, never during it."""

    origin: Origin
    addresses: tuple[Address, ...]
    tls: ssl.SSLContext | None


def resolve(origin: Origin, verify_tls: bool = True) -> Endpoint:
    """Looks the host up, IPv4 and IPv6. Raises InputError when it has no address."""
    try:
        found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"host {origin.host!r} cannot be looked up: {error}") from None
    addresses = tuple(dict.fromkeys((family, address) for family, _, _, _, address in found))
    context = tls_context(verify_tls) if origin.tls else None
    return Endpoint(origin, addresses, context)


class Connection:
    """A non-blocking socket to one endpoint, with at most one request on it."""

    __slots__ = (
        "addresses", "connecting", "endpoint", "fd", "flight", "handshaking", "out", "sent_again", "sock", "target",
        "uses",
    )  # fmt: skip

    def __init__(self, target: int, endpoint: Endpoint) -> None:
        self.target = target
        self.endpoint = endpoint
        self.addresses = list(endpoint.addresses)  # not tried yet
        self.flight: InFlight | None = None
        self.out: memoryview | None = None  # what the socket did not take yet
        self.uses = 0  # responses received whole
        self.sent_again = 0  # segments, until it was connected: a server that takes no more connections answers none
        self.connecting = True
        self.handshaking = False
        self.sock: socket.socket
        self.fd = -1

    def connect(self) -> None:
        """Starts connecting to the next address. Raises OSError when that failed at once."""
        family, address = self.addresses.pop(0)
        self.connecting, self.handshaking = True, False
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
        """The socket became writable: connected, or not. Raises OSError."""
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

    def handshake(self) -> bool | None:
        """Goes on with TLS. True: done; False: wants to read; None: wants to write. Raises OSError."""
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            return None
        self.handshaking = False
        return True

    def send(self) -> bool:
        """Hands over as much as the socket takes. True: all of it. Raises OSError."""
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
        """For how long nothing at all came from the other host: no data, no acknowledgement, no answer to a probe."""
        return int(min(self._tcp_info(HEARD)))

    def _tcp_info(self, what: struct.Struct) -> tuple[int, ...]:
        """Some figures of it; 0 where the system does not tell."""
        if TCP_INFO is None:
            return (0,)
        try:
            return what.unpack(self.sock.getsockopt(socket.IPPROTO_TCP, TCP_INFO, what.size))
        except (OSError, struct.error):
            return (0,)

    def reader(self) -> Callable[[int], bytes]:
        """What reads bytes: the socket's own ``recv``, for TLS one that leaves nothing decrypted behind."""
        return self._receive_decrypted if isinstance(self.sock, ssl.SSLSocket) else self.sock.recv

    def _receive_decrypted(self, size: int) -> bytes:
        """A TLS record may hold more than was asked for, and the poller does not see what is already decrypted.

        Raises BlockingIOError when nothing is there, as a plain socket does.
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
    """Level-triggered readiness. ``wait`` and the registrations belong to one thread, ``wake`` to any.

    Descriptors can be put first: they stand in a set of their own, inside of the other one, and under more events than
    one batch holds they are not found behind all the rest. ``first_fd``, when it is ready or a batch is full, says to
    ask ``first``.
    """

    def __init__(self) -> None:
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._set_at = 0
        self._put_first: set[int] = set()
        self._epoll, self._first_epoll, self._timer = select.epoll(), select.epoll(), Timer()
        self.first_fd = self._first_epoll.fileno()
        for fd in (self._wake_out.fileno(), self._timer.fd, self.first_fd):
            self._epoll.register(fd, READ)
        self.register, self.modify = self._epoll.register, self._epoll.modify

    def unregister(self, fd: int) -> None:
        self.put_back(fd)
        self._epoll.unregister(fd)

    def put_first(self, fd: int) -> None:
        """From now on what is to be read there is found by ``first``. For a registered descriptor."""
        if fd not in self._put_first:
            self._epoll.unregister(fd)
            self._first_epoll.register(fd, READ)
            self._put_first.add(fd)

    def put_back(self, fd: int) -> None:
        """Undoes ``put_first``; nothing else if it was not called."""
        if fd in self._put_first:
            self._put_first.remove(fd)
            self._first_epoll.unregister(fd)
            self._epoll.register(fd, READ)

    def first(self) -> list[tuple[int, int]]:
        """Those put first that are ready. Does not wait."""
        return self._first_epoll.poll(0, MAX_EVENTS)

    def wait(self, until_ns: int) -> list[tuple[int, int]]:
        """Descriptors that are ready, (fd, mask) each, or some that are ours and to be passed over.

        Returns at ``until_ns`` (``time.monotonic_ns``) at the latest; at once when that is 0.
        """
        if until_ns == 0:
            return self._epoll.poll(0, MAX_EVENTS)
        if until_ns != self._set_at:
            self._timer.set(until_ns)
            self._set_at = until_ns
        return self._epoll.poll(None, MAX_EVENTS)

    def wake(self) -> None:
        """Ends a ``wait`` now. From any thread."""
        try:
            self._wake_in.send(b"\0")
        except (BlockingIOError, OSError):
            return  # full: it wakes anyway; closed: nobody waits

    def close(self) -> None:
        for one in (self._epoll, self._first_epoll, self._timer, self._wake_in, self._wake_out):
            one.close()

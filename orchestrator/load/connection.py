"""One socket: connect, TLS, send. The reading side is in transport.py, where every nanosecond counts."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import InputError
from orchestrator.load.exchange import Exchange
from orchestrator.load.http import Origin

Address = tuple[int, tuple[object, ...]]  # family, sockaddr

LOCAL_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A target whose name was looked up: before the run, never during it."""

    origin: Origin
    addresses: tuple[Address, ...]
    tls: ssl.SSLContext | None


def resolve(origin: Origin) -> Endpoint:
    """Looks the host up, IPv4 and IPv6. Raises InputError when it has no address.

    TLS trusts what the system trusts; SSL_CERT_FILE names others.
    """
    try:
        found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"host {origin.host!r} cannot be looked up: {error}") from None
    addresses = tuple(dict.fromkeys((family, address) for family, _, _, _, address in found))
    context = ssl.create_default_context() if origin.tls else None
    return Endpoint(origin, addresses, context)


class Connection:
    """A non-blocking socket to one endpoint, with at most one exchange on it."""

    __slots__ = (
        "_addresses", "connecting", "endpoint", "exchange", "fd", "handshaking", "out", "sock", "target", "uses",
    )  # fmt: skip

    def __init__(self, target: int, endpoint: Endpoint) -> None:
        self.target = target
        self.endpoint = endpoint
        self._addresses = list(endpoint.addresses)
        self.exchange: Exchange | None = None
        self.out: memoryview | None = None  # what the socket did not take yet
        self.uses = 0  # responses received whole
        self.connecting = True
        self.handshaking = False
        self.sock: socket.socket
        self.fd = -1

    def connect(self) -> None:
        """Starts connecting to the next address. Raises OSError when the last one failed at once."""
        while True:
            family, address = self._addresses.pop(0)
            self.connecting, self.handshaking = True, False
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.fd = self.sock.fileno()
            self.sock.setblocking(False)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self.sock.connect_ex(address)
            if code in (0, errno.EINPROGRESS):
                return
            self.sock.close()
            if not self._addresses or code in LOCAL_LIMITS:
                raise OSError(code, os.strerror(code))

    @property
    def more_addresses(self) -> bool:
        return bool(self._addresses)

    def connected(self) -> None:
        """The socket became writable: connected, or not. Raises OSError."""
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self.connecting = False
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

    def reader(self) -> Callable[[int], bytes]:
        """What reads bytes: the socket's own ``recv``, for TLS one that leaves nothing decrypted behind."""
        if not isinstance(self.sock, ssl.SSLSocket):
            return self.sock.recv
        return _TlsReader(self.sock).recv


class _TlsReader:
    """A TLS record may hold more than was asked for, and the poller does not see what is already decrypted."""

    __slots__ = ("_sock",)

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def recv(self, size: int) -> bytes:
        """Raises BlockingIOError when nothing is there, as a plain socket does."""
        try:
            data = self._sock.recv(size)
            while data and self._sock.pending():
                data += self._sock.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLZeroReturnError:
            return b""
        return data

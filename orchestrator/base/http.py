"""Control calls to HTTP servers: health, models, metrics, resets. Never load.

No proxies, no redirects, no retries, and a limit in time and in size: no server can hold us or fill
our memory.

The standard library's client, because `load` asks an endpoint for its models before it sends the
first request: importing aiohttp would add a quarter to the CPU time until then (0.25 s to 1.0 s).
Host agents ask for one small document a second, so it is enough for them too.
"""

import http.client
import io
import json
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

LIMIT_S = 10.0
LOOK_UP_LIMIT_S = 5.0  # for the address of a host name
LIMIT_BYTES = 16 * 2**20  # /metrics of a large deployment has 1 MB


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server answered. ``status`` 0: it did not answer, ``error`` says why. ``location``:
    where a redirect points.
    """

    status: int
    body: bytes = b""
    error: str = ""
    location: str = ""

    @property
    def is_redirect(self) -> bool:
        """Whether what was asked for is at ``location``."""
        return 300 <= self.status < 400 and bool(self.location)

    @property
    def outcome(self) -> str:
        """``HTTP 401``, ``HTTP 302: it is at URL (give that URL)``, or why the server did not
        answer.
        """
        if not self.status:
            return self.error
        if self.is_redirect:
            return f"HTTP {self.status}: it is at {self.location} (give that URL)"
        return f"HTTP {self.status}"

    def json(self) -> Any:
        """The body's value; None when it is not JSON. Lone surrogates, which cannot be stored,
        become ``?``.
        """
        try:
            value = json.loads(self.body)
            return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
        except (ValueError, RecursionError):  # nested deeper than the stack allows
            return None


def ask(
    url: str,
    method: str = "GET",
    api_key: str = "",
    limit_s: float = LIMIT_S,
    more_headers: Sequence[tuple[str, str]] = (),
    verify_tls: bool = True,
) -> HttpResponse:
    """Sends one request; the body of a POST is ``{}``. ``more_headers`` replace ours of the same
    name.

    Never raises: a request that failed on the way becomes a response of status 0.
    """
    end_s = time.monotonic() + limit_s
    body_sent = "{}" if method == "POST" else None
    try:
        parts = urlsplit(url)
        path = parts.path or "/"
        if parts.query:
            path += f"?{parts.query}"
        with closing(_connection(parts)) as connection:
            connection.sock = _connect(connection, end_s, verify_tls)
            connection.request(method, path, body_sent, _headers(api_key, more_headers))
            # not connection.getresponse(), which would restart the timeout with every byte
            sock = _DeadlineSocket(connection.sock, end_s)
            response = http.client.HTTPResponse(sock, method=method)  # type: ignore[arg-type]
            response.begin()
            body = response.read(LIMIT_BYTES + 1)
    except ssl.SSLCertVerificationError as error:
        return HttpResponse(0, error=f"its certificate is not trusted: {error.verify_message}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return HttpResponse(0, error=str(error) or type(error).__name__)
    if len(body) > LIMIT_BYTES:
        return HttpResponse(0, error=f"it answers with more than {LIMIT_BYTES} bytes")
    if response.length:
        return HttpResponse(0, error=f"its answer ends {response.length} bytes early")
    return HttpResponse(response.status, body, location=response.headers.get("location", ""))


def _headers(api_key: str, more_headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The headers of a request. Of headers whose names differ only in case, the last one counts."""
    headers = [("Content-Type", "application/json"), ("Connection", "close")]
    if api_key:
        headers.append(("Authorization", f"Bearer {api_key}"))
    by_name: dict[str, tuple[str, str]] = {}
    for name, value in (*headers, *more_headers):
        by_name[name.lower()] = (name, value)
    return dict(by_name.values())


def _connection(parts: SplitResult) -> http.client.HTTPConnection:
    """A connection to the host of a URL, not opened yet. Raises ValueError for a wrong port."""
    host = parts.hostname or ""
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, parts.port)
    return http.client.HTTPConnection(host, parts.port)


def tls_context(verify: bool = True) -> ssl.SSLContext:
    """A context that trusts the certificates that the system trusts (SSL_CERT_FILE names others),
    or without ``verify`` any.
    """
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _connect(
    connection: http.client.HTTPConnection, end_s: float, verify_tls: bool
) -> socket.socket:
    """A socket to the connection's host, ready for the request, TLS included.

    All addresses and all steps together take until ``end_s``; the library would give each of them
    the whole time. Raises the OSError of the last address that was tried.
    """
    error = OSError("it has no address")
    for found in look_up(connection.host, connection.port, _left_s(end_s)):
        sock = socket.socket(found.family, found.kind, found.protocol)
        try:
            sock.settimeout(_left_s(end_s))
            sock.connect(found.address)
            if isinstance(connection, http.client.HTTPSConnection):
                sock = _tls(sock, connection.host, end_s, verify_tls)
            return sock
        except OSError as caught:
            sock.close()
            error = caught
    raise error


@dataclass(frozen=True, slots=True)
class HostAddress:
    """One address of a host. ``address``: as ``socket.connect`` takes it. The other fields are what
    a socket to it is made of.
    """

    family: int
    kind: int
    protocol: int
    address: Any


@dataclass(frozen=True, slots=True)
class _LookUp:
    """A look-up of a host name, in a thread of its own: the resolver takes as long as its own
    settings say, half a minute with two name servers that do not answer.
    """

    host: str
    port: int
    addresses: list[HostAddress] = field(default_factory=list)
    errors: list[OSError | UnicodeError] = field(default_factory=list)

    def run(self) -> None:
        try:
            entries = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            # an empty label, or one that is too long, is a UnicodeError
            self.errors.append(error)
            return
        for family, kind, protocol, _, address in entries:
            self.addresses.append(HostAddress(family, kind, protocol, address))


def look_up(host: str, port: int, limit_s: float = LOOK_UP_LIMIT_S) -> list[HostAddress]:
    """The addresses of a host, in the order to try them.

    Raises OSError or UnicodeError where it has none, TimeoutError after ``limit_s``.
    """
    looking = _LookUp(host, port)
    thread = threading.Thread(target=looking.run, daemon=True)
    thread.start()
    thread.join(min(limit_s, LOOK_UP_LIMIT_S))
    if looking.errors:
        raise looking.errors[0]
    if thread.is_alive():
        raise TimeoutError(f"no name server told the address of {host!r} in time")
    return looking.addresses


def _tls(sock: socket.socket, host: str, end_s: float, verify: bool) -> socket.socket:
    """The socket with TLS on it. Raises OSError with what is wrong."""
    sock.settimeout(_left_s(end_s))  # for all steps of the handshake together
    try:
        return tls_context(verify).wrap_socket(sock, server_hostname=host)
    except ssl.SSLCertVerificationError:
        raise
    except OSError as error:
        reason = "it took too long" if isinstance(error, TimeoutError) else error
        raise OSError(f"the TLS handshake failed: {reason}") from error


def _left_s(end_s: float) -> float:
    """The seconds until ``end_s`` of the monotonic clock. Raises TimeoutError where none are left."""
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it took too long to answer")
    return left_s


class _DeadlineSocket(io.RawIOBase):
    """A socket that can be read until ``end_s``. A socket's own timeout starts anew with every byte.

    It has of a socket what ``http.client.HTTPResponse`` needs.
    """

    def __init__(self, sock: socket.socket, end_s: float) -> None:
        self._sock = sock
        self._end_s = end_s

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left_s(self._end_s))
        return self._sock.recv_into(buffer)

"""HTTP/1.1 as a load generator needs it: URLs, the head of a request, the head of a response. No sockets here."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from orchestrator import __version__
from orchestrator.errors import InputError

MAX_HEAD_BYTES = 256 * 1024


class BadHttp(Exception):
    """What came is not HTTP/1.x. The message is for the row."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a target lives. ``prefix`` is the path of its URL, which goes before the dialect's."""

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def authority(self) -> str:
        """The Host header: IPv6 in brackets, the default port left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_url(url: str) -> Origin:
    """Splits ``http(s)://host[:port][/prefix]``. Raises InputError with what is wrong."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{url!r} is not a URL of a server: give http://HOST:PORT or https://HOST")
    if parts.query or parts.fragment or parts.username:
        raise InputError(f"the URL of {host!r} may hold no user, query or fragment; keys go into --api-key-env")
    tls = parts.scheme == "https"
    return Origin(host, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def request_head(origin: Origin, path: str, api_key: str | None) -> bytes:
    """Everything before the length of the body: append it, a blank line and the body."""
    lines = [
        f"POST {origin.prefix}{path} HTTP/1.1",
        f"Host: {origin.authority}",
        f"User-Agent: llm-serving-orchestrator/{__version__}",
        "Content-Type: application/json",
        "Accept: text/event-stream, application/json",
        "Accept-Encoding: identity",
        *([f"Authorization: Bearer {api_key}"] if api_key else []),
        "Content-Length: ",
    ]
    return "\r\n".join(lines).encode("latin-1")


def request(head: bytes, body: bytes) -> bytes:
    """The whole request."""
    return b"%b%d\r\n\r\n%b" % (head, len(body), body)


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of a response. ``size``: bytes before the body."""

    status: int
    reason: str
    headers: dict[str, str]
    size: int
    chunked: bool
    length: int | None  # of the body; None: chunked, or until the connection closes
    keep_alive: bool


def parse_head(raw: bytes) -> Head | None:
    """The head of the final response; interim ones (1xx) are passed over. None: not all of it is here yet.

    Raises BadHttp.
    """
    start = 0
    while True:
        if not b"HTTP/1."[: len(raw) - start] == raw[start : start + 7]:
            raise BadHttp(f"not an HTTP/1.x response: {raw[start : start + 60]!r}")
        end = raw.find(b"\r\n\r\n", start)
        if end < 0:
            if len(raw) - start > MAX_HEAD_BYTES:
                raise BadHttp(f"response headers over {MAX_HEAD_BYTES} bytes")
            return None
        head = _read_head(raw[start:end], end + 4)
        if not 100 <= head.status < 200 or head.status == 101:
            return head
        start = end + 4


def _read_head(raw: bytes, size: int) -> Head:
    if len(raw) > MAX_HEAD_BYTES:
        raise BadHttp(f"response headers over {MAX_HEAD_BYTES} bytes")
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code, _, reason = rest.partition(" ")
    if len(code) != 3 or not code.isdigit():
        raise BadHttp(f"not a status line: {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadHttp(f"not a header: {line[:60]!r}")
        headers[name.strip().lower()] = value.strip()
    status = int(code)
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    wanted = headers.get("connection", "keep-alive" if version == "HTTP/1.1" else "close").lower()
    length = None if chunked else _length(status, headers)
    keep_alive = "close" not in wanted and (chunked or length is not None) and status != 101
    return Head(status, reason, headers, size, chunked, length, keep_alive)


def _length(status: int, headers: dict[str, str]) -> int | None:
    if status in (204, 304):
        return 0
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise BadHttp(f"Content-Length is {text[:60]!r}")
    return int(text)

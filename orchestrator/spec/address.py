"""The address of a server that already runs, as people paste it: with or without ``/v1``, as the
whole path of one API, with a query.

``http://host``, ``http://host/v1``, ``https://host/api/v3``, ``https://host/v1/chat/completions/``
and ``https://host/openai/deployments/x/chat/completions?api-version=2026-01-01`` are all such
addresses. Engines and the load client, which may not import each other, both need it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from orchestrator.base.errors import InputError
from orchestrator.base.redaction import is_secret

_KEYS = "keys go into a variable: --api-key-env, in a file api_key_env"
VERSION = "/v1"  # stands before OpenAI's paths nearly everywhere
# what a pasted path of an API ends with -> the API's name in `load`
_API_PATHS = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/generate_stream": "tgi",
    "/generate": "sglang",
    "/models": None,
}
# an address that was typed without http://; a host without a port may be any word
_HOST_AND_PORT = re.compile(r"(?!https?:)(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]+(?:[/?]|$)")
# Names of secrets in queries that `is_secret` does not recognise, because settings have such names,
# too.
_SECRET_IN_QUERIES = re.compile(r"(?i)^(.*[-_.])?(key|sig|signature|auth|code|token)$")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the APIs of a server are.

    ``base``: scheme, host, port and what precedes the paths of all APIs. ``version``: what precedes
    those of OpenAI's, ``/v1`` or nothing. ``is_exact``: the address says so itself; otherwise both
    are tried. ``ending``: what follows every path: a slash, a query. ``api``: the API whose path
    was pasted. ``path``: the one path for every API, where the user gives one.
    """

    base: str
    version: str = VERSION
    is_exact: bool = False
    ending: str = ""
    api: str | None = None
    path: str | None = None

    def paths(self, usual: str) -> list[str]:
        """Where an API may be whose ``usual`` path is ``/v1/chat/completions``; likeliest first."""
        if self.path is not None:
            return [self.path]
        if not usual.startswith(f"{VERSION}/"):
            return [usual + self.ending]
        own_part = usual.removeprefix(VERSION)
        likeliest = self.version + own_part + self.ending
        if self.is_exact:
            return [likeliest]
        return [likeliest, own_part + self.ending]

    @property
    def model_lists(self) -> list[str]:
        """Where the server may list its models; likeliest first."""
        return replace(self, path=None).paths(f"{VERSION}/models")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a target lives. ``prefix``: the path of its URL, to which the dialect's is added."""

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def authority(self) -> str:
        """Value of the Host header: IPv6 in brackets, without a default port."""
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
        raise InputError(f"the URL of {host!r} may not hold a user, query or fragment; {_KEYS}")
    if port == 0:
        raise InputError(f"{url!r} names port 0, which no server has")
    if not re.fullmatch("[!-~]+", host):
        raise InputError(
            f"the host of {url!r} holds spaces or letters beyond ASCII: give its punycode (xn--…)"
        )
    if not re.fullmatch("[!-~]*", parts.path):
        raise InputError(
            f"the path of {url!r} holds spaces or letters beyond ASCII: percent-encode them"
        )
    tls = parts.scheme == "https"
    return Origin(host, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def with_scheme(url: str) -> str:
    """``http://`` and the address, where a host and its port are all that was typed."""
    return f"http://{url}" if _HOST_AND_PORT.match(url) else url


def parse_address(url: str, path: str | None = None) -> ServerAddress:
    """Reads a pasted address. ``path``: the path of the API, where it is not a usual one.

    The host is not checked (``parse_url`` does that). Raises ValueError for a query that may hold a
    key, because paths are shown and stored.
    """
    parts = urlsplit(url.strip())
    check_query(parts.query)
    query = f"?{parts.query}" if parts.query else ""
    pasted_path = parts.path.rstrip("/")
    slash = "/" if parts.path.endswith("/") else ""
    api_path = next((ending for ending in _API_PATHS if pasted_path.endswith(ending)), None)
    root = pasted_path.removesuffix(api_path) if api_path else pasted_path
    has_version = root.endswith(VERSION)
    base = urlunsplit((parts.scheme, parts.netloc, root.removesuffix(VERSION), "", ""))
    if path is not None:
        check_query(urlsplit(path).query)
        path = path if "?" in path else path + query
    return ServerAddress(
        base=base if parts.netloc else url,
        version=VERSION if has_version or not api_path else "",
        is_exact=has_version or api_path is not None,
        ending=(slash if api_path else "") + query,
        api=_API_PATHS[api_path] if api_path else None,
        path=path,
    )


def check_query(query: str) -> None:
    """Raises ValueError where a query may hold a key."""
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if is_secret(name) or _SECRET_IN_QUERIES.match(name):
            raise ValueError(
                f"its query holds {name!r}, which may be a key, and addresses are shown and stored;"
                f" {_KEYS}"
            )

"""Serves a watched folder of results: the page, its changes as server-sent events, and metrics.

The server only reads. It refuses requests for another host's name, because a page elsewhere could
otherwise reach it by a name that resolves to this machine. Where there is a token, it refuses
requests without it.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from orchestrator.base.errors import InputError, OrchestratorError
from orchestrator.base.redaction import redact
from orchestrator.web.page import Seen, change_since, live_page
from orchestrator.web.prometheus import exposition
from orchestrator.web.texts import KeptTexts
from orchestrator.web.watched import Watched, WatchedResults

KEEP_ALIVE_S = 15.0  # proxies and browsers give up connections on which nothing comes
FIRST_LOOK_S = 0.5  # metrics wait so long for the first look: a small folder is read by then
RETRY_AFTER_S = 5  # after so long, metrics that were refused before the first look may be there
HEALTH = "/healthz"  # tells nothing of the results, so probes need no token for it
CLOSING_S = 0.5  # for answers under way when the server ends; event streams never end by themselves
TOKEN_VARIABLE = "ORCHESTRATOR_WATCH_TOKEN"  # noqa: S105 - the variable's name
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_NUMBER = re.compile(r"[0-9]{1,18}")  # more digits than anything here is counted to
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",  # the address may hold the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens. ``token``: what requests must have; None: they need none."""

    host: str
    port: int
    token: str | None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        query = f"?{urlencode({'token': self.token})}" if self.token else ""
        return f"http://{host}:{self.port}/{query}"

    def answers_to(self, host_header: str) -> bool:
        """Whether requests for this host name are answered; where there is a token, all are."""
        if self.token is not None:
            return True
        name = host_header.rpartition(":")[0] if _has_port(host_header) else host_header
        return name.strip("[]").lower() in LOOPBACK_NAMES


def _has_port(host_header: str) -> bool:
    return host_header.rpartition(":")[2].isdigit() and not host_header.endswith("]")


def token_for(host: str, environment: Mapping[str, str]) -> str | None:
    """The token that requests need if the server listens on ``host``; None on loopback.

    It is that of the environment, else a new one.
    """
    if host in LOOPBACK_NAMES:
        return None
    return environment.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)


class Watcher:
    """Looks at the results again and again, and wakes those who wait for a change."""

    def __init__(self, results: WatchedResults) -> None:
        self.results = results
        self.problem = ""  # of the last look; empty: it read the results
        self._changed = asyncio.Condition()
        self._first_look = asyncio.Event()

    async def run(self) -> None:
        """Looks until it is cancelled.

        A storage that does not answer is asked again; each problem is printed once.
        """
        while True:
            is_changed = False
            try:
                is_changed = await asyncio.to_thread(self.results.look)
                self.problem = ""
                self._first_look.set()
            except Exception as error:  # if this ended, the page would stand still without a word
                problem = redact(str(error))
                if problem != self.problem:
                    self.problem = problem
                    _print_problem(error)
            if is_changed:
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(self.results.pause_s)

    async def wait_for_first_look(self, limit_s: float) -> bool:
        """Waits until the results have been read, for ``limit_s`` at most. Returns whether they
        have been.
        """
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._first_look.wait(), limit_s)
        return self._first_look.is_set()

    async def after(self, seen: Watched) -> Watched:
        """Waits until something other than ``seen`` is known, for KEEP_ALIVE_S at most. Returns
        what is known then.
        """

        def is_other() -> bool:
            return self.results.now is not seen

        async with self._changed:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(is_other), KEEP_ALIVE_S)
        return self.results.now


def _print_problem(error: Exception) -> None:
    if not isinstance(error, OrchestratorError):
        traceback.print_exception(error)
    print(f"note: not up to date: {redact(str(error))}", file=sys.stderr)


def application(
    results: WatchedResults, address: Address, first_look_s: float = FIRST_LOOK_S
) -> web.Application:
    """The application that serves these results at this address. ``first_look_s``: how long metrics
    wait for the first look at the results.
    """
    watcher = Watcher(results)
    handlers = _Handlers(watcher, first_look_s)
    app = web.Application(middlewares=[_gate(address)])
    app.router.add_get("/", handlers.page)
    app.router.add_get("/events", handlers.events)
    app.router.add_get("/metrics", handlers.metrics)
    app.router.add_get(HEALTH, handlers.health)
    app.cleanup_ctx.append(_looking(watcher))
    return app


def serve(
    results: WatchedResults,
    host: str,
    port: int,
    token: str | None,
    print_line: Callable[[str], None],
) -> None:
    """Serves until it is interrupted. ``print_line`` is called with the address once it is served.

    Raises InputError where the server cannot listen at this address.
    """
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --port"
        ) from error
    address = Address(host, listener.getsockname()[1], token)
    web.run_app(
        application(results, address),
        sock=listener,
        print=lambda _: print_line(f"watching {results.uri} at {address.url} (Ctrl-C ends it)"),
        access_log=None,
        shutdown_timeout=CLOSING_S,
    )


def _looking(watcher: Watcher) -> Callable[[web.Application], AsyncIterator[None]]:
    async def looking(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(watcher.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    return looking


def _gate(address: Address) -> Middleware:
    """Refuses requests that are not allowed, and adds HEADERS to every refusal: also to those of
    the handlers, and where there is no such page.
    """

    @web.middleware
    async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not address.answers_to(request.headers.get("Host", "")):
                raise web.HTTPForbidden(text="this server answers to localhost alone\n")
            token = None if request.path == HEALTH else address.token
            if token is not None and not _holds_token(request, token):
                raise web.HTTPUnauthorized(text="the address needs ?token=..., as printed\n")
            return await handler(request)
        except web.HTTPException as refusal:
            refusal.headers.update(HEADERS)
            raise

    return gate


def _holds_token(request: web.Request, token: str) -> bool:
    """Whether a request has the token: as ``?token=``, or as a bearer token, as from Prometheus."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    given = request.query.get("token", bearer)
    return secrets.compare_digest(given.encode(), token.encode())


class _Handlers:
    def __init__(self, watcher: Watcher, first_look_s: float) -> None:
        self._watcher = watcher
        self._first_look_s = first_look_s
        self._results = watcher.results
        self._texts = KeptTexts()

    async def page(self, request: web.Request) -> web.Response:
        html = await asyncio.to_thread(live_page, self._results.now, self._texts)
        return web.Response(text=html, content_type="text/html", headers=HEADERS)

    async def metrics(self, request: web.Request) -> web.Response:
        """The metrics for Prometheus. Raises HTTPServiceUnavailable until the results were read
        once: an empty answer would say that nothing was measured.
        """
        if not await self._watcher.wait_for_first_look(self._first_look_s):
            problem = self._watcher.problem
            reason = f": {problem}" if problem else ""
            raise web.HTTPServiceUnavailable(
                text=f"the results have not been read yet{reason}\n",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        body = await asyncio.to_thread(exposition, self._results.now)
        headers = {**HEADERS, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=body, headers=headers)

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n", headers=HEADERS)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Streams changes to a page. The query says what the page has already."""
        seen = _seen_by_page(request)
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        now = self._results.now
        while True:
            change = await asyncio.to_thread(change_since, now, self._texts, seen)
            await response.write(f"data: {json.dumps(asdict(change))}\n\n".encode())
            if change.edition != seen.edition:
                return response  # the page loads itself again
            seen = change.seen
            sent = now
            while now is sent:
                await response.write(b": still here\n\n")
                now = await self._watcher.after(sent)


def _seen_by_page(request: web.Request) -> Seen:
    """What the page that asks has already, as its query says. Raises HTTPBadRequest for a number
    that cannot be one of this server's; a number that is not given is 0.
    """
    numbers: dict[str, int] = {}
    for field in fields(Seen):
        text = request.query.get(field.name, "0")
        if not _NUMBER.fullmatch(text):
            raise web.HTTPBadRequest(text=f"{field.name} is a whole number of up to 18 digits\n")
        numbers[field.name] = int(text)
    return Seen(**numbers)

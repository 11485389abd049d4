"""Waits until an engine serves, and proves that the server which answers is the one that was started.

Another server may sit on the same port: a leftover, a neighbour's engine, a developer's. Its numbers would then be
reported as ours. Three proofs, each as far as the engine allows it: the model's name holds the launch id; a request
without the random key is refused; the listening socket belongs to a process below our guard.
"""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import psutil

from orchestrator.engines.base import Command, Engine, Node
from orchestrator.engines.failures import TAIL_LINES, classify
from orchestrator.errors import EngineFailure, Failure, FailureClass
from orchestrator.spec.settings import EngineSettings

_log = logging.getLogger(__name__)

POLL_S = 0.25
SILENCE_S = 900.0
REQUEST_S = 10.0
LOG_LINES = 4000  # the cause of a failed start stands far above its end


class Process(Protocol):
    """What is asked of an EngineProcess here."""

    command: Command
    pid: int | None

    def poll(self) -> int | None: ...

    def log_tail(self, lines: int = 200) -> str: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """What a server said of itself once it was ready."""

    ready_s: float
    engine_version: str | None = None
    max_model_len: int | None = None
    models: tuple[str, ...] = ()
    proofs: tuple[str, ...] = ()  # name | key | socket: what shows that it is ours
    reported: dict[str, float | int | str] = field(default_factory=dict)  # Engine.reported


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; status 0: nobody answered."""

    status: int
    body: str = ""

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


Ask = Callable[[str, str, dict[str, str]], Answer]  # method, path, headers


def wait_ready(
    engine: Engine,
    settings: EngineSettings,
    node: Node,
    base_url: str,
    api_key: str,
    process: Process | None,
    timeout_s: float,
    silence_s: float = SILENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    ask: Ask | None = None,
) -> Ready:
    """Returns once rank 0 serves the model and is proven to be ours.

    ``process``: None for an endpoint that already runs. It fails when the process ends, when someone else answers on
    its port, after ``timeout_s``, or when its log has said nothing new for ``silence_s``. ``base_url``:
    ``scheme://host:port``. Raises EngineFailure.
    """
    started = clock()
    watch = _Watch(engine, settings, node, api_key, process, ask or _asker(base_url))
    last_log, last_change = "", started
    while True:
        ready = watch.check(clock() - started)
        if ready is not None:
            return ready
        log = process.log_tail(TAIL_LINES) if process else ""
        if log != last_log:
            last_log, last_change = log, clock()
        waited_s, silent_s = clock() - started, clock() - last_change
        if waited_s >= timeout_s or (process is not None and silent_s >= silence_s):
            raise EngineFailure(watch.never_ready(waited_s, silent_s, timeout_s))
        sleep(POLL_S)


def http_ask(base_url: str, method: str, path: str, headers: dict[str, str], timeout_s: float = REQUEST_S) -> Answer:
    """One request without proxies, redirects or retries; a POST carries ``{}``. Status 0 when nobody answers."""
    parts = urlsplit(base_url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        body = "{}" if method == "POST" else None
        connection.request(method, parts.path.rstrip("/") + path, body, {"Content-Type": "application/json"} | headers)
        response = connection.getresponse()
        return Answer(response.status, response.read().decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return Answer(0)
    finally:
        connection.close()


def listeners(port: int) -> set[int]:
    """Pids that listen on ``port`` here, as far as we may see; 0 stands for a process that we may not."""
    found = psutil.net_connections(kind="tcp")
    return {each.pid or 0 for each in found if each.status == psutil.CONN_LISTEN and each.laddr[1:2] == (port,)}


def tree_of(pid: int) -> set[int]:
    """A process and all its descendants; its guard's other children too, which it may have left behind."""
    try:
        guard = psutil.Process(pid).parent()
        return {pid} | ({child.pid for child in guard.children(recursive=True)} if guard else set())
    except psutil.Error:
        return {pid}


def _asker(base_url: str) -> Ask:
    return lambda method, path, headers: http_ask(base_url, method, path, headers)


@dataclass(slots=True)
class _Watch:
    engine: Engine
    settings: EngineSettings
    node: Node
    api_key: str
    process: Process | None
    ask: Ask

    def check(self, waited_s: float) -> Ready | None:
        """One look. Raises EngineFailure when waiting longer is useless."""
        if self.process is not None and (status := self.process.poll()) is not None:
            raise EngineFailure(self._died(status))
        answer = self.ask("GET", self.engine.ready_path, self._key())
        if answer.status == 0:
            return None
        proofs = self._proofs()  # before anything it says is believed: a stranger may say 200 or 404
        if answer.status != 200:
            return None
        models = self.ask("GET", "/v1/models", self._key())
        named, names, length = self._served(models)
        if self.process is None:
            if not named:
                raise EngineFailure(self._model_not_there(names))
            proofs = ["name"]
        elif named:
            proofs.append("name")
        if self.process is not None and not {"name", "socket"} & set(proofs):
            raise EngineFailure(self._wrong_server(f"it serves {', '.join(names) or 'no model that it names'}"))
        reported = self._reported()
        return Ready(waited_s, self._version(reported), length, names, tuple(proofs), reported)

    def never_ready(self, waited_s: float, silent_s: float, timeout_s: float) -> Failure:
        log = self.process.log_tail(LOG_LINES) if self.process else ""
        if waited_s >= timeout_s:
            text = f"the engine was not ready after {waited_s:.0f} s (startup_timeout_s)"
            return Failure(FailureClass.TIMEOUT, "never_ready", text, _tail(log))
        text = f"the engine hangs: not ready, and its log has been silent for {silent_s:.0f} s"
        return Failure(FailureClass.TIMEOUT, "silent", text, _tail(log))

    def _key(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def _died(self, status: int) -> Failure:
        assert self.process is not None
        log = self.process.log_tail(LOG_LINES)
        owners = self._strangers()
        failure = classify("start", log, status)
        assert failure is not None
        if owners and failure.kind in ("port_taken", "died_at_start"):
            return self._port_taken(owners)
        return failure

    def _proofs(self) -> list[str]:
        """Which proofs hold so far. Raises EngineFailure when someone else listens on our port."""
        if self.process is None:
            return []
        proofs = []
        if strangers := self._strangers():
            raise EngineFailure(self._port_taken(strangers))
        if self.process.pid is not None and listeners(self.node.port) & tree_of(self.process.pid):
            proofs.append("socket")
        if self.api_key and self.api_key in self.process.command.secrets.values():
            # A path that generates: some engines list their models to anyone.
            path = next(iter(self.engine.dialects(self.settings).values())).path
            if self.ask("POST", path, {}).status not in (401, 403):
                raise EngineFailure(self._wrong_server("it answers requests that carry no key"))
            proofs.append("key")
        return proofs

    def _sockets_visible(self) -> bool:
        """Whether an engine's processes are surely descendants of ours. Docker's belong to its daemon, podman's to a
        service where there is one."""
        return self.settings.image is None or self.settings.container_runtime == "apptainer"

    def _strangers(self) -> set[int]:
        """Who listens on our port and is not ours; nobody where our own would look like strangers."""
        if self.process is None or self.process.pid is None or not self._sockets_visible():
            return set()
        return listeners(self.node.port) - tree_of(self.process.pid)

    def _served(self, answer: Answer) -> tuple[bool, tuple[str, ...], int | None]:
        document = answer.json()
        entries = document.get("data") if isinstance(document, dict) else None
        cards = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        wanted = self.engine.served_name(self.settings, self.node)
        lengths = [card.get("max_model_len") for card in cards if card.get("id") == wanted]
        names = tuple(str(card.get("id")) for card in cards)
        return wanted in names, names, next((length for length in lengths if isinstance(length, int)), None)

    def _reported(self) -> dict[str, float | int | str]:
        log = self.process.log_tail(LOG_LINES) if self.process else ""
        try:
            return self.engine.reported(log)
        except Exception as error:  # it serves: words of its log that we misread are no reason to end it
            _log.warning("what %s says of itself could not be read: %r", self.engine.name, error)
            return {"unreadable": repr(error)}  # kept with the launch

    def _version(self, reported: dict[str, float | int | str]) -> str | None:
        document = self.ask("GET", "/version", self._key()).json()
        said = document.get("version") if isinstance(document, dict) else None
        found = said or reported.get("engine_version")
        return str(found) if found else None

    def _port_taken(self, pids: set[int]) -> Failure:
        log = self.process.log_tail(LOG_LINES) if self.process else ""
        text = f"port {self.node.port} is taken by {_names(pids)}, so the engine could not serve on it"
        return Failure(FailureClass.INFRA, "port_taken", text, _tail(log))

    def _wrong_server(self, why: str) -> Failure:
        log = self.process.log_tail(LOG_LINES) if self.process else ""
        text = f"another server answers on port {self.node.port}: {why}"
        return Failure(FailureClass.INFRA, "wrong_server", text, _tail(log))

    def _model_not_there(self, names: tuple[str, ...]) -> Failure:
        wanted = self.engine.served_name(self.settings, self.node)
        text = f"the endpoint does not serve {wanted!r}; it lists {', '.join(names) or 'no model'}"
        return Failure(FailureClass.BAD_CONFIG, "no_model", text)


def _names(pids: set[int]) -> str:
    found = []
    for pid in sorted(pids):
        try:
            found.append(f"{psutil.Process(pid).name()} (pid {pid})" if pid else "a process of another user")
        except psutil.Error:
            continue
    return ", ".join(found) or "another program"


def _tail(log: str) -> str:
    return "\n".join(log.splitlines()[-TAIL_LINES:])

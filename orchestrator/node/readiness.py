"""Waits until an engine serves, and proves that the server that answers is the one that was
started.

Another server on the same port (a leftover, another user's) would otherwise be measured instead.
There are three proofs, and an engine may support only some of them: the model's name contains the
launch id; a request without the random key is refused; the listening socket belongs to a process
below our guard.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import psutil

from orchestrator.base.errors import EngineFailure, Failure, FailureKind
from orchestrator.base.http import HttpResponse, ask
from orchestrator.base.redaction import mask_secrets, redact
from orchestrator.base.text import listed
from orchestrator.catalog.parameters import mapping
from orchestrator.engines.command import Node
from orchestrator.engines.engine import Engine, Reported
from orchestrator.engines.networks import between_nodes
from orchestrator.node.failures import TAIL_LINES, EnginePhase, LastWords, classify
from orchestrator.node.process import EngineProcess
from orchestrator.spec.settings import EngineSettings, installed_version

_log = logging.getLogger(__name__)

POLL_S = 0.25
SILENCE_S = 900.0
REFUSED_S = 3.0  # how long an endpoint may not answer: it should run already
LOOK_S = 10.0  # between two looks at how much of the model was downloaded
UNAVAILABLE = 503  # some engines answer this while they load, whatever the key
NO_SUCH_ROUTE = frozenset({404, 405, 501})
LOG_LINES = 4000  # the cause of a failed start is far above the end of the log


@dataclass(frozen=True, slots=True)
class Ready:
    """A server that is ours and serves. ``reported``: ``Engine.reported`` and what the server
    itself reports; its entry ``proofs`` lists the proofs that the server is ours (name, key,
    socket).
    """

    reported: Reported
    version: str | None


Ask = Callable[[str, str, str], HttpResponse]  # URL, method, API key


@dataclass(frozen=True, slots=True)
class Expected:
    """The server that should answer. ``process``: None for an endpoint, which runs already."""

    engine: Engine
    settings: EngineSettings
    node: Node
    base_url: str  # scheme://host:port
    api_key: str = ""
    process: EngineProcess | None = None


def wait_ready(
    expected: Expected,
    timeout_s: float,
    silence_s: float = SILENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    ask: Ask = ask,
    downloaded: Callable[[], int] = lambda: 0,
) -> Ready:
    """Returns once rank 0 serves the model and is proven to be ours.

    Raises EngineFailure when the process ends, when another server answers on its port, after
    ``timeout_s``, or when the log has not changed for ``silence_s`` and the server does not say
    that it is loading. ``downloaded``: bytes of the model that are on the nodes of all ranks; time
    in which they increase does not count.
    """
    times = _StartTimes(clock, downloaded)
    watch = _Watch(expected, ask, clock)
    while True:
        ready = watch.check()
        if ready is not None:
            if expected.process is not None:
                expected.process.mark_ready()
            return ready
        times.note_log(watch.log(TAIL_LINES), watch.is_loading)
        times.leave_out_downloads()
        limit_s = timeout_s
        if expected.process is None and watch.is_silent:
            limit_s = min(timeout_s, REFUSED_S)
        waited_s = times.waited_s()
        if waited_s >= limit_s:
            raise watch.failed(FailureKind.NEVER_READY, watch.never_ready(waited_s))
        silent_s = times.silent_s()
        if expected.process is not None and silent_s >= silence_s:
            text = f"the engine hangs: not ready, and its log has been silent for {silent_s:.0f} s"
            raise watch.failed(FailureKind.SILENT, text)
        sleep(POLL_S)


class _StartTimes:
    """How long a start takes, and how long its log is silent, in seconds. Time in which the model
    is downloaded does not count.
    """

    def __init__(self, clock: Callable[[], float], downloaded: Callable[[], int]) -> None:
        self._clock = clock
        self._downloaded = downloaded
        self._began_s = clock()
        self._log_changed_s = self._began_s
        self._looked_s = self._began_s  # when the download was last looked at
        self._log = ""
        self._downloaded_bytes = downloaded()

    def note_log(self, log: str, is_loading: bool) -> None:
        """Notes the end of the log, and whether the server says that it is loading."""
        if log != self._log or is_loading:
            self._log = log
            self._log_changed_s = self._clock()

    def leave_out_downloads(self) -> None:
        """Looks every ``LOOK_S`` whether more of the model has been downloaded. If so, the time
        since the last look does not count.
        """
        now_s = self._clock()
        since_s = now_s - self._looked_s
        if since_s < LOOK_S:
            return
        self._looked_s = now_s
        before = self._downloaded_bytes
        self._downloaded_bytes = self._downloaded()
        if self._downloaded_bytes > before:
            self._began_s += since_s
            self._log_changed_s = now_s

    def waited_s(self) -> float:
        return self._clock() - self._began_s

    def silent_s(self) -> float:
        return self._clock() - self._log_changed_s


def listeners(port: int) -> set[int]:
    """Pids that listen on ``port`` on this host; 0 stands for a process that we may not inspect."""
    return {
        connection.pid or 0
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,)
    }


def tree_of(pid: int) -> set[int]:
    """A process and all descendants of its guard, including those whose own parent has ended."""
    try:
        guard = psutil.Process(pid).parent()
        children = guard.children(recursive=True) if guard else []
    except psutil.Error:
        return {pid}
    return {pid, *(child.pid for child in children)}


class _Watch:
    """The checks of one wait: what the server answers, and whether it is ours."""

    def __init__(self, expected: Expected, ask: Ask, clock: Callable[[], float]) -> None:
        self.engine = expected.engine
        self.settings = expected.settings
        self.node = expected.node
        self.api_key = expected.api_key
        self.process = expected.process
        self.name = self.engine.served_name(self.settings, self.node)
        self._base_url = expected.base_url.rstrip("/")
        self._ask = ask
        self._last_words = LastWords(self.engine.log, clock)
        self.is_loading = False  # whether the server says so
        self._last_answer = HttpResponse(0)  # to the last question whether it is ready
        self._route = self.engine.ready_path  # that was asked last

    def ask(self, path: str, method: str = "GET", keyed: bool = True) -> HttpResponse:
        """The server's answer with its key hidden, since parts of answers are stored with the
        launch.
        """
        answer = self._ask(self._base_url + path, method, self.api_key if keyed else "")
        body = mask_secrets(answer.body.decode(errors="replace"), [self.api_key])
        return replace(answer, body=body.encode())

    @property
    def is_silent(self) -> bool:
        """Whether the last request got no answer."""
        return self._last_answer.status == 0

    def log(self, lines: int = LOG_LINES) -> str:
        """The end of the engine's log; "" for an endpoint."""
        return self.process.log_tail(lines) if self.process else ""

    def never_ready(self, waited_s: float) -> str:
        """The sentence for a server that was not ready in time."""
        outcome = self._last_answer.outcome
        if self.process is not None:
            sentence = f"the engine was not ready after {waited_s:.0f} s (startup_timeout_s)"
            return sentence if self.is_silent else f"{sentence}; {self._route} answered {outcome}"
        if self.is_silent:
            return (
                f"no server answers at {self._base_url}: {outcome}; is it up, and is the url right?"
            )
        return f"the endpoint did not list its models within {waited_s:.0f} s: {outcome}"

    def failed(self, kind: FailureKind, sentence: str) -> EngineFailure:
        """A failure with the end of the log. ``sentence`` may quote the server."""
        return EngineFailure(Failure(kind, redact(sentence, [self.api_key]), self.log(TAIL_LINES)))

    def check(self) -> Ready | None:
        """One check; None while not ready. Raises EngineFailure when waiting longer is useless."""
        if self.process is not None:
            status = self.process.poll()
            is_dying = self._last_words.spoken(EnginePhase.START, self.process.new_lines())
            if status is not None or is_dying:
                raise self._died(status)
        answer = self._ask_whether_ready()
        self._last_answer = answer
        self.is_loading = answer.status == UNAVAILABLE and b"loading" in answer.body.lower()
        if answer.status == 0:
            return None
        if self.process is None:
            return None if answer.status == UNAVAILABLE else self._endpoint(answer)
        proofs = self._proofs()  # first, since another server may answer 200 or 404
        if proofs is None or answer.status != 200:
            return None
        listing = self.ask("/v1/models")
        if listing.status == 0:
            return None
        names, card = self._served(listing)
        if self.name in names:
            proofs.append("name")
        if not {"name", "socket"} & set(proofs):
            raise self._wrong_server(f"it serves {', '.join(names) or 'no model that it names'}")
        reported = self._reported() | _figures_of(card)
        return Ready(reported | {"proofs": " ".join(proofs)}, self._version(reported))

    def _endpoint(self, listing: HttpResponse) -> Ready:
        """An endpoint that answers. Its list of models is not required: requests name the model,
        and will fail if the endpoint does not have it.
        """
        reported: Reported = {"proofs": ""}
        names, card = self._served(listing)
        if listing.status != 200 or not names:
            reported["note"] = f"the endpoint does not list its models ({listing.outcome})"
        elif self.name not in names:
            reported["note"] = f"the endpoint lists {listed(names, 10)}, not {self.name!r}"
        else:
            reported["proofs"] = "name"
        reported |= _figures_of(card)
        owner = card.get("owned_by")
        if isinstance(owner, str):
            reported["owned_by"] = owner
        return Ready(reported, self._version(reported))

    def _ask_whether_ready(self) -> HttpResponse:
        """The answer of the first readiness route that this release has, else of its last one."""
        answer = HttpResponse(0)
        for route in (self.engine.ready_path, *self.engine.ready_fallbacks):
            self._route = route
            answer = self.ask(route)
            if answer.status not in NO_SUCH_ROUTE:
                break
        return answer

    def _died(self, status: int | None) -> EngineFailure:
        """Why the engine died, by its log. A stranger on its port explains a death without a clear
        cause.
        """
        failure = classify(self.engine.log, EnginePhase.START, self.log(), status)
        if failure.kind in (FailureKind.PORT_TAKEN, FailureKind.DIED_AT_START):
            strangers = self._strangers()
            if strangers:
                return self._port_taken(strangers)
        return EngineFailure(failure)

    def _proofs(self) -> list[str] | None:
        """The proofs that hold so far; None when the server no longer answers, which proves
        nothing. Raises EngineFailure when another program listens on our port.
        """
        if self.process is None:
            return []
        strangers = self._strangers()
        if strangers:
            raise self._port_taken(strangers)
        proofs = []
        if self.process.pid is not None and listeners(self.node.port) & tree_of(self.process.pid):
            proofs.append("socket")
        has_key = bool(self.api_key) and self.api_key in self.process.command.secrets.values()
        if self.engine.guarded and has_key:
            # A path that generates: some engines list their models to anyone.
            path = next(iter(self.engine.dialects(self.settings).values())).path
            status = self.ask(path, "POST", keyed=False).status
            if status == 0:
                return None
            if status not in (401, 403, UNAVAILABLE):
                answer = f"POST {path} without the key was answered with HTTP {status}"
                if "socket" in proofs:  # so no other server answered
                    raise self._keyless_engine(answer)
                raise self._wrong_server(f"it answers requests that carry no key: {answer}")
            if status != UNAVAILABLE:
                proofs.append("key")
        return proofs

    def _strangers(self) -> set[int]:
        """Other processes that listen on our port. Always empty for docker and podman: processes in
        their containers belong to a daemon or a service, and would look like strangers.
        """
        visible = self.settings.image is None or self.settings.container_runtime == "apptainer"
        if self.process is None or self.process.pid is None or not visible:
            return set()
        return listeners(self.node.port) - tree_of(self.process.pid)

    def _served(self, listed: HttpResponse) -> tuple[tuple[str, ...], dict[str, Any]]:
        """The models that the server lists, and the entry of ours."""
        document = listed.json()
        entries = document.get("data") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            return (), {}
        cards = [entry for entry in entries if isinstance(entry, dict)]
        ours = (card for card in cards if card.get("id") == self.name)
        return tuple(str(card.get("id")) for card in cards), next(ours, {})

    def _reported(self) -> Reported:
        """The figures that the engine logged."""
        try:
            return self.engine.reported(self.log()) | self._network()
        except Exception as error:  # an unreadable log is no reason to end an engine that serves
            _log.warning("what %s says of itself could not be read: %r", self.engine.name, error)
            return {"unreadable": repr(error)}  # kept with the launch

    def _network(self) -> Reported:
        """The network between the ranks of several nodes, by the log."""
        if self.settings.nnodes == 1 or self.engine.emulated:
            return {}
        return {"network": between_nodes(self.log())}

    def _version(self, reported: Reported) -> str | None:
        """The engine's version from the server, else from its log, else from its virtual
        environment.
        """
        version: Any = None
        for path, name in self.engine.version_at.items():
            version = self._field(path, name)
            if version:
                break
        version = version or reported.get("engine_version")
        if not version and self.settings.executable:
            version = installed_version(self.settings.executable, self.engine.name)
        return str(version) if version else None

    def _field(self, path: str, name: str) -> Any:
        """One field of an answer; None if the server does not have it."""
        answer = self.ask(path)
        document = answer.json() if answer.status == 200 else None
        return document.get(name) if isinstance(document, dict) else None

    def _port_taken(self, pids: set[int]) -> EngineFailure:
        text = (
            f"port {self.node.port} is taken by {_names(pids)}, so the engine could not serve on it"
        )
        return self.failed(FailureKind.PORT_TAKEN, text)

    def _wrong_server(self, why: str) -> EngineFailure:
        sentence = f"another server answers on port {self.node.port}: {why}"
        return self._unproven(FailureKind.WRONG_SERVER, sentence)

    def _keyless_engine(self, answer: str) -> EngineFailure:
        """A failure of an engine that listens on the port itself, but does not check its key."""
        variable = self.engine.key_variable
        place = f"the key in {variable}" if variable else "its key"
        return self._unproven(
            FailureKind.KEY_UNCHECKED,
            f"{self.engine.title} does not check {place}, since {answer}, not with 401 or 403 "
            "(engines without keys are declared with guarded=False)",
        )

    def _unproven(self, kind: FailureKind, sentence: str) -> EngineFailure:
        status = self.process.poll() if self.process is not None else None
        if status is not None:  # what it was asked last may have killed it
            return self._died(status)
        return self.failed(kind, sentence)


def _figures_of(card: dict[str, Any]) -> Reported:
    """The figures in a server's list of models: the size of the vocabulary and the longest
    sequence.
    """
    figures: Reported = {}
    vocab_size = mapping(card, "meta").get("n_vocab")
    if isinstance(vocab_size, int):
        figures["vocab_size"] = vocab_size
    max_model_len = card.get("max_model_len")
    if isinstance(max_model_len, int):
        figures["max_model_len"] = max_model_len
    return figures


def _names(pids: set[int]) -> str:
    """Processes by their names and pids; 0 is one that may not be inspected."""
    names = []
    for pid in sorted(pids):
        if pid == 0:
            names.append("a process of another user")
            continue
        with suppress(psutil.Error):
            names.append(f"{psutil.Process(pid).name()} (pid {pid})")
    return ", ".join(names) or "another program"

"""Which runs of an experiment are active: each keeps a record beside the results, and updates it
with a heartbeat.

The records keep two drivers from measuring one experiment at the same time, and show ``status`` and
``stop`` what a driver does; results are right without them. Clocks of two hosts are never compared:
whether a run is alive is known on its own host from its process, and elsewhere from whether its
record still changes.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Annotated

from pydantic import Field, TypeAdapter

from orchestrator.base.errors import InputError, OrchestratorError
from orchestrator.base.redaction import redact
from orchestrator.results.blobs import Blobs
from orchestrator.results.events import SWEEP, Event, Listener, Phase
from orchestrator.results.ids import new_ulid
from orchestrator.results.location import parse_location
from orchestrator.results.patience import RUN_RECORD, Retry
from orchestrator.results.root import MARKS, open_results

EVERY_S = 10.0  # between heartbeats
SILENT_S = 60.0  # a run on another host is dead once its record has not changed for this long
LOOK_S = 1.0  # how often other runs' records are read while it is unknown whether they are alive
MOST_DEPLOYMENTS, MOST_EVENTS = 100, 20  # kept in a record, the latest ones


UnixNs = Annotated[int, Field(ge=0, lt=1 << 63)]


@dataclass(slots=True)
class Doing:
    """What one deployment does, since when, and how many of its measurements were made. ``why``:
    the last failure.
    """

    doing: str = ""
    since_unix_ns: UnixNs = 0
    measured: int = 0
    failed: int = 0
    left: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """An event that was told."""

    unix_ns: UnixNs = 0
    kind: str = ""
    deployment: str = ""
    text: str = ""


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """What a driver reports about itself. ``deployments``: by label."""

    run_id: str
    state: str = "running"  # claiming | running | stopping | ended
    host: str = "?"
    # kernel boot and PID namespace, within which ``pid`` and ``pid_started`` identify a process
    place: str = ""
    pid: int = 0
    pid_started: int = 0  # clock ticks since boot
    user: str = "?"
    began_unix_ns: UnixNs = 0
    beats: int = 0
    says: str = ""  # what the sweep does, or how it ended
    total: int = 0  # measurements to do when it began; of searches, as many as are known by now
    skipped: int = 0  # measurements done by earlier runs
    measured: int = 0
    failed: int = 0
    left_s: float | None = None  # last estimate of the remaining time
    deployments: dict[str, Doing] = field(default_factory=dict)
    events: list[Said] = field(default_factory=list)  # the last ones, oldest first

    @classmethod
    def of_this_process(cls) -> RunRecord:
        return cls(
            run_id=new_ulid(),
            state="claiming",
            host=platform.node(),
            place=_place(),
            pid=os.getpid(),
            pid_started=_started(os.getpid()) or 0,
            user=_user(),
            began_unix_ns=time.time_ns(),
        )

    @classmethod
    def from_json(cls, run_id: str, text: bytes) -> RunRecord:
        """Parse a record. A damaged one becomes that of an unknown run, which counts as dead after
        SILENT_S.
        """
        with suppress(ValueError):
            return replace(RECORD.validate_json(text, strict=True), run_id=run_id)
        return cls(run_id=run_id)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def name(self) -> str:
        return f"pid {self.pid} of {self.user} on {self.host}"

    def lives(self) -> bool | None:
        """Whether its process is alive; None where this host cannot know."""
        if self.state == "ended":
            return False
        if self.place != _place():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (OverflowError, PermissionError):  # another user's process
            pass
        started = _started(self.pid)  # may be hidden for another user's process
        return started is None or started == self.pid_started

    def note(self, item: Event | Phase) -> None:
        """Include an event or phase of the sweep."""
        if isinstance(item, Phase) and item.deployment == SWEEP:
            self.says = f"{item.name} {item.detail}".strip()
            return
        if isinstance(item, Event):
            self._count(item)
            said = Said(item.unix_ns, item.kind, item.deployment, item.text)
            self.events = [*self.events, said][-MOST_EVENTS:]
        if not item.deployment:
            return
        one = self.deployments.pop(item.deployment, None) or Doing()
        self.deployments[item.deployment] = one
        if isinstance(item, Phase):
            doing = "" if item.is_over else f"{item.name} {item.detail}".strip()
            if one.doing != doing:
                one.doing, one.since_unix_ns = doing, time.time_ns()
        else:
            one.measured += item.kind == "measured"
            one.failed += item.kind == "failed"
            one.left = item.data.get("left", one.left)
            one.why = item.text if item.kind in ("failed", "gave_up") else one.why
        for label in [label for label, other in self.deployments.items() if not other.doing]:
            if len(self.deployments) > MOST_DEPLOYMENTS:
                del self.deployments[label]

    def _count(self, event: Event) -> None:
        if event.kind == "sweep":
            self.total, self.skipped = (
                int(event.data.get("total", 0)),
                int(event.data.get("skipped", 0)),
            )
        self.measured += event.kind == "measured"
        self.failed += event.kind == "failed"
        if event.kind in ("measured", "failed"):  # a search may ask for more than was expected
            self.total = max(
                self.total, self.measured + self.failed + int(event.data.get("left", 0))
            )
        self.left_s = event.data.get("left_s", self.left_s)


RECORD = TypeAdapter(RunRecord)


class Runs:
    """The records of one experiment's runs in ``<root>/<experiment>/runs/``, and requests to stop
    beside them.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri, self.experiment = uri, experiment
        self._blobs = Blobs(parse_location(uri), Retry(RUN_RECORD))

    def names(self) -> dict[str, float]:
        """File name -> seconds since it was written, by the storage's clock and ours."""
        infos = self._blobs.listing(f"{self.experiment}/runs", recursive=False)
        found = {info.base_name: info.mtime_ns for info in infos if info.is_file}
        return {
            name: max(0.0, (time.time_ns() - (wrote or 0)) / 1e9)
            for name, wrote in found.items()
            if name[0] != "."
        }

    def read(self, run_id: str) -> tuple[RunRecord, bytes] | None:
        """A run's record and its text; None if there is none."""
        text = self._blobs.get(self._key(f"{run_id}.json"))
        return None if text is None else (RunRecord.from_json(run_id, text), text)

    def all(self) -> list[tuple[RunRecord, bytes]]:
        """Every run's record and text, oldest first."""
        names = sorted(
            name.removesuffix(".json") for name in self.names() if name.endswith(".json")
        )
        return [found for name in names if (found := self.read(name))]

    def put(self, run_id: str, text: bytes) -> None:
        self._blobs.put(self._key(f"{run_id}.json"), text)

    def ask_to_stop(self, run_id: str) -> None:
        self._blobs.put(self._key(f"{run_id}.stop"), f"{_user()} on {platform.node()}".encode())

    def asked_by(self, run_id: str) -> str:
        """Who asked a run to stop."""
        return redact(
            (self._blobs.get(self._key(f"{run_id}.stop")) or b"somebody").decode(errors="replace")
        )[:200]

    def remove(self, run_id: str) -> None:
        for suffix in ("json", "stop"):
            self._blobs.delete(self._key(f"{run_id}.{suffix}"))

    def _key(self, name: str) -> str:
        return f"{self.experiment}/runs/{name}"

    def take(
        self, record: RunRecord, watch: Liveness, sleep: Callable[[float], None] = time.sleep
    ) -> set[str]:
        """Make this the experiment's active run. Returns the ids of dead runs whose place it took.

        Of several runs that start at once the one with the smallest id wins: each writes its claim
        before it looks for others, and waits until it knows of every other run whether it is alive.
        Raises InputError when another run is active.
        """
        self.put(record.run_id, record.to_json())
        try:
            dead = set[str]()
            while True:
                rivals = [
                    (other, watch.lives(other, text))
                    for other, text in self.all()
                    if other.run_id != record.run_id
                ]
                dead |= {other.run_id for other, lives in rivals if lives is False}
                unknown = [(other, lives) for other, lives in rivals if other.run_id not in dead]
                for other, lives in unknown:
                    if lives and (other.state != "claiming" or other.run_id < record.run_id):
                        raise InputError(self._refusal(other))
                if not unknown:
                    break
                sleep(LOOK_S)
                record.beats += 1
                self.put(record.run_id, record.to_json())
            record.state = "running"
            self.put(record.run_id, record.to_json())
        except BaseException:
            self.remove(record.run_id)
            raise
        for run_id in dead:
            self.remove(run_id)
        return dead

    def _refusal(self, other: RunRecord) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(other.began_unix_ns / 1e9))
        of = f", {other.measured} of {other.total} measured" if other.total else ""
        return (
            f"another run of {self.experiment!r} is active at {self.uri}: {other.name}, since "
            f"{since}{of}. "
            f"'orchestrator status {self.uri}' shows it, 'orchestrator stop {self.uri}' ends it "
            "in order; or wait "
            "until it is over: what it measured is not measured again"
        )


def runs_at(uri: str, experiment: str | None = None) -> list[Runs]:
    """The runs of every experiment at ``uri``, or of one. Raises InputError where there is none (of
    that name).
    """
    found = open_results(uri, (*MARKS, "runs"))
    names = found.experiments if experiment is None else (found.store(experiment).experiment,)
    return [Runs(found.uri, name) for name in names]


class Liveness:
    """Tells whether runs are alive, from their processes or from whether their records change."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._seen: dict[str, tuple[bytes, float]] = {}

    def silent_s(self, record: RunRecord, text: bytes) -> float:
        """How long its record has been seen unchanged."""
        before, since_s = self._seen.get(record.run_id, (b"", 0.0))
        if before != text:
            since_s = self._now_s()
            self._seen[record.run_id] = text, since_s
        return self._now_s() - since_s

    def lives(self, record: RunRecord, text: bytes) -> bool | None:
        """Whether a run is alive; None while that is unknown."""
        if (here := record.lives()) is not None:
            return here
        changed = self._seen.get(record.run_id, (text, 0.0))[0] != text
        if self.silent_s(record, text) >= SILENT_S:
            return False
        return changed or None


class ActiveRun:
    """A context in which this driver is the experiment's active run, and a listener that keeps its
    record up to date.

    ``stop`` is set when somebody asks the run to stop, or another run took its place. ``tell``: the
    next listener.
    """

    def __init__(
        self, runs: Runs, stop: threading.Event, tell: Listener, watch: Liveness | None = None
    ) -> None:
        self.tell = tell
        self._shown, self._runs, self._stop, self._watch = tell, runs, stop, watch or Liveness()
        self._record = RunRecord.of_this_process()
        self._dead: set[str] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._beat_on, name="heartbeat", daemon=True)

    def __enter__(self) -> ActiveRun:
        self._dead = self._runs.take(self._record, self._watch)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(EVERY_S)
        # the storage does not answer; others will see that this process is gone
        if self._thread.is_alive():
            return
        with suppress(OrchestratorError):
            # nothing was started, or another run took over
            if isinstance(error, InputError) or self._lost:
                self._runs.remove(self._record.run_id)
                return
            self._record.state = "ended"
            stopped = "stopped" if self._stop.is_set() else ""
            self._record.says = redact(f"{kind.__name__}: {error}") if kind else stopped
            self._runs.put(self._record.run_id, self._record.to_json())

    def __call__(self, item: Event | Phase) -> None:
        with self._lock:
            self._record.note(item)
        self._shown(item)

    def _beat_on(self) -> None:
        while not self._over.wait(EVERY_S):
            with suppress(Exception):  # whatever it is, the next beat may succeed
                self.beat()
            if self._lost:
                return

    def beat(self) -> None:
        """One heartbeat: read what others ask of this run, then write its record."""
        ours, names = self._record.run_id, self._runs.names()
        others = (
            {name.removesuffix(".json") for name in names if name.endswith(".json")}
            - self._dead
            - {ours}
        )
        found = [
            one
            for run_id in others
            if (one := self._runs.read(run_id)) and one[0].state == "running"
        ]
        if found or f"{ours}.json" not in names:
            self._lost = True
            by = f": {found[0][0].name}" if found else ""
            self.tell(
                Event(
                    "stop_asked",
                    f"this run was silent for a minute, and another took its place{by}",
                )
            )
            self._stop.set()
            return
        if f"{ours}.stop" in names and not self._stop.is_set():
            self.tell(Event("stop_asked", f"{self._runs.asked_by(ours)} asks this run to stop"))
            self._stop.set()
        with self._lock:
            self._record.beats += 1
            self._record.state = "stopping" if self._stop.is_set() else self._record.state
            text = self._record.to_json()
        self._runs.put(ours, text)


def _place() -> str:
    """Identifies where a pid is unique: containers share their host's kernel, but not its pids."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return platform.node()


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; -1 for a zombie, None where it cannot be
    read.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return -1 if words[0] in "ZX" else int(words[19])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        return str(os.getuid())

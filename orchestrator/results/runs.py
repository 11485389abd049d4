"""Which runs of an experiment are active. Each keeps a record beside the results, and updates it
with a heartbeat.

The records keep two drivers from measuring one experiment at the same time, and show ``status`` and
``stop`` what a driver does; results are right without them. Clocks of two hosts are never compared.
On its own host a run is alive as long as its process is, and elsewhere as long as its record
changes.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Annotated

from pydantic import Field, TypeAdapter

from orchestrator.base.errors import InputError, OrchestratorError
from orchestrator.base.redaction import redact
from orchestrator.results.blobs import Blobs
from orchestrator.results.events import (
    Event,
    Listener,
    measurements_left,
    standing_key,
    total_after,
)
from orchestrator.results.ids import new_ulid
from orchestrator.results.location import parse_location
from orchestrator.results.phases import SWEEP, Phase
from orchestrator.results.root import MARKS, open_results
from orchestrator.results.storage_retry import RUN_RECORD, Retry

EVERY_S = 10.0  # between heartbeats
SILENT_S = 60.0  # a run on another host is dead once its record has not changed for this long
LOOK_S = 1.0  # how often other runs' records are read while it is unknown whether they are alive
MOST_DEPLOYMENTS = 100  # kept in a record: those that do something, and the latest others
MOST_EVENTS = 20  # kept in a record, the latest ones


UnixNs = Annotated[int, Field(ge=0, lt=1 << 63)]


@dataclass(slots=True)
class DeploymentProgress:
    """What one deployment does, since when, and how many of its measurements were made. ``left``:
    measurements to do, as far as is known. ``why``: the last failure.
    """

    doing: str = ""
    since_unix_ns: UnixNs = 0
    measured: int = 0
    failed: int = 0
    left: int | None = None
    why: str = ""

    def begin(self, doing: str) -> None:
        """Notes what it does now; empty: nothing."""
        if self.doing != doing:
            self.doing = doing
            self.since_unix_ns = time.time_ns()

    def count(self, event: Event) -> None:
        """Notes an event of the deployment."""
        if event.kind == "measured":
            self.measured += 1
        elif event.kind == "failed":
            self.failed += 1
        left = measurements_left(event)
        if left is not None:
            self.left = left
        if event.kind in ("failed", "gave_up"):
            self.why = event.text


class RunState(StrEnum):
    """What a run does. A record has any but the last two, which others see from outside."""

    CLAIMING = "claiming"  # it waits until it is clear whether an earlier run is over
    STARTING = "starting"  # it joins its cluster
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    DEAD = "dead"  # its process is gone
    SILENT = "silent"  # it runs on another host, and gave no sign of life for SILENT_S


@dataclass(frozen=True, slots=True)
class EventNote:
    """An event as a run's record keeps it."""

    unix_ns: UnixNs = 0
    kind: str = ""
    deployment: str = ""
    text: str = ""


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """What a driver reports about itself. ``deployments``: by label."""

    run_id: str
    state: RunState = RunState.RUNNING
    host: str = "?"
    # kernel boot and PID namespace, within which ``pid`` and ``pid_started`` identify a process
    place: str = ""
    pid: int = 0
    pid_started: int = 0  # clock ticks since boot
    user: str = "?"
    # the options of `run` that say where it runs, as they were given: ["--address", "local"]
    options: list[str] = field(default_factory=list)
    began_unix_ns: UnixNs = 0
    beats: int = 0
    says: str = ""  # what the sweep does, or how it ended
    total: int = 0  # measurements to do when it began; of searches, as many as are known by now
    skipped: int = 0  # measurements done by earlier runs
    measured: int = 0
    failed: int = 0
    left_s: float | None = None  # last estimate of the remaining time
    deployments: dict[str, DeploymentProgress] = field(default_factory=dict)
    events: list[EventNote] = field(default_factory=list)  # the last ones, oldest first
    # what is known of the answer, a sentence for each workload and SLO; and where the run ended
    # because it was decided, how much was not measured
    standings: dict[str, str] = field(default_factory=dict)
    decided: str = ""
    # what was last said to be left, by label; also of deployments that were dropped above. It is
    # known to the driver alone.
    left_by_label: dict[str, int] = field(default_factory=dict, init=False, compare=False)

    @classmethod
    def of_this_process(cls, options: Iterable[str] = ()) -> RunRecord:
        return cls(
            run_id=new_ulid(),
            state=RunState.CLAIMING,
            host=platform.node(),
            place=_place(),
            pid=os.getpid(),
            pid_started=process_start(os.getpid()) or 0,
            user=_user(),
            options=list(options),
            began_unix_ns=time.time_ns(),
        )

    @classmethod
    def from_json(cls, run_id: str, text: bytes) -> RunRecord:
        """Parses a record. A damaged one becomes that of an unknown run, which counts as dead after
        SILENT_S.
        """
        with suppress(ValueError):
            return replace(RECORD.validate_json(text, strict=True), run_id=run_id)
        return cls(run_id=run_id)

    def to_json(self) -> bytes:
        document = asdict(self)
        del document["left_by_label"]
        return json.dumps(document).encode()

    @property
    def name(self) -> str:
        return f"pid {self.pid} of {self.user} on {self.host}"

    def lives(self) -> bool | None:
        """Whether its process is alive; None where this host cannot know."""
        if self.state is RunState.ENDED:
            return False
        if self.place != _place():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (OverflowError, PermissionError):
            pass  # the pid of a damaged record, or another user's process
        started = process_start(self.pid)  # may be hidden for another user's process
        return started is None or started == self.pid_started

    def note(self, item: Event | Phase) -> None:
        """Adds an event or phase of the sweep to the record."""
        if isinstance(item, Phase) and item.deployment == SWEEP:
            self.says = f"{item.name} {item.detail}".strip()
            return
        if isinstance(item, Event) and item.kind == "standing":
            self.standings[standing_key(item)] = item.text
            return
        if isinstance(item, Event):
            self._count(item)
            note = EventNote(item.unix_ns, item.kind, item.deployment, item.text)
            self.events = [*self.events, note][-MOST_EVENTS:]
        if not item.deployment:
            return
        # taken out and put back, so that the deployment of the newest event is the last one
        progress = self.deployments.pop(item.deployment, DeploymentProgress())
        self.deployments[item.deployment] = progress
        if isinstance(item, Phase):
            progress.begin("" if item.is_over else f"{item.name} {item.detail}".strip())
        else:
            progress.count(item)
        self._drop_idle_deployments()

    def _drop_idle_deployments(self) -> None:
        """Drops the oldest idle deployments beyond MOST_DEPLOYMENTS.

        Those that do something stay.
        """
        idle = [label for label, progress in self.deployments.items() if not progress.doing]
        surplus = max(0, len(self.deployments) - MOST_DEPLOYMENTS)
        for label in idle[:surplus]:
            del self.deployments[label]

    def _count(self, event: Event) -> None:
        if event.kind == "sweep":
            self.total = int(event.data.get("total", 0))
            self.skipped = int(event.data.get("skipped", 0))
        elif event.kind == "measured":
            self.measured += 1
        elif event.kind == "failed":
            self.failed += 1
        elif event.kind == "decided":
            self.decided = event.text
        left_before = self.left_by_label.get(event.deployment)
        self.total = total_after(event, self.total, self.measured + self.failed, left_before)
        left = measurements_left(event)
        if left is not None:
            self.left_by_label[event.deployment] = left
        self.left_s = event.data.get("left_s", self.left_s)


RECORD = TypeAdapter(RunRecord)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run's record, and the text of its file, which changes with each heartbeat."""

    record: RunRecord
    text: bytes


class Runs:
    """The records of one experiment's runs in ``<root>/<experiment>/runs/``, and requests to stop
    beside them.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        self.uri = uri
        self.experiment = experiment
        self._blobs = Blobs(parse_location(uri), Retry(RUN_RECORD))

    def file_ages_s(self) -> dict[str, float]:
        """File name -> seconds since it was written: our clock minus the storage's. Only shown,
        never used to judge whether a run is alive.
        """
        ages_s: dict[str, float] = {}
        for info in self._blobs.listing(f"{self.experiment}/runs", recursive=False):
            if info.is_file and not info.base_name.startswith("."):
                age_ns = time.time_ns() - (info.mtime_ns or 0)
                ages_s[info.base_name] = max(0.0, age_ns / 1e9)
        return ages_s

    def read(self, run_id: str) -> StoredRun | None:
        """What is stored of a run; None if there is nothing."""
        text = self._blobs.get(self._key(f"{run_id}.json"))
        if text is None:
            return None
        return StoredRun(RunRecord.from_json(run_id, text), text)

    def all(self) -> list[StoredRun]:
        """What is stored of every run, oldest first."""
        runs = [self.read(run_id) for run_id in sorted(_run_ids(self.file_ages_s()))]
        return [run for run in runs if run is not None]

    def records(self) -> list[RunRecord]:
        """Every run's record, oldest first."""
        return [run.record for run in self.all()]

    def put(self, run_id: str, text: bytes) -> None:
        self._blobs.put(self._key(f"{run_id}.json"), text)

    def ask_to_stop(self, run_id: str) -> None:
        self._blobs.put(self._key(f"{run_id}.stop"), f"{_user()} on {platform.node()}".encode())

    def asked_by(self, run_id: str) -> str:
        """Who asked a run to stop."""
        text = self._blobs.get(self._key(f"{run_id}.stop")) or b"somebody"
        return redact(text.decode(errors="replace"))[:200]

    def remove(self, run_id: str) -> None:
        for suffix in ("json", "stop"):
            self._blobs.delete(self._key(f"{run_id}.{suffix}"))

    def _key(self, name: str) -> str:
        return f"{self.experiment}/runs/{name}"

    def take(
        self, record: RunRecord, watch: Liveness, sleep: Callable[[float], None] = time.sleep
    ) -> set[str]:
        """Makes this the experiment's active run, which is starting. Returns the ids of dead runs
        whose place it took; their records stay.

        Each run writes its claim before it looks for others, and waits until it is known of every
        other run whether it is alive. Of several that start at once, the one with the smallest id
        wins. Raises InputError when another run is active.
        """
        self.put(record.run_id, record.to_json())
        try:
            dead: set[str] = set()
            while self._has_rival(record, watch, dead):
                sleep(LOOK_S)
                record.beats += 1
                self.put(record.run_id, record.to_json())
            record.state = RunState.STARTING
            self.put(record.run_id, record.to_json())
        except BaseException:
            self.remove(record.run_id)
            raise
        return dead

    def _has_rival(self, record: RunRecord, watch: Liveness, dead: set[str]) -> bool:
        """Whether another run may still be alive. Adds the ids of dead runs to ``dead``.

        Raises InputError when another run is active, or claims the place with a smaller id.
        """
        has_rival = False
        for run in self.all():
            other = run.record
            if other.run_id == record.run_id:
                continue
            lives = watch.lives(other, run.text)
            if lives is False:
                dead.add(other.run_id)
            if other.run_id in dead:
                continue
            has_rival = True
            is_first = other.state is not RunState.CLAIMING or other.run_id < record.run_id
            if lives and is_first:
                raise InputError(self._refusal(other))
        return has_rival

    def _refusal(self, other: RunRecord) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(other.began_unix_ns / 1e9))
        measured = f", {other.measured} of {other.total} measured" if other.total else ""
        return (
            f"another run of {self.experiment!r} is active at {self.uri}: {other.name}, since "
            f"{since}{measured}. "
            f"'orchestrator status {self.uri}' shows it, 'orchestrator stop {self.uri}' ends it "
            "in order; or wait "
            "until it is over: what it measured is not measured again"
        )


def _run_ids(names: Iterable[str]) -> set[str]:
    """The ids of the runs whose records are among these files."""
    return {name.removesuffix(".json") for name in names if name.endswith(".json")}


def runs_at(uri: str, experiment: str | None = None) -> list[Runs]:
    """The runs of every experiment at ``uri``, or of one. Raises InputError where there is none (of
    that name).
    """
    results = open_results(uri, (*MARKS, "runs"))
    if experiment is not None:
        return [Runs(results.uri, results.store(experiment).experiment)]
    return [Runs(results.uri, name) for name in results.experiments]


@dataclass(frozen=True, slots=True)
class _SeenRecord:
    """A record's text, and since when it has been seen unchanged."""

    text: bytes
    since_s: float


class Liveness:
    """Tells whether runs are alive, from their processes or from whether their records change."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._last_seen: dict[str, _SeenRecord] = {}

    def silent_s(self, record: RunRecord, text: bytes) -> float:
        """How long its record has been seen unchanged."""
        seen = self._last_seen.get(record.run_id)
        if seen is None or seen.text != text:
            seen = _SeenRecord(text, self._now_s())
            self._last_seen[record.run_id] = seen
        return self._now_s() - seen.since_s

    def lives(self, record: RunRecord, text: bytes) -> bool | None:
        """Whether a run is alive; None while that is unknown."""
        lives_here = record.lives()
        if lives_here is not None:
            return lives_here
        seen = self._last_seen.get(record.run_id)
        has_changed = seen is not None and seen.text != text
        if self.silent_s(record, text) >= SILENT_S:
            return False
        return True if has_changed else None


class ActiveRun:
    """A context in which this driver is the experiment's active run, and a listener that keeps its
    record up to date.

    ``stop`` is set when a user asks the run to stop, or another run took its place. ``keeps``: the
    record stays after the run, until the next one has begun. ``shown``: the listener to which
    everything is passed on. ``tell``: gets the events of this class; at first it is ``shown``, and
    a sweep puts its own listener there. ``options``: see ``RunRecord``.
    """

    def __init__(
        self,
        runs: Runs,
        stop: threading.Event,
        shown: Listener,
        watch: Liveness | None = None,
        keeps: bool = True,
        options: Iterable[str] = (),
    ) -> None:
        self.tell = shown
        self._keeps = keeps
        self._shown = shown
        self._runs = runs
        self._stop = stop
        self._watch = watch or Liveness()
        self._record = RunRecord.of_this_process(options)
        self._dead: set[str] = set()
        self._has_begun = False
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
        if self._thread.is_alive():
            return  # the storage does not answer; others will see that this process is gone
        with suppress(OrchestratorError):
            was_refused = isinstance(error, InputError) and not self._has_begun
            if was_refused or self._lost:
                self._runs.remove(self._record.run_id)
                return
            self._remove_earlier_runs()
            if not self._keeps:
                self._runs.remove(self._record.run_id)
                return
            self._record.state = RunState.ENDED
            stopped = "stopped" if self._stop.is_set() else ""
            self._record.says = redact(f"{kind.__name__}: {error}") if kind else stopped
            self._runs.put(self._record.run_id, self._record.to_json())

    def begin(self) -> None:
        """Says that nothing refuses this run any more: its cluster is joined. From now on its record
        stays, however it ends, and those of the runs whose place it took go. A run that is refused
        before leaves them as they were.
        """
        self._has_begun = True
        with self._lock:
            self._record.state = RunState.RUNNING
            content = self._record.to_json()
        self._runs.put(self._record.run_id, content)
        self._remove_earlier_runs()

    def _remove_earlier_runs(self) -> None:
        """Removes the records of the dead runs whose place this one took."""
        for run_id in self._dead:
            self._runs.remove(run_id)

    def __call__(self, item: Event | Phase) -> None:
        with self._lock:
            self._record.note(item)
        self._shown(item)

    def _beat_on(self) -> None:
        while not self._over.wait(EVERY_S):
            with suppress(Exception):  # whatever went wrong, the next beat may succeed
                self.beat()
            if self._lost:
                return

    def beat(self) -> None:
        """One heartbeat: reads what others ask of this run, then writes its record."""
        ours = self._record.run_id
        names = self._runs.file_ages_s().keys()
        other = self._other_running(_run_ids(names) - self._dead - {ours})
        if other is not None or f"{ours}.json" not in names:
            self._lost = True
            text = "this run was silent for a minute, and another took its place"
            if other is not None:
                text += f": {other.name}"
            self.tell(Event("stop_asked", text))
            self._stop.set()
            return
        if f"{ours}.stop" in names and not self._stop.is_set():
            self.tell(Event("stop_asked", f"{self._runs.asked_by(ours)} asks this run to stop"))
            self._stop.set()
        with self._lock:
            self._record.beats += 1
            if self._stop.is_set():
                self._record.state = RunState.STOPPING
            content = self._record.to_json()
        self._runs.put(ours, content)

    def _other_running(self, run_ids: Iterable[str]) -> RunRecord | None:
        """The one of these runs that took this run's place; None where there is none."""
        for run_id in run_ids:
            stored = self._runs.read(run_id)
            if stored is not None and stored.record.state in (RunState.STARTING, RunState.RUNNING):
                return stored.record
        return None


def _place() -> str:
    """Identifies where a pid is unique: containers share their host's kernel, but not its pids."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return platform.node()


def process_start(pid: int) -> int | None:
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

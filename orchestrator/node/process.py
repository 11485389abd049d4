"""An engine's process as its owner sees it: start, poll, stop. A guard process (guard.py) does the
work.
"""

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.errors import EngineFailure, Failure, FailureKind
from orchestrator.base.folders import node_folder
from orchestrator.base.redaction import HIDDEN, is_secret, redact, secrets_of
from orchestrator.engines.command import Command
from orchestrator.node import ownership
from orchestrator.node.guard import Specification, TreeEnd
from orchestrator.node.ownership import LaunchLock

LOG_NAME = "engine.log"
READY = "# ready"  # line in the log, written by mark_ready
_GUARD_START_S = 30.0
_TAIL_BYTES = 1 << 20
# The specification is passed in a memory file, so that argv contains nothing of it. The launcher
# ends right after the fork, which leaves the guard without a parent of ours. Modules are imported
# from where the owner has them.
_LAUNCHER = """
import json, os, sys
if os.fork():
    os._exit(0)
os.setsid()
with open(int(sys.argv[1])) as file:
    spec = json.load(file)
sys.path[:] = spec.pop("path")
from orchestrator.node.guard import main
main(spec)
"""
# Variables of Ray, of an activated environment or of our own Python, which engines must not
# inherit. ROCR_VISIBLE_DEVICES stays: HIP_VISIBLE_DEVICES counts the GPUs that it leaves.
_FOREIGN = (
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "LISTEN_FDS"),
)
_FOREIGN_PREFIXES = ("RAY_", "PYTHON", "ORCHESTRATOR_", "COV_CORE_")


@dataclass(frozen=True, slots=True)
class StopReport:
    """How an engine ended."""

    seconds: float  # from the call to the last process gone
    killed: int  # processes that needed SIGKILL
    left_over: tuple[int, ...]  # pids of processes that are stuck in the kernel; normally empty
    exit_status: int | None = None  # negative: killed by that signal


class EngineProcess:
    """One engine on this node. However its owner dies, the engine outlives it only by seconds.

    Safe to use from several threads.
    """

    def __init__(
        self, command: Command, workdir: Path, launch_id: str, grace_s: float = 10.0
    ) -> None:
        self.command = command
        self.workdir = workdir
        self.launch_id = launch_id
        self.grace_s = grace_s
        if command.grace_s is not None:
            self.grace_s = min(grace_s, command.grace_s)
        self.log_path = workdir / LOG_NAME
        self.pid: int | None = None
        self._tag = uuid.uuid4().hex
        self._owner_lock: LaunchLock | None = None
        self._stop_pipe: int | None = None  # to the guard, which ends the engine when it closes
        self._event_pipe: int | None = None  # from the guard: a line of JSON for each event
        self._incomplete_event = b""
        self._returned_bytes = 0  # how much of the log ``new_lines`` has returned
        self.log_bytes_at_ready = 0  # size of the log when the engine became ready
        self._exit_status: int | None = None
        self._tree_end: TreeEnd | None = None
        self._report: StopReport | None = None
        self._lock = threading.RLock()

    def start(self) -> None:
        """Writes the command's files and starts it.

        Raises EngineFailure when it cannot be executed.
        """
        with self._lock:
            if self._event_pipe is not None or self._report is not None:
                raise RuntimeError("an EngineProcess starts once")
            self.workdir.mkdir(parents=True, exist_ok=True)
            _write_files(self.workdir, self.command.files)
            for folder in self.command.folders:
                Path(folder).mkdir(parents=True, exist_ok=True)
            locks = node_folder("locks")
            self._owner_lock = LaunchLock(self.launch_id, locks)
            self._launch_guard(self._specification(locks))
            event = self._wait_for_event({"started", "failed"}, _GUARD_START_S)
            if event is None or event["event"] == "failed":
                self._release()
                raise EngineFailure(self._start_failure(event))
            self.pid = event["pid"]

    def poll(self) -> int | None:
        """The exit status of the engine, None while it runs; negative if a signal killed it."""
        with self._lock:
            self._read_events(0)
            return self._exit_status

    def mark_ready(self) -> None:
        """Notes in the log that the engine serves. The lines above cannot explain a later death."""
        with open(self.log_path, "a") as log:
            self.log_bytes_at_ready = log.tell()
            log.write(f"\n{READY}\n")

    def log_since_ready(self) -> str:
        """The first and the last MiB of the log since the engine was ready (or started), without
        secrets.

        The cause of a death comes first: every open request may add a traceback after it.
        """
        with self.log_path.open("rb") as log:
            log.seek(self.log_bytes_at_ready)
            first = log.read(_TAIL_BYTES)
            last_begins_at = log.seek(0, os.SEEK_END) - _TAIL_BYTES
            log.seek(max(self.log_bytes_at_ready + len(first), last_begins_at))
            return self.redact((first + log.read()).decode(errors="replace"))

    def log_tail(self, lines: int = 1000) -> str:
        """The last lines of the log, without secrets. The default is many, because the cause of a
        death is far above the end.
        """
        return self.redact(tail(self.log_path, lines))

    def new_lines(self) -> list[str]:
        """Complete lines of the log that were written since the last call; if these are more than a
        MiB, only the end of them.
        """
        with self.log_path.open("rb") as log:
            tail_begins_at = log.seek(0, os.SEEK_END) - _TAIL_BYTES
            log.seek(max(self._returned_bytes, tail_begins_at))
            complete, _, incomplete = log.read().rpartition(b"\n")
            self._returned_bytes = log.tell() - len(incomplete)
        return complete.decode(errors="replace").splitlines()

    def redact(self, text: str) -> str:
        """``text`` without the engine's secrets: its key and those of its environment."""
        return redact(text, [*self.command.secrets.values(), *secrets_of(self._environment())])

    def _environment(self) -> dict[str, str]:
        """All variables of the engine, its secrets too, without the tags of its owner."""
        return inherited(os.environ, self.command) | self.command.env | self.command.secrets

    def stop(self) -> StopReport:
        """Ends the engine: SIGTERM, then SIGKILL after the grace period, until no process is left.
        Idempotent.
        """
        with self._lock:
            if self._report is None:
                self._report = self._stop()
            return self._report

    def _specification(self, locks: Path) -> Specification:
        """What the guard starts, and how it ends it."""
        tags = {
            ownership.LAUNCH: self.launch_id,
            ownership.LOCKS: str(locks),
            ownership.GUARD: self._tag,
        }
        return Specification(
            argv=list(self.command.argv),
            env=self._environment() | tags | ownership.KEEP,
            cwd=str(self.workdir),
            log=str(self.log_path),
            grace_s=self.grace_s,
            after=list(self.command.after),
            tag=self._tag,
        )

    def _launch_guard(self, specification: Specification) -> None:
        guard_stdin, self._stop_pipe = os.pipe()
        self._event_pipe, guard_stdout = os.pipe()
        try:
            with (
                open(os.memfd_create("specification"), "w+") as memory_file,
                open(self.log_path, "ab") as log,
            ):
                json.dump(asdict(specification) | {"path": sys.path}, memory_file)
                memory_file.seek(0)
                log.write(self.redact(header(self.command)).encode())
                log.flush()
                launcher = subprocess.Popen(
                    [sys.executable, "-I", "-c", _LAUNCHER, str(memory_file.fileno())],
                    stdin=guard_stdin,
                    stdout=guard_stdout,
                    stderr=log,  # a traceback of the guard belongs beside the engine's own
                    env=clean_environment(os.environ, sys.executable),
                    cwd="/",
                    pass_fds=[memory_file.fileno()],
                )
            launcher.wait(_GUARD_START_S)
        finally:
            os.close(guard_stdin)
            os.close(guard_stdout)

    def _start_failure(self, event: dict[str, Any] | None) -> Failure:
        if event is None:
            sentence = "the guard process did not start the engine; the log says why"
            return Failure(FailureKind.NO_GUARD, sentence, self.log_tail())
        sentence = (
            f"{self.command.argv[0]} cannot be executed: {event['error']}; "
            "check `executable` or install the engine"
        )
        return Failure(FailureKind.NO_EXECUTABLE, sentence, self.log_tail())

    def _wait_for_event(self, names: set[str], timeout_s: float) -> dict[str, Any] | None:
        """The guard's next event with one of these names; None if it does not come in time."""
        deadline_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while left_s > 0 and self._event_pipe is not None:
            for event in self._read_events(left_s):
                if event["event"] in names:
                    return event
            left_s = deadline_s - time.monotonic()
        return None

    def _read_events(self, timeout_s: float) -> list[dict[str, Any]]:
        """The guard's new events. Keeps the exit status and the end of the tree that they report.
        If the guard died without an event, the engine died with it.
        """
        if self._event_pipe is None:
            return []
        readable, _, _ = select.select([self._event_pipe], [], [], timeout_s)
        if not readable:
            return []
        data = os.read(self._event_pipe, 65536)
        if not data:
            os.close(self._event_pipe)
            self._event_pipe = None
            if self._exit_status is None:
                self._exit_status = -signal.SIGKILL
            return []
        *lines, self._incomplete_event = (self._incomplete_event + data).split(b"\n")
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for event in events:
            if event["event"] == "exited":
                self._exit_status = event["status"]
            elif event["event"] == "stopped":
                self._tree_end = TreeEnd(event["killed"], tuple(event["left_over"]))
        return events

    def _stop(self, clock: Callable[[], float] = time.monotonic) -> StopReport:
        began_s = clock()
        if self._stop_pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._stop_pipe, b"stop\n")
        has_started = self.pid is not None
        if has_started and self._tree_end is None:
            self._wait_for_event({"stopped"}, self.grace_s + _GUARD_START_S)
        guard_was_killed = has_started and self._tree_end is None
        end = self._tree_end or TreeEnd()
        killed = end.killed
        if guard_was_killed:
            killed += len(ownership.kill_tagged({ownership.GUARD: self._tag}))
        # only the guard removes a container: where it was killed, the container may still run
        may_be_left = guard_was_killed or bool(end.left_over)
        self._release(processes_left=may_be_left)
        return StopReport(
            seconds=clock() - began_s,
            killed=killed,
            left_over=end.left_over,
            exit_status=self._exit_status,
        )

    def touch(self) -> None:
        """Keeps the file of the engine's lock from looking old."""
        if self._owner_lock is not None:
            self._owner_lock.touch()

    def _release(self, processes_left: bool = False) -> None:
        """Closes the pipes to the guard and releases the launch's lock. ``processes_left``: as for
        ``LaunchLock.release``.
        """
        for pipe in (self._stop_pipe, self._event_pipe):
            if pipe is not None:
                os.close(pipe)
        self._stop_pipe = None
        self._event_pipe = None
        if self._owner_lock is not None:
            self._owner_lock.release(processes_left)


def header(command: Command) -> str:
    """The first lines of an engine's log: its command, its variables and the decisions about it,
    without secrets.
    """
    lines = [f"$ {shlex.join(command.argv)}"]
    for name, value in sorted(command.env.items()):
        lines.append(f"{name}={HIDDEN if is_secret(name) else value}")
    lines += command.notes
    return "".join(f"# {line}\n" for line in lines)


def inherited(environment: Mapping[str, str], command: Command) -> dict[str, str]:
    """The node's variables that a command inherits."""
    variables = clean_environment(environment, command.argv[0])
    prefixes = command.inherits
    if prefixes is not None:
        variables = {name: value for name, value in variables.items() if name.startswith(prefixes)}
    return {name: value for name, value in variables.items() if name not in command.hides}


def clean_environment(environment: Mapping[str, str], executable: str) -> dict[str, str]:
    """``environment`` without variables of Ray and of our own Python, with the executable's folder
    first in PATH: engines call tools of their virtual environment (ninja, compilers) by name.
    """
    variables = {
        name: value
        for name, value in environment.items()
        if name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES)
    }
    folder = os.path.dirname(executable)
    if folder:
        variables["PATH"] = os.pathsep.join([folder, variables.get("PATH", os.defpath)])
    return variables


def tail(path: Path, lines: int, most_bytes: int = _TAIL_BYTES) -> str:
    """The last ``lines`` lines of a file, "" if it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def _write_files(workdir: Path, files: Mapping[str, str]) -> None:
    """Writes a command's files, readable for their user alone. Raises ValueError for a name that
    leads out of ``workdir``.
    """
    for name, text in files.items():
        path = (workdir / name).resolve()
        if not path.is_relative_to(workdir.resolve()):
            raise ValueError(f"{name!r} lies outside the launch's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)

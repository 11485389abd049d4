"""The guard: a small process between an owner and an engine. Because of it, nothing of a launch
outlives its owner.

Why it is built this way (tested on clusters with nine kinds of death of actor, raylet, driver and
job):

* It is double-forked, so its parent is init. Ray SIGKILLs the direct children of a dying worker,
  but does not know the guard and cannot kill it before it has cleaned up.
* Its stdin is a pipe whose other end only the owner has. However the owner dies, the pipe is
  closed.
* It is a subreaper: whatever the engine starts, even in a new session or as a daemon, stays a
  descendant of the guard. When it has no children left, nothing of the engine is left.
* If the guard itself is killed with SIGKILL, the engine dies with it (parent-death signal), and
  what the engine started is found by the tags in its environment (ownership.py).

The owner sends ``stop`` on stdin or closes the pipe. Events go out on stdout, one JSON object a
line: ``started``, ``failed``, ``exited``, ``stopped``.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from orchestrator.node.ownership import GUARD, kill_tagged
from orchestrator.node.shared_memory import LIMIT_S, SharedSegment, mapped, remove

OWNER_GONE_GRACE_S = 3.0  # without its owner nothing depends on a graceful end
CHILDREN_GRACE_S = 2.0  # for the rest once the engine itself has ended
GIVE_UP_S = 20.0  # after SIGKILL; only a process stuck in the kernel lives that long
AFTER_LIMIT_S = 30.0  # for the command that runs once the engine is gone
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
OWNER_GONE = "owner gone"  # the reason to end when the pipe from the owner is closed
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Specification:
    """What the guard starts and how it ends it, as the owner passes it on in JSON."""

    argv: list[str]
    env: dict[str, str]  # complete
    cwd: str
    log: str  # path of the engine's log
    grace_s: float  # between SIGTERM and SIGKILL
    after: list[str]  # command that runs once the engine is gone; it removes a container
    tag: str  # value of the variable ORCHESTRATOR_GUARD


@dataclass(frozen=True, slots=True)
class TreeEnd:
    """How the engine's processes ended."""

    killed: int = 0  # processes that needed SIGKILL
    left_over: tuple[int, ...] = ()  # pids of processes that are stuck in the kernel


@dataclass(slots=True)
class Child:
    """The process that the guard started, and how it ended."""

    pid: int
    status: int | None = None  # negative: killed by that signal
    # shared memory that it and its children used when the guard began to end them
    segments: set[SharedSegment] = field(default_factory=set)

    def note_segments(self, limit_s: float) -> None:
        """Notes the shared memory that is in use now: which of it a process used cannot be found
        out once that process is gone.
        """
        processes = psutil.Process().children(recursive=True)
        self.segments = mapped([process.pid for process in processes], limit_s)


def main(document: dict[str, Any]) -> None:
    """Starts the engine, waits for a reason to end it, and ends it.

    ``document``: a Specification.
    """
    specification = Specification(**document)
    signal_pipe = _prepare()
    try:
        engine = Child(_start(specification))
    except OSError as error:
        tell("failed", error=str(error))
        return
    tell("started", pid=engine.pid, guard=os.getpid(), niceness=os.nice(0))
    reason = _watch(engine, signal_pipe)
    grace_s = specification.grace_s
    if reason == OWNER_GONE:
        grace_s = min(OWNER_GONE_GRACE_S, grace_s)
    end = end_tree(engine, grace_s, signal_pipe)
    # where there are no subreapers, daemons are found this way
    killed = end.killed + len(kill_tagged({GUARD: specification.tag}))
    remove(engine.segments)
    _run_after(specification)
    tell("stopped", reason=reason, status=engine.status, killed=killed, left_over=end.left_over)


def tell(event: str, **facts: Any) -> None:
    """Sends an event to the owner, if it still exists."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


def _prepare() -> int:
    """Undoes what a raylet passes on (niceness, blocked signals). Returns the read end of a pipe to
    which every signal writes its number.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # without the privilege it keeps its niceness, which `started` reports
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    os.set_blocking(readable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in (*_END_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # the handler does nothing: the pipe has the number
    return readable


def _start(specification: Specification) -> int:
    """Starts the engine and returns its pid. Raises OSError."""
    guard = os.getpid()

    def in_child() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died in between
            os._exit(1)

    with open(specification.log, "ab", buffering=0) as log:
        process = subprocess.Popen(
            specification.argv,
            env=specification.env,
            cwd=specification.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=in_child,  # safe: the guard has one thread
        )
    process.returncode = 0  # reaped below with everything else, never through this object
    return process.pid


def _run_after(specification: Specification) -> None:
    """Runs the specification's last command. It removes a container, whose processes are not our
    children.
    """
    if not specification.after:
        return
    with (
        open(specification.log, "ab", buffering=0) as log,
        contextlib.suppress(OSError, subprocess.TimeoutExpired),
    ):
        subprocess.run(
            specification.after,
            env=specification.env,
            cwd=specification.cwd,
            stdout=log,
            stderr=log,
            timeout=AFTER_LIMIT_S,
            check=False,
        )


def _watch(engine: Child, signal_pipe: int) -> str:
    """Waits for a reason to end the engine, and returns it: ``stop``, ``owner gone``, ``exited`` or
    the name of a signal.
    """
    while True:
        ready, _, _ = select.select([0, signal_pipe], [], [])
        if 0 in ready:
            return "stop" if os.read(0, 64) else OWNER_GONE
        signals = _signals_on(signal_pipe)
        reap(engine)
        if engine.status is not None:
            return "exited"
        end_signals = [number for number in signals if number in _END_SIGNALS]
        if end_signals:
            return signal.Signals(end_signals[0]).name


def reap(engine: Child) -> bool:
    """Collects all children that ended, adopted ones included.

    Returns whether any child is left.
    """
    while True:
        try:
            pid, status, _ = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        if pid == engine.pid:
            engine.status = os.waitstatus_to_exitcode(status)
            tell("exited", status=engine.status)


def end_tree(
    engine: Child, grace_s: float, signal_pipe: int, clock: Callable[[], float] = time.monotonic
) -> TreeEnd:
    """Ends the engine and everything that it started. Sends SIGTERM to the engine, then to the
    children that it left, and SIGKILL to all of them after the grace period.

    A process that is alive ``GIVE_UP_S`` after SIGKILL is stuck in the kernel, and is left over.
    """
    deadline = clock() + grace_s
    killed: set[int] = set()
    # before any signal: an engine that is still starting dies of SIGTERM at once
    engine.note_segments(min(LIMIT_S, grace_s))
    if engine.status is None:
        _send(psutil.Process(engine.pid), signal.SIGTERM)
    children_have_sigterm = False
    while reap(engine):
        tree = [process for process in psutil.Process().children(recursive=True) if _runs(process)]
        if engine.status is not None and not children_have_sigterm:
            children_have_sigterm = True
            deadline = min(deadline, clock() + CHILDREN_GRACE_S)
            for process in tree:
                _send(process, signal.SIGTERM)
        if clock() >= deadline:
            for process in tree:
                if _send(process, signal.SIGKILL):
                    killed.add(process.pid)
        if clock() >= deadline + GIVE_UP_S:
            return TreeEnd(len(killed), tuple(sorted(process.pid for process in tree)))
        select.select([signal_pipe], [], [], 0.05)
        _signals_on(signal_pipe)
    return TreeEnd(len(killed))


def _send(process: psutil.Process, number: int) -> bool:
    """Sends a signal. Returns whether the process still existed."""
    try:
        process.send_signal(number)
    except psutil.Error:
        return False
    return True


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _signals_on(signal_pipe: int) -> bytes:
    """The numbers of the signals that have come since the last call."""
    try:
        return os.read(signal_pipe, 4096)
    except BlockingIOError:
        return b""


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)

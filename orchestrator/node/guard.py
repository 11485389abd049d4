"""The guard: a small process between an owner and an engine, so that nothing of a launch outlives
its owner.

Why it is built this way (tested on clusters with nine kinds of death of actor, raylet, driver and
job):

* It is double-forked, so its parent is init. Ray SIGKILLs the direct children of a dying worker,
  but does not know the guard and cannot kill it before it has cleaned up.
* Its stdin is a pipe whose other end only the owner has. However the owner dies, the pipe is
  closed.
* It is a subreaper: whatever the engine starts, even in a new session or as a daemon, stays a
  descendant of the guard. When it has no children left, nothing of the engine is left.
* Should someone SIGKILL the guard, the engine dies with it (parent-death signal), and what the
  engine started is found by the tags in its environment (ownership.py).

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
from orchestrator.node.shared_memory import LIMIT_S, Segments, mapped, remove

OWNER_GONE_GRACE_S = 3.0  # nobody waits for a graceful end any more
CHILDREN_GRACE_S = 2.0  # for the rest once the engine itself has ended
GIVE_UP_S = 20.0  # after SIGKILL; only a process stuck in the kernel lives that long
AFTER_S = 30.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(slots=True)
class Child:
    """The process that the guard was told to start, and how it ended."""

    pid: int
    status: int | None = None  # negative: killed by that signal
    # shared memory that it and its children used when the guard began to end them
    segments: Segments = field(default_factory=set)

    def note_segments(self, limit_s: float) -> None:
        """Note the shared memory in use now: once a process is gone, it cannot be found out."""
        processes = psutil.Process().children(recursive=True)
        self.segments = mapped([process.pid for process in processes], limit_s)


def main(spec: dict[str, Any]) -> None:
    """``spec``: argv, env (complete), cwd, log (a path), grace_s, after (an argv), tag (of
    ORCHESTRATOR_GUARD).
    """
    wake = _prepare()
    try:
        engine = Child(_start(spec))
    except OSError as error:
        tell("failed", error=str(error))
        return
    tell("started", pid=engine.pid, guard=os.getpid(), niceness=os.nice(0))
    reason = _watch(engine, wake)
    grace_s = OWNER_GONE_GRACE_S if reason == "owner gone" else float(spec["grace_s"])
    killed, left_over = end_tree(engine, min(grace_s, float(spec["grace_s"])), wake)
    # where there are no subreapers, daemons are found this way
    killed += len(kill_tagged({GUARD: spec["tag"]}))
    remove(engine.segments)
    _run_after(spec)
    tell("stopped", reason=reason, status=engine.status, killed=killed, left_over=left_over)


def tell(event: str, **facts: Any) -> None:
    """Send an event to the owner, if it still exists."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


def _prepare() -> int:
    """Undo what a raylet passes on (niceness, blocked signals). Returns a pipe that every signal
    writes to.
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
        signal.signal(number, lambda *_: None)  # its number arrives on the pipe
    return readable


def _start(spec: dict[str, Any]) -> int:
    """Starts the engine and returns its pid. Raises OSError."""
    guard = os.getpid()

    def in_child() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died in between
            os._exit(1)

    with open(spec["log"], "ab", buffering=0) as log:
        process = subprocess.Popen(
            spec["argv"],
            env=spec["env"],
            cwd=spec["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=in_child,  # safe: the guard has one thread
        )
    process.returncode = 0  # reaped below with everything else, never through this object
    return process.pid


def _run_after(spec: dict[str, Any]) -> None:
    """Run the specification's last command: it removes a container, whose processes are not our
    children.
    """
    if not spec["after"]:
        return
    with (
        open(spec["log"], "ab", buffering=0) as log,
        contextlib.suppress(OSError, subprocess.TimeoutExpired),
    ):
        subprocess.run(
            spec["after"],
            env=spec["env"],
            cwd=spec["cwd"],
            stdout=log,
            stderr=log,
            timeout=AFTER_S,
            check=False,
        )


def _watch(engine: Child, wake: int) -> str:
    """Wait for a reason to end: ``stop``, ``owner gone``, ``exited`` or the name of a signal."""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if 0 in ready:
            return "stop" if os.read(0, 64) else "owner gone"
        numbers = _drain(wake)
        reap(engine)
        if engine.status is not None:
            return "exited"
        if ended := [number for number in numbers if number in _END_SIGNALS]:
            return signal.Signals(ended[0]).name


def reap(engine: Child) -> bool:
    """Collect all children that ended, adopted ones included. Returns whether any child is left."""
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
    engine: Child, grace_s: float, wake: int, clock: Callable[[], float] = time.monotonic
) -> tuple[int, list[int]]:
    """SIGTERM to the engine, then to its remaining children, then SIGKILL to all after the grace
    period.

    Returns how many needed SIGKILL, and the pids that outlived even that (stuck in the kernel).
    """
    deadline = clock() + grace_s
    asked, killed = False, set[int]()
    # first, since a starting engine dies of SIGTERM at once
    engine.note_segments(min(LIMIT_S, grace_s))
    if engine.status is None:
        _send(psutil.Process(engine.pid), signal.SIGTERM)
    while reap(engine):
        tree = [process for process in psutil.Process().children(recursive=True) if _runs(process)]
        if engine.status is not None and not asked:
            asked, deadline = True, min(deadline, clock() + CHILDREN_GRACE_S)
            for process in tree:
                _send(process, signal.SIGTERM)
        if clock() >= deadline:
            killed |= {process.pid for process in tree if _send(process, signal.SIGKILL)}
        if clock() >= deadline + GIVE_UP_S:
            return len(killed), sorted(process.pid for process in tree)
        select.select([wake], [], [], 0.05)
        _drain(wake)
    return len(killed), []


def _send(process: psutil.Process, number: int) -> bool:
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


def _drain(wake: int) -> bytes:
    try:
        return os.read(wake, 4096)
    except BlockingIOError:
        return b""


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)

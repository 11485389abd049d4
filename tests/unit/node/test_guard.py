"""The guard ends what it started, for whatever reason, and tells how.

What remains when owners, guards and engines die in turn: tests/integration/test_engine_process.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.node.guard import Specification

SLEEP = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
    "time.sleep(60)"
)
# leaves a child in a session of its own, without a parent
DAEMON = (
    "import os, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        print(os.getpid(), flush=True)\n"
    "        time.sleep(60)\n"
    "    os._exit(0)\n"
    "time.sleep(60)\n"
)
RUN_GUARD = (
    "import json, sys; from orchestrator.node.guard import main; main(json.loads(sys.argv[1]))"
)
LIMIT_S = 60.0


class Guard:
    """A guard process, as its owner sees it."""

    def __init__(
        self, folder: Path, *argv: str, grace_s: float = 10.0, after: tuple[str, ...] = ()
    ):
        self.log = folder / "engine.log"
        specification = Specification(
            argv=list(argv),
            env=dict(os.environ),
            cwd=str(folder),
            log=str(self.log),
            grace_s=grace_s,
            after=list(after),
            tag=uuid.uuid4().hex,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", RUN_GUARD, json.dumps(asdict(specification))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def next_event(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        event: dict[str, Any] = json.loads(self._process.stdout.readline())
        return event

    def wait_for_log(self) -> str:
        """The first line of the engine's log."""
        while not self.log.read_text().endswith("\n"):
            assert self._process.poll() is None
        return self.log.read_text().strip()

    def terminate(self) -> None:
        self._process.terminate()

    def last_events(self, message: str = "") -> dict[str, dict[str, Any]]:
        """Send a message, close the pipe, and return what the guard tells until its own end."""
        output, _ = self._process.communicate(message, timeout=LIMIT_S)
        events = [json.loads(line) for line in output.splitlines()]
        return {event["event"]: event for event in events}


@pytest.mark.parametrize(("message", "reason"), [("stop\n", "stop"), ("", "owner gone")])
def test_the_engine_ends_when_its_owner_says_so_or_is_gone(
    tmp_path: Path, message: str, reason: str
) -> None:
    guard = Guard(tmp_path, sys.executable, "-c", SLEEP)
    engine = guard.next_event()
    events = guard.last_events(message)
    assert engine["event"] == "started"
    assert events["stopped"]["reason"] == reason
    assert events["exited"]["status"] < 0
    assert not psutil.pid_exists(engine["pid"])


def test_a_signal_to_the_guard_ends_the_engine(tmp_path: Path) -> None:
    guard = Guard(tmp_path, sys.executable, "-c", SLEEP)
    guard.next_event()
    guard.terminate()
    guard.next_event()
    stopped = guard.next_event()
    guard.last_events()
    assert stopped["reason"] == "SIGTERM"


def test_the_status_of_an_engine_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    guard = Guard(tmp_path, sys.executable, "-c", "raise SystemExit(7)")
    started, exited, stopped = (guard.next_event() for _ in range(3))
    guard.last_events()
    assert started["event"] == "started"
    assert exited["status"] == 7
    assert stopped["reason"] == "exited"
    assert stopped["status"] == 7


def test_a_program_that_cannot_be_executed_is_told(tmp_path: Path) -> None:
    guard = Guard(tmp_path, str(tmp_path / "missing"))
    failed = guard.next_event()
    guard.last_events()
    assert failed["event"] == "failed"
    assert "No such file" in failed["error"]


def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    guard = Guard(tmp_path, sys.executable, "-c", STUBBORN, grace_s=0.5)
    guard.next_event()
    guard.wait_for_log()
    events = guard.last_events("stop\n")
    assert events["stopped"]["killed"] == 1
    assert events["stopped"]["status"] == -9
    assert events["stopped"]["left_over"] == []


def test_a_daemon_of_the_engine_ends_with_it(tmp_path: Path) -> None:
    guard = Guard(tmp_path, sys.executable, "-c", DAEMON)
    guard.next_event()
    daemon = int(guard.wait_for_log())
    guard.last_events("stop\n")
    assert not psutil.pid_exists(daemon)


def test_the_last_command_runs_when_the_engine_is_gone(tmp_path: Path) -> None:
    guard = Guard(tmp_path, sys.executable, "-c", "", after=("echo", "container removed"))
    guard.next_event()
    guard.last_events("stop\n")
    assert guard.log.read_text() == "container removed\n"

"""Processes of a launch: their CPU and memory against real processes of known use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from orchestrator.telemetry.proc_files import ProcFiles
from orchestrator.telemetry.processes import (
    LOOK_EVERY_S,
    PROC,
    ProcessFamily,
    SweepProcesses,
    read_process,
)

# uses so many seconds of CPU when it reads a line with a number, and says so when it has
BURNS = """
import sys, time
ballast = bytearray(int(sys.argv[1]))
ballast[::4096] = b"x" * len(ballast[::4096])
print("ready", flush=True)
for line in sys.stdin:
    until = time.process_time() + float(line)
    while time.process_time() < until:
        pass
    print(time.process_time(), flush=True)
"""


@contextmanager
def burner(ballast: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process with so many bytes of ballast."""
    process = subprocess.Popen(
        [sys.executable, "-c", BURNS, str(ballast)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout and process.stdin
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def burn(process: subprocess.Popen[str], seconds: float) -> float:
    """Has it use CPU; what it has used in all."""
    assert process.stdout and process.stdin
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def write_stat(proc: Path, pid: int, parent: int) -> None:
    """A process of a made-up /proc."""
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (name) S {parent} " + "0 " * 48)


def test_a_process_is_read_as_psutil_reads_it() -> None:
    own = psutil.Process()
    files = ProcFiles(PROC)
    reading = read_process(os.getpid(), files)
    assert reading is not None
    times = own.cpu_times()
    assert reading.parent == own.ppid()
    assert reading.cpu_s == pytest.approx(times.user + times.system, abs=0.05)
    assert reading.rss_bytes == pytest.approx(own.memory_info().rss, rel=0.05)
    assert read_process(2**22 + 1, files) is None
    files.close()


def test_the_cpu_time_of_a_family_is_what_its_processes_used_since() -> None:
    with burner() as process:
        burn(process, 0.1)
        family = ProcessFamily([process.pid])
        family.read()
        assert family.cpu_s == 0.0, "what it used before does not count"
        burn(process, 0.2)
        family.read()
        assert family.cpu_s == pytest.approx(0.2, abs=0.03)


def test_the_memory_of_a_family_is_that_of_its_processes() -> None:
    with burner() as small, burner(64 << 20) as large:
        families = [ProcessFamily([process.pid]) for process in (small, large)]
        for family in families:
            family.read()
        more_bytes = families[1].rss_bytes - families[0].rss_bytes
        assert more_bytes == pytest.approx(64 << 20, rel=0.05)


def test_what_an_ended_process_used_still_counts() -> None:
    with burner() as process:
        family = ProcessFamily([process.pid])
        family.read()
        burn(process, 0.1)
        family.read()
        used_s = family.cpu_s
        process.send_signal(signal.SIGKILL)
        process.wait()
        family.read()
        assert family.cpu_s == used_s > 0.05
        assert (family.pids, family.rss_bytes) == (set(), 0)


def test_a_child_that_begins_later_counts_from_its_begin() -> None:
    now_s = 0.0
    processes = SweepProcesses([os.getpid()], clock=lambda: now_s)
    assert processes.look()
    processes.launch.read()
    with burner() as child:
        used_s = burn(child, 0.2)
        assert not processes.look(), "it looked just now"
        assert child.pid not in processes.launch.pids
        now_s = LOOK_EVERY_S
        assert processes.look()
        assert child.pid in processes.launch.pids
        processes.launch.read()
        assert processes.launch.cpu_s >= used_s - 0.05


def test_a_process_that_was_seen_is_not_read_again_to_find_children(tmp_path: Path) -> None:
    """2 is the launch, 3 its child, 4 of another program, 5 a child that begins later."""
    now_s = 0.0
    processes = SweepProcesses([2], proc=tmp_path, clock=lambda: now_s)
    for pid, parent in ((2, 1), (3, 2), (4, 1)):
        write_stat(tmp_path, pid, parent)
    processes.look()
    assert processes.launch.pids == {2, 3}
    write_stat(tmp_path, 4, parent=2)  # would be taken for a child if it were read
    write_stat(tmp_path, 5, parent=3)
    now_s = LOOK_EVERY_S
    processes.look()
    assert processes.launch.pids == {2, 3, 5}


def test_the_others_are_read_when_new_processes_are_looked_for() -> None:
    with burner() as other:
        processes = SweepProcesses([], [other.pid], clock=lambda: 0.0)
        assert processes.look()
        burn(other, 0.2)
        assert not processes.look()
        assert processes.cpu_s == 0.0, "read at the last look"
        assert processes.look(at_once=True)
        assert processes.cpu_s == pytest.approx(0.2, abs=0.03)


def test_the_launchs_processes_are_not_among_the_others() -> None:
    with burner() as child:
        processes = SweepProcesses([child.pid], [os.getpid(), child.pid])
        processes.look()
        assert child.pid in processes.launch.pids
        assert child.pid not in processes.others.pids
        assert os.getpid() in processes.others.pids

"""The first signal asks, the second ends: in a process of its own, as signals need the main thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from orchestrator.cli.signals import stops

PROGRAM = """
import signal, sys, threading, time
from orchestrator.cli import signals
from orchestrator.cli.signals import stops
signals.TOGETHER_S = float(sys.argv[2])
stop, before = threading.Event(), signal.getsignal(signal.SIGTERM)
with stops(stop):
    print("on", flush=True)
    stop.wait(30)
    print("asked", flush=True)
    time.sleep(float(sys.argv[1]))
assert signal.getsignal(signal.SIGTERM) is before
print("ended by itself", flush=True)
"""


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_a_request_and_the_second_is_the_end(first: int, second: int) -> None:
    command = [sys.executable, "-c", PROGRAM, "30", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        os.kill(process.pid, first)
        assert process.stdout.readline() == "asked\n"
        os.kill(process.pid, second)
        assert process.wait(10) == 130
        assert process.stdout.read() == ""


def test_after_one_everything_ends_in_order() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "0", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == "asked\nended by itself\n"
        assert process.wait(10) == 0


def test_two_that_come_together_are_one() -> None:
    """As ``timeout`` sends them: once to the program and once to its process group."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "2", "60"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == "asked\n"
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == "ended by itself\n"
        assert process.wait(10) == 0


IN_A_CALL = """
import ctypes, os, threading
from orchestrator.cli import signals
from orchestrator.cli.signals import stops
signals.TOGETHER_S = 0
stop, mutex, libc = threading.Event(), ctypes.create_string_buffer(64), ctypes.CDLL(None)
def say():
    stop.wait()
    print("asked", flush=True)
for work in (threading.Thread(target=say), threading.Timer(20, os._exit, (1,))):
    work.daemon = True
    work.start()
with stops(stop):
    libc.pthread_mutex_lock(mutex)
    print("on", flush=True)
    libc.pthread_mutex_lock(mutex)  # never returns: no signal ends it
"""


def test_both_work_while_the_main_thread_is_in_a_call_that_does_not_return() -> None:
    """As a write to an object store that is silent: handlers of Python would never run."""
    with subprocess.Popen(
        [sys.executable, "-c", IN_A_CALL], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == 130


def test_other_signals_ask_for_nothing_and_what_was_set_before_is_set_again() -> None:
    stop, before = threading.Event(), signal.getsignal(signal.SIGINT)
    heard: list[int] = []
    other = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with stops(stop):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, other)
    assert heard == [signal.SIGUSR1]
    assert not stop.is_set()
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1

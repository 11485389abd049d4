"""The first signal asks, the second ends: in a process of its own, as signals need the main thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, threading, time
from orchestrator.cli.signals import stops
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
    command = [sys.executable, "-c", PROGRAM, "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        os.kill(process.pid, first)
        assert process.stdout.readline() == "asked\n"
        os.kill(process.pid, second)
        assert process.wait(10) == 130
        assert process.stdout.read() == ""


def test_after_one_everything_ends_in_order() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.read() == "asked\nended by itself\n"
        assert process.wait(10) == 0

"""How many heaps the C library keeps for threads, by its own report."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from orchestrator.runner.memory import share_one_arena
{call}
meet = threading.Barrier(6)
def run():
    kept = bytearray(100_000)
    meet.wait()
threads = [threading.Thread(target=run) for _ in range(6)]
[one.start() for one in threads], [one.join() for one in threads]
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def heaps(call: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(call=call)], capture_output=True, text=True, check=True)
    return done.stdout.count("<heap nr")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="NOT RUN: another C library than glibc has no arenas")
def test_threads_share_one_heap() -> None:
    assert heaps("") > 1
    assert heaps("share_one_arena()") == 1

"""How many heaps the C library keeps for threads, by its own report."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
import pyarrow as pa
from orchestrator.sweep.driver_heap import share_one_heap
{call}
meet = threading.Barrier(6)
def run():
    kept = bytearray(100_000), pa.allocate_buffer(100_000)
    meet.wait()
threads = [threading.Thread(target=run) for _ in range(6)]
[one.start() for one in threads], [one.join() for one in threads]
print(pa.default_memory_pool().backend_name, flush=True)
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def heaps(call: str) -> tuple[str, int]:
    """Arrow's allocator, and how many heaps the C library has."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call=call)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.partition("\n")[0], done.stdout.count("<heap nr")


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="NOT RUN: another C library than glibc has no arenas"
)
def test_threads_and_arrow_share_one_heap() -> None:
    usual_allocator, usual_heaps = heaps("")
    allocator, shared_heaps = heaps("share_one_heap()")
    assert usual_allocator != "system"
    assert allocator == "system"
    assert shared_heaps <= 2 < usual_heaps  # Arrow has a thread since it was imported

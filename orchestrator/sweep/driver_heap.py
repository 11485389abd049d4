"""Keeps a driver's memory small although its launches are threads that come and go."""

import ctypes
from contextlib import suppress

import pyarrow as pa

M_ARENA_MAX = -8  # malloc.h


def share_one_heap() -> None:
    """Let Arrow, and threads that start from now on, allocate on the one heap of the C library.
    Call it early, because glibc fixes the limit on heaps once there are a few.

    If threads and Arrow have heaps of their own, what they free stays there in pieces, and memory
    grows with the number of points that were measured. C libraries other than glibc have no such
    setting for threads.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

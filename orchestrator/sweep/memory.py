"""Memory of a driver whose launches are threads that come and go."""

import ctypes
from contextlib import suppress

import pyarrow as pa

M_ARENA_MAX = -8  # malloc.h


def share_one_heap() -> None:
    """Let threads that start from now on, and Arrow, allocate on the one heap of the C library.
    Call it early: glibc settles how many heaps there may be when there are a few.

    Where each thread and Arrow have their own, what they free stays in pieces there, and memory
    grows with the points that were measured. C libraries other than glibc have no such setting for
    threads.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

"""Memory of a driver whose launches are threads that come and go."""

import ctypes
from contextlib import suppress

M_ARENA_MAX = -8  # malloc.h


def share_one_arena() -> None:
    """Let threads that start from now on share glibc's heap; other C libraries have no such setting.

    With an arena for each of them, what they free stays in pieces, and memory grows with the points that were measured.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

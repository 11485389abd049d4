"""Removes shared memory that engines leave in /dev/shm: 25 MB of an SGLang with two ranks, 8 MB of
a vLLM.

A segment is ours if one of our processes had it mapped and it has a name that engines use. The name
alone does not tell whose it is, since most names contain no pid.
"""

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

FOLDER = "/dev/shm/"  # noqa: S108 - where Linux has POSIX shared memory
# vLLM's queues, SGLang's loads and queues (srt/utils/stale_shm_cleanup.py), NCCL's, torch's,
# Python's own, Open MPI's.
NAMES = (
    "vllm_",
    "sglang_",
    "sgl_shm_",
    "nccl-",
    "torch_",
    "psm_",
    "sem.mp-",
    "vader_segment.",
    "sm_segment.",
)
LIMIT_S = 1.0
Segments = set[tuple[str, int]]  # path and inode


def mapped(pids: Iterable[int], limit_s: float = LIMIT_S, folder: str = FOLDER) -> Segments:
    """The engines' segments that these processes have mapped now; processes that are gone have
    none.

    Reading about a process that is stuck in the kernel may hang: the result is what was read within
    ``limit_s``.
    """
    segments: Segments = set()
    reader = threading.Thread(target=_read, args=(list(pids), segments, folder), daemon=True)
    reader.start()
    reader.join(limit_s)
    return segments.copy()


def _read(pids: Iterable[int], segments: Segments, folder: str) -> None:
    paths = tuple(os.path.join(folder, name) for name in NAMES)
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            # address perms offset device inode path
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(paths):
                segments.add((fields[5], int(fields[4])))


def names(folder: str = FOLDER) -> set[str]:
    """Names of all engines' segments on this host, whoever owns them."""
    with contextlib.suppress(OSError):
        return {name for name in os.listdir(folder) if name.startswith(NAMES)}
    return set()


def remove(segments: Segments) -> None:
    """Unlink the segments that still exist. The inode is compared: in a container the path may be
    another file.
    """
    for path, inode in segments:
        try:
            if os.stat(path).st_ino == inode:
                os.unlink(path)
        except OSError:
            continue

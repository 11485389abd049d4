"""Removes shared memory that engines leave in /dev/shm: an SGLang with two ranks leaves 25 MB, a
vLLM 8 MB.

A segment is ours if one of our processes had it mapped and it has a name that engines use. The name
alone does not tell whose it is, since most names contain no pid.
"""

import contextlib
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = "/dev/shm/"  # noqa: S108 - where Linux has POSIX shared memory
# Prefixes of the names that vLLM, SGLang (srt/utils/stale_shm_cleanup.py), NCCL, torch, Python
# itself and Open MPI give to segments.
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


@dataclass(frozen=True, slots=True)
class SharedSegment:
    """A file in shared memory."""

    path: str
    inode: int


def mapped(
    pids: Iterable[int], limit_s: float = LIMIT_S, folder: str = FOLDER
) -> set[SharedSegment]:
    """The engines' segments that these processes have mapped now. Processes that are gone have
    none.

    Reading about a process that is stuck in the kernel may hang, so the result is what could be
    read within ``limit_s``.
    """
    segments: set[SharedSegment] = set()
    reader = threading.Thread(target=_read, args=(list(pids), segments, folder), daemon=True)
    reader.start()
    reader.join(limit_s)
    return segments.copy()


def _read(pids: Iterable[int], segments: set[SharedSegment], folder: str) -> None:
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
                segments.add(SharedSegment(path=fields[5], inode=int(fields[4])))


def names(folder: str = FOLDER) -> set[str]:
    """Names of all engines' segments on this host, of all users."""
    with contextlib.suppress(OSError):
        return {name for name in os.listdir(folder) if name.startswith(NAMES)}
    return set()


def remove(segments: Iterable[SharedSegment]) -> None:
    """Unlinks the segments that still exist. In a container the same path may be another file, so
    the inode is compared.
    """
    for segment in segments:
        try:
            if os.stat(segment.path).st_ino == segment.inode:
                os.unlink(segment.path)
        except OSError:
            continue

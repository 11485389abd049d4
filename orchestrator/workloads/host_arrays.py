"""Arrays that one process of a host makes and all others of the same user read: the tokens of a long
text, which take a minute of a core to find and hundreds of megabytes to hold.

They are files below ``node_folder``, mapped into memory, so that processes share their pages. Few
are kept.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from orchestrator.base.errors import OrchestratorError
from orchestrator.base.folders import node_folder

MOST_KEPT = 4  # sets of arrays; a text of 64 MiB has some 100 MB

Arrays = Mapping[str, NDArray[np.int32]]


def host_arrays(name: str, names: Sequence[str], make: Callable[[], Arrays]) -> Arrays:
    """The arrays of this name, made by the first process that asks for them; others wait for it.

    ``name``: says everything that the arrays depend on. ``names``: of what ``make`` returns. Where no
    file can be written or read, each process makes its own.
    """
    try:
        return _stored_or_made(node_folder("texts"), name, names, make)
    except (OSError, OrchestratorError):
        return make()


def _stored_or_made(
    folder: Path, name: str, names: Sequence[str], make: Callable[[], Arrays]
) -> Arrays:
    """Raises OSError where the folder cannot be used."""
    place = folder / name
    with FileLock(folder / f"{name}.lock", mode=0o600):
        stored = _read(place, names)
        if stored is not None:
            os.utime(place)  # the latest use
            return stored
        shutil.rmtree(place, ignore_errors=True)  # damaged
        arrays = make()
        _write(place, arrays)
        _remove_oldest(folder)
        return _read(place, names) or arrays


def _read(place: Path, names: Sequence[str]) -> Arrays | None:
    """The arrays of a folder; None where a file is not there or is damaged."""
    try:
        return {
            name: np.load(_file(place, name), mmap_mode="r", allow_pickle=False).view(np.ndarray)
            for name in names
        }
    except (OSError, ValueError):
        return None


def _file(place: Path, name: str) -> Path:
    return place / f"{name}.npy"


def _write(place: Path, arrays: Arrays) -> None:
    """Writes all arrays or none."""
    unfinished = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        unfinished.mkdir(mode=0o700)
        for name, array in arrays.items():
            np.save(_file(unfinished, name), array, allow_pickle=False)
        unfinished.rename(place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _remove_oldest(folder: Path) -> None:
    """Removes all but the arrays that were used last. Processes that hold some keep them."""
    places = [entry for entry in folder.iterdir() if entry.is_dir()]
    with contextlib.suppress(FileNotFoundError):  # another process removes them, too
        places.sort(key=lambda place: place.stat().st_mtime_ns, reverse=True)
    for place in places[MOST_KEPT:]:
        shutil.rmtree(place, ignore_errors=True)
        place.with_name(f"{place.name}.lock").unlink(missing_ok=True)

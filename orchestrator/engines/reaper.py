"""A node's backstop: ends what is left of launches whose owner is gone, in case the guard was killed too."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator.engines.container import LOCKS_LABEL, launch_of
from orchestrator.engines.ownership import LAUNCH, LOCKS, is_held, kill_tagged, node_folder, tagged

RUNTIMES = ("docker", "podman")
RUNTIME_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process or container that outlived its launch."""

    pid: int  # 0 for a container
    launch_id: str
    name: str


def leftovers(alive: Collection[str] = (), locks: Path | None = None) -> list[Leftover]:
    """Processes and containers of launches that no living owner holds and that are not in ``alive``. Only looks.

    ``locks``: folder of the locks; what is tagged with another folder belongs to someone else.
    """
    folder = locks or node_folder("locks")
    found = [*_processes(folder), *(each for runtime in RUNTIMES for each in _containers(runtime, folder))]
    held = {
        launch_id: launch_id in alive or is_held(launch_id, folder) for launch_id in {each.launch_id for each in found}
    }
    return [each for each in found if not held[each.launch_id]]


def reap(alive: Collection[str] = (), locks: Path | None = None) -> list[Leftover]:
    """Ends what ``leftovers`` finds, processes by pid and start time; returns what it ended."""
    folder = locks or node_folder("locks")
    found = leftovers(alive, folder)
    for launch_id in {leftover.launch_id for leftover in found if leftover.pid}:
        kill_tagged({LAUNCH: launch_id, LOCKS: str(folder)})
    for name in (leftover.name for leftover in found if not leftover.pid):
        runtime, _, container = name.partition(" ")
        _run(runtime, "rm", "--force", container)
    return found


def _processes(folder: Path) -> list[Leftover]:
    found = []
    for process, environ in tagged({LOCKS: str(folder)}):
        try:
            found.append(Leftover(process.pid, environ.get(LAUNCH, ""), process.name()))
        except psutil.Error:
            continue
    return found


def _containers(runtime: str, folder: Path) -> list[Leftover]:
    """Containers of ours; ``name`` is the runtime and the container's name. Empty where the runtime is not there."""
    if shutil.which(runtime) is None:
        return []
    ours = f"label={LOCKS_LABEL}={folder}"
    names = _run(runtime, "ps", "--all", "--filter", ours, "--format", "{{.Names}}").split()
    return [Leftover(0, launch_of(name), f"{runtime} {name}") for name in names]


def _run(*argv: str) -> str:
    """Its output; "" when it fails: a client without a daemon has no containers."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=RUNTIME_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""

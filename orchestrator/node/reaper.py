"""The backstop of a node: ends what is left of launches whose owner is gone, in case the guard was
killed too.
"""

import shutil
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator.base.folders import node_folder
from orchestrator.engines.container import LOCKS_LABEL, launch_of
from orchestrator.node import guard
from orchestrator.node.ownership import (
    LAUNCH,
    LOCKS,
    forget,
    is_abandoned,
    is_held,
    kill_tagged,
    tagged,
)

RUNTIMES = ("docker", "podman")
RUNTIME_LIMIT_S = 30.0
WORK_KEPT_S = 7 * 86_400.0  # for work folders of dead launches: only their logs may tell why


@dataclass(frozen=True, slots=True)
class LaunchMember:
    """A process or container of a launch."""

    launch_id: str
    name: str
    pid: int = 0  # of a process; 0 for a container
    runtime: str = ""  # of a container: docker or podman


def leftovers(locks: Path | None = None) -> list[LaunchMember]:
    """Processes and containers of launches whose owners are gone. Changes nothing.

    ``locks``: folder of the locks; processes tagged with another folder belong to someone else.
    """
    folder = locks or node_folder("locks")
    # before looking at processes, since a living owner may start more
    abandoned = _abandoned(folder)
    candidates = _processes(folder)
    for runtime in RUNTIMES:
        candidates += _containers(runtime, folder)
    return [candidate for candidate in candidates if candidate.launch_id in abandoned]


def reap(locks: Path | None = None, work: Path | None = None) -> list[LaunchMember]:
    """Ends what ``leftovers`` finds and returns it. Also removes old lock files and work folders of
    dead launches.

    ``work``: folder with the launches' work folders.
    """
    folder = locks or node_folder("locks")
    abandoned = _abandoned(folder)
    ended = leftovers(folder)
    for launch_id in {leftover.launch_id for leftover in ended if leftover.pid}:
        kill_tagged({LAUNCH: launch_id, LOCKS: str(folder)})
    for leftover in ended:
        if not leftover.pid:
            output_of(leftover.runtime, "rm", "--force", leftover.name)
    for launch_id in abandoned - {process.launch_id for process in _processes(folder)}:
        forget(folder / f"{launch_id}.lock")
    for work_folder in dead_work(folder, work or node_folder("work")):
        with suppress(OSError):  # another agent removes it too
            if _age_s(work_folder) > WORK_KEPT_S:
                shutil.rmtree(work_folder, ignore_errors=True)
    return ended


def _age_s(folder: Path) -> float:
    """Seconds since a folder or a file in it was written. Raises OSError."""
    written_s = [path.lstat().st_mtime for path in (folder, *folder.iterdir())]
    return time.time() - max(written_s)


def processes_of(launches: Collection[str], in_docker: bool = False) -> set[int]:
    """Pids of our launches: engines, their guards and, with ``in_docker``, what docker's daemon
    runs for them. Children of these belong to the launches too.
    """
    pids: set[int] = set()
    folder = node_folder("locks")
    for process, environment in tagged({LOCKS: str(folder)}):
        if environment.get(LAUNCH) not in launches:
            continue
        pids.add(process.pid)
        with suppress(psutil.Error):
            parent = process.parent()  # podman's containers are untagged children of the guard
            if parent is not None and any(guard.__name__ in word for word in parent.cmdline()):
                pids.add(parent.pid)
    if in_docker:
        pids |= _pids_in_docker(launches, folder)
    return pids


def _pids_in_docker(launches: Collection[str], folder: Path) -> set[int]:
    """Pids of what docker's daemon runs for these launches."""
    names = [
        container.name
        for container in _containers("docker", folder)
        if container.launch_id in launches
    ]
    if not names:
        return set()
    output = output_of("docker", "inspect", "--format", "{{.State.Pid}}", *names)
    return {int(pid) for pid in output.split() if pid.isdigit() and pid != "0"}  # 0: it ended


def dead_work(locks: Path, work: Path) -> list[Path]:
    """Work folders (``<launch>-<random>``) of launches without a living owner."""
    return [
        path
        for path in work.iterdir()
        if not is_held(locks / f"{path.name.rpartition('-')[0]}.lock")
    ]


def _abandoned(folder: Path) -> set[str]:
    """Ids of the launches whose owners are gone."""
    return {path.name.removesuffix(".lock") for path in folder.glob("*.lock") if is_abandoned(path)}


def _processes(folder: Path) -> list[LaunchMember]:
    """The tagged processes of all launches, living and dead."""
    processes = []
    for process, environment in tagged({LOCKS: str(folder)}):
        with suppress(psutil.Error):
            launch_id = environment.get(LAUNCH, "")
            processes.append(LaunchMember(launch_id, process.name(), pid=process.pid))
    return processes


def _containers(runtime: str, folder: Path) -> list[LaunchMember]:
    """Our containers. Empty if the runtime is not installed."""
    if shutil.which(runtime) is None:
        return []
    label = f"label={LOCKS_LABEL}={folder}"
    names = output_of(runtime, "ps", "--all", "--filter", label, "--format", "{{.Names}}")
    return [LaunchMember(launch_of(name), name, runtime=runtime) for name in names.split()]


def output_of(*argv: str) -> str:
    """The command's output; "" if it fails, as without a running daemon."""
    try:
        completed = subprocess.run(
            argv, capture_output=True, text=True, timeout=RUNTIME_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout if completed.returncode == 0 else ""

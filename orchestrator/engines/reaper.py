"""The backstop of a node: ends what is left of launches whose owners are gone, should a guard have been killed too."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator.engines.lease import is_held, node_folder
from orchestrator.engines.marks import LAUNCH, LEASES, kill_marked, marked


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that outlived its launch."""

    pid: int
    launch_id: str
    name: str


def leftovers(alive: Collection[str] = (), leases: Path | None = None) -> list[Leftover]:
    """Processes of launches that no living owner holds and that are not in ``alive``. Only looks.

    ``leases``: folder of the leases; processes marked with another folder belong to someone else.
    """
    folder = leases or node_folder("leases")
    held: dict[str, bool] = {}
    found = []
    for process, environ in marked({LEASES: str(folder)}):
        launch_id = environ.get(LAUNCH, "")
        if launch_id not in held:
            held[launch_id] = launch_id in alive or is_held(launch_id, folder)
        if held[launch_id]:
            continue
        try:
            found.append(Leftover(process.pid, launch_id, process.name()))
        except psutil.Error:
            continue
    return found


def reap(alive: Collection[str] = (), leases: Path | None = None) -> list[Leftover]:
    """Kills what ``leftovers`` finds, by pid and start time; returns what it killed."""
    folder = leases or node_folder("leases")
    found = leftovers(alive, folder)
    for launch_id in {leftover.launch_id for leftover in found}:
        kill_marked({LAUNCH: launch_id, LEASES: str(folder)})
    return found

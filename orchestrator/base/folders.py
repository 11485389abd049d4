"""Folders of this user that all programs of this kind on a node share."""

import os
import stat
from pathlib import Path

from orchestrator.base.errors import OrchestratorError


def node_path(name: str) -> Path:
    """``/tmp/orchestrator-<uid>/<name>``: the same for all programs of one user on a node.

    Not below TMPDIR, which batch systems set per job.
    """
    temporary = Path("/tmp")  # noqa: S108 - node_folder checks who owns what is in it
    return temporary / f"orchestrator-{os.getuid()}" / name


def node_folder(name: str) -> Path:
    """``node_path``, made private to this user.

    Raises OrchestratorError when someone else owns it.
    """
    path = node_path(name)
    for folder in (path.parent, path):
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
        if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode):
            raise OrchestratorError(
                f"{folder} belongs to user {facts.st_uid}, not to us: remove it"
            )
    return path

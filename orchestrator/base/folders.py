"""Folders of this user that all programs of this kind on a node share."""

import contextlib
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
    """The folder at ``node_path``, created private to this user if it is not there.

    Raises OrchestratorError when someone else owns it, or when it is no folder but a link or file.
    """
    path = node_path(name)
    for folder in (path.parent, path):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if status.st_uid != os.getuid():
            raise OrchestratorError(
                f"{folder} belongs to user {status.st_uid}, not to us: remove it"
            )
        if not stat.S_ISDIR(status.st_mode):
            raise OrchestratorError(f"{folder} is a link or a file, not a folder: remove it")
    return path

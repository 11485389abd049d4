"""Images that podman builds from the container files, where no image can be pulled and nothing can
be downloaded.

An image of empty folders stands in for the one that ``FROM`` names: this machine's own Python and
system are mounted into it, and so are the distributions that the wheel asks for, which pip then
finds installed.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.containers import FOLDERS

NEEDED = "/needed"  # in the container: what the wheel asks for
LIMITS = ("--ulimit=nofile=16000:16000", "--ulimit=nproc=16000:16000")
USERS = "root:x:0:0:root:/root:/bin/sh\nray:x:1000:1000:ray:/home/ray:/bin/sh\n"


def podman(*argv: str, folder: Path | None = None) -> str:
    """What one command of podman prints, by default in the current folder."""
    command = ["podman", *argv]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (
        f"podman {' '.join(argv)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
    return done.stdout


def runtime() -> list[str]:
    """The options of podman for every container."""
    return ["--runtime=runc"] if shutil.which("runc") else []


def own_name() -> str:
    """A name for an image that no other has."""
    return f"localhost/orchestrator-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True)
class StandIn:
    """The image that stands in for others. ``mounts``: the options that mount what it lacks."""

    name: str
    mounts: tuple[str, ...]

    def build(self, options: Sequence[str], folder: Path) -> None:
        """Builds an image on this one. ``options``: those of the page; ``folder``: where it is run."""
        own = ["--layers=false", "--network=none", "--pull=never", *LIMITS, *self.mounts]
        podman(*runtime(), "build", *own, f"--from={self.name}", *options, folder=folder)


def stand_in(
    folder: Path, needed: Path, undo: ExitStack, instructions: Sequence[str] = ()
) -> StandIn:
    """Makes the image in which the mounted Python is the first in PATH but for /programs. Skips where
    podman starts no container. ``needed``: a folder with what the wheel asks for; ``instructions``:
    those of a container file that its image has; ``undo``: removes the image.
    """
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("NOT RUN: containers need root and podman")
    mounts = [
        f"--volume={path}:{path}:ro"
        for path in ("/usr", "/lib", "/lib64", "/bin", str(Path(sys.base_prefix).resolve()))
        if Path(path).exists()
    ]
    mounts.append(f"--volume={needed}:{NEEDED}:ro")
    made = StandIn(own_name(), tuple(mounts))
    undo.callback(podman, "rmi", "--force", "--ignore", made.name)
    try:
        _import_empty(made.name, folder, instructions)
        podman(*runtime(), "run", "--rm", *LIMITS, *mounts, made.name, "/bin/true")
    except AssertionError as error:
        pytest.skip(f"NOT RUN: podman starts no container here: {error}")
    return made


def _import_empty(name: str, folder: Path, instructions: Sequence[str]) -> None:
    """Makes an image of empty folders and two users."""
    archive = folder / "root.tar"
    with tarfile.open(archive, "w") as tar:
        for path in (*FOLDERS, "home/ray"):
            entry = tarfile.TarInfo(path)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if path.endswith(("tmp", "ray")) else 0o755
            tar.addfile(entry)
        users = tarfile.TarInfo("etc/passwd")
        users.size = len(USERS)
        tar.addfile(users, io.BytesIO(USERS.encode()))
    path = f"/programs:{sys.base_prefix}/bin:/usr/bin:/bin"
    variables = (f"ENV PATH={path}", f"ENV PYTHONPATH={NEEDED}")
    changes = [f"--change={instruction}" for instruction in (*variables, *instructions)]
    podman("import", *changes, str(archive), name)

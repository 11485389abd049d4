"""The Containerfile of the program is built, and the program runs in the container.

No image can be pulled where these tests run. An image without files stands in for the one that
``FROM`` names: this machine's own Python and system are mounted into it, and so are the
distributions that the wheel asks for, which pip then finds installed. So the steps of the file, the
wheel, the entry point and the user's folder are checked, and not the official image and the
download.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator import __version__
from tests.documentation.blocks import blocks_run_by, command_lines
from tests.harness import ROOT
from tests.integration.containers import FOLDERS
from tests.packages.building import build, link_needed, requirements_of
from tests.packages.test_packages import EXPERIMENT

pytestmark = pytest.mark.timeout(300)
CONTAINERFILE = ROOT / "Containerfile"
PAGE = "docs/start/install.md"
IMAGE = "orchestrator"  # on the page
NEEDED = "/needed"  # in the container: what the wheel asks for
LIMITS = ("--ulimit=nofile=16000:16000", "--ulimit=nproc=16000:16000")


def podman(*argv: str, folder: Path | None = None) -> str:
    """What one command of podman prints, by default in the current folder."""
    command = ["podman", *argv]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (
        f"podman {' '.join(argv)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    )
    return done.stdout


@dataclass(frozen=True, slots=True)
class Image:
    """A built image. ``mounts``: the options that mount what the stand-in lacks."""

    name: str
    mounts: tuple[str, ...]

    def run(self, *argv: str, work: Path) -> subprocess.CompletedProcess[str]:
        """Runs the program in a container as the page does, with ``work`` as the current folder."""
        options = on_page("run")
        options = options[: options.index(IMAGE)]
        command = ["podman", *_runtime(), "run", "--network=none", *LIMITS, *self.mounts]
        command += [option.replace("$PWD", str(work)) for option in options]
        return subprocess.run(
            [*command, self.name, *argv], capture_output=True, text=True, timeout=240
        )


def on_page(command: str) -> list[str]:
    """The words that the page has after ``podman`` and this command of it."""
    (block,) = blocks_run_by(__file__, PAGE)
    (words,) = [words for words in command_lines(block) if words[:2] == ["podman", command]]
    return words[2:]


def _runtime() -> list[str]:
    return ["--runtime=runc"] if shutil.which("runc") else []


def _import_stand_in(name: str, folder: Path) -> None:
    """Makes an image of empty folders, in which the mounted Python is the first in PATH."""
    archive = folder / "root.tar"
    with tarfile.open(archive, "w") as tar:
        for path in FOLDERS:
            entry = tarfile.TarInfo(path)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if path.endswith("tmp") else 0o755
            tar.addfile(entry)
        users = tarfile.TarInfo("etc/passwd")
        text = b"root:x:0:0:root:/root:/bin/sh\n"
        users.size = len(text)
        tar.addfile(users, io.BytesIO(text))
    path = f"--change=ENV PATH={sys.base_prefix}/bin:/usr/bin:/bin"
    podman("import", path, f"--change=ENV PYTHONPATH={NEEDED}", str(archive), name)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if os.geteuid() != 0 or shutil.which("podman") is None:
        pytest.skip("NOT RUN: containers need root and podman")
    folder = tmp_path_factory.mktemp("container")
    context = folder / "context"
    packages = build(ROOT, context / "dist")
    shutil.copy(ROOT / "requirements.lock", context)
    needed = folder / "needed"
    link_needed(requirements_of(packages.wheel), needed)
    mounts = [
        f"--volume={path}:{path}:ro"
        for path in ("/usr", "/lib", "/lib64", "/bin", str(Path(sys.base_prefix).resolve()))
        if Path(path).exists()
    ]
    mounts.append(f"--volume={needed}:{NEEDED}:ro")
    names = [f"localhost/orchestrator-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    stand_in, name = names
    with ExitStack() as undo:
        undo.callback(podman, "rmi", "--force", "--ignore", *names)
        try:
            _import_stand_in(stand_in, folder)
            podman(*_runtime(), "run", "--rm", *LIMITS, *mounts, stand_in, "/bin/true")
        except AssertionError as error:
            pytest.skip(f"NOT RUN: podman starts no container here: {error}")
        shutil.copy(CONTAINERFILE, context)
        podman(
            *(
                *_runtime(),
                "build",
                "--layers=false",
                "--network=none",
                "--pull=never",
                *LIMITS,
                *mounts,
            ),
            *(
                f"--from={stand_in}",
                *(name if word == IMAGE else word for word in on_page("build")),
            ),
            folder=context,
        )
        yield Image(name, tuple(mounts))


def test_the_container_file_builds_and_the_program_runs(image: Image, tmp_path: Path) -> None:
    version = image.run("--version", work=tmp_path)
    assert version.stdout == f"orchestrator, version {__version__}\n", version.stderr
    words = on_page("run")
    argv = words[words.index(IMAGE) + 1 :]
    file = tmp_path / argv[1]
    file.parent.mkdir()
    file.write_text(EXPERIMENT)
    simulated = image.run(*argv, work=tmp_path)
    assert simulated.returncode == 0, simulated.stderr
    assert (tmp_path / "simulated" / "small" / "report.html").stat().st_size > 10_000


def test_its_python_is_that_of_the_lock() -> None:
    (python,) = re.findall(
        r"^FROM docker.io/library/python:([\d.]+)-slim$", CONTAINERFILE.read_text(), re.M
    )
    (locked,) = re.findall(r"with Python ([\d.]+)$", (ROOT / "requirements.lock").read_text(), re.M)
    assert python == locked

"""The Containerfile of the program is built, and the program runs in the container.

So the steps of the file, the wheel, the entry point and the user's folder are checked, and not the
official image and the download (``images.py``).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator import __version__
from tests.documentation.blocks import blocks_run_by, command_lines
from tests.harness import ROOT
from tests.packages.building import build, link_needed, requirements_of
from tests.packages.images import LIMITS, own_name, podman, runtime, stand_in
from tests.packages.test_packages import EXPERIMENT

pytestmark = pytest.mark.timeout(300)
CONTAINERFILE = ROOT / "Containerfile"
PAGE = "docs/start/install.md"
IMAGE = "orchestrator"  # on the page


@dataclass(frozen=True, slots=True)
class Image:
    """A built image. ``mounts``: the options that mount what the stand-in lacks."""

    name: str
    mounts: tuple[str, ...]

    def run(self, *argv: str, work: Path) -> subprocess.CompletedProcess[str]:
        """Runs the program in a container as the page does, with ``work`` as the current folder."""
        options = on_page("run")
        options = options[: options.index(IMAGE)]
        command = ["podman", *runtime(), "run", "--network=none", *LIMITS, *self.mounts]
        command += [option.replace("$PWD", str(work)) for option in options]
        return subprocess.run(
            [*command, self.name, *argv], capture_output=True, text=True, timeout=240
        )


def on_page(command: str) -> list[str]:
    """The words that the page has after ``podman`` and this command of it."""
    (block,) = blocks_run_by(__file__, PAGE)
    (words,) = [words for words in command_lines(block) if words[:2] == ["podman", command]]
    return words[2:]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("container")
    context = folder / "context"
    packages = build(ROOT, context / "dist")
    shutil.copy(ROOT / "requirements.lock", context)
    needed = folder / "needed"
    link_needed(requirements_of(packages.wheel), needed)
    name = own_name()
    with ExitStack() as undo:
        base = stand_in(folder, needed, undo)
        undo.callback(podman, "rmi", "--force", "--ignore", name)
        shutil.copy(CONTAINERFILE, context)
        base.build([name if word == IMAGE else word for word in on_page("build")], context)
        yield Image(name, base.mounts)


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

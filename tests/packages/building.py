"""Wheel and sdist as a release has them, and environments that hold only what the wheel asks for.

Nothing is downloaded. An environment is a new virtual environment into which the files of every
distribution are linked that the wheel's metadata asks for, directly or through others, in the
versions of requirements.lock; then pip installs the program there as a reader does. So an import of
something that nobody declared fails there. That the index's newest versions work is not shown.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

NAME = "llm-serving-orchestrator"
# The pip of an environment that has none: that of the tests. What builds a wheel lies apart from it.
PIP = """#!/bin/sh
export PYTHONPATH={tools}
exec {python} -m pip --python {environment} "$@" --no-index --no-build-isolation --quiet
"""


@dataclass(frozen=True, slots=True)
class Packages:
    """The two files of a release."""

    wheel: Path
    sdist: Path


def build(source: Path, folder: Path) -> Packages:
    """Builds both from a source tree, without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return Packages(wheel, sdist)


def requirements_of(wheel: Path) -> list[Requirement]:
    """What a wheel asks for, extras included."""
    (metadata,) = Path(_unpacked(wheel)).glob("*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    prefix = "Requires-Dist: "
    return [Requirement(line.removeprefix(prefix)) for line in lines if line.startswith(prefix)]


def _unpacked(wheel: Path) -> Path:
    folder = wheel.with_suffix(".unpacked")
    if not folder.exists():
        shutil.unpack_archive(wheel, folder, "zip")
    return folder


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment. ``folder``: where it is."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def pip(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Runs this test's pip on the environment, which has none itself."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *argv]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=_own_variables()
        )

    def run(self, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs to its end."""
        command = [str(self.folder / "bin" / argv[0]), *argv[1:]]
        return subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=120, env=_own_variables()
        )


def _own_variables() -> dict[str, str]:
    """The variables of this process without those that would let other packages be imported."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def environment_made_by(commands: list[list[str]], tree: Path, wheel: Path) -> Environment:
    """A new environment in a source tree, made by the commands of a page, with what the tree's wheel
    asks for without extras. ``commands``: the words of those that make it, install and activate it.
    """
    make, install, activate = commands
    assert make[:3] == ["python3", "-m", "venv"]
    _run([sys.executable, *make[1:], "--without-pip"], tree)
    environment = Environment(tree / make[3])
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    link_needed(requirements_of(wheel), environment.folder / "lib" / version / "site-packages")
    tools = tree / "tools"
    link_needed([Requirement("hatchling")], tools)
    pip = environment.folder / "bin" / "pip"
    pip.write_text(PIP.format(tools=tools, python=sys.executable, environment=environment.folder))
    pip.chmod(0o755)
    _run(install, tree)
    found = _run(["bash", "-c", f"{shlex.join(activate)} && command -v orchestrator"], tree)
    assert found == f"{environment.folder}/bin/orchestrator\n"
    return environment


def _run(command: list[str], folder: Path) -> str:
    """What a command prints, which must succeed."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, env=_own_variables()
    )
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def link_needed(requirements: list[Requirement], folder: Path) -> None:
    """Puts all distributions that these requirements need into a folder."""
    for found in needed_distributions(requirements):
        _link(found, folder)


def needed_distributions(requirements: list[Requirement]) -> list[Distribution]:
    """What these requirements need, directly or through others, of what is installed here."""
    waiting = [(requirement, frozenset[str]()) for requirement in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    needed: dict[str, Distribution] = {}
    while waiting:
        requirement, asked_extras = waiting.pop()
        if not _applies(requirement, asked_extras):
            continue
        extras = frozenset(requirement.extras)
        if (requirement.name, extras) in seen:
            continue
        seen.add((requirement.name, extras))
        found = distribution(requirement.name)
        needed[found.metadata["Name"].lower()] = found
        waiting += [(Requirement(text), extras) for text in found.requires or ()]
    return list(needed.values())


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a requirement holds here, where its distribution is asked for with these extras."""
    if requirement.marker is None:
        return True
    environments = [{"extra": extra} for extra in (*extras, "")]
    return any(requirement.marker.evaluate(environment) for environment in environments)


def _link(found: Distribution, site_packages: Path) -> None:
    """Puts the files of a distribution into an environment, with the bytecode they have here."""
    source = Path(str(found.locate_file("")))
    for file in _files(found, source):
        target = site_packages / file.relative_to(source)
        if target.exists():
            continue  # a folder's file that several distributions have
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, target)
        except OSError:  # another file system
            shutil.copy2(file, target)


def _files(found: Distribution, source: Path) -> Iterator[Path]:
    """The files of a distribution in its folder, and the bytecode of its modules."""
    for listed in found.files or ():
        file = Path(str(found.locate_file(listed)))
        if ".." in listed.parts or not file.is_file():
            continue  # a program, which stands beside the folder
        yield file
        if file.suffix == ".py":
            yield from (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc")


def source_tree(sdist: Path, folder: Path) -> Path:
    """The unpacked sdist."""
    shutil.unpack_archive(sdist, folder)
    (tree,) = folder.iterdir()
    return tree

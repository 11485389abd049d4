"""The two images of clusters/image are built by the commands of the page on Kubernetes.

So the steps of the file are checked, and what it copies; not Ray's image, and of Debian's packages
and the engines only the names, for which empty ones stand in (``images.py``).
"""

from __future__ import annotations

import tomllib
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from orchestrator import __version__
from scripts.install_engines import SGLANG_VERSION, VLLM_VERSION
from tests.documentation.blocks import blocks_run_by, command_lines
from tests.harness import ROOT
from tests.packages.building import link_needed
from tests.packages.images import LIMITS, own_name, podman, runtime, stand_in

pytestmark = pytest.mark.timeout(300)
PAGE = "docs/guides/kubernetes.md"
ENGINES = {"vllm": VLLM_VERSION, "sglang": SGLANG_VERSION}
# of Ray's image the user, and those with which pip finds what it needs among what is mounted
INSTRUCTIONS = (
    "USER ray",
    "ENV HOME=/home/ray",
    "ENV PIP_NO_INDEX=1",
    "ENV PIP_FIND_LINKS=/wheels",
    "ENV PIP_NO_BUILD_ISOLATION=0",
)


def put_empty_wheel(name: str, version: str, folder: Path) -> None:
    """Writes the wheel of a package that has nothing but its name."""
    information = f"{name}-{version}.dist-info"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(f"{information}/{file}", text)


def test_the_images_of_the_page_are_built_and_have_the_program_and_the_engines(
    tmp_path: Path,
) -> None:
    wheels, programs, needed = (tmp_path / name for name in ("wheels", "programs", "needed"))
    wheels.mkdir()
    programs.mkdir()
    for engine, version in ENGINES.items():
        put_empty_wheel(engine, version, wheels)
    apt_get = programs / "apt-get"
    apt_get.write_text("#!/bin/sh\n")
    apt_get.chmod(0o755)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    link_needed([Requirement(text) for text in (*project["dependencies"], "hatchling")], needed)
    (block,) = blocks_run_by(__file__, PAGE)
    with ExitStack() as undo:
        base = stand_in(tmp_path, needed, undo, INSTRUCTIONS)
        mounts = (
            *base.mounts,
            f"--volume={wheels}:/wheels:ro",
            f"--volume={programs}:/programs:ro",
        )
        names = []
        for words in command_lines(block):
            assert words[:2] == ["docker", "build"]
            names.append(own_name())
            undo.callback(podman, "rmi", "--force", "--ignore", names[-1])
            tag = words.index("-t") + 1
            base.build([*mounts, *words[2:tag], names[-1], *words[tag + 1 :]], ROOT)
        program, engines = names
        run = (*runtime(), "run", "--rm", "--network=none", *LIMITS, *mounts)
        version = podman(*run, program, "python", "-m", "orchestrator", "--version")
        assert version == f"orchestrator, version {__version__}\n"
        for engine, engine_version in ENGINES.items():
            python = f"/opt/engines/{engine}-{engine_version}/bin/python"
            metadata = f"from importlib.metadata import version; print(version({engine!r}))"
            assert podman(*run, engines, python, "-c", metadata) == f"{engine_version}\n"

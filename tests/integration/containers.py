"""Container programs for tests, with an empty image into which this node's Python and engines are
mounted.

No image can be pulled where these tests run, so the image is an empty root folder; apptainer takes
it as it is. The owner of a machine writes into a container program's configuration which folders
every container sees, and which limits the machine allows. Here a script of the program's name,
first in PATH, adds these options and runs the real program.
"""

from __future__ import annotations

import io
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from orchestrator.node import ownership
from tests.integration.engine_real import home_of

SCRIPT = """#!/bin/sh
verb=$1; shift
if [ "$verb" = {verb} ]; then exec {program} {options} {verb} {mounts} "$@"; fi
exec {program} {options} "$verb" "$@"
"""
FOLDERS = (
    "usr",
    "lib",
    "lib64",
    "bin",
    "sbin",
    "etc",
    "tmp",
    "proc",
    "sys",
    "dev",
    "run",
    "root",
    "var/tmp",
)


@dataclass(frozen=True, slots=True)
class Host:
    """A container program of this machine, and an image for one engine."""

    runtime: str  # docker | podman | apptainer
    image: str  # apptainer: the root folder
    path: str  # PATH whose first folder has the script

    def output_of(self, *argv: str) -> str:
        """What the program prints for these arguments."""
        env = os.environ | {"PATH": self.path}
        return subprocess.run(
            [self.runtime, *argv], env=env, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def containers(self) -> list[str]:
        """Names of this image's containers, ended ones too. Apptainer names none, so for it launch
        and pid of every process.
        """
        if self.runtime == "apptainer":
            processes = ownership.tagged({"APPTAINER_CONTAINER": self.image})
            return [
                f"{environ.get(ownership.LAUNCH)} {process.pid}" for process, environ in processes
            ]
        return self.output_of(
            "ps", "--all", "--filter", f"ancestor={self.image}", "--format", "{{.Names}}"
        ).split()

    def inside(self, launch_id: str, *argv: str) -> str:
        """What a command in the container of a launch prints."""
        name = next(name for name in self.containers() if launch_id in name)
        if self.runtime != "apptainer":
            return self.output_of("exec", name, *argv)
        pid = name.split()[-1]
        enter = ["nsenter", "--target", pid, "--mount", "--", *argv]
        env = psutil.Process(int(pid)).environ()
        return subprocess.run(
            enter, env=env, capture_output=True, text=True, timeout=60, check=True
        ).stdout


@contextmanager
def host(runtime: str, engine: str, folder: Path) -> Iterator[Host]:
    """A host whose image has ``engine`` in its PATH. Where no container can run the test is skipped,
    with the reason.
    """
    home, program = home_of(engine), shutil.which(runtime)
    if program is None:
        pytest.skip(
            f"{runtime} is not installed, so no engine was started in a container of it (apt-get "
            "install it)"
        )
    is_apptainer = runtime == "apptainer"
    image = (
        str(folder / "root")
        if is_apptainer
        else f"localhost/orchestrator-test:{uuid.uuid4().hex[:12]}"
    )
    path = _script(runtime, program, home, folder)
    new_host = Host(runtime, image, path)
    try:
        try:
            if is_apptainer:
                _lay_out(Path(image), home)
                new_host.output_of("exec", image, "/bin/true")
            else:
                _import(new_host, home, folder)
                new_host.output_of(
                    "run", "--rm", "--init", "--network", "host", "--entrypoint", "/bin/true", image
                )
        except subprocess.CalledProcessError as error:
            pytest.skip(
                f"{runtime} is installed and starts no container here: "
                f"{error.stderr.strip()[-300:]}"
            )
        yield new_host
    finally:
        # where containers do not work, there is nothing to remove
        with suppress(subprocess.CalledProcessError):
            for name in [] if is_apptainer else new_host.containers():
                new_host.output_of("rm", "--force", name)
            if not is_apptainer:
                new_host.output_of("rmi", "--force", image)


def wait_until(holds: Callable[[], bool], limit_s: float) -> bool:
    """Waits until a condition holds. False if it does not within the limit."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def command_lines() -> Iterator[str]:
    """The whole command lines of all processes here, of those inside containers, too."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def _script(runtime: str, program: str, home: Path, folder: Path) -> str:
    mounted = [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        str(Path(sys.base_prefix).resolve()),
        str(home.resolve()),
    ]
    # engines ask for more open files and processes than a machine may allow
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    verb, flag = ("exec", "--bind") if runtime == "apptainer" else ("run", "--volume")
    mounts = [
        f"{flag} {path}:{path}:ro"
        for path in mounted
        if not _is_below_another(path, mounted) and Path(path).exists()
    ]
    if runtime != "apptainer":
        mounts += [
            f"--ulimit nofile={min(files, 1 << 20)}",
            *(["--ulimit nproc=30000"] if runtime == "podman" else []),
        ]
    options = "--runtime runc" if runtime == "podman" and shutil.which("runc") else ""
    script = folder / "bin" / runtime
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        SCRIPT.format(program=program, options=options, verb=verb, mounts=" ".join(mounts))
    )
    script.chmod(0o755)
    return f"{script.parent}:{os.environ['PATH']}"


def _is_below_another(path: str, others: list[str]) -> bool:
    return any(path != other and path.startswith(f"{other}/") for other in others)


def _lay_out(root: Path, home: Path) -> None:
    """Makes the empty root as a folder, with the file in which an apptainer image sets PATH."""
    for name in (*FOLDERS, ".singularity.d/env"):
        (root / name).mkdir(parents=True)
    for name in ("passwd", "group", "resolv.conf", "hosts", "localtime"):
        (root / "etc" / name).touch()
    variables = root / ".singularity.d" / "env" / "10-docker2singularity.sh"
    variables.write_text(f"export PATH={home.resolve()}/bin:/usr/bin:/bin\n")


def _import(target: Host, home: Path, folder: Path) -> None:
    """Makes the empty root as an image of docker or podman."""
    archive = folder / "root.tar"
    with tarfile.open(archive, "w") as tar:
        for name in FOLDERS:
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(entry)
        for name, text in {
            "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
            "etc/group": "root:x:0:\n",
        }.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    target.output_of(
        "import",
        "--change",
        f"ENV PATH={home.resolve()}/bin:/usr/bin:/bin",
        str(archive),
        target.image,
    )

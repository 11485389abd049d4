"""The image of clusters/image and the pods of a KubeRay file, run as containers: addresses,
processes and /tmp of their own, and a user who is not root.

Needs root, podman and debootstrap. Ray's own image cannot be had everywhere: a Debian with the same
Ray, Python and user stands in for it. What KubeRay makes of ``rayStartParams`` and ``labels`` is
done here in its place.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import MODEL, ROOT, wait_for

CONTAINERFILE = ROOT / "clusters" / "image" / "Containerfile"
IN_DEBIAN = "python3,python3-venv,ca-certificates,procps"
STAND_IN = """
FROM scratch
ADD debian.tar /
RUN useradd --create-home --uid 1000 --shell /bin/bash ray
USER ray
ENV HOME=/home/ray PATH=/home/ray/python/bin:/usr/local/bin:/usr/bin:/bin
RUN python3 -m venv /home/ray/python && pip install --no-cache-dir 'ray[default]==VERSION'
"""
# Podman's own are more than a host may have
LIMIT = "--ulimit=nofile=16000:16000", "--ulimit=nproc=16000:16000"
OBJECT_STORE = "--object-store-memory=100000000"


def why_not() -> str | None:
    """Why there can be no pods here, or None."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("podman", "debootstrap"))):
        return "pods need root, podman and debootstrap"
    return None


def podman(*argv: str, timeout_s: float = 900.0) -> str:
    """What one command prints."""
    done = subprocess.run(
        ["podman", *argv], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, (
        f"podman {' '.join(argv)}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout


@contextmanager
def program_image() -> Iterator[str]:
    """The image ``program`` of the Containerfile, built on the stand-in; both are gone afterwards."""
    base, image = (f"localhost/orch-{os.getpid()}-{name}" for name in ("ray", "program"))
    text = CONTAINERFILE.read_text()
    (version,) = re.findall(r"^FROM rayproject/ray:([\d.]+)-py311 AS program$", text, re.MULTILINE)
    pip = [Path(path) for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
    build = (
        "build",
        "--pull=never",
        "--network=host",
        *(f"--volume={path}:{path}:ro" for path in pip),
    )
    with (
        tempfile.TemporaryDirectory(prefix="orch-image-", dir="/var/tmp") as made,
        ExitStack() as undo,
    ):
        folder = Path(made)
        for command in (
            [
                "debootstrap",
                "--variant=minbase",
                f"--include={IN_DEBIAN}",
                "bookworm",
                str(folder / "debian"),
            ],
            ["tar", "-C", str(folder / "debian"), "-cf", str(folder / "debian.tar"), "."],
        ):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
        (folder / "stand-in").write_text(STAND_IN.replace("VERSION", version))
        (folder / "program").write_text(
            text.replace(f"FROM rayproject/ray:{version}-py311", f"FROM {base}")
        )
        undo.callback(podman, "rmi", "--force", "--ignore", base, image)
        podman(*build, f"--file={folder / 'stand-in'}", f"--tag={base}", str(folder))
        podman(
            *build, f"--file={folder / 'program'}", f"--tag={image}", "--target=program", str(ROOT)
        )
        yield image


@dataclass
class Pods:
    """A head and workers of a RayCluster in one network. ``shared``: /shared of every pod."""

    image: str
    shared: Path
    names: list[str]
    options: tuple[str, ...]
    dashboard: str = ""

    def start(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> str:
        """A pod that runs in the background; its address."""
        told = [f"--env={key}={value}" for key, value in (env or {}).items()]
        podman("run", "--detach", f"--name={name}", *self.options, *told, self.image, *command)
        self.names.append(name)
        return podman("inspect", "--format={{.NetworkSettings.IPAddress}}", name).strip()

    def job(self, *command: str) -> str:
        """Submit a job as KubeRay's submitter does, from a pod of its own; its number."""
        submit = (
            "ray",
            "job",
            "submit",
            f"--address={self.dashboard}",
            "--no-wait",
            "--",
            *command,
        )
        said = podman("run", "--rm", *self.options, self.image, *submit)
        return re.findall(r"raysubmit_\w+", said)[0]

    def ray_job(self, verb: str, job: str) -> str:
        """What Ray says of a job, some of it to stderr."""
        return podman(
            "exec",
            self.names[0],
            "sh",
            "-c",
            f"ray job {verb} --address={self.dashboard} {job} 2>&1",
        )


@contextmanager
def pods(
    image: str, cluster: dict[str, Any], group: dict[str, Any], workers: int, cpus: int
) -> Iterator[Pods]:
    """The head of a ``rayClusterSpec``, and pods of one of its groups of workers, each with
    ``cpus`` and no GPUs.
    """
    prefix = f"orch-{os.getpid()}"
    with (
        tempfile.TemporaryDirectory(prefix="orch-pods-", dir="/var/tmp") as made,
        ExitStack() as undo,
    ):
        shared = Path(made)
        shared.chmod(0o777)
        shutil.copytree(MODEL, shared / "model")
        token = {
            "RAY_AUTH_MODE": cluster["authOptions"]["mode"],
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
        }
        told = [f"--env={key}={value}" for key, value in token.items()]
        found = Pods(
            image, shared, [], (*LIMIT, "--shm-size=512m", f"--volume={shared}:/shared", *told)
        )
        undo.callback(lambda: [podman("rm", "--force", "--time=0", name) for name in found.names])
        begin = ("ray", "start", "--block", OBJECT_STORE)
        head = found.start(
            f"{prefix}-head", *begin, "--head", *_flags(cluster["headGroupSpec"]["rayStartParams"])
        )
        found.dashboard = f"http://{head}:8265"
        wait_for(lambda: "ray start" in podman("logs", found.names[0]), 90, "the head is there")
        (container,) = group["template"]["spec"]["containers"]
        env = {
            one["name"]: one["value"]
            for one in container["env"]
            if "value" in one and one["name"] != "HF_HOME"
        }
        labels = ",".join(f"{key}={value}" for key, value in group["labels"].items())
        for number in range(workers):
            more = (f"--address={head}:6379", f"--num-cpus={cpus}", f"--labels={labels}")
            found.start(
                f"{prefix}-{number}", *begin, *more, *_flags(group["rayStartParams"]), env=env
            )
        yield found


def _flags(params: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in params.items()]

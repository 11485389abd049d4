"""Functions that run on a node and report facts about it; sweep/doctor.py judges them. No Ray in
here.
"""

import ctypes
import os
import platform
import resource
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from orchestrator import __version__
from orchestrator.base.errors import OrchestratorError
from orchestrator.base.redaction import redact
from orchestrator.cluster.base import Machine, NoAnswer
from orchestrator.cluster.node_models import all_absent, hub_cache, wanted_by
from orchestrator.cluster.node_network import unknown_interfaces
from orchestrator.cluster.protocol import ASK_LIMIT_S
from orchestrator.engines.command import Node
from orchestrator.engines.registry import ROUTERS, program_of
from orchestrator.node.leases import FIRST_PORT, LAST_PORT, is_free
from orchestrator.node.reaper import output_of
from orchestrator.results.blobs import Blobs
from orchestrator.results.ids import new_ulid
from orchestrator.results.location import parse_location
from orchestrator.results.patience import CHECK, Retry
from orchestrator.spec.settings import EngineSettings, Hardware, installed_version
from orchestrator.spec.stages import PlannedSettings
from orchestrator.telemetry.gpus import health

PORT_STEP = 220  # fifty of the ports of engines are tried
WRITTEN_BYTES = 4 << 20  # test write to the results, more than a small quota lets through
LIMITS = ("nofile", "memlock")
CGROUP_2 = {"memory": ("memory.max",), "cpu": ("cpu.max",)}
CGROUP_1 = {
    "memory": ("memory.limit_in_bytes",),
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
}
UNLIMITED = {"max", "-1", "9223372036854771712"}
TIME_ERROR = 5  # of adjtimex: nothing keeps the clock right


class LocalProbes:
    """``Probes`` of this machine alone: plain calls, without time limits."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = machines

    def ask(
        self,
        function: Any,
        *arguments: Any,
        limit_s: float = ASK_LIMIT_S,
        nodes: Sequence[str] = (),
    ) -> dict[str, Any]:
        try:
            answer = function(*arguments)
        except Exception as error:  # of whatever a check met
            answer = NoAnswer.of(error)
        return {self.machines[0].node_id: answer}

    def close(self) -> None:
        return


def facts(
    launched: Sequence[tuple[PlannedSettings, Hardware]], root: Path = Path("/")
) -> dict[str, Any]:
    """All facts that ``doctor`` judges. ``launched``: settings whose engines and models to look for
    on this node.
    """
    limits = {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1] for name in LIMITS
    }
    caches = {
        hub_cache(settings.env) for settings, _ in launched if settings.engine not in ROUTERS
    } or {hub_cache({})}
    disks = {"temporary files": Path("/tmp")}  # noqa: S108
    disks |= {f"the model cache {cache}": cache for cache in caches}
    return {
        "hostname": platform.node(),
        "versions": versions(),
        "limits": {
            name: None if hard == resource.RLIM_INFINITY else hard for name, hard in limits.items()
        },
        "cgroup": cgroup(root),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "clock_is_set": _clock_is_set(),
        "shm": _space(root / "dev/shm"),
        "outgoing_ports": [
            int(port) for port in _text(root / "proc/sys/net/ipv4/ip_local_port_range").split()
        ],
        "taken_ports": sum(not is_free(port) for port in range(FIRST_PORT, LAST_PORT, PORT_STEP)),
        "disk": {what: _space(folder) for what, folder in disks.items()},
        "infiniband": {
            str(path.relative_to(root / "sys/class/infiniband").parent): _text(path)
            for path in root.glob("sys/class/infiniband/*/ports/*/state")
        },
        "unknown_interfaces": unknown_interfaces(),
        "gpus": health(),
        "amd_gpus": _amd_gpus(root),
        "engines": [
            _engine(*one) | {"models": models}
            for one, models in zip(
                launched, _models([settings for settings, _ in launched]), strict=True
            )
        ],
    }


def versions() -> dict[str, str]:
    """Versions that must be the same on all nodes."""
    found = {"Python": platform.python_version().rpartition(".")[0], "this program": __version__}
    with suppress(metadata.PackageNotFoundError):
        found["Ray"] = metadata.version("ray")
    return found


def cgroup(root: Path = Path("/")) -> dict[str, float]:
    """The limits on ``memory`` (bytes) and ``cpu`` (cores) of this process; absent where there is
    none.
    """
    found = dict[str, float]()
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, own = line.split(":", 2)
        for name, files in (CGROUP_1 if controllers else CGROUP_2).items():
            if controllers and name not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / (name if controllers else "")
            folder = top / own.strip("/")
            for place in (folder, *folder.parents):  # limits of outer groups hold, too
                words = " ".join(_text(place / file) for file in files).split()
                if words and words[0] not in UNLIMITED:
                    limit = int(words[0]) / (int(words[1]) if len(words) > 1 else 1)
                    found[name] = min(limit, found.get(name, limit))
                if place == top:
                    break
    return found


def _amd_gpus(root: Path) -> int:
    """How many of AMD's GPUs this process may use: of the kernel's nodes for them, processors have
    no SIMD units.
    """
    told = (
        _text(path).split() for path in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")
    )
    return sum(
        dict(zip(words[::2], words[1::2], strict=False)).get("simd_count", "0") != "0"
        for words in told
    )


def _clock_is_set() -> bool | None:
    """Whether something (chrony, ntpd) keeps this clock right, as the kernel knows; None where that
    is not told.
    """
    with suppress(OSError, AttributeError):
        # zeros: it changes nothing
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
        return None if state < 0 else state != TIME_ERROR
    return None


def _space(folder: Path) -> dict[str, Any]:
    """Free and total bytes and the type of the file system that a folder is, or will be, on."""
    while not os.path.exists(folder):  # false also for a folder that this user may not enter
        folder = folder.parent
    usage, at = shutil.disk_usage(folder), folder.resolve()
    mounts = [
        mount for mount in psutil.disk_partitions(all=True) if at.is_relative_to(mount.mountpoint)
    ]
    kind = max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
    return {
        "free": usage.free,
        "total": usage.total,
        "kind": kind,
        "writable": os.access(folder, os.W_OK),
    }


def _engine(settings: PlannedSettings, hardware: Hardware) -> dict[str, Any]:
    """Where the program of an engine or router is on this node, and its version; for a container
    the runtime, and whether it has the image. ``missing``: the Python that would start it is there,
    but it is not installed in it.
    """
    engine = program_of(settings.engine)
    name = engine.command(settings.model_copy(update={"nnodes": 1}), hardware, Node(), "").argv[0]
    path, version, image = shutil.which(name), None, None
    if settings.image is not None:
        image = path is not None and (
            name == "apptainer" or output_of(name, "image", "inspect", settings.image) != ""
        )
    elif not engine.emulated:
        version = installed_version(path or name, settings.engine)
    missing = Path(name).name.startswith("python") and not engine.emulated and version is None
    what = f"{settings.engine} ({settings.image or name})"
    return {"name": what, "path": path, "version": version, "image": image, "missing": missing}


def _models(launched: Sequence[EngineSettings]) -> list[dict[str, str]]:
    """Why this node cannot load a model or tokenizer, by its name, for each of these settings."""
    known, found = all_absent(launched), list[dict[str, str]]()
    for settings in launched:
        wanted, problems = wanted_by(settings), dict[str, str]()
        cache = hub_cache(settings.env)
        free: int = _space(cache)["free"] if wanted else 0
        for one in wanted:
            why, needed = known[one, cache]
            if needed > free:
                why = (
                    f"{needed / 1e9:.0f} GB have to be downloaded, but only {free / 1e9:.0f} "
                    f"are free in {cache}"
                )
            problems |= {one.name: why} if why else {}
            free -= needed
        found.append(problems)
    return found


@dataclass(frozen=True, slots=True)
class ResultsTrial:
    """How a node's test write to the results went. ``problem``: why it cannot use them; "": it can."""

    key: str  # of the file that it wrote, or tried to
    problem: str = ""


def try_results(uri: str, nonce: str) -> ResultsTrial:
    """Read what the driver wrote to the results, and write a file there.

    ``nonce``: in the names of the files that the driver and the nodes write for this check.
    """
    key = f".doctor-{nonce}-{new_ulid()}"
    try:
        blobs = Blobs(parse_location(uri), Retry(CHECK))
        if blobs.get(f".doctor-{nonce}-driver") is None:
            return ResultsTrial(key, "it does not see what the driver wrote")
        blobs.put(key, os.urandom(WRITTEN_BYTES))  # random, so that it cannot be compressed
    except (OSError, OrchestratorError) as error:
        return ResultsTrial(key, redact(str(error)))
    return ResultsTrial(key)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

"""Functions that run on a node and report facts about it; sweep/doctor.py judges them. No Ray in
here.
"""

import ctypes
import os
import platform
import resource
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from orchestrator import __version__
from orchestrator.base.errors import OrchestratorError
from orchestrator.base.redaction import redact
from orchestrator.cluster.model_downloads import AbsenceCause, all_absent, hub_cache, lookups_of
from orchestrator.cluster.reachability import unknown_interfaces
from orchestrator.engines.command import Node
from orchestrator.engines.registry import ROUTERS, program_of
from orchestrator.node.leases import FIRST_PORT, LAST_PORT, is_free
from orchestrator.node.reaper import output_of
from orchestrator.results.blobs import Blobs
from orchestrator.results.ids import new_ulid
from orchestrator.results.location import parse_location
from orchestrator.results.storage_retry import CHECK, Retry
from orchestrator.spec.settings import EngineSettings, Hardware, installed_version
from orchestrator.spec.stages import PlannedSettings
from orchestrator.telemetry.gpus import health

PORT_STEP = 220  # between the engines' ports that are tried, which are fifty
WRITTEN_BYTES = 4 << 20  # test write to the results, more than a small quota lets through
LIMITS = ("nofile", "memlock")
CGROUP_2 = {"memory": ("memory.max",), "cpu": ("cpu.max",)}
CGROUP_1 = {
    "memory": ("memory.limit_in_bytes",),
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
}
UNLIMITED = {"max", "-1", "9223372036854771712"}
TIME_ERROR = 5  # what adjtimex returns where nothing keeps the clock right


def facts(
    launched: Sequence[tuple[PlannedSettings, Hardware]], root: Path = Path("/")
) -> dict[str, Any]:
    """All facts that ``doctor`` judges. ``launched``: settings whose engines and models to look for
    on this node.
    """
    caches = {hub_cache(settings.env) for settings, _ in launched if settings.engine not in ROUTERS}
    if not caches:
        caches = {hub_cache({})}
    disks = {"temporary files": Path("/tmp")}  # noqa: S108
    for cache in caches:
        disks[f"the model cache {cache}"] = cache
    engines = []
    models_of = _models([settings for settings, _ in launched])
    for (settings, hardware), models in zip(launched, models_of, strict=True):
        engines.append(_engine(settings, hardware) | {"models": models})
    return {
        "hostname": platform.node(),
        "versions": versions(),
        "limits": _hard_limits(),
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
        "engines": engines,
    }


def _hard_limits() -> dict[str, int | None]:
    """The hard limits of this process; None where there is no limit."""
    limits: dict[str, int | None] = {}
    for name in LIMITS:
        _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        limits[name] = None if hard == resource.RLIM_INFINITY else hard
    return limits


def versions() -> dict[str, str]:
    """Versions that must be the same on all nodes."""
    python = platform.python_version().rpartition(".")[0]
    by_name = {"Python": python, "this program": __version__}
    with suppress(metadata.PackageNotFoundError):
        by_name["Ray"] = metadata.version("ray")
    return by_name


def cgroup(root: Path = Path("/")) -> dict[str, float]:
    """The limits on ``memory`` (bytes) and ``cpu`` (cores) of this process; absent where there is
    none.
    """
    limits: dict[str, float] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, own_group = line.split(":", 2)
        is_version_1 = controllers != ""
        files_by_name = CGROUP_1 if is_version_1 else CGROUP_2
        for name, files in files_by_name.items():
            top = root / "sys/fs/cgroup"
            if is_version_1:  # each controller has its own tree
                if name not in controllers.split(","):
                    continue
                top /= name
            for limit in _cgroup_limits(top / own_group.strip("/"), top, files):
                limits[name] = min(limit, limits.get(name, limit))
    return limits


def _cgroup_limits(folder: Path, top: Path, files: Sequence[str]) -> Iterator[float]:
    """The limits in these files of a control group and of all groups around it, which apply as
    well. ``top``: the folder of the outermost group. A second number is a period, by which the
    first is divided.
    """
    for group in (folder, *folder.parents):
        words = " ".join(_text(group / file) for file in files).split()
        if words and words[0] not in UNLIMITED:
            period = int(words[1]) if len(words) > 1 else 1
            yield int(words[0]) / period
        if group == top:
            return


def _amd_gpus(root: Path) -> int:
    """How many of AMD's GPUs this process may use. The kernel lists processors beside them, which
    have no SIMD units.
    """
    gpus = 0
    for path in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"):
        words = _text(path).split()
        properties = dict(zip(words[::2], words[1::2], strict=False))
        if properties.get("simd_count", "0") != "0":
            gpus += 1
    return gpus


def _clock_is_set() -> bool | None:
    """Whether something (chrony, ntpd) keeps this clock right, as the kernel knows; None where the
    kernel does not say.
    """
    with suppress(OSError, AttributeError):
        # a request of zeros changes nothing
        state: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
        return None if state < 0 else state != TIME_ERROR
    return None


def _space(folder: Path) -> dict[str, Any]:
    """Free and total bytes and the type of the file system that a folder is, or will be, on."""
    while not os.path.exists(folder):  # false also for a folder that this user may not enter
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    resolved = folder.resolve()
    partitions = psutil.disk_partitions(all=True)
    mounts = [mount for mount in partitions if resolved.is_relative_to(mount.mountpoint)]
    kind = max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
    return {
        "free": usage.free,
        "total": usage.total,
        "kind": kind,
        "writable": os.access(folder, os.W_OK),
    }


def _engine(settings: PlannedSettings, hardware: Hardware) -> dict[str, Any]:
    """Where the program of an engine or router is on this node, and its version. For a container:
    where the runtime is, and whether it has the image. ``missing``: the Python that would start the
    program is there, but the program is not installed in it.
    """
    engine = program_of(settings.engine)
    one_node = settings.model_copy(update={"nnodes": 1})
    name = engine.command(one_node, hardware, Node(), "").argv[0]
    path = shutil.which(name)
    version: str | None = None
    image: bool | None = None  # whether this machine has the image; None without a container
    if settings.image is not None:
        image = path is not None and _has_image(name, settings.image)
    elif not engine.emulated:
        version = installed_version(path or name, settings.engine)
    missing = Path(name).name.startswith("python") and not engine.emulated and version is None
    title = f"{settings.engine} ({settings.image or name})"
    return {"name": title, "path": path, "version": version, "image": image, "missing": missing}


def _has_image(runtime: str, image: str) -> bool:
    """Whether a container runtime has an image; Apptainer is not asked, its images are files."""
    return runtime == "apptainer" or output_of(runtime, "image", "inspect", image) != ""


def _models(launched: Sequence[EngineSettings]) -> list[dict[str, dict[str, str | None]]]:
    """Why this node cannot load a model or tokenizer, by its name, for each of these settings: the
    ``problem`` as a sentence, and its ``cause``.
    """
    absences = all_absent(launched)
    problems_of: list[dict[str, dict[str, str | None]]] = []
    for settings in launched:
        problems: dict[str, dict[str, str | None]] = {}
        lookups = lookups_of(settings)
        cache = hub_cache(settings.env)
        free_bytes: int = _space(cache)["free"] if lookups else 0
        for lookup in lookups:
            absence = absences[lookup]
            needed_bytes = absence.download_bytes
            problem = absence.problem
            cause = absence.cause
            if needed_bytes > free_bytes:
                problem = (
                    f"{needed_bytes / 1e9:.0f} GB have to be downloaded, but only "
                    f"{free_bytes / 1e9:.0f} are free in {cache}"
                )
                cause = AbsenceCause.NO_ROOM
            if problem:
                problems[lookup.wanted.name] = {"problem": problem, "cause": cause}
            free_bytes -= needed_bytes
        problems_of.append(problems)
    return problems_of


@dataclass(frozen=True, slots=True)
class ResultsTrial:
    """How a node's test write to the results went. ``problem``: why it cannot use them; empty if it
    can.
    """

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

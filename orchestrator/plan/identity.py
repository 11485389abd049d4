"""Names that stay: what a deployment, a point and a measurement are, as hashes (docs/architecture.md, "Identity").

Nothing that depends on where the files lie goes in: settings are hashed as the experiment file says them, a local model
by its content, traces and prompts by theirs, an engine in a local environment with the version found there.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.results.ids import content_digest, digest
from orchestrator.spec.environments import is_version
from orchestrator.spec.load import Level, Workload
from orchestrator.spec.settings import EngineSettings, Hardware

NOT_IDENTITY = {"startup_timeout_s", "api_key_env"}  # they change no measurement
_MODEL_TEXTS = ("*.json", "*.model", "*.txt", "*.jinja", "*.py")
_MODEL_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth")


class Contents:
    """Looks at each file once, for one plan."""

    def __init__(self) -> None:
        self.model = cache(model_digest)
        self.file = cache(file_digest)
        self.version = cache(installed_version)


def deployment_id(written: EngineSettings, resolved: EngineSettings, hardware: Hardware, contents: Contents) -> str:
    """``written``: settings as in the file; ``resolved``: the same with absolute paths, to look at what lies there."""
    settings = written.model_dump(mode="json", exclude_defaults=True, exclude=NOT_IDENTITY)
    local = {
        "model": contents.model(resolved.model),
        "tokenizer": contents.model(resolved.tokenizer) if resolved.tokenizer else None,
        "profile": contents.file(resolved.profile) if resolved.profile else None,
    }
    settings |= {name: content for name, content in local.items() if content is not None}
    version = written.engine_version
    if version is None and resolved.executable:
        version = contents.version(resolved.executable, written.engine)
    return digest({"settings": settings, "engine_version": version, "hardware": hardware_class(hardware)})


def hardware_class(hardware: Hardware) -> dict[str, Any]:
    """What of the hardware changes a measurement: not its price, nor how its nodes are found."""
    return hardware.model_dump(mode="json", include={"name", "accelerator", "cpus_per_device"}, exclude_none=True)


def load_digest(workload: Workload, level: Level, rules: dict[str, Any]) -> str:
    """What a point asks of any deployment. ``rules``: arrivals (with the trace's content), warm-up, length, limits."""
    return digest({"workload": workload_content(workload), "level": level, "client": __version__, **rules})


def workload_content(workload: Workload) -> dict[str, Any]:
    """What a workload asks: with the content of its file in place of its path."""
    content = {"prompts": workload.prompts_digest or file_digest(workload.prompts)} if workload.prompts else {}
    return workload.model_dump(mode="json", exclude={"prompts", "prompts_digest"}) | content


def point_id(deployment: str, load: str) -> str:
    return digest([deployment, load])


def measurement_id(point: str, repeat: int, seed: int) -> str:
    return digest([point, repeat, seed])


@lru_cache(maxsize=4096)
def seed_of(experiment_seed: int, workload: Workload, level: Level, repeat: int) -> int:
    """The schedule's seed (48 bits): the same on every deployment, so that they are compared on the same requests."""
    return int(digest([experiment_seed, workload_content(workload), level, repeat])[:12], 16)


def model_digest(folder: str) -> str | None:
    """What a local model is: the content of its texts and the sizes of its weights. None when it is not at hand.

    Weights are not read: hashing 140 GB would take longer than most sweeps.
    """
    root = Path(folder)
    if not root.is_absolute() or not root.is_dir():
        return None
    texts = {path.name: file_digest(str(path)) for pattern in _MODEL_TEXTS for path in sorted(root.glob(pattern))}
    weights = {path.name: path.stat().st_size for pattern in _MODEL_WEIGHTS for path in sorted(root.glob(pattern))}
    return digest({"texts": texts, "weights": weights}) if texts or weights else None


def file_digest(path: str) -> str | None:
    """16 hex digits of a file's SHA-256, None when it is not at hand."""
    try:
        return content_digest(Path(path).read_bytes())
    except OSError:
        return None


def version_mismatch(resolved: EngineSettings, contents: Contents) -> str | None:
    """A sentence when a virtual environment holds another version than the one asked for; None where nothing tells."""
    if resolved.engine_version is None or resolved.executable is None or resolved.image is not None:
        return None
    found = contents.version(resolved.executable, resolved.engine)
    if found is None or is_version(resolved.engine_version, found):
        return None
    return f"engine_version {resolved.engine_version!r}: {resolved.executable} holds {resolved.engine} {found}"


def installed_version(executable: str, engine: str) -> str | None:
    """The version of an engine in a virtual environment, or in the one an executable is in, without starting it."""
    path = Path(executable)
    for home in (path, *path.parents[1:2]):
        found = sorted(home.glob(f"lib/python*/site-packages/{engine.replace('-', '_')}-*.dist-info"))
        if found:
            return found[-1].name.removesuffix(".dist-info").partition("-")[2]
    return None

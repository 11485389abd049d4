"""Identifies deployments and points by hashes.

Ids do not depend on where files are. Settings are hashed as the experiment file has them, with
pinned values for those that it leaves open. Local models, traces, prompts, programs and image files
are hashed by their content, an engine in a virtual environment by the version and the wheel that
are found there.
"""

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.engines.registry import program_of
from orchestrator.plan.checkpoints import files_digest
from orchestrator.results.ids import content_digest, digest
from orchestrator.spec.document import MOST_FILE_BYTES, PIECE_BYTES, read_at_most
from orchestrator.spec.load import Level, Workload
from orchestrator.spec.settings import (
    EngineSettings,
    Hardware,
    installed,
    installed_version,
    is_version,
)
from orchestrator.spec.stages import ResolvedSettings, WrittenSettings

# Part of every point's id. Raise it when the same load would be measured differently: what the
# client sends, when it takes time stamps, how it counts tokens. Everything that was measured before
# is then measured anew.
MEASUREMENT_VERSION = 2
MOST_RECORD_BYTES = 100_000_000  # size of a wheel's list of files; torch's has 2 MB
NOT_IDENTITY = {"startup_timeout_s", "api_key_env"}  # settings without influence on measurements
_MODEL_TEXTS = ("*.json", "*.model", "*.txt", "*.jinja", "*.py")
_LIBRARIES = ("*.so", "*.so.*", "*.dylib")
_MODEL_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth")
# Only these bytes of programs and libraries are hashed: the head, and pieces spread evenly.
_HEAD_BYTES = 1 << 18
_PIECES = 64
_PIECE_BYTES = 4096


class Contents:
    """Versions and content hashes, each computed once per plan."""

    def __init__(self) -> None:
        self.model = cache(model_digest)
        self.file = cache(file_digest)
        self.version = cache(installed_version)
        self.build = cache(build_digest)


def deployment_id(
    written: WrittenSettings, resolved: ResolvedSettings, hardware: Hardware, contents: Contents
) -> str:
    """The id of a deployment, from its settings as written and as resolved."""
    identity = _identity_of_part(written, resolved, hardware, contents)
    parts: dict[str, Any] = {}
    for role, part in resolved.parts.items():
        if role:  # the part without a role has the settings of the deployment itself
            parts[role] = _identity_of_part(written.parts[role], part, hardware, contents)
    if parts:
        identity["parts"] = parts
    identity["hardware"] = hardware_class(hardware)
    return digest(identity)


def _settings_in_id(
    written: WrittenSettings, resolved: ResolvedSettings, hardware: Hardware
) -> dict[str, Any]:
    """The settings that identify one part: as they are written, with the number of nodes that the
    part is spread over, and with pinned values if the device is known (for ``accelerator: any``
    there are none).
    """
    placed: EngineSettings = written
    if resolved.nnodes != written.nnodes:
        placed = written.model_copy(update={"nnodes": resolved.nnodes})
    pins: dict[str, int] = {}
    if hardware.accelerator != "any":
        pins = program_of(written.engine).open_pins(placed, hardware)
    return placed.model_copy(update=pins).model_dump(
        mode="json", exclude_defaults=True, exclude={*NOT_IDENTITY, "roles", "router"}
    )


def _identity_of_part(
    written: WrittenSettings, resolved: ResolvedSettings, hardware: Hardware, contents: Contents
) -> dict[str, Any]:
    """What identifies one program of a deployment: its settings, with files by their content, the
    engine's version and its build.
    """
    settings = _settings_in_id(written, resolved, hardware)
    # in place of where local files are; None: they are not local
    local_contents = {
        "model": contents.model(resolved.model),
        "tokenizer": contents.model(resolved.tokenizer) if resolved.tokenizer else None,
        "profile": contents.file(resolved.profile) if resolved.profile else None,
    }
    for name, content in local_contents.items():
        if content is not None:
            settings[name] = content
    if resolved.speculative is not None and resolved.speculative.model is not None:
        draft = contents.model(resolved.speculative.model)
        if draft is not None:
            settings["speculative"]["model"] = draft
    for name, place in (resolved.lora_modules or {}).items():
        adapter = contents.model(place)
        if adapter is not None:
            settings["lora_modules"][name] = adapter
    version = written.engine_version
    if version is None and resolved.executable:
        version = contents.version(resolved.executable, written.engine)
    identity = {"settings": settings, "engine_version": version}
    build = _build(written, resolved, contents)
    if build:
        identity["build"] = build
    return identity


def _build(written: WrittenSettings, resolved: ResolvedSettings, contents: Contents) -> str | None:
    """Hash of the program that runs. None if the file gives the version of a wheel: the version is
    believed, because a driver without the environment must get the same id.
    """
    program = resolved.image or resolved.executable
    if not program:
        return None
    if written.engine_version and installed(program, written.engine):
        return None
    return contents.build(program, written.engine)


def hardware_class(hardware: Hardware) -> dict[str, Any]:
    """The part of the hardware that influences measurements: neither price nor node labels."""
    fields = hardware.model_dump(
        mode="json", include={"name", "accelerator", "cpus_per_device"}, exclude_none=True
    )
    if hardware.container_args:
        fields["container_args"] = [*hardware.container_args]
    return fields


def seed_of(experiment_seed: int, workload: Workload, level: Level, repeat: int) -> int:
    """The schedule's seed (48 bits), the same on every deployment so that all are compared on the
    same requests.
    """
    return int(digest([experiment_seed, workload.identity(), level, repeat])[:12], 16)


def model_digest(place: str) -> str | None:
    """Hash of a local model (folder or GGUF file): its text files and its weights, as
    plan/checkpoints.py reads them. None if there is no such model here.
    """
    root = Path(place)
    if not root.is_absolute():
        return None
    if root.is_file():
        from orchestrator.catalog.gguf import parts_of  # few models need it

        # the parts in their order, wherever they lie and whatever they are called
        return digest([*files_digest(parts_of(root)).values()])
    texts: dict[str, str | None] = {}
    for pattern in _MODEL_TEXTS:
        for path in sorted(root.glob(pattern)):
            texts[path.name] = file_digest(str(path))
    weights: list[Path] = []
    for pattern in _MODEL_WEIGHTS:
        weights += sorted(root.glob(pattern))
    if not texts and not weights:
        return None
    return digest({"texts": texts, "weights": files_digest(weights)})


def build_digest(place: str, engine: str) -> str | None:
    """Hash of an image file, of a wheel in a virtual environment, or of a program and the shared
    libraries beside it.

    Scripts do not count: they contain the path of their interpreter.
    """
    path = Path(place)
    if not path.is_absolute():
        return None
    wheel_records = installed(place, engine)
    if wheel_records:
        return wheel_digest(wheel_records)
    if path.is_dir():
        program = program_of(engine).program_in(place)
        path = Path(program) if program is not None else path
    file = Path(os.path.realpath(path))
    files = {path.name: file}
    for pattern in _LIBRARIES:
        files |= {library.name: library for library in file.parent.glob(pattern)}
    digests: dict[str, str] = {}
    for name, file in files.items():
        content = sampled_digest(file)
        if content is not None:
            digests[name] = content
    return digest(digests) if digests else None


def wheel_digest(records: Path) -> str | None:
    """Hash of the file list that pip recorded for a wheel in the folder ``records``; None if there
    is none, as for an editable install.
    """
    try:
        lines = read_at_most(records / "RECORD", MOST_RECORD_BYTES).decode().splitlines()
    except (OSError, ValueError):
        return None
    # these lines contain paths, or who installed the wheel
    elsewhere = ("..", "/", "__editable__", records.name)
    files = sorted(line for line in lines if "sha256=" in line and not line.startswith(elsewhere))
    return digest(files) if files else None


def sampled_digest(path: Path) -> str | None:
    """16 hex digits of a hash over a file's size, its start, and samples spread evenly up to its
    end.

    None for scripts, and for a file that cannot be read or is not a regular one.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            if head.startswith(b"#!"):
                return None
            size = os.fstat(file.fileno()).st_size
            content = [str(size).encode(), head]
            for index in range(_PIECES):
                start = round(index * max(0, size - _PIECE_BYTES) / (_PIECES - 1))
                content.append(os.pread(file.fileno(), _PIECE_BYTES, start))
    except OSError:
        return None
    return content_digest(b"".join(content))


def file_digest(path: str) -> str | None:
    """16 hex digits of a file's SHA-256, the same as ``content_digest`` of its bytes. None if the
    file cannot be read, is not a regular one (others may have no end), or is larger than
    MOST_FILE_BYTES.
    """
    content = hashlib.sha256()
    size = 0
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > MOST_FILE_BYTES:
            return None
        with open(path, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                size += len(piece)
                if size > MOST_FILE_BYTES:  # it grew meanwhile
                    return None
                content.update(piece)
    except OSError:
        return None
    return content.hexdigest()[:16]


def version_mismatch(resolved: ResolvedSettings, contents: Contents) -> str | None:
    """A sentence if a virtual environment has another version than the one asked for; None if it
    has that version, or if its version is not known.
    """
    if resolved.engine_version is None or resolved.executable is None or resolved.image is not None:
        return None
    version = contents.version(resolved.executable, resolved.engine)
    if version is None or is_version(resolved.engine_version, version):
        return None
    return (
        f"engine_version {resolved.engine_version!r}: {resolved.executable} holds "
        f"{resolved.engine} {version}"
    )

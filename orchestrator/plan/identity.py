"""Identifies deployments and points: resolves the paths of their files, hashes them to ids, and
labels deployments.

Relative paths start at the experiment file, ``~`` is the home folder and ``${NAME}`` an environment
variable. Ids do not depend on where files are. Settings are hashed as the experiment file has them,
with pinned values for those it leaves open; local models, traces, prompts, programs and image files
by their content; an engine in a virtual environment by the version and the wheel found there.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.engines.command import Node
from orchestrator.engines.engine import program_of
from orchestrator.plan.checkpoints import files_digest
from orchestrator.results.ids import content_digest, digest
from orchestrator.spec.document import MOST_FILE_BYTES, PIECE_BYTES, from_home, read_at_most
from orchestrator.spec.load import Level, Workload
from orchestrator.spec.settings import (
    LOCATION,
    EngineSettings,
    Hardware,
    Speculative,
    installed,
    installed_version,
    is_version,
)

# Part of every point's id. Raise it when the same load would be measured differently: what the
# client sends, when it takes time stamps, how it counts tokens. Earlier measurements are then
# measured anew.
MEASUREMENT_VERSION = 2
MOST_RECORD_BYTES = 100_000_000  # of a wheel's list of files; torch's has 2 MB
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_PATH_STARTS = (".", "/", "~", "${")
NOT_IDENTITY = {"startup_timeout_s", "api_key_env"}  # settings without influence on measurements
_MODEL_TEXTS = ("*.json", "*.model", "*.txt", "*.jinja", "*.py")
_LIBRARIES = ("*.so", "*.so.*", "*.dylib")
_MODEL_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth")
# Of programs and libraries only these bytes are hashed.
_HEAD_BYTES, _PIECES, _PIECE_BYTES = 1 << 18, 64, 4096
SHORT = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "enable_expert_parallel": "ep",
    "nnodes": "nodes",
    "engine_version": "version",
    "kv_cache_dtype": "kv",
    "quantization": "quant",
    "max_model_len": "len",
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "batched",
    "enable_prefix_caching": "prefix_caching",
    "enable_chunked_prefill": "chunked_prefill",
    "gpu_memory_utilization": "memory",
    "speculative": "spec",
    "served_model_name": "serves",
}
LONGEST = 100
_PLACES = ("model", "executable", "profile", "served_model_name")  # shown by the end of their path
_SIZES = ("replicas", "tensor_parallel_size")
_HIDDEN = {"engine", "startup_timeout_s", "api_key_env", "roles", "router"}


class Paths:
    """Resolves the paths of one experiment file, each path once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = cache(self._path)
        self.model = cache(self._model)

    def resolved(self, settings: EngineSettings) -> EngineSettings:
        """Settings with absolute paths. Raises ValueError for an environment variable that is not
        set, and for the home folder of a user nobody knows.
        """
        return settings.each(self._resolved)

    def _resolved(self, settings: EngineSettings) -> EngineSettings:
        places: dict[str, Callable[[str], str]] = {
            "model": self.model,
            "tokenizer": self.model,
            "executable": self.command,
            "image": self.image,
            "profile": self.profile,
        }
        given = {name: getattr(settings, name) for name in places}
        changed: dict[str, object] = {
            name: places[name](text) for name, text in given.items() if text is not None
        }
        if settings.speculative is not None and settings.speculative.model is not None:
            draft = self.model(settings.speculative.model)
            changed["speculative"] = settings.speculative.model_copy(update={"model": draft})
        same = all(getattr(settings, name) == value for name, value in changed.items())
        # shared: a file may have 100,000 of them
        return settings if same else settings.model_copy(update=changed)

    def command(self, text: str) -> str:
        """An absolute path, or the bare name of a command on the node's PATH."""
        return self.path(text) if "/" in text or text.startswith("~") else text

    def image(self, text: str) -> str:
        """An absolute path if ``text`` looks like a path, else a reference to a registry."""
        return self.path(text) if text.startswith(_PATH_STARTS) or text.endswith(".sif") else text

    def profile(self, text: str) -> str:
        """The absolute path of a file, or a name of the catalogue, which may contain slashes and
        dots too.
        """
        is_file = text.startswith(_PATH_STARTS) or Path(text).suffix in (".yaml", ".yml", ".json")
        return self.path(text) if is_file else text

    def _path(self, text: str) -> str:
        """An absolute path. Links are not resolved: a virtual environment's own path matters."""
        try:
            filled = from_home(_VARIABLE.sub(_from_environment, text))
        except InputError as error:
            raise ValueError(str(error)) from None
        return os.path.normpath(self._folder / filled)

    def _model(self, text: str) -> str:
        """An absolute path if ``text`` looks like a path or exists beside the experiment, else a
        name on the hub.
        """
        if text.startswith(_PATH_STARTS) or (self._folder / text).exists():
            return self.path(text)
        return text


class Contents:
    """Versions and content hashes, each computed once per plan."""

    def __init__(self) -> None:
        self.model = cache(model_digest)
        self.file = cache(file_digest)
        self.version = cache(installed_version)
        self.build = cache(build_digest)


def deployment_id(
    written: EngineSettings, resolved: EngineSettings, hardware: Hardware, contents: Contents
) -> str:
    """The id of a deployment. ``written``: settings as in the file; ``resolved``: the same with
    absolute paths.
    """
    what = _what(written, resolved, hardware, contents)
    parts = resolved.parts if resolved.roles or resolved.router else {}
    if more := {
        role: _what(written.parts[role], part, hardware, contents)
        for role, part in parts.items()
        if role
    }:
        what["parts"] = more
    return digest(what | {"hardware": hardware_class(hardware)})


def _what(
    written: EngineSettings, resolved: EngineSettings, hardware: Hardware, contents: Contents
) -> dict[str, Any]:
    """What identifies one program of a deployment. Pinned values count like written ones, if the
    device is known before the cluster is: ``accelerator: any`` has no device to pin values for.
    """
    known = hardware.accelerator != "any"
    pins = program_of(written.engine).pinned(written, hardware) if known else {}
    settings = written.model_copy(update=pins).model_dump(
        mode="json", exclude_defaults=True, exclude={*NOT_IDENTITY, "roles", "router"}
    )
    local = {
        "model": contents.model(resolved.model),
        "tokenizer": contents.model(resolved.tokenizer) if resolved.tokenizer else None,
        "profile": contents.file(resolved.profile) if resolved.profile else None,
    }
    settings |= {name: content for name, content in local.items() if content is not None}
    if resolved.speculative is not None and resolved.speculative.model is not None:
        draft = contents.model(resolved.speculative.model)
        settings["speculative"] |= {"model": draft} if draft is not None else {}
    version = written.engine_version
    if version is None and resolved.executable:
        version = contents.version(resolved.executable, written.engine)
    what = {"settings": settings, "engine_version": version}
    program = resolved.image or resolved.executable
    build = contents.build(program, written.engine) if program else None
    if written.engine_version and build and installed(program or "", written.engine):
        # a written version of a wheel is believed: drivers may not have the environment
        build = None
    return what | ({"build": build} if build else {})


def hardware_class(hardware: Hardware) -> dict[str, Any]:
    """The part of the hardware that influences measurements: neither price nor node labels."""
    own = hardware.model_dump(
        mode="json", include={"name", "accelerator", "cpus_per_device"}, exclude_none=True
    )
    return own | ({"container_args": [*hardware.container_args]} if hardware.container_args else {})


def seed_of(experiment_seed: int, workload: Workload, level: Level, repeat: int) -> int:
    """The schedule's seed (48 bits), the same on every deployment so that all are compared on the
    same requests.
    """
    return int(digest([experiment_seed, workload.identity(), level, repeat])[:12], 16)


def model_digest(place: str) -> str | None:
    """Hash of a local model (folder or GGUF file): its text files and its weights, as
    plan/checkpoints.py reads them. None if it is absent.
    """
    root = Path(place)
    if not root.is_absolute():
        return None
    if root.is_file():
        from orchestrator.catalog.gguf import parts_of  # few need it

        # the parts in their order, wherever they lie and whatever they are called
        return digest([*files_digest(parts_of(root)).values()])
    texts: dict[str, str | None] = {}
    for pattern in _MODEL_TEXTS:
        for path in sorted(root.glob(pattern)):
            texts[path.name] = file_digest(str(path))
    weights = [path for pattern in _MODEL_WEIGHTS for path in sorted(root.glob(pattern))]
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
    if described := installed(place, engine):
        return wheel_digest(described)
    if path.is_dir() and (start := program_of(engine).start):  # the program in it that is started
        anything = EngineSettings(engine=engine, model="any", executable=place)
        path = Path(start(anything, Hardware(name="cpu"), Node()).argv[0])
    real = Path(os.path.realpath(path))
    files = {path.name: real} | {
        one.name: one for kind in _LIBRARIES for one in real.parent.glob(kind)
    }
    contents = {name: sampled_digest(file) for name, file in files.items()}
    return (
        digest(found) if (found := {name: one for name, one in contents.items() if one}) else None
    )


def wheel_digest(described: Path) -> str | None:
    """Hash of the file list that pip recorded for a wheel; None if there is none, as for an
    editable install.
    """
    try:
        lines = read_at_most(described / "RECORD", MOST_RECORD_BYTES).decode().splitlines()
    except (OSError, ValueError):
        return None
    # these contain paths, or who installed it
    elsewhere = ("..", "/", "__editable__", described.name)
    found = sorted(one for one in lines if "sha256=" in one and not one.startswith(elsewhere))
    return digest(found) if found else None


def sampled_digest(path: Path) -> str | None:
    """16 hex digits of a hash over a file's size, its start, and samples spread evenly up to its
    end.

    None for scripts, and for what cannot be read or is no regular file.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            starts = [
                round(i * max(0, size - _PIECE_BYTES) / (_PIECES - 1)) for i in range(_PIECES)
            ]
            pieces = [
                file.read(_HEAD_BYTES),
                *(os.pread(file.fileno(), _PIECE_BYTES, start) for start in starts),
            ]
    except OSError:
        return None
    return (
        None
        if pieces[0].startswith(b"#!")
        else content_digest(b"".join([str(size).encode(), *pieces]))
    )


def file_digest(path: str) -> str | None:
    """16 hex digits of a file's SHA-256, as ``content_digest`` has them of its bytes. None when it
    cannot be read, is no regular file (others may have no end), or is larger than MOST_FILE_BYTES.
    """
    found, size = hashlib.sha256(), 0
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > MOST_FILE_BYTES:
            return None
        with open(path, "rb") as file:
            while size <= MOST_FILE_BYTES and (piece := file.read(PIECE_BYTES)):
                found.update(piece)
                size += len(piece)
    except OSError:
        return None
    return found.hexdigest()[:16] if size <= MOST_FILE_BYTES else None


def version_mismatch(resolved: EngineSettings, contents: Contents) -> str | None:
    """A sentence if a virtual environment has another version than the one asked for; None if that
    is not known.
    """
    if resolved.engine_version is None or resolved.executable is None or resolved.image is not None:
        return None
    found = contents.version(resolved.executable, resolved.engine)
    if found is None or is_version(resolved.engine_version, found):
        return None
    return f"engine_version {resolved.engine_version!r}: {resolved.executable} holds {resolved.engine} {found}"


def _from_environment(found: re.Match[str]) -> str:
    value = os.environ.get(found.group(1))
    if value is None:
        raise ValueError(f"environment variable {found.group(1)!r} is not set")
    return value


def labels(deployments: Sequence[tuple[EngineSettings, str]], ids: Sequence[str]) -> list[str]:
    """One label per (settings, hardware name), in order; unique if ``ids`` are.

    A label shows the settings in which deployments of the same engine differ.
    """
    flat = _telling(deployments)
    engines = {row["engine"] for row in flat}
    differing = {
        engine: _differing([row for row in flat if row["engine"] == engine]) for engine in engines
    }
    _shorten(flat)
    texts = [_label(row, differing[row["engine"]]) for row in flat]
    seen = Counter(texts)
    return [
        text if seen[text] == 1 and len(text) <= LONGEST else f"{text[:LONGEST]} #{name[:6]}"
        for text, name in zip(texts, ids, strict=True)
    ]


def _telling(deployments: Sequence[tuple[EngineSettings, str]]) -> list[dict[str, Any]]:
    """``_flat`` of each, without what tells none from another of its engine: most of what there is,
    many times.
    """
    first: dict[str, dict[str, Any]] = {}
    telling = {"engine", "engine_version", *LOCATION, *_PLACES}
    for row in (_flat(settings, hardware) for settings, hardware in deployments):
        other = first.setdefault(row["engine"], row)
        telling |= {name for name in row.keys() | other.keys() if row.get(name) != other.get(name)}
    rows = (_flat(settings, hardware) for settings, hardware in deployments)
    return [{name: value for name, value in row.items() if name in telling} for row in rows]


def _flat(settings: EngineSettings, hardware: str) -> dict[str, Any]:
    """Settings by name, with one entry for each flag and environment variable."""
    out: dict[str, Any] = {"engine": settings.engine, "hardware": hardware}
    for name, value in settings:
        if name in ("env", "extra_args"):
            out |= {str(key): entry for key, entry in value.items()}
        elif name not in _HIDDEN:
            out[name] = None if settings.roles and name in _SIZES else value  # roles have their own
    for role, part in (settings.roles or {}).items():
        # only what differs from the shared settings; sizes are always worth showing
        own = {
            name: value
            for name, value in part
            if value != getattr(settings, name) or name in _SIZES
        }
        out |= {f"{role}.{name}": value for name, value in own.items()}
    if settings.router:
        out |= {"router": settings.router.engine} | {
            f"router.{k}": value for k, value in settings.router.extra_args.items()
        }
    return out


def _shorten(rows: Sequence[dict[str, Any]]) -> None:
    """Shortens paths to as many last parts as tell them apart: ``gptq4``, or ``tiny/gptq4`` beside
    ``small/gptq4``.
    """
    for name in _PLACES:
        places = {PurePath(str(row[name])) for row in rows if row.get(name)}
        most = max((len(place.parts) for place in places), default=0)
        tails = (
            {place: "/".join(place.parts[-count:]) for place in places}
            for count in range(1, most + 1)
        )
        told = next((names for names in tails if len(set(names.values())) == len(places)), {})
        for row in rows:
            if row.get(name):
                row[name] = told[PurePath(str(row[name]))]


def _differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    found = [name for name in names if any(row.get(name) != rows[0].get(name) for row in rows)]
    return [name for name in found if name not in LOCATION or not _told_by_version(name, rows)]


def _told_by_version(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the version tells as much as the location: every version has one location."""
    versions = {row.get("engine_version") for row in rows}
    return len({(row.get("engine_version"), row.get(name)) for row in rows}) == len(versions)


def _label(row: Mapping[str, Any], names: Sequence[str]) -> str:
    shown = [(name, row[name]) for name in names if row.get(name) is not None]
    return " ".join([row["engine"], *(_part(name, value) for name, value in shown)])


def _speculation(spec: Speculative) -> str:
    """Method and tokens, then what else sets one draft apart from another."""
    parts = [f"spec={spec.method or 'auto'}:{spec.num_speculative_tokens}"]
    if spec.eagle_topk or spec.num_draft_tokens:
        parts.append(f"{spec.eagle_topk or 1}:{spec.num_draft_tokens}")
    parts += [f"{key}={value}" for key, value in spec.extra_args.items()]
    return ",".join(parts)


def _part(name: str, value: Any) -> str:
    if name == "hardware":
        return str(value)
    if name == "url":
        return str(value).partition("://")[2] or str(value)
    if hasattr(value, "method"):  # speculative decoding
        return _speculation(value)
    role, _, own = name.rpartition(".")
    name = ".".join(filter(None, (role, SHORT.get(own, own))))
    if isinstance(value, bool):
        return f"{name}={'on' if value else 'off'}"
    text = (
        json.dumps(value, separators=(",", ":")) if isinstance(value, dict | list) else str(value)
    )
    return f"{name}={text}"

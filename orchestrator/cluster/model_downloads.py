"""Which models a node has, may download and has yet to download. No Ray in here."""

import fnmatch
import json
import os
import re
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from orchestrator.base.redaction import redact
from orchestrator.catalog.models import INDEX
from orchestrator.engines.command import Node, fill_placeholders
from orchestrator.engines.registry import ENGINES, ROUTERS
from orchestrator.spec.settings import EngineSettings

HUB_LIMIT_S = 8.0
# The hub is asked about this many models at a time: a sweep may need many, and doctor waits only a
# minute for a node.
AT_ONCE = 16
# any of these files shows that a repository was downloaded, apart from its weights
DESCRIBING = {
    "config": ("config.json", "params.json", "*.gguf"),
    "tokenizer": (
        "tokenizer.json",
        "tokenizer_config.json",
        "*.model",
        "vocab.json",
        "tekken.json",
        "*.gguf",
    ),
}
WEIGHTS = ("*.safetensors", "*model*.bin", "*.gguf")
SHARD = re.compile(r"(.*)-\d+-of-(\d+)(\.\w+)")


ModelPart = Literal["weights", "config", "tokenizer"]


class AbsenceCause(StrEnum):
    """Why a node cannot have a model."""

    NO_PATH = "no_path"  # a local file or folder
    OFFLINE = "offline"  # the hub may not be asked
    OFFLINE_BY_FILE = "offline_by_file"  # the engine may not ask it, as the experiment file says
    NO_ROOM = "no_room"
    NOT_FOUND = "not_found"  # the hub does not name it to this user
    NO_REVISION = "no_revision"
    GATED = "gated"  # the hub shows it, and this user may not have its files
    BAD_TOKEN = "bad_token"  # noqa: S105 - the hub refuses the token itself
    NO_ANSWER = "no_answer"  # of the hub


@dataclass(frozen=True, slots=True)
class Wanted:
    """A folder, or a repository of the hub, that an engine loads. ``part``: the weights, or only
    the files that describe them.
    """

    name: str
    part: ModelPart
    revision: str | None = None

    @property
    def repository(self) -> str:
        """Its name, without the quantization that llama.cpp allows after it."""
        return self.name.partition(":")[0]

    def blobs(self, cache: Path) -> Path:
        """Where a hub cache has the content of its files."""
        return cache / f"models--{self.repository.replace('/', '--')}" / "blobs"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Something that an engine loads, and where the engine looks for it. ``is_offline``: the
    engine's own environment keeps it from asking the hub.
    """

    wanted: Wanted
    cache: Path
    is_offline: bool = False


@dataclass(frozen=True, slots=True)
class Absence:
    """What a node lacks of something that an engine loads. ``problem``, ``cause``: why the node
    cannot have it; empty and None if it can. ``download_bytes``: how many bytes of weights have to
    be downloaded first.
    """

    problem: str = ""
    cause: AbsenceCause | None = None
    download_bytes: int = 0


def wanted_by(settings: EngineSettings) -> list[Wanted]:
    """What an engine needs on its node: its model, a draft model, and a tokenizer of its own.

    An emulator needs nothing from the hub, an engine with dummy weights needs no weights, and a
    router has no model.
    """
    if settings.engine in ROUTERS:
        return []
    engine = ENGINES[settings.engine]
    part: ModelPart = "config" if settings.load_format == "dummy" else "weights"
    wanted = [Wanted(settings.model, part, settings.revision)]
    draft = settings.speculative.model if settings.speculative else None
    if draft:
        wanted.append(Wanted(draft, "weights"))
    takes_tokenizer = "tokenizer" in {*engine.flags, *engine.handled_fields}
    tokenizer = settings.tokenizer if takes_tokenizer else None  # otherwise for clients alone
    if tokenizer is not None and tokenizer != settings.model:
        wanted.append(Wanted(tokenizer, "tokenizer"))
    if engine.emulated:
        return [model for model in wanted if os.path.isabs(model.name)]
    return wanted


def hub_cache(env: Mapping[str, str]) -> Path:
    """The hub cache of an engine that gets ``env`` in addition to this process's environment."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = env.get("HF_HUB_CACHE", HF_HUB_CACHE)
    # HF_HUB_CACHE wins, wherever it is set
    if "HF_HOME" in env and "HF_HUB_CACHE" not in {*env, *os.environ}:
        folder = os.path.join(env["HF_HOME"], "hub")
    return Path(os.path.expandvars(os.path.expanduser(folder)))


def downloaded_bytes(settings: EngineSettings, node: Node) -> int:
    """Bytes of the model and its draft in this node's hub cache, including files that are still
    being written.
    """
    names = [settings.model, settings.speculative.model if settings.speculative else None]
    wanted = [Wanted(name, "weights") for name in names if name and not os.path.isabs(name)]
    if not wanted:
        return 0
    env = {name: fill_placeholders(value, node) for name, value in settings.env.items()}
    cache = hub_cache(env)
    total_bytes = 0
    for model in wanted:
        with suppress(OSError), os.scandir(model.blobs(cache)) as files:
            for file in files:
                with suppress(OSError):  # it was renamed to its final name meanwhile
                    total_bytes += file.stat().st_blocks * 512
    return total_bytes


def lookups_of(settings: EngineSettings) -> list[Lookup]:
    """What an engine needs on its node, and where it looks for that."""
    from huggingface_hub.constants import ENV_VARS_TRUE_VALUES

    cache = hub_cache(settings.env)
    is_offline = settings.env.get("HF_HUB_OFFLINE", "").upper() in ENV_VARS_TRUE_VALUES
    return [Lookup(wanted, cache, is_offline) for wanted in wanted_by(settings)]


def all_absent(launched: Sequence[EngineSettings]) -> dict[Lookup, Absence]:
    """What this node lacks of everything that these settings want. Each is looked up once, and
    several at the same time.
    """
    lookups: dict[Lookup, None] = {}
    for settings in launched:
        lookups |= dict.fromkeys(lookups_of(settings))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        absences = pool.map(
            lambda lookup: absent(lookup.wanted, lookup.cache, lookup.is_offline), lookups
        )
        return dict(zip(lookups, absences, strict=True))


def absent(wanted: Wanted, cache: Path, is_offline: bool = False) -> Absence:
    """What this node lacks of something that an engine loads. ``is_offline``: the engine's own
    environment keeps it from asking the hub.
    """
    if os.path.isabs(wanted.name):
        if os.path.exists(wanted.name):
            return Absence()
        return Absence("there is no such file or folder", AbsenceCause.NO_PATH)
    if _is_cached(wanted, cache):
        return Absence()
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        problem = "not all of it is in this node's cache, and HF_HUB_OFFLINE is set"
        return Absence(problem, AbsenceCause.OFFLINE)
    if is_offline:
        problem = "not all of it is in this node's cache, and the file's env has HF_HUB_OFFLINE"
        return Absence(problem, AbsenceCause.OFFLINE_BY_FILE)
    name = wanted.repository
    try:
        # uses this node's token, if there is one: of its environment, or of a file
        info = HfApi().model_info(
            name, revision=wanted.revision, timeout=HUB_LIMIT_S, files_metadata=True
        )
        if info.gated:  # the description is public, the files are not
            HfApi().auth_check(name)
    except Exception as error:
        cause = _cause(error)
        if cause is AbsenceCause.NO_ANSWER:
            refusal = "it is not in this node's cache, and the hub does not answer"
        else:
            token = "with a token" if get_token() else "without a token"
            refusal = f"the hub does not serve it ({token})"
        reason = " ".join(str(error).split())
        problem = f"{refusal}: {type(error).__name__}: {reason}"
        return Absence(redact(problem)[:300], cause)
    if wanted.part != "weights":
        return Absence()
    return Absence(download_bytes=_to_download(info.siblings or (), wanted.blobs(cache)))


def _cause(error: Exception) -> AbsenceCause:
    """What an error of the hub's library means."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):  # before its base class, RepositoryNotFoundError
        return AbsenceCause.GATED
    if isinstance(error, RepositoryNotFoundError | HFValidationError):
        return AbsenceCause.NOT_FOUND
    if isinstance(error, RevisionNotFoundError):
        return AbsenceCause.NO_REVISION
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status == HTTPStatus.UNAUTHORIZED:
        return AbsenceCause.BAD_TOKEN
    if status == HTTPStatus.FORBIDDEN:
        return AbsenceCause.GATED
    return AbsenceCause.NO_ANSWER


def _is_cached(wanted: Wanted, cache: Path) -> bool:
    """Whether nothing has to be downloaded. The cache may have only a part of a repository, since a
    plan downloads only the files that describe a model.
    """
    from huggingface_hub import snapshot_download

    try:
        # only finds the folder of this revision; its content is examined below
        snapshot = snapshot_download(
            wanted.repository,
            revision=wanted.revision,
            cache_dir=cache,
            local_files_only=True,
            allow_patterns=[],
        )
        folder = Path(snapshot)
        paths = [path for path in folder.rglob("*") if path.is_file()]
        files = {path.relative_to(folder).as_posix() for path in paths}
        indexed: set[str] = set()
        if INDEX in files:
            indexed = set(json.loads((folder / INDEX).read_text())["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    describing = DESCRIBING["tokenizer" if wanted.part == "tokenizer" else "config"]
    if wanted.part != "weights" or not _matching(files, describing):
        return bool(_matching(files, describing))
    return any(_complete(_matching(files, [kind]), indexed) for kind in WEIGHTS)


def _complete(files: Sequence[str], indexed: Set[str]) -> bool:
    """Whether these files of one kind hold a whole model: all files that an index names; or,
    without counting those, all shards of a model or a model in a single file. An engine may load
    other files than those of the index.
    """
    if indexed and indexed <= set(files):
        return True
    missing_shards: dict[tuple[str, ...], int] = {}  # by name, number of shards and suffix
    for name in files:
        if name in indexed:
            continue
        shard = SHARD.fullmatch(name)
        if shard is None:
            return True  # a single file
        _, number, _ = shard.groups()
        missing_shards[shard.groups()] = missing_shards.get(shard.groups(), int(number)) - 1
    return 0 in missing_shards.values()


def _to_download(siblings: Sequence[Any], blobs: Path) -> int:
    """Bytes of the weights in a repository that the cache does not have. Files whose download was
    cut off count as missing.
    """
    files = {file.rfilename: file for file in siblings}
    # GGUF files do not count: a repository has several, and the engine takes one
    names = _matching(files, WEIGHTS[:1]) or _matching(files, WEIGHTS[1:2])

    def is_there(file: Any) -> bool:
        return file.lfs is not None and (blobs / file.lfs.sha256).is_file()

    return sum(files[name].size or 0 for name in names if not is_there(files[name]))


def _matching(names: Any, patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]

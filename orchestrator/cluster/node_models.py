"""Which models a node has, may download and has yet to download. No Ray in here."""

import fnmatch
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.base.redaction import redact
from orchestrator.catalog.models import INDEX
from orchestrator.engines.command import Node, fill_placeholders
from orchestrator.engines.registry import ENGINES, ROUTERS
from orchestrator.spec.settings import EngineSettings

HUB_LIMIT_S = 8.0
# questions to the hub: a sweep may need many models, and doctor waits a minute for a node
AT_ONCE = 16
# files of which one shows that a repository was downloaded, as far as it is not weights
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """A folder, or a repository of the hub, that an engine loads. ``part``: weights, or only what
    describes them.
    """

    name: str
    part: Literal["weights", "config", "tokenizer"]
    revision: str | None = None

    @property
    def repository(self) -> str:
        """Without the quantization that llama.cpp takes behind it."""
        return self.name.partition(":")[0]

    def blobs(self, cache: Path) -> Path:
        """Where a hub cache has the content of its files."""
        return cache / f"models--{self.repository.replace('/', '--')}" / "blobs"


def wanted_by(settings: EngineSettings) -> list[Wanted]:
    """What an engine needs on its node: its model, a draft model, and a tokenizer that it is given
    beside them.

    Of the hub an emulator needs nothing, and an engine that makes up weights no weights. Routers
    have no model.
    """
    if settings.engine in ROUTERS:
        return []
    engine, draft = (
        ENGINES[settings.engine],
        settings.speculative.model if settings.speculative else None,
    )
    found = [
        Wanted(
            settings.model,
            "config" if settings.load_format == "dummy" else "weights",
            settings.revision,
        )
    ]
    found += [Wanted(draft, "weights")] if draft else []
    # others: for clients alone
    given = settings.tokenizer if "tokenizer" in {*engine.flags, *engine.handled_fields} else None
    found += [Wanted(given, "tokenizer")] if given not in (None, settings.model) else []
    return [wanted for wanted in found if os.path.isabs(wanted.name) or not engine.emulated]


def hub_cache(env: Mapping[str, str]) -> Path:
    """The hub cache of an engine that gets ``env`` in addition to this process's environment."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = env.get("HF_HUB_CACHE", HF_HUB_CACHE)
    # HF_HUB_CACHE wins, wherever it is set
    if "HF_HOME" in env and "HF_HUB_CACHE" not in {*env, *os.environ}:
        folder = os.path.join(env["HF_HOME"], "hub")
    return Path(os.path.expandvars(os.path.expanduser(folder)))


def downloaded_bytes(settings: EngineSettings, node: Node) -> int:
    """What this node's hub cache holds of the model and its draft, files that are being written
    included.
    """
    names = [settings.model, settings.speculative.model if settings.speculative else None]
    wanted = [Wanted(name, "weights") for name in names if name and not os.path.isabs(name)]
    cache = (
        hub_cache({name: fill_placeholders(value, node) for name, value in settings.env.items()})
        if wanted
        else Path()
    )
    found = 0
    for one in wanted:
        with suppress(OSError), os.scandir(one.blobs(cache)) as files:
            for file in files:
                with suppress(OSError):  # it has its final name by now
                    found += file.stat().st_blocks * 512
    return found


def all_absent(launched: Sequence[EngineSettings]) -> dict[tuple[Wanted, Path], tuple[str, int]]:
    """What ``absent`` says of all that these settings want, each asked once and all at the same
    time.
    """
    asked = list(
        dict.fromkeys(
            (one, hub_cache(settings.env)) for settings in launched for one in wanted_by(settings)
        )
    )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(asked, pool.map(lambda one: absent(*one), asked), strict=True))


def absent(wanted: Wanted, cache: Path) -> tuple[str, int]:
    """Why this node cannot have it, empty if it can; the bytes of weights that it has to download
    for that.
    """
    if os.path.isabs(wanted.name):
        return "" if os.path.exists(wanted.name) else "there is no such file or folder", 0
    if _is_cached(wanted, cache):
        return "", 0
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return "not all of it is in this node's cache, and HF_HUB_OFFLINE is set", 0
    name = wanted.repository
    try:
        # uses the token in this node's environment, if there is one
        info = HfApi().model_info(
            name, revision=wanted.revision, timeout=HUB_LIMIT_S, files_metadata=True
        )
        if info.gated:  # everybody may read what it is, not what is in it
            HfApi().auth_check(name)
    except Exception as error:
        token = "with" if os.environ.get("HF_TOKEN") else "without"
        return redact(
            f"the hub does not serve it ({token} HF_TOKEN): {type(error).__name__}: {error}"
        )[:300], 0
    return "", _to_download(info.siblings or (), wanted.blobs(cache)) * (wanted.part == "weights")


def _is_cached(wanted: Wanted, cache: Path) -> bool:
    """Whether nothing has to be downloaded: a plan, for one, takes only the files that describe a
    model.
    """
    from huggingface_hub import snapshot_download

    try:
        folder = Path(  # of this revision; without patterns nothing is said of what is in it
            snapshot_download(
                wanted.repository,
                revision=wanted.revision,
                cache_dir=cache,
                local_files_only=True,
                allow_patterns=[],
            )
        )
        files = {
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        }
        named = (
            set(json.loads((folder / INDEX).read_text())["weight_map"].values())
            if INDEX in files
            else set()
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    describing = DESCRIBING["tokenizer" if wanted.part == "tokenizer" else "config"]
    if wanted.part != "weights" or not _matching(files, describing):
        return bool(_matching(files, describing))
    return any(_complete(_matching(files, [kind]), named) for kind in WEIGHTS)


def _complete(files: Sequence[str], named: Set[str]) -> bool:
    """Whether these files of one kind have a whole model: all that an index ``named``, or beside
    those all shards of one, or one in a single file. An index may be of other files than its engine
    takes.
    """
    if named and named <= set(files):
        return True
    others = [name for name in files if name not in named]
    shards = Counter(shard.groups() for name in others if (shard := SHARD.fullmatch(name)))
    return any(n == int(of) for (_, of, _), n in shards.items()) or any(
        not SHARD.fullmatch(name) for name in others
    )


def _to_download(siblings: Sequence[Any], blobs: Path) -> int:
    """Bytes of the weights in a repository that the cache does not have. What a download left
    half-way is no use.
    """
    files = {file.rfilename: file for file in siblings}
    # of several GGUFs one is taken
    names = _matching(files, WEIGHTS[:1]) or _matching(files, WEIGHTS[1:2])

    def is_there(file: Any) -> bool:
        return file.lfs is not None and (blobs / file.lfs.sha256).is_file()

    return sum(files[name].size or 0 for name in names if not is_there(files[name]))


def _matching(names: Any, patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]

"""Prompts from a dataset of the Hugging Face hub: the files of a split, at the commit that was
planned.

No code of a dataset is run: only files that hold rows (Parquet, JSON, CSV) are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.base.redaction import redact
from orchestrator.base.text import counted
from orchestrator.spec.document import MOST_FILE_BYTES
from orchestrator.spec.settings import OneLine, Strict, as_tuple

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
CONVERTED = "refs/convert/parquet"  # where the hub keeps what it made of other formats
TIMEOUT_S = 30.0
MOST_SHOWN = 5
_READABLE = re.compile(r"\.(parquet|jsonl|ndjson|json|csv|tsv)(\.gz)?$", re.IGNORECASE)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# What tells the shards of a split apart: their numbers, and the digest that some have at the end.
_SHARD = re.compile(r"-[0-9a-f]{16}(?=\.)|[0-9]+")
_WILDCARDS = {"**/": "(?:.+/)?", "**": ".+", "*": "[^/]*", "?": "[^/]"}


class HubDataset(Strict):
    """A dataset of the hub. Without ``file`` and ``files``, all files of the split are read."""

    id: OneLine = Field(description="The dataset's name, for example `philschmid/mt-bench`.")
    revision: OneLine = Field(
        default=MAIN, description="A branch, tag or commit. `plan` keeps the commit."
    )
    config: OneLine | None = Field(
        default=None, description="The configuration, where the dataset has several."
    )
    split: OneLine = Field(default="train", description="The split whose files are read.")
    file: OneLine | None = Field(default=None, description="One file, instead of a split.")
    files: Annotated[tuple[OneLine, ...], BeforeValidator(as_tuple)] = Field(
        default=(),
        description="Several files, instead of a split. `plan` keeps those of the split.",
    )

    @model_validator(mode="after")
    def _file_or_files(self) -> Self:
        if self.file is not None and self.files:
            raise ValueError("'file' and 'files' exclude each other")
        return self

    @property
    def named_files(self) -> tuple[str, ...]:
        """The files that are read, in their order; none where the split says which."""
        return self.files if self.file is None else (self.file,)

    def with_files(self, commit: str | None, files: Sequence[str]) -> Self:
        """The dataset at a commit. ``files``: what is read of it, in their order."""
        update: dict[str, Any] = {"revision": commit, "file": None, "files": tuple(files)}
        if len(files) == 1:
            update |= {"file": files[0], "files": ()}
        return self.model_copy(update=update)

    def beside(self, first: str) -> tuple[str, ...]:
        """The paths of all files, where the first one lies at ``first`` in a copy of the dataset."""
        names = self.named_files
        if len(names) < 2:
            return (first,)
        root = Path(first.removesuffix(names[0]))
        return (first, *(str(root / name) for name in names[1:]))


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files of a dataset in this node's cache, and the dataset with its commit and files."""

    paths: tuple[str, ...]
    dataset: HubDataset


@dataclass(frozen=True, slots=True)
class Contents:
    """What the hub has at a commit. ``patterns``: of the files of each configuration that the
    dataset's card describes, as the card writes them.
    """

    commit: str | None
    names: tuple[str, ...]
    patterns: dict[str, Any]
    default: str | None  # the configuration that is meant where none is named


def local_files(dataset: HubDataset) -> LocalFiles:
    """Downloads the files of a dataset that this node's cache lacks. Raises ProblemsError where
    the hub does not give them, where they are too large, or where it is not clear which are meant.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        pinned = _pinned(api, dataset)
        paths = [
            api.hf_hub_download(pinned.id, name, repo_type="dataset", revision=pinned.revision)
            for name in pinned.named_files
        ]
    except ProblemsError:
        raise
    except Exception as error:  # the errors of the library and of its HTTP client have no base
        reason = redact(str(error)).strip().partition("\n")[0][:200]
        raise _problem(dataset, f"cannot be had: {reason}") from None
    return LocalFiles(tuple(map(str, paths)), pinned)


def _pinned(api: HfApi, dataset: HubDataset) -> HubDataset:
    """The dataset with its commit and files. It is left as it is if it has both."""
    if dataset.named_files and _COMMIT.fullmatch(dataset.revision):
        return dataset
    contents = _contents(api, dataset)
    if dataset.named_files:
        for name in dataset.named_files:
            if name not in contents.names:
                raise _problem(dataset, f"has no file {name!r}; {_shown(contents.names)}")
        files: Sequence[str] = dataset.named_files
    else:
        files = _of_split(contents, dataset)
        if not files and dataset.revision == MAIN:
            dataset = dataset.model_copy(update={"revision": CONVERTED})
            contents = _contents(api, dataset)
            files = _of_split(contents, dataset)
        if not files:
            of_config = f" of the configuration {dataset.config!r}" if dataset.config else ""
            raise _problem(
                dataset,
                f"has no file of the split {dataset.split!r}{of_config} that can be read: name "
                f"one as 'file'; {_shown(contents.names)}",
            )
    pinned = dataset.with_files(contents.commit, files)
    if len(files) > 1:
        _refuse_too_large(api, pinned)
    return pinned


def _contents(api: HfApi, dataset: HubDataset) -> Contents:
    info = api.dataset_info(dataset.id, revision=dataset.revision, timeout=TIMEOUT_S)
    names = tuple(sibling.rfilename for sibling in info.siblings or ())
    patterns: dict[str, Any] = {}
    default = None
    for config in getattr(info.card_data, "configs", None) or ():
        name = config.get("config_name", "default")
        patterns[name] = config.get("data_files")
        if config.get("default") or name == "default":
            default = name
    if len(patterns) == 1:
        default = next(iter(patterns))
    return Contents(info.sha, names, patterns, default)


def _refuse_too_large(api: HfApi, dataset: HubDataset) -> None:
    """Raises ProblemsError for files that are together larger than what is read of a file."""
    info = api.dataset_info(
        dataset.id, revision=dataset.revision, timeout=TIMEOUT_S, files_metadata=True
    )
    siblings = [file for file in info.siblings or () if file.rfilename in dataset.files]
    size = sum(file.size or 0 for file in siblings)
    if size > MOST_FILE_BYTES:
        raise _problem(
            dataset,
            f"has {size / 2**30:.1f} GiB in {counted(len(siblings), 'file')} of the split "
            f"{dataset.split!r}, and at most {MOST_FILE_BYTES >> 30} GiB are read: name some as "
            f"'files'; {_shown(dataset.files)}",
        )


def _of_split(contents: Contents, dataset: HubDataset) -> list[str]:
    """The files with rows of the split, in the order of their names: those that the card gives, or
    those whose name or folder is that of the split; if no name has a split's, the only file with
    rows. Raises ProblemsError for files that are not the shards of one split.
    """
    readable = sorted(name for name in contents.names if _READABLE.search(name))
    config = dataset.config or contents.default
    described = contents.patterns.get(config) if config is not None else None
    patterns = [_expression(glob) for glob in _globs(described, dataset.split)]
    declared = [name for name in readable if any(p.fullmatch(name) for p in patterns)]
    if declared:
        return declared
    if dataset.config is not None:
        readable = [name for name in readable if f"/{dataset.config}/" in f"/{name}"]
    of_split = re.compile(rf"(^|[/_.-]){re.escape(dataset.split)}([/_.-]|$)")
    chosen = [name for name in readable if of_split.search(name)]
    if not chosen and len(readable) == 1:
        return readable
    if len({_without_shard(name) for name in chosen}) > 1:
        configs = f": {_listed(list(contents.patterns))}" if contents.patterns else ""
        raise _problem(
            dataset,
            f"has {len(chosen)} files of the split {dataset.split!r} that are not shards of one "
            f"table: name some as 'files', or a configuration as 'config'{configs}; "
            f"{_shown(chosen)}",
        )
    return chosen


def _globs(data_files: Any, split: str) -> Iterator[str]:
    """The patterns of a split in ``data_files`` of a dataset's card. Those without a split are of
    ``train``.
    """
    entries = data_files if isinstance(data_files, list) else [data_files]
    for entry in entries:
        if isinstance(entry, str) and split == "train":
            yield entry
        elif isinstance(entry, dict) and entry.get("split") == split:
            paths = entry.get("path")
            yield from [paths] if isinstance(paths, str) else paths or ()


def _expression(glob: str) -> re.Pattern[str]:
    """The regular expression of a pattern with ``*``, ``?`` and ``**``."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return re.compile("".join(_WILDCARDS.get(part) or re.escape(part) for part in parts))


def _without_shard(name: str) -> str:
    """The name of a file without what tells it from the other shards of its table."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + _SHARD.sub("#", base)


def _shown(names: Sequence[str]) -> str:
    return f"it has {_listed(names)}" if names else "it has none"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_SHOWN])
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return shown + more


def _problem(dataset: HubDataset, reason: str) -> ProblemsError:
    return ProblemsError([Problem(f"dataset {dataset.id!r} ({dataset.revision}) {reason}")])

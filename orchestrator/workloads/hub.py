"""Prompts from a dataset of the Hugging Face hub: one of its files, at the commit that was planned.

No code of a dataset is run: only files that hold rows (Parquet, JSON, CSV) are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from orchestrator.base.errors import Problem, ProblemsError
from orchestrator.base.redaction import redact
from orchestrator.spec.settings import OneLine, Strict

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
CONVERTED = "refs/convert/parquet"  # where the hub keeps what it made of other formats
TIMEOUT_S = 30.0
MOST_SHOWN = 5
_READABLE = re.compile(r"\.(parquet|jsonl|ndjson|json|csv|tsv)(\.gz)?$", re.IGNORECASE)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubDataset(Strict):
    """A dataset of the hub. ``file``: which of its files; None: the only one of the split."""

    id: OneLine = Field(description="The dataset's name, for example `philschmid/mt-bench`.")
    revision: OneLine = Field(
        default=MAIN, description="A branch, tag or commit. `plan` keeps the commit."
    )
    split: OneLine = Field(default="train", description="The split whose file is read.")
    file: OneLine | None = Field(default=None, description="The file, where the split has several.")


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of a dataset in this node's cache, and the dataset with its commit and file."""

    path: str
    dataset: HubDataset


def local_file(dataset: HubDataset) -> LocalFile:
    """Downloads the file of a dataset, unless this node's cache has it. Raises ProblemsError where
    the hub does not give it, or where it is not clear which file is meant.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        pinned = _pinned(api, dataset)
        path = api.hf_hub_download(
            pinned.id, str(pinned.file), repo_type="dataset", revision=pinned.revision
        )
    except ProblemsError:
        raise
    except Exception as error:  # the errors of the library and of its HTTP client have no base
        reason = redact(str(error)).strip().partition("\n")[0][:200]
        raise _problem(dataset, f"cannot be had: {reason}") from None
    return LocalFile(str(path), pinned)


def _pinned(api: HfApi, dataset: HubDataset) -> HubDataset:
    """The dataset with its commit and file. It is left as it is if it has both."""
    if dataset.file is not None and _COMMIT.fullmatch(dataset.revision):
        return dataset
    info = api.dataset_info(dataset.id, revision=dataset.revision, timeout=TIMEOUT_S)
    names = [sibling.rfilename for sibling in info.siblings or ()]
    if dataset.file is not None:
        if dataset.file not in names:
            raise _problem(dataset, f"has no file {dataset.file!r}; {_shown(names)}")
        return dataset.model_copy(update={"revision": info.sha})
    files = _of_split(names, dataset.split)
    if not files and dataset.revision == MAIN:
        converted = dataset.model_copy(update={"revision": CONVERTED})
        info = api.dataset_info(dataset.id, revision=CONVERTED, timeout=TIMEOUT_S)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        files = _of_split(names, converted.split)
    if len(files) != 1:
        how_many = f"{len(files)} files" if files else "no file"
        raise _problem(
            dataset,
            f"has {how_many} of the split {dataset.split!r} that can be read: name one as 'file'; "
            f"{_shown(files or names)}",
        )
    return dataset.model_copy(update={"revision": info.sha, "file": files[0]})


def _of_split(names: list[str], split: str) -> list[str]:
    """The files with rows whose name, or whose folder, is that of the split; if no name has a
    split's, the only file with rows.
    """
    readable = [name for name in names if _READABLE.search(name)]
    of_split = re.compile(rf"(^|[/_.-]){re.escape(split)}([/_.-]|$)")
    chosen = [name for name in readable if of_split.search(name)]
    return chosen or (readable if len(readable) == 1 else [])


def _shown(names: list[str]) -> str:
    shown = ", ".join(names[:MOST_SHOWN])
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f"it has {shown}{more}" if names else "it has none"


def _problem(dataset: HubDataset, reason: str) -> ProblemsError:
    return ProblemsError([Problem(f"dataset {dataset.id!r} ({dataset.revision}) {reason}")])

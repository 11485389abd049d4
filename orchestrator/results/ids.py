"""Identifiers: hashes for configurations, fresh ULIDs for events, and the key that groups
checkpoints of one model.
"""

import dataclasses
import hashlib
import json
import re
from pathlib import PurePath
from typing import Any

from ulid import ULID

from orchestrator.base.errors import InputError

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def digest(obj: object) -> str:
    """16 hex digits of the SHA-256 of ``obj`` as canonical JSON (sorted keys, no spaces, UTF-8).

    ``obj``: JSON values, pydantic models, dataclasses, tuples, sets and paths. The same value gives
    the same digest in every process and version of Python; 1 and 1.0 are different values. Raises
    TypeError for anything else and ValueError for NaN and infinities, which JSON cannot say.
    """
    text = json.dumps(
        obj,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=_plain,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content_digest(data: bytes) -> str:
    """16 hex digits of the SHA-256 of a file's bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def new_ulid() -> str:
    """A fresh ULID: 26 characters that sort by time of creation (to 1 ms)."""
    return str(ULID())


def is_name(text: str) -> bool:
    """Whether a text can be the name of an experiment, or an id: part of a path, everywhere."""
    return _SAFE.fullmatch(text) is not None


def safe_name(what: str, name: str) -> str:
    """``name``, which is ``what``. Raises InputError for one that cannot be part of a path."""
    if not is_name(name):
        raise InputError(
            f"{what} {name!r} cannot be part of a path; use letters, digits, '.', '_' and '-'"
        )
    return name


def model_key(name: str, parameters: int | None) -> str:
    """A key that all checkpoints of one model share: the number of its parameters, which
    quantization does not change, or its name where the config is unknown.
    """
    return str(parameters or name)


def _plain(value: object) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no canonical JSON form")

"""The commit manifest: what makes parts true. One JSON file per attempt, written last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import PurePosixPath
from typing import Any, Literal

from orchestrator.results.records import Committed
from orchestrator.results.schemas import SCHEMA_VERSION

DROPPABLE = ("token_events",)  # without them there is no ITL, and tokens are spread evenly over their request
Kind = Literal["point", "launch", "selfcheck"]
FOLDERS: dict[Kind, str] = {
    "point": "commits",
    "launch": "commits/launches",
    "selfcheck": "commits/selfchecks",
}
_MOST: dict[str, int] = {"earlier": 2**31, "created_unix_ns": 2**63, "data_bytes": 2**63}  # as columns hold them


def manifest_key(measurement_id: str, attempt_id: str, kind: Kind = "point") -> str:
    """Where a manifest lies below the experiment's folder."""
    return f"{FOLDERS[kind]}/{measurement_id}/{attempt_id}.json"


def kind_of(key: str) -> Kind:
    """What the manifest at a key below the experiment's folder is of."""
    return next((kind for kind, folder in FOLDERS.items() if kind != "point" and key.startswith(f"{folder}/")), "point")


@dataclass(frozen=True, slots=True)
class FilePart:
    """One immutable Parquet file. ``path`` is below the experiment's folder."""

    table: str
    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Committed):
    """One attempt at a measurement (``kind = point``), one launch or one self-check of a host, and the parts it wrote.

    For a launch ``measurement_id`` is its ``launch_id``, for a self-check its ``selfcheck_id``.
    """

    kind: Kind
    files: tuple[FilePart, ...] = ()
    reason: str | None = None  # one plain sentence when failed
    deployment_id: str = ""
    point_id: str = ""
    launch_id: str = ""
    schema_version: int = SCHEMA_VERSION
    client_version: str = ""
    emulated: bool = False

    def __post_init__(self) -> None:
        """Parts in one order, whoever wrote them first: the same attempt is always the same text."""
        object.__setattr__(self, "files", tuple(sorted(self.files, key=lambda part: (part.table, part.path))))
        kept = (part.bytes for part in self.files if part.table not in DROPPABLE)
        object.__setattr__(self, "data_bytes", sum(size for size in kept if type(size) is int))

    @property
    def key(self) -> str:
        """Its place below the experiment's folder."""
        return manifest_key(self.measurement_id, self.attempt_id, self.kind)

    def to_json(self) -> str:
        """As stored: ``files`` grouped by table, ``ids`` together."""
        found = asdict(self)
        del found["data_bytes"]  # of the files
        parts: dict[str, list[dict[str, Any]]] = {}
        for part in found.pop("files"):
            parts.setdefault(part.pop("table"), []).append(part)
        ids = {name: found.pop(name) for name in ("deployment_id", "point_id", "launch_id")}
        return json.dumps(found | {"ids": ids, "files": parts}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """The manifest a text holds; fields of newer versions are ignored. Raises ValueError when it is none."""
        try:
            found = json.loads(text)
            parts = tuple(
                FilePart(table, part["path"], part["rows"], part["bytes"], part["sha256"])
                for table, parts in found.pop("files").items()
                for part in parts
            )
            known = {field.name: found[field.name] for field in fields(cls) if field.name in found}
            manifest = cls(**known, **found["ids"], files=parts)
            manifest._check()
            return manifest
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"not a manifest: {type(error).__name__}: {error}") from error

    def _check(self) -> None:
        """Raises TypeError or ValueError for a value that no column holds, or a part elsewhere than in its table."""
        texts = (self.measurement_id, self.attempt_id, self.deployment_id, self.point_id, self.launch_id)
        told = (text for text in (self.reason, self.failure_class) if text is not None)
        "".join((*texts, *told)).encode()  # raises where one is no text, or none that Arrow can hold
        if self.kind not in FOLDERS or self.status not in ("ok", "failed"):
            raise ValueError(f"kind {self.kind!r} and status {self.status!r}")
        numbers = [(name, getattr(self, name)) for name in _MOST]
        numbers += [(name, getattr(part, name)) for part in self.files for name in ("rows", "bytes")]
        for name, number in numbers:
            if type(number) is not int or not 0 <= number < _MOST.get(name, 2**63):
                raise ValueError(f"{name} is {number!r}")
        for part in self.files:
            folders = PurePosixPath(part.path).parts
            inside = folders[:2] == ("data", part.table) and len(folders) > 2 and ".." not in folders
            if not inside or not part.path.isprintable():
                raise ValueError(f"{part.path!r} is not below the experiment's folder data/{part.table}")

"""The commit manifest: what makes parts true. One JSON file per attempt, written last."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestrator.results.schemas import SCHEMA_VERSION

Kind = Literal["point", "launch", "selfcheck"]
_FOLDERS: dict[Kind, str] = {
    "point": "commits",
    "launch": "commits/launches",
    "selfcheck": "commits/selfchecks",
}


@dataclass(frozen=True, slots=True)
class FilePart:
    """One immutable Parquet file. ``path`` is below the experiment's folder."""

    table: str
    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One attempt at a measurement (``kind = point``), one launch or one self-check of a host, and the parts it wrote.

    For a launch ``measurement_id`` is its ``launch_id``, for a self-check its ``selfcheck_id``.
    ``created_unix_ns`` orders attempts: the first ok one of a
    measurement wins for ever.
    """

    kind: Kind
    measurement_id: str
    attempt_id: str
    status: Literal["ok", "failed"]
    created_unix_ns: int
    files: tuple[FilePart, ...] = ()
    reason: str | None = None  # one plain sentence when failed
    failure_class: str | None = None
    deployment_id: str = ""
    point_id: str = ""
    launch_id: str = ""
    schema_version: int = SCHEMA_VERSION
    client_version: str = ""
    emulated: bool = False

    def __post_init__(self) -> None:
        """Parts in one order, whoever wrote them first: the same attempt is always the same text."""
        object.__setattr__(self, "files", tuple(sorted(self.files, key=lambda part: (part.table, part.path))))

    @property
    def key(self) -> str:
        """Its place below the experiment's folder."""
        return f"{_FOLDERS[self.kind]}/{self.measurement_id}/{self.attempt_id}.json"

    @property
    def age(self) -> tuple[int, str]:
        """Sorts attempts: first by time of creation, then by attempt id, so that every reader picks the same one."""
        return self.created_unix_ns, self.attempt_id

    def to_json(self) -> str:
        """As stored: ``files`` grouped by table, ``ids`` together."""
        fields = asdict(self)
        parts: dict[str, list[dict[str, Any]]] = {}
        for part in fields.pop("files"):
            parts.setdefault(part.pop("table"), []).append(part)
        ids = {name: fields.pop(name) for name in ("deployment_id", "point_id", "launch_id")}
        return json.dumps(fields | {"ids": ids, "files": parts}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """The manifest a text holds; fields of newer versions are ignored. Raises ValueError when it is none."""
        try:
            fields = json.loads(text)
            parts = tuple(
                FilePart(table, part["path"], part["rows"], part["bytes"], part["sha256"])
                for table, parts in fields.pop("files").items()
                for part in parts
            )
            known = {name: fields[name] for name in cls.__slots__ if name in fields}
            return cls(**known, **fields["ids"], files=parts)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a manifest: {type(error).__name__}: {error}") from error

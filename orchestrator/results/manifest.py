"""The commit manifest: one JSON file per attempt, written last. Files that no manifest names do not
count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any, Literal

import orjson

from orchestrator.results.records import Committed
from orchestrator.results.schemas import SCHEMA_VERSION

# Tables whose files people may delete. Without token_events there is no ITL, and the tokens of a
# request count as if they had come evenly.
DROPPABLE = ("token_events",)
ManifestKind = Literal["point", "launch", "sweep", "selfcheck"]
FOLDERS: dict[ManifestKind, str] = {
    "point": "commits",
    "launch": "commits/launches",
    "sweep": "commits/sweeps",
    # written by earlier versions; named here, so that it is not taken for a damaged point
    "selfcheck": "commits/selfchecks",
}
# fields with numbers: the first number that is too large for the column
_TOO_LARGE: dict[str, int] = {"earlier": 2**31, "created_unix_ns": 2**63, "data_bytes": 2**63}
_TOO_LARGE_IN_PARTS = 2**63


def manifest_key(measurement_id: str, attempt_id: str, kind: ManifestKind = "point") -> str:
    """Path of a manifest below the experiment's folder."""
    return f"{FOLDERS[kind]}/{measurement_id}/{attempt_id}.json"


def kind_of(key: str) -> ManifestKind:
    """The kind of manifest at a path below the experiment's folder."""
    for kind, folder in FOLDERS.items():
        # the folders of the other kinds are below that of points
        if kind != "point" and key.startswith(f"{folder}/"):
            return kind
    return "point"


_GROUPED_IDS = ("deployment_id", "point_id", "launch_id")  # stand under ``ids`` in the file


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
    """An attempt at a measurement (``kind`` point), a launch or the end of a sweep, and the parts
    it wrote.

    The ``measurement_id`` of a launch is its ``launch_id``.
    """

    kind: ManifestKind
    files: tuple[FilePart, ...] = ()
    reason: str | None = None  # one plain sentence when failed
    deployment_id: str = ""
    point_id: str = ""
    launch_id: str = ""
    schema_version: int = SCHEMA_VERSION
    client_version: str = ""
    emulated: bool = False
    simulated: bool = False

    def __post_init__(self) -> None:
        """Sort the parts, so that the same attempt always gives the same text, and add up the bytes
        of those that nobody may delete.
        """
        files = sorted(self.files, key=lambda part: (part.table, part.path))
        object.__setattr__(self, "files", tuple(files))
        kept = [part.bytes for part in files if part.table not in DROPPABLE]
        # anything but a number is refused later (_check)
        object.__setattr__(self, "data_bytes", sum(size for size in kept if type(size) is int))

    @property
    def key(self) -> str:
        """Its path below the experiment's folder."""
        return manifest_key(self.measurement_id, self.attempt_id, self.kind)

    def to_json(self) -> str:
        """As stored: ``files`` grouped by table, ids grouped under ``ids``."""
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        del document["data_bytes"]  # follows from the files
        document["ids"] = {name: document.pop(name) for name in _GROUPED_IDS}
        files: dict[str, list[dict[str, Any]]] = {}
        for part in self.files:
            entry = {
                "path": part.path,
                "rows": part.rows,
                "bytes": part.bytes,
                "sha256": part.sha256,
            }
            files.setdefault(part.table, []).append(entry)
        document["files"] = files
        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(document, option=options).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Parse a manifest; fields of newer versions are ignored. Raises ValueError for anything
        else.
        """
        try:
            document = json.loads(text)
            files: list[FilePart] = []
            for table, entries in document.pop("files").items():
                for entry in entries:
                    files.append(
                        FilePart(
                            table, entry["path"], entry["rows"], entry["bytes"], entry["sha256"]
                        )
                    )
            # fields of newer versions are left out; a missing one has its default
            field_names = [field.name for field in fields(cls)]
            values = {name: document[name] for name in field_names if name in document}
            manifest = cls(**values, **document["ids"], files=tuple(files))
            manifest._check()
            return manifest
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise ValueError(f"not a manifest: {type(error).__name__}: {error}") from error

    def _check(self) -> None:
        """Raises TypeError or ValueError for a value that no column can hold, or a part outside its
        table's folder.
        """
        texts = (
            self.measurement_id,
            self.attempt_id,
            self.deployment_id,
            self.point_id,
            self.launch_id,
        )
        optional = [text for text in (self.reason, self.failure_class) if text is not None]
        # raises for anything that is not text, or that Arrow cannot hold
        "".join((*texts, *optional)).encode()
        if self.kind not in FOLDERS or self.status not in ("ok", "failed"):
            raise ValueError(f"kind {self.kind!r} and status {self.status!r}")
        for name, too_large in _TOO_LARGE.items():
            _check_number(name, getattr(self, name), too_large)
        for part in self.files:
            _check_number("rows", part.rows, _TOO_LARGE_IN_PARTS)
            _check_number("bytes", part.bytes, _TOO_LARGE_IN_PARTS)
        for part in self.files:
            folders = PurePosixPath(part.path).parts
            is_in_folder = folders[:2] == ("data", part.table) and len(folders) > 2
            if not is_in_folder or ".." in folders or not part.path.isprintable():
                raise ValueError(
                    f"{part.path!r} is not below the experiment's folder data/{part.table}"
                )


def _check_number(name: str, number: object, too_large: int) -> None:
    """Raises ValueError for anything but a whole number from 0 to below ``too_large``."""
    if type(number) is not int or not 0 <= number < too_large:
        raise ValueError(f"{name} is {number!r}")

"""Reads a results root, which may hold several experiments."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from orchestrator.base.errors import InputError
from orchestrator.results.blobs import Blobs
from orchestrator.results.ids import is_name
from orchestrator.results.location import parse_location
from orchestrator.results.schemas import unify
from orchestrator.results.store import Store

MARKS = ("commits", "plan.json")  # either of them marks an experiment's folder
_log = logging.getLogger(__name__)


class Results:
    """Every experiment below one root."""

    def __init__(self, uri: str, experiments: tuple[str, ...]) -> None:
        self.uri = uri
        self.experiments = experiments
        self._stores: dict[str, Store] = {}

    def store(self, experiment: str) -> Store:
        """One experiment's store. Raises InputError when the root does not hold it."""
        if experiment not in self.experiments:
            raise InputError(
                f"no experiment {experiment!r} at {self.uri}; there: {', '.join(self.experiments)}"
            )
        if experiment not in self._stores:
            self._stores[experiment] = Store.open(self.uri, experiment)
        return self._stores[experiment]

    def read(
        self, table: str, columns: Sequence[str] | None = None, *, include_failed: bool = False
    ) -> pa.Table:
        """``Store.read`` over all experiments, concatenated."""
        parts = [
            self.store(name).read(table, columns, include_failed=include_failed)
            for name in self.experiments
        ]
        rows = unify(table, parts, None if columns is None else list(columns))
        return rows if columns is None else rows.select(list(columns))


def open_results(uri: str, marks: Sequence[str] = MARKS) -> Results:
    """The results at ``uri``: a root with experiments in it, or one experiment's own folder.

    Folders with names that no experiment can have are ignored and logged. Raises InputError when
    there is none.
    """
    location = parse_location(uri)
    blobs = Blobs(location)
    if any(blobs.exist(list(marks))):
        parent, _, name = location.path.rpartition("/")
        return Results(replace(location, path=parent).uri, (name,))
    folders = []
    for folder in blobs.folders():
        if any(blobs.exist([f"{folder}/{mark}" for mark in marks])):
            folders.append(folder)
    names = tuple(folder for folder in folders if is_name(folder))
    for name in sorted(set(folders) - set(names)):
        _log.warning("%r is left out: no experiment can have this name", blobs.path(name))
    if not names:
        raise InputError(
            f"no results at {location.uri}: no folder there holds {' or '.join(marks)}"
        )
    return Results(location.uri, names)

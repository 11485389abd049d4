"""What is written for other tools, in the form in which all formats are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from orchestrator.analysis.points import StoredPoint
from orchestrator.plan.current import StoredExperiment


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file to be written. ``document``: its JSON. ``points``: how many points it holds."""

    name: str
    document: Mapping[str, object] | list[Mapping[str, object]]
    points: int


@dataclass(frozen=True, slots=True)
class LeftOutPoint:
    """A point that has no place in the format. ``reason``: why, without its name."""

    point: StoredPoint
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOutParts:
    """The parts of a mix whose point was written without them. ``reason``: why."""

    point: StoredPoint
    reason: str


ExportItem = ExportedFile | LeftOutPoint | LeftOutParts


class ExportFormat(Protocol):
    """A format that other tools read."""

    @property
    def title(self) -> str:
        """The format, for people."""

    def files(self, experiment: StoredExperiment) -> Iterator[ExportItem]:
        """The files of an experiment's current points, and what is left out.

        Raises ResultsError where stored rows cannot be read.
        """

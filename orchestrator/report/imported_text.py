"""Says what an import read, what it stored, and what it left out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.base.text import counted, listed


@dataclass(frozen=True, slots=True)
class ImportedFileSummary:
    """What came of one file.

    ``source``: the tool, with its version. ``points``: how many it holds. ``already_stored``: how
    many of them an earlier import had stored. ``with_requests``: how many came with their requests.
    ``left_out``: content that no table has -> how many values.
    """

    name: str
    source: str
    points: int
    already_stored: int
    with_requests: int
    left_out: dict[str, int]


def import_text(summaries: Sequence[ImportedFileSummary], place: str) -> Iterator[str]:
    """A line per file, and where the points are. ``place``: the experiment's folder."""
    for summary in summaries:
        yield f"{summary.name}: {', '.join(_parts(summary))}"
        if summary.left_out:
            names = [f"{name} ({count:,})" for name, count in summary.left_out.items()]
            yield f"  values not stored: {listed(names, 6)}"
    stored = sum(summary.points - summary.already_stored for summary in summaries)
    command = f"orchestrator results {shlex.quote(place)}"
    yield f"{counted(stored, 'point')} stored; to see them: {command}"


def _parts(summary: ImportedFileSummary) -> Iterator[str]:
    if not summary.points:
        yield f"{summary.source}, the requests of another file's point"
        return
    yield f"{summary.source}, {counted(summary.points, 'point')}"
    if summary.already_stored:
        yield f"{summary.already_stored} of them imported before"
    without = summary.points - summary.with_requests
    if without:
        yield f"{counted(without, 'point')} without requests, so no limits can be judged"

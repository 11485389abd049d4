"""The workloads that ``FILE[:NAME]`` names, of an experiment file or of one with workloads alone;
the name of a preset stands for a file of that preset.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from orchestrator.base.errors import InputError
from orchestrator.base.registry import unknown_name
from orchestrator.plan.paths import Paths
from orchestrator.spec.document import parse_document
from orchestrator.spec.experiment import Experiment, examined
from orchestrator.spec.load import PRESETS, Workload
from orchestrator.spec.mixes import measured
from orchestrator.workloads.file_reading import read_file


class _Place(NamedTuple):
    """A file, and the workload of it that is meant; None: all."""

    path: str
    name: str | None


def _split(place: str) -> _Place:
    """``FILE[:NAME]`` in its parts. A colon may stand in both; the longest path that is a file
    counts.
    """
    if Path(place).is_file():
        return _Place(place, None)
    path = place
    while ":" in path:
        path = path.rpartition(":")[0]
        if Path(path).is_file():
            return _Place(path, place[len(path) + 1 :])
    path, _, name = place.rpartition(":")
    return _Place(path, name) if path else _Place(place, None)


def is_preset(place: str) -> bool:
    """Whether ``place`` is the name of a preset, and not that of a file."""
    return place in PRESETS.names() and not Path(place).exists()


def experiment_at(place: str) -> Experiment:
    """The experiment file of ``FILE[:NAME]``, which may have workloads alone, or that of a preset."""
    path = _split(place).path
    if is_preset(place):
        text = f"workloads: [{{name: {place}, preset: {place}}}]"
    else:
        text = read_file("experiment", path).decode(errors="replace")
    experiment = examined(parse_document(text, path))
    if "workloads" not in experiment.parts:
        experiment.problems.raise_any("workloads")
    return experiment


def workloads_at(experiment: Experiment, place: str) -> list[Workload]:
    """The workload that ``place`` names, or all, with their files found."""
    if "workloads" not in experiment.parts:
        raise InputError(f"{place!r} has no workloads")
    workloads: list[Workload] = experiment.parts["workloads"]
    name = _split(place).name
    if name is not None:
        chosen = [candidate for candidate in workloads if candidate.name == name]
        if not chosen:
            names = [candidate.name for candidate in workloads]
            raise InputError(unknown_name("workload", name, names))
        workloads = chosen
    else:
        workloads = measured(workloads)
    paths = Paths(experiment.folder)
    return [candidate.with_files(paths.path) for candidate in workloads]


def workload_at(place: str) -> Workload:
    """The one workload that ``FILE[:NAME]`` names. Raises InputError where it names several."""
    workloads = workloads_at(experiment_at(place), place)
    if len(workloads) > 1:
        names = ", ".join(candidate.name for candidate in workloads)
        raise InputError(f"{place!r} has several workloads: give FILE:NAME, one of {names}")
    return workloads[0]

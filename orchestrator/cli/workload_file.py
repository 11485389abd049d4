"""The workloads that ``FILE[:NAME]`` names, of an experiment file or of one with workloads alone."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base.errors import InputError
from orchestrator.base.registry import unknown_name
from orchestrator.plan.paths import Paths
from orchestrator.spec.document import parse_document
from orchestrator.spec.experiment import Experiment, examined
from orchestrator.spec.load import Workload
from orchestrator.spec.mixes import measured
from orchestrator.workloads.file_reading import read_file


def experiment_at(place: str) -> Experiment:
    """The experiment file of ``FILE[:NAME]``, which may have workloads alone."""
    path = place if Path(place).is_file() else place.rpartition(":")[0] or place
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
    if not Path(place).is_file():
        name = place.rpartition(":")[2]
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

"""Plans and experiments from files: what ``plan`` and ``run`` take."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.plan.make import make_plan
from orchestrator.plan.model import Plan
from orchestrator.spec.experiment import load_experiment


def load_plan(path: str | Path, *, cluster_nodes: int | None = None) -> Plan:
    """The plan of an experiment file, or a frozen plan as it is.

    Raises ProblemsError for an experiment with problems, InputError for a plan that cannot be run by this version.
    """
    if not _is_frozen(path):
        return make_plan(load_experiment(path), cluster_nodes=cluster_nodes)
    try:
        return Plan.from_json(Path(path).read_text(encoding="utf-8"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the frozen plan, whole or not at all. Raises InputError when it cannot be written."""
    beside = Path(f"{path}.part")
    try:
        beside.write_text(plan.to_json(), encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _is_frozen(path: str | Path) -> bool:
    """A plan says so near its start; anything else is read as an experiment, which may be JSON too."""
    try:
        with open(path, "rb") as file:
            head = file.read(200)
    except OSError:
        return False  # reading it as an experiment says why
    return head.lstrip().startswith(b"{") and b'"plan_format"' in head

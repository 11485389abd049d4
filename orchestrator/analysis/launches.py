"""Starts of engines: what the plan predicted for each beside what the engine then reported."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.deployments import StoredDeployment, stored_deployment
from orchestrator.results.records import DeploymentRow, LaunchRow, PointHead
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store

# a figure's name in engine_reported_json (of Engine.reported): its name in StoredPrediction.memory
FIGURES = {
    "weight_bytes": "weight_bytes",  # on the fullest rank
    "kv_cache_bytes": "kv_cache_memory_bytes",  # on each rank
    "kv_cache_tokens": "kv_cache_tokens",
    "max_concurrency": "max_concurrency",  # sequences of max_model_len at once
    "max_model_len": "max_model_len",
}


@dataclass(frozen=True, slots=True)
class Predicted:
    """One figure as predicted and as reported, each None where unknown.

    ``difference_percent``: predicted minus reported, in per cent of reported: above 0 the
    prediction was too high.
    """

    predicted: float | None
    reported: float | None
    difference_percent: float | None


@dataclass(frozen=True, slots=True)
class StoredLaunch:
    """One launch, failed or not. ``deployment`` None: its row was not stored. ``figures``: by the
    names of FIGURES.

    ``reported``: all that the engine reported, by the names of ``Engine.reported``.
    """

    row: LaunchRow
    deployment: StoredDeployment | None
    figures: dict[str, Predicted]
    reported: dict[str, Any]

    @property
    def label(self) -> str:
        return self.deployment.label if self.deployment else self.row.deployment_id


def load_launches(store: Store) -> list[StoredLaunch]:
    """All launches of an experiment, failed ones included, sorted by deployment and time."""
    committed = store.manifests("launch")
    described = rows_of(
        store.read_manifests("deployments", committed, leave_out=True), DeploymentRow
    )
    deployments = {row.deployment_id: stored_deployment(row) for row in described}
    found = []
    for row in rows_of(store.read_manifests("launches", committed, leave_out=True), LaunchRow):
        deployment = deployments.get(row.deployment_id)
        predicted = deployment.prediction.memory if deployment else {}
        reported = json.loads(row.engine_reported_json or "{}")
        found.append(StoredLaunch(row, deployment, compared(predicted, reported), reported))
    return sorted(found, key=lambda one: (one.label, one.row.started_unix_ns))


def launches_of(store: Store, attempts: Iterable[PointHead]) -> dict[str, LaunchRow]:
    """The committed launches that attempts ran on, by id."""
    committed = store.launches(sorted({one.launch_id for one in attempts if one.launch_id}))
    rows = store.read_manifests("launches", committed, leave_out=True)
    return {row.launch_id: row for row in rows_of(rows, LaunchRow)}


def compared(predicted: Mapping[str, Any], reported: Mapping[str, Any]) -> dict[str, Predicted]:
    """All figures of FIGURES, from ``StoredPrediction.memory`` and the content of
    ``engine_reported_json``.
    """
    found = {}
    for name, in_prediction in FIGURES.items():
        promised, told = predicted.get(in_prediction), reported.get(name)
        difference = (promised - told) / told * 100 if promised is not None and told else None
        found[name] = Predicted(promised, told, difference)
    return found

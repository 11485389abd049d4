"""Starts of engines: what the plan predicted for each beside what the engine then reported."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.analysis.deployments import StoredDeployment, stored_deployment
from orchestrator.analysis.prediction import UNKNOWN_START, PredictedStart
from orchestrator.results.records import DeploymentRow, LaunchRow, PointHead
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store
from orchestrator.results.stored_json import parsed_report

# what is both predicted and reported, by the names of engine_reported_json (see Engine.reported)
FIGURES = (
    "weight_bytes",  # on the fullest rank
    "kv_cache_bytes",  # on each rank
    "kv_cache_tokens",
    "max_concurrency",  # sequences of max_model_len at once
    "max_model_len",
)


@dataclass(frozen=True, slots=True)
class PredictedFigure:
    """One figure as predicted and as reported; None where unknown.

    ``difference_percent``: predicted minus reported, in percent of the reported value; above 0
    where the prediction was too high.
    """

    predicted: float | None
    reported: float | None
    difference_percent: float | None


@dataclass(frozen=True, slots=True)
class StoredLaunch:
    """One launch, failed or not.

    ``deployment``: None: its row was not stored. ``figures``: by the names of FIGURES.
    ``reported``: all that the engine reported, by the names of ``Engine.reported``.
    """

    row: LaunchRow
    deployment: StoredDeployment | None
    figures: Mapping[str, PredictedFigure]
    reported: Mapping[str, object]

    @property
    def label(self) -> str:
        return self.deployment.label if self.deployment else self.row.deployment_id


def load_launches(store: Store) -> list[StoredLaunch]:
    """All launches of an experiment, failed ones included, sorted by deployment and time."""
    committed = store.manifests("launch")
    deployment_rows = rows_of(
        store.read_manifests("deployments", committed, skip_damaged=True), DeploymentRow
    )
    deployments = {row.deployment_id: stored_deployment(row) for row in deployment_rows}
    launches = []
    for row in rows_of(store.read_manifests("launches", committed, skip_damaged=True), LaunchRow):
        deployment = deployments.get(row.deployment_id)
        predicted = deployment.prediction.start if deployment else UNKNOWN_START
        reported = parsed_report(row.engine_reported_json)
        launches.append(StoredLaunch(row, deployment, compared(predicted, reported), reported))
    return sorted(launches, key=lambda launch: (launch.label, launch.row.started_unix_ns))


def launches_of(store: Store, attempts: Iterable[PointHead]) -> dict[str, LaunchRow]:
    """The committed launches on which these attempts ran, by id."""
    launch_ids = {attempt.launch_id for attempt in attempts if attempt.launch_id}
    committed = store.launches(sorted(launch_ids))
    rows = store.read_manifests("launches", committed, skip_damaged=True)
    return {row.launch_id: row for row in rows_of(rows, LaunchRow)}


def compared(
    predicted: PredictedStart, reported: Mapping[str, object]
) -> dict[str, PredictedFigure]:
    """All figures of FIGURES as predicted and as reported.

    ``reported``: the content of ``engine_reported_json``.
    """
    figures = {}
    for name, predicted_value in _predicted_figures(predicted).items():
        reported_value = _number(reported.get(name))
        figures[name] = PredictedFigure(
            predicted_value, reported_value, _difference_percent(predicted_value, reported_value)
        )
    return figures


def _predicted_figures(start: PredictedStart) -> dict[str, float | None]:
    """By the names of FIGURES, in their order."""
    return {
        "weight_bytes": start.weight_bytes,
        "kv_cache_bytes": start.kv_cache_memory_bytes,
        "kv_cache_tokens": start.kv_cache_tokens,
        "max_concurrency": start.max_concurrency,
        "max_model_len": start.max_model_len,
    }


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _difference_percent(predicted: float | None, reported: float | None) -> float | None:
    if predicted is None or not reported:
        return None
    return (predicted - reported) / reported * 100

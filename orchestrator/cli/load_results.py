"""Stores what ``load`` measured as an experiment of one point, so that ``results``, ``best`` and ``report`` read it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.load.point import ClientStats, LoadPoint
from orchestrator.load.validity import Verdict
from orchestrator.results.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

EXPERIMENT = "load"


def open_store(uri: str) -> Store:
    """Raises ResultsError before anything was measured when the place cannot be written."""
    store = Store.open(uri, EXPERIMENT)
    store.check_writable()
    return store


def write(
    store: Store,
    point: LoadPoint,
    api_key_env: str | None,
    requests: pa.Table,
    token_events: pa.Table,
    stats: Sequence[ClientStats],
    verdict: Verdict,
) -> None:
    """The rows, the point, its deployment, and the manifests that make them true."""
    from orchestrator.plan.identity import workload_content
    from orchestrator.plan.model import Deployment, Measurement, Plan, Point
    from orchestrator.results.ids import digest, new_ulid
    from orchestrator.results.schemas import EVENTS
    from orchestrator.runner.rows import commit_launch, commit_point
    from orchestrator.spec.settings import EngineSettings, Hardware

    target = point.targets[0]
    settings = EngineSettings(engine="endpoint", url=target.url, model=target.model, api_key_env=api_key_env)
    deployment = Deployment(
        id=digest([settings.url, settings.model]),
        label=f"{target.model} at {target.url}",
        settings=settings,
        hardware=Hardware(name="none", accelerator="none"),
        status="planned",
    )
    fields = {name: getattr(point, name) for name in Point.model_fields if hasattr(point, name)}
    named = fields | {"workload": workload_content(point.workload)}
    point_id = digest([deployment.id, named, point.dialect.path])
    planned = Point(point_id=point_id, deployment_id=deployment.id, **fields)
    plan = Plan(name=EXPERIMENT, experiment_digest="", deployments=(deployment,), points=(planned,))
    measurement = Measurement(
        measurement_id=point.measurement_id, point_id=point_id, deployment_id=deployment.id, repeat=0, seed=point.seed
    )
    launch_id = new_ulid()
    launch = {"launch_id": launch_id, "status": "ok", "started_unix_ns": time.time_ns()}
    commit_launch(store, plan, deployment, launch, EVENTS.empty_table())
    keys = {"measurement_id": point.measurement_id, "attempt_id": point.attempt_id, "writer": "load"}
    parts = [store.write_part("requests", requests, **keys), store.write_part("token_events", token_events, **keys)]
    commit_point(
        store,
        plan,
        deployment,
        planned,
        measurement,
        attempt_id=point.attempt_id,
        launch_id=launch_id,
        parts=parts,
        stats=stats,
        verdict=verdict,
        requests=len(requests),
    )

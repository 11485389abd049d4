"""Small stores for tests of what is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.prediction import PredictionError
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.model import Plan
from orchestrator.results.records import AnswerRow
from orchestrator.results.store import Store
from orchestrator.sweep.commit import commit_launch, launch_row
from tests.unit.plan.stored_sweeps import planned, store_attempt


def points_of(store: Store) -> list[StoredPoint]:
    """The current points, judged by the limits of the file."""
    experiment = StoredExperiment(store)
    return list(experiment.points(*experiment.slos).current)


SOURCE = "published points of vllm on Hopper GPUs, 2025-06"
MODEL_ERROR = {
    "ttft": 0.4,
    "tpot": 0.1,
    "source": SOURCE,
    "within": {"ttft": 2.0, "tpot": 1.25},
    "counted": True,
}


def with_model_error(plan: Plan, error: dict[str, Any]) -> Plan:
    """The plan whose deployments have predictions that are off by this error."""
    deployments = [
        deployment.model_copy(
            update={
                "predicted": replace(
                    deployment.predicted, error=PredictionError.from_document(error)
                )
            }
        )
        for deployment in plan.deployments
    ]
    return plan.model_copy(update={"deployments": tuple(deployments)})


def commit_simulation(store: Store, error: dict[str, Any] | None = MODEL_ERROR) -> None:
    """Two simulated deployments at 2 and 4 in flight. The TTFT is 100 ms at 2 and 140 ms at 4.
    ``error``: of the model; None: not known.
    """
    plan = planned(levels=[2, 4])
    if error is not None:
        plan = with_model_error(plan, error)
    store.write_plan(plan.to_json())
    for point in plan.points:
        ttft_ms = 100 if point.level.value == 2 else 140
        store_attempt(store, plan, point, ttft_ms=ttft_ms, simulated=True)


def commit_starts(
    store: Store,
    ttft_ms: Sequence[float | Mapping[str, float]],
    levels: Sequence[int] = (2,),
    max_num_seqs: Sequence[int] = (8, 16),
    **given: Any,
) -> None:
    """Each point measured on as many starts as there are TTFTs. ``given``: of its rows in points,
    what differs.
    """
    plan = planned(levels=list(levels), max_num_seqs=list(max_num_seqs))
    store.write_plan(plan.to_json())
    for point in plan.points:
        for start, ttft in enumerate(ttft_ms):
            store_attempt(store, plan, point, repeat=start, start=start, ttft_ms=ttft, **given)


def commit_answers(store: Store, *token_ids: tuple[int, ...]) -> None:
    """One launch for each deployment of the plan, which answered a fixed prompt with these ids."""
    plan = planned()
    for deployment, ids in zip(plan.deployments, token_ids, strict=True):
        launch = launch_row(deployment, plan.name, 1)
        answer = AnswerRow(
            launch_id=launch.launch_id,
            deployment_id=deployment.id,
            prompt_index=0,
            replica=0,
            api="/v1/completions",
            prompt="a",
            text="b",
            token_ids=ids,
        )
        commit_launch(store, deployment, launch, answers=[answer])


def commit_shortlist_of_two(store: Store, plan: Plan) -> None:
    """Three simulated deployments, the last of which cannot be the best: its TTFT is 5 s."""
    plan = with_model_error(plan, MODEL_ERROR)
    store.write_plan(plan.to_json())
    *_, worst = plan.deployments
    for point in plan.points:
        ttft_ms = 5000 if point.deployment_id == worst.id else 100
        store_attempt(store, plan, point, ttft_ms=ttft_ms, simulated=True)

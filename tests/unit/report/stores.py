"""Small stores for tests of what is shown."""

from __future__ import annotations

from orchestrator.analysis.points import StoredPoint
from orchestrator.plan.current import StoredExperiment
from orchestrator.results.records import AnswerRow
from orchestrator.results.store import Store
from orchestrator.sweep.commit import commit_launch, launch_row
from tests.unit.plan.test_current import planned


def points_of(store: Store) -> list[StoredPoint]:
    """The current points, judged by the limits of the file."""
    experiment = StoredExperiment(store)
    return list(experiment.points(*experiment.slos).current)


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

"""What the store leaves a sweep to measure, and what is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.plan.model import Plan
from orchestrator.results.store import Store
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.left_to_measure import LeftToMeasure, left_to_measure
from tests.unit.plan.files import measurements
from tests.unit.results.builders import commit_measurement, request
from tests.unit.sweep.simulation import World, context_of, plan_of, world_of
from tests.unit.sweep.sweeps import event_texts

BAD_CONFIG = {
    "status": "failed",
    "failure_class": "bad_config",
    "failure_kind": "bad_flag",
    "reason": "it refused its command line",
}
DISTURBED = {"validity": "disturbed"}


@pytest.fixture
def plan() -> Plan:
    return plan_of("{tensor_parallel_size: 1}, {tensor_parallel_size: 2}", levels="1, 2")


@pytest.fixture
def world() -> World:
    return world_of()


def commit(store: Store, plan: Plan, tries: int = 1, **point: Any) -> str:
    """Attempts at the plan's first measurement. Returns its deployment's id."""
    first = measurements(plan)[0]
    deployment_id = plan.deployments[0].id
    for number in range(tries):
        commit_measurement(
            store,
            first.measurement_id,
            [request(0)],
            attempt_id=f"a{number}",
            created_unix_ns=1 + number,
            point_id=first.point_id,
            deployment_id=deployment_id,
            **point,
        )
    return deployment_id


def look(
    world: World, plan: Plan, store: Store, **settings: Any
) -> tuple[SweepContext, LeftToMeasure]:
    context = context_of(world, plan, store, **settings)
    return context, left_to_measure(context, None)


def test_an_empty_store_leaves_everything(world: World, plan: Plan, store: Store) -> None:
    context, left = look(world, plan, store)
    assert [work.deployment.id for work in left.works] == [one.id for one in plan.deployments]
    assert [work.left for work in left.works] == [2, 2]
    assert left.started == frozenset()
    assert context.state.counts.skipped == 0
    assert world.events == []


def test_what_is_committed_is_skipped(world: World, plan: Plan, store: Store) -> None:
    deployment_id = commit(store, plan)
    context, left = look(world, plan, store)
    assert [work.left for work in left.works] == [1, 2]
    assert left.started == {deployment_id}
    assert context.state.counts.skipped == 1
    assert world.events == []


def test_attempts_of_other_plans_start_no_deployment(world: World, store: Store) -> None:
    commit(store, plan_of("{tensor_parallel_size: 4}"))
    _, left = look(world, plan_of(), store)
    assert left.started == frozenset()


def test_what_would_fail_again_is_refused_and_told(world: World, plan: Plan, store: Store) -> None:
    commit(store, plan, **BAD_CONFIG)
    context, left = look(world, plan, store)
    assert [work.left for work in left.works] == [1, 2]
    assert context.state.counts.refused == 1
    (text,) = event_texts(world, "refused")
    assert text == (
        "1 measurement failed before and would fail again; --retry-failed tries them again"
    )


def test_what_failed_is_left_where_the_user_retries_it(
    world: World, plan: Plan, store: Store
) -> None:
    commit(store, plan, **BAD_CONFIG)
    context, left = look(world, plan, store, retry_failed=True)
    assert [work.left for work in left.works] == [2, 2]
    assert context.state.counts.refused == 0
    assert world.events == []


def test_what_was_spoilt_is_open_again(world: World, plan: Plan, store: Store) -> None:
    commit(store, plan, **DISTURBED)
    context, left = look(world, plan, store)
    assert [work.left for work in left.works] == [2, 2]
    assert context.state.counts.kept == 0
    assert event_texts(world, "open_again") == ["1 measurement open again: 1 disturbed"]


def test_what_was_spoilt_too_often_is_kept(world: World, plan: Plan, store: Store) -> None:
    commit(store, plan, tries=2, **DISTURBED)
    context, left = look(world, plan, store, most_again=1)
    assert [work.left for work in left.works] == [1, 2]
    assert context.state.counts.kept == 1
    assert event_texts(world, "kept") == [
        "1 measurement kept as they are: 1 disturbed; --again 2 tries once more"
    ]

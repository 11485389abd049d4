"""What is left of a deployment, and how often what failed is tried again: its class decides, each
for itself.
"""

from __future__ import annotations

import pytest

from orchestrator.base.errors import Failure, FailureClass, FailureKind
from orchestrator.results.records import Committed
from orchestrator.sweep.todo import START, Todo
from tests.unit.plan.files import measurements
from tests.unit.sweep.simulation import plan_of

OK = Committed(
    measurement_id="m", attempt_id="a", created_unix_ns=1, status="ok", deployment_id="d"
)
KIND_OF = {one.failure_class: one for one in FailureKind}


@pytest.fixture
def todo() -> Todo:
    plan = plan_of(levels="1, 2")
    return Todo(plan, plan.deployments[0], {})


def failure(of: FailureClass) -> Failure:
    return Failure(KIND_OF[of], "It failed.")


@pytest.mark.parametrize(
    "of", [one for one in FailureClass if one is not FailureClass.CLIENT_BOUND]
)
def test_a_class_is_tried_again_as_often_as_it_says(todo: Todo, of: FailureClass) -> None:
    answers = [todo.again(START, failure(of)) for _ in range(of.retries + 2)]
    assert answers == [True] * of.retries + [False, False]


def test_what_the_clients_slowed_down_is_repeated_as_long_as_there_are_more_of_them(
    todo: Todo,
) -> None:
    assert all(todo.again("m1", failure(FailureClass.CLIENT_BOUND)) for _ in range(9))


def test_nodes_that_are_taken_back_use_up_no_tries(todo: Todo) -> None:
    taken_back = Failure(FailureKind.PREEMPTED, "Its node is taken back.")
    assert all(todo.again("m1", taken_back) for _ in range(9))
    assert todo.tries("m1") == 9
    assert all(todo.again("m1", failure(FailureClass.INFRA)) for _ in range(3))


def test_lost_infrastructure_is_not_held_against_the_configuration(todo: Todo) -> None:
    for _ in range(3):
        assert todo.again(START, failure(FailureClass.INFRA))
    assert todo.again(START, failure(FailureClass.ENGINE_CRASH))


def test_measurements_count_apart(todo: Todo) -> None:
    assert todo.again("m1", failure(FailureClass.ENGINE_CRASH))
    assert todo.again("m2", failure(FailureClass.ENGINE_CRASH))
    assert not todo.again("m1", failure(FailureClass.ENGINE_CRASH))
    assert (todo.tries("m1"), todo.tries("m2"), todo.tries("m3")) == (2, 1, 0)


def test_why_it_was_admitted() -> None:
    plan = plan_of("{tensor_parallel_size: 8}, {tensor_parallel_size: 4}")
    head, other = (Todo(plan, one, {}) for one in plan.deployments)
    head.admit(None)
    assert head.why == {"why": "first"}
    other.avoid = frozenset({"b", "a"})
    other.admit(head)
    assert other.why == {"why": "backfill", "ahead": head.deployment.label, "avoided": ["a", "b"]}
    head.admit(None)
    assert head.why == {"why": "reserved"}
    head.admit(None)
    assert head.why == {"why": "first"}


def test_a_launch_is_estimated_by_its_start_and_what_is_left(todo: Todo) -> None:
    before = todo.estimate_s()
    todo.close(OK)
    assert before - todo.estimate_s() == pytest.approx(72.0)


TWICE = "repeats: 2"


def order(todo: Todo) -> list[tuple[str, float, int]]:
    """Everything it asks for: workload, level, repeat."""
    found = []
    while (one := todo.next()) is not None:
        point, measurement = one
        found.append((point.workload.name, point.level.value, measurement.repeat))
        todo.close(OK)
    return found


def test_every_point_is_measured_once_before_any_is_measured_again() -> None:
    plan = plan_of(levels="1, 2", more=TWICE)
    todo = Todo(plan, plan.deployments[0], {})
    assert todo.left == 4
    assert order(todo) == [("w", 1, 0), ("w", 2, 0), ("w", 1, 1), ("w", 2, 1)]
    assert todo.left == 0


def test_ids_are_those_of_the_plan() -> None:
    plan = plan_of(levels="1, 2", more=TWICE)
    todo, found = Todo(plan, plan.deployments[0], {}), []
    while (one := todo.next()) is not None:
        found.append(one[1])
        todo.close(OK)
    assert found == measurements(plan)


def test_what_is_committed_is_told_and_not_asked_for_again_wherever_it_stands() -> None:
    plan = plan_of(levels="1, 2, 4", more=TWICE)
    names = [one.measurement_id for one in measurements(plan)]
    done = dict.fromkeys((names[0], names[2], names[4]), OK)
    todo = Todo(plan, plan.deployments[0], done)
    assert (todo.skipped, todo.left) == (3, 3)
    assert order(todo) == [("w", 2, 0), ("w", 1, 1), ("w", 4, 1)]


def test_what_is_dropped_is_not_asked_for(todo: Todo) -> None:
    todo.drop()
    assert (todo.next(), todo.left) == (None, 0)

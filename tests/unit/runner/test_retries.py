"""The class of a failure decides how often it is tried again, each class for itself."""

from __future__ import annotations

import pytest

from orchestrator.errors import Failure, FailureClass
from orchestrator.plan.model import Deployment
from orchestrator.runner.launch import NO_ROOM
from orchestrator.runner.sweep import RETRIES, Todo
from orchestrator.spec.settings import EngineSettings, Hardware


@pytest.fixture
def todo() -> Todo:
    settings = EngineSettings(engine="vllm", model="m")
    return Todo(Deployment(id="d", label="d", settings=settings, hardware=Hardware(name="cpu"), status="planned"), [])


def failure(kind: FailureClass) -> Failure:
    return Failure(kind, "test", "It failed.")


@pytest.mark.parametrize("kind", list(FailureClass))
def test_a_class_is_tried_again_as_often_as_the_table_says(todo: Todo, kind: FailureClass) -> None:
    answers = [todo.again("start", failure(kind)) for _ in range(RETRIES[kind] + 2)]
    assert answers == [True] * RETRIES[kind] + [False, False]


def test_what_the_cluster_never_had_room_for_is_not_asked_again(todo: Todo) -> None:
    no_room = Failure(FailureClass.INFRA, NO_ROOM, "The cluster gave no place.")
    assert not todo.again("start", no_room)
    todo.had_room = True  # a node was lost, and may come back
    assert todo.again("start", no_room)


def test_lost_infrastructure_is_not_held_against_the_configuration(todo: Todo) -> None:
    for _ in range(3):
        assert todo.again("start", failure(FailureClass.INFRA))
    assert todo.again("start", failure(FailureClass.ENGINE_CRASH))


def test_measurements_count_apart(todo: Todo) -> None:
    assert todo.again("m1", failure(FailureClass.ENGINE_CRASH))
    assert todo.again("m2", failure(FailureClass.ENGINE_CRASH))
    assert not todo.again("m1", failure(FailureClass.ENGINE_CRASH))

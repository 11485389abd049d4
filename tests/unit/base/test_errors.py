"""Failures and their classes, problems and their places, exceptions that cross processes."""

from __future__ import annotations

import pickle

import pytest

from orchestrator.base.errors import (
    FIXED_ON_THE_HOST,
    EngineFailure,
    Failure,
    FailureClass,
    FailureKind,
    NoClient,
    Occupied,
    OrchestratorError,
    Problem,
    ProblemsError,
)


@pytest.mark.parametrize(
    ("kind", "failure_class"),
    [
        (FailureKind.OOM_KV, FailureClass.BAD_CONFIG),
        (FailureKind.DIED, FailureClass.ENGINE_CRASH),
        (FailureKind.AGENT_LOST, FailureClass.INFRA),
        (FailureKind.NEVER_READY, FailureClass.TIMEOUT),
        (FailureKind.CLIENT_BOUND, FailureClass.CLIENT_BOUND),
    ],
)
def test_each_kind_belongs_to_one_class(kind: FailureKind, failure_class: FailureClass) -> None:
    assert Failure(kind, "it failed").failure_class is failure_class


def test_a_wrong_configuration_is_never_tried_again() -> None:
    assert FailureClass.BAD_CONFIG.retries == 0


def test_what_is_wrong_with_a_machine_is_told_from_a_wrong_file() -> None:
    assert {kind.failure_class for kind in FIXED_ON_THE_HOST} == {FailureClass.BAD_CONFIG}
    assert FailureKind.BAD_FLAG not in FIXED_ON_THE_HOST


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_meaning_is_a_clause_that_a_log_line_can_follow(kind: FailureKind) -> None:
    assert kind.meaning
    assert not kind.meaning.endswith(".")


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("no engine"), "no engine"),
        (Problem("no engine", "a.yaml"), "a.yaml: no engine"),
        (Problem("no engine", "a.yaml", 3), "a.yaml:3: no engine"),
        (Problem("no engine", hint="give one"), "no engine (give one)"),
    ],
)
def test_a_problem_names_its_place_and_its_remedy(problem: Problem, text: str) -> None:
    assert str(problem) == text


def test_all_problems_are_told_one_a_line() -> None:
    assert str(ProblemsError([Problem("first"), Problem("second")])) == "first\nsecond"


def test_problems_reach_another_process_whole() -> None:
    problems = [Problem("no engine", "a.yaml", 3, "give one")]
    assert pickle.loads(pickle.dumps(ProblemsError(problems))).problems == problems


def test_an_engines_failure_reaches_another_process_whole() -> None:
    failure = Failure(FailureKind.OOM_LOAD, "it ran out of memory", "last line")
    error = pickle.loads(pickle.dumps(EngineFailure(failure)))
    assert error.failure == failure
    assert str(error) == "it ran out of memory"


@pytest.mark.parametrize("error", [Occupied("taken", ["n1", "n1"]), NoClient("none", ["n1"])])
def test_nodes_are_named_once(error: Occupied | NoClient) -> None:
    assert error.nodes == {"n1"}
    assert isinstance(error, OrchestratorError)

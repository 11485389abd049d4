"""How often what failed is tried again: its class decides, each for itself."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import Failure, FailureClass, FailureKind
from orchestrator.sweep.tries import Tries, start_key

KIND_OF = {kind.failure_class: kind for kind in FailureKind}


@pytest.fixture
def tries() -> Tries:
    return Tries({})


def failure(of: FailureClass) -> Failure:
    return Failure(KIND_OF[of], "It failed.")


@pytest.mark.parametrize(
    "of", [one for one in FailureClass if one is not FailureClass.CLIENT_BOUND]
)
def test_a_class_is_tried_again_as_often_as_it_says(tries: Tries, of: FailureClass) -> None:
    answers = [tries.count(start_key(0), failure(of)) for _ in range(of.retries + 2)]
    assert answers == [True] * of.retries + [False, False]


def test_points_that_clients_slowed_down_are_repeated_without_limit(
    tries: Tries,
) -> None:
    assert all(tries.count("m1", failure(FailureClass.CLIENT_BOUND)) for _ in range(9))


def test_nodes_that_are_taken_back_use_up_no_tries(tries: Tries) -> None:
    taken_back = Failure(FailureKind.PREEMPTED, "Its node is taken back.")
    assert all(tries.count("m1", taken_back) for _ in range(9))
    assert tries.of("m1") == 9
    assert all(tries.count("m1", failure(FailureClass.INFRA)) for _ in range(3))


def test_lost_infrastructure_is_not_held_against_the_configuration(tries: Tries) -> None:
    for _ in range(3):
        assert tries.count(start_key(0), failure(FailureClass.INFRA))
    assert tries.count(start_key(0), failure(FailureClass.ENGINE_CRASH))


def test_measurements_count_apart(tries: Tries) -> None:
    assert tries.count("m1", failure(FailureClass.ENGINE_CRASH))
    assert tries.count("m2", failure(FailureClass.ENGINE_CRASH))
    assert not tries.count("m1", failure(FailureClass.ENGINE_CRASH))
    assert (tries.of("m1"), tries.of("m2"), tries.of("m3")) == (2, 1, 0)


def test_attempts_that_were_spoilt_earlier_are_tries() -> None:
    tries = Tries({"m1": 2})
    assert tries.count("m1", failure(FailureClass.INFRA))
    assert tries.of("m1") == 3

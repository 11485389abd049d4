"""A race of deployments: who is searched when, from where, and who can no longer win."""

from __future__ import annotations

import math

import pytest

from orchestrator.analysis.claim import Claim
from orchestrator.search.racing import Entrant, Race

SMALL = Entrant("small", 1, 10.0, {"tensor_parallel_size": 1, "quantization": None})
LARGE = Entrant("large", 8, 96.0, {"tensor_parallel_size": 8, "quantization": None})
UNKNOWN = Entrant("unknown", 2, None, {"tensor_parallel_size": 2, "quantization": None})


def claim(value: float | None, high: float = math.inf) -> Claim:
    return Claim(value, value or 0.0, high, "converged", ())


def test_who_is_predicted_best_per_gpu_is_searched_first_from_there_and_who_is_not_predicted_before_him() -> None:
    race = Race([SMALL, LARGE])
    assert race.next() == (LARGE, 96.0)
    assert Race([SMALL, LARGE, UNKNOWN]).next() == (UNKNOWN, None)


def test_the_next_is_probed_first_where_he_would_equal_the_leader() -> None:
    race = Race([SMALL, LARGE])
    race.tell(LARGE, claim(80.0))
    assert race.leader == (LARGE, 10.0)
    assert race.next() == (SMALL, 10.0)


def test_who_is_shown_to_hold_no_more_than_the_leader_has_lost_and_who_may_hold_more_has_not() -> None:
    race = Race([SMALL, LARGE])
    assert not race.lost(LARGE, claim(None, 1.0))
    race.tell(LARGE, claim(80.0))
    assert race.lost(SMALL, claim(None, 10.0))
    assert not race.lost(SMALL, claim(None, 10.3))
    assert not race.lost(SMALL, claim(9.0))


def test_what_was_not_confirmed_leads_nobody() -> None:
    race = Race([SMALL, LARGE])
    race.tell(LARGE, claim(None, 90.0))
    assert race.leader is None
    assert race.next() == (SMALL, 10.0)


def test_a_full_grid_is_searched_to_its_end_from_predictions_or_the_nearest_neighbour() -> None:
    race = Race([SMALL, UNKNOWN], full_grid=True)
    race.tell(SMALL, claim(9.0))
    assert race.next() == (UNKNOWN, 18.0)
    assert not race.lost(UNKNOWN, claim(None, 1.0))


@pytest.mark.parametrize("full_grid", [False, True])
def test_everybody_is_searched_once(full_grid: bool) -> None:
    race, found = Race([SMALL, LARGE, UNKNOWN], full_grid), []
    while (one := race.next()) is not None:
        found.append(one[0].name)
        race.tell(one[0], claim(50.0))
    assert sorted(found) == ["large", "small", "unknown"]

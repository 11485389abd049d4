"""Who follows a race sees each of its changes once."""

from __future__ import annotations

from orchestrator.capacity.race import Race
from orchestrator.sweep.followed_race import FollowedRace


def test_a_race_that_nobody_runs_never_moves() -> None:
    assert not FollowedRace(None).has_moved


def test_a_race_moves_until_it_is_looked_at() -> None:
    race = Race({})
    followed = FollowedRace(race, seen_version=race.version)
    assert not followed.has_moved
    race.version += 1
    assert followed.has_moved
    followed.look()
    assert not followed.has_moved


def test_who_has_seen_nothing_has_to_look() -> None:
    assert FollowedRace(Race({})).has_moved

"""Where the deployments of a sweep are."""

from __future__ import annotations

import pytest

from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.roster import Place, Roster
from tests.unit.sweep.simulation import plan_of
from tests.unit.sweep.sweeps import TWO


@pytest.fixture
def works() -> list[DeploymentWork]:
    plan = plan_of(TWO)
    return [DeploymentWork(plan, deployment, {}) for deployment in plan.deployments]


def test_a_deployment_is_in_one_place(works: list[DeploymentWork]) -> None:
    roster = Roster()
    (first, _) = works
    for place in (Place.QUEUED, Place.LAUNCHED, Place.IDLE, Place.DROPPED):
        roster.put(first, place)
        counts = (len(roster.queued), len(roster.launched), len(roster.idle))
        assert sum(counts) == (place is not Place.DROPPED)
    assert not roster.has_work


def test_what_comes_back_to_a_place_comes_last(works: list[DeploymentWork]) -> None:
    roster = Roster()
    first, second = works
    roster.put(first, Place.QUEUED)
    roster.put(second, Place.QUEUED)
    roster.put(first, Place.LAUNCHED)
    assert roster.launched_now() == [first]
    roster.put(first, Place.QUEUED)
    assert roster.queued_now() == [second, first]
    assert list(roster.queued) == [second.deployment.id, first.deployment.id]

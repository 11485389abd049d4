"""Where each deployment of a sweep is."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from orchestrator.sweep.deployment_work import DeploymentWork


class Place(StrEnum):
    """Where a deployment of a sweep is."""

    QUEUED = "queued"  # it waits for nodes
    LAUNCHED = "launched"  # a launch of it runs, in a thread of its own
    # nothing of it has to be measured: nothing is left, or others are better by what is known now
    IDLE = "idle"
    DROPPED = "dropped"  # it gets no launch any more in this sweep


class Roster:
    """The deployments of a sweep, each in one place. ``put`` alone moves them.

    One thread moves deployments. Others may call ``queued_now`` and ``launched_now``.
    """

    def __init__(self) -> None:
        self._place_of: dict[str, Place] = {}
        self._works: dict[Place, dict[str, DeploymentWork]] = {place: {} for place in Place}

    def put(self, work: DeploymentWork, place: Place) -> None:
        """Move a deployment to a place, behind all that are there."""
        deployment_id = work.deployment.id
        before = self._place_of.get(deployment_id)
        if before is not None:
            del self._works[before][deployment_id]
        self._place_of[deployment_id] = place
        self._works[place][deployment_id] = work

    @property
    def queued(self) -> Mapping[str, DeploymentWork]:
        """The queued deployments, by id."""
        return self._works[Place.QUEUED]

    @property
    def launched(self) -> Mapping[str, DeploymentWork]:
        """The deployments with a launch that runs, by id."""
        return self._works[Place.LAUNCHED]

    @property
    def idle(self) -> Mapping[str, DeploymentWork]:
        """The deployments of which nothing has to be measured, by id."""
        return self._works[Place.IDLE]

    @property
    def has_work(self) -> bool:
        """Whether a deployment is queued or launched."""
        return bool(self.queued or self.launched)

    def queued_now(self) -> list[DeploymentWork]:
        """The queued deployments at this moment, for other threads."""
        return list(self._works[Place.QUEUED].values())

    def launched_now(self) -> list[DeploymentWork]:
        """The launched deployments at this moment, for other threads."""
        return list(self._works[Place.LAUNCHED].values())

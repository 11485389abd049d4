"""What one launch asks the sweep about all the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrator.plan.model import Deployment
    from orchestrator.sweep.deployment_work import DeploymentWork


class Outlook(Protocol):
    """The sweep as its launches see it. They ask from their own threads."""

    def left_s(self) -> float:
        """Estimated seconds until all is measured."""
        ...

    def should_yield(self, work: DeploymentWork) -> bool:
        """Whether a launch should end so that others of its race get its nodes."""
        ...

    def is_better_off_elsewhere(self, deployment: Deployment) -> bool:
        """Whether a launch that waits for a host should queue again, because other nodes would do
        for it, or because the nodes that it keeps idle would do for other launches.
        """
        ...

"""The queue of a sweep's launches, in the order of admission."""

from __future__ import annotations

from orchestrator.capacity.race import Race
from orchestrator.plan.model import Plan
from orchestrator.plan.order import QueueClass, queue_priority
from orchestrator.sweep.admission import Queue, Waiting
from orchestrator.sweep.competition import shortlist_of
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.resource_request import ResourceRequest, resources_of
from orchestrator.sweep.roster import Roster
from orchestrator.sweep.start_times import StartTimes
from orchestrator.sweep.state import cost_of

# the queue is ordered again when start times differ from the estimates by this share
START_TOLERANCE = 0.1


class LaunchQueue:
    """The queued deployments that are on the shortlist, as admission sees them.

    ``jobs``: in the order of admission. ``shortlist``: chooses which deployments are started.
    """

    def __init__(
        self, plan: Plan, roster: Roster, race: Race | None, start_times: StartTimes
    ) -> None:
        self._plan = plan
        self._roster = roster
        self._priority = queue_priority(plan)
        self._start_times = start_times
        # by engine: what its start times were multiplied by when the queue was ordered
        self._start_factors_of_order: dict[str, float] = {}
        self.shortlist = shortlist_of(plan, race, self._priority)
        self.jobs = Queue()

    def order(self) -> None:
        """Order the queue anew, by what is known now of priorities and of how long starts take."""
        self._start_factors_of_order = self._start_times.factors()
        self.jobs = Queue(
            self.waiting(work)
            for key, work in self._roster.queued.items()
            if self.shortlist.has(key)
        )

    def starts_are_off(self) -> bool:
        """Whether the start times of some engine now differ by more than START_TOLERANCE from those
        that the queue was ordered by.
        """
        for engine, factor in self._start_times.factors().items():
            ordered_by = self._start_factors_of_order.get(engine, 1.0)
            if abs(factor - ordered_by) > START_TOLERANCE * ordered_by:
                return True
        return False

    def add(self, work: DeploymentWork) -> None:
        """Put a deployment in its place in the queue."""
        self.jobs.add(self.waiting(work))

    def waiting(self, work: DeploymentWork) -> Waiting:
        """A queued deployment as admission sees it."""
        estimate_s = work.estimate_s()
        queue_class = work.queue_class
        priority = self._priority.get(work.deployment.id, 0.0)
        if queue_class is QueueClass.CONTINUED:
            priority = work.standing
        return Waiting(
            work.deployment.id,
            self.resources(work),
            estimate_s,
            queue_class=queue_class,
            avoid=work.avoid,
            cost=cost_of(work.deployment, estimate_s),
            priority=priority,
        )

    def resources(self, work: DeploymentWork) -> ResourceRequest:
        """What a launch of the deployment takes."""
        return resources_of(work.deployment, self._plan.isolation == "exclusive_node")

    def jobs_for(self, resources: ResourceRequest) -> list[Waiting]:
        """The queued launches with this request."""
        jobs: list[Waiting] = []
        for jobs_of_kind in self.jobs.by_kind():
            if jobs_of_kind[0].resources == resources:
                jobs += jobs_of_kind
        return jobs

    def requests(self) -> list[ResourceRequest]:
        """The requests of the queued launches, each once, in the order of admission."""
        return list(dict.fromkeys(jobs[0].resources for jobs in self.jobs.by_kind()))

    def to_start(self) -> list[DeploymentWork]:
        """The queued deployments that will be started, as far as is known now."""
        return self.shortlist.expected(dict(self._roster.queued))

    def left_to_start(self) -> int:
        """How many measurements are left of the deployments that will be started."""
        left = 0
        for work in self.to_start():
            work.follow_race()
            left += work.left
        return left

    def waiting_new(self) -> int:
        """How many deployments on the shortlist wait for their first measurement."""
        number = 0
        for deployment_id, work in self._roster.queued.items():
            if self.shortlist.has(deployment_id) and not work.has_begun:
                number += 1
        return number

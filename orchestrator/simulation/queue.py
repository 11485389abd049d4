"""The deployments of a simulated sweep that are still to be launched, and which of them is next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.plan.model import Plan
from orchestrator.plan.order import QueueClass, QueuePosition, queue_position, queue_priority
from orchestrator.results.records import Committed
from orchestrator.sweep.competition import choose_next, race_of, shortlist_of
from orchestrator.sweep.deployment_work import DeploymentWork, WorkStage


@dataclass(frozen=True, slots=True)
class QueueOrder:
    """What decides the order of a plan's deployments, by deployment id.

    ``priority``: see ``queue_priority``. ``whole_s``: seconds that all of a deployment takes,
    however much of it is stored already.
    """

    priority: Mapping[str, float]
    whole_s: Mapping[str, float]

    @classmethod
    def of(cls, plan: Plan) -> QueueOrder:
        whole_s: dict[str, float] = {}
        for deployment in plan.runnable():
            whole = DeploymentWork(plan, deployment, {})
            whole_s[deployment.id] = whole.rest_s(extra_starts=1)
        return cls(queue_priority(plan), whole_s)

    def position(self, work: DeploymentWork) -> QueuePosition:
        """The place of a deployment in the queue: the smallest is next."""
        deployment = work.deployment
        queue_class = work.queue_class
        priority = self.priority.get(deployment.id, 0.0)
        if queue_class is QueueClass.CONTINUED:
            priority = work.standing
        spans_nodes = any(part.nnodes > 1 for part in deployment.settings.engines.values())
        return queue_position(queue_class, spans_nodes, priority, self.whole_s[deployment.id])


class SimulatedQueue:
    """The deployments of a plan that are not done.

    ``waiting``: those with something left, by deployment id. ``shortlist``: those that are started
    at all. ``committed``: measurement id -> its outcome; these measurements are not made.
    """

    def __init__(self, plan: Plan, order: QueueOrder, committed: Mapping[str, Committed]) -> None:
        race = race_of(plan)
        self.shortlist = shortlist_of(plan, race, order.priority)
        self.waiting: dict[str, DeploymentWork] = {}
        for deployment in plan.runnable():
            self.waiting[deployment.id] = DeploymentWork(plan, deployment, committed, race=race)
        self._idle: dict[str, DeploymentWork] = {}  # with nothing left, unless the race moves
        self._order = order

    @property
    def left(self) -> int:
        """How many measurements are left of the deployments that will be started."""
        return sum(work.left for work in self.shortlist.expected(dict(self.waiting)))

    @property
    def left_s(self) -> float:
        """Estimated virtual seconds until all that waits is simulated."""
        return sum(work.rest_s(extra_starts=1) for work in self.waiting.values())

    @property
    def first(self) -> DeploymentWork | None:
        """The deployment that is launched next; None if no other is started."""
        startable = [work for name, work in self.waiting.items() if self.shortlist.has(name)]
        return min(startable, key=self._order.position, default=None)

    def should_yield(self, work: DeploymentWork) -> bool:
        """Whether a launch should end so that others of its race are probed first."""
        if not work.can_yield:
            return False
        for name, other in self.waiting.items():
            goes_first = not other.has_begun or other.standing > work.standing
            if other is not work and self.shortlist.has(name) and goes_first:
                return True
        return False

    def put_aside(self) -> list[DeploymentWork]:
        """Take deployments out of the queue that have nothing left, and put back those that have
        something left again because the race has moved.

        Returns those that others beat by now.
        """
        for name, work in list(self._idle.items()):
            work.follow_race()
            if work.left:
                self.waiting[name] = self._idle.pop(name)
        beaten: list[DeploymentWork] = []
        for name, work in list(self.waiting.items()):
            work.follow_race()
            if work.left:
                continue
            self._idle[name] = self.waiting.pop(name)
            if work.stage is WorkStage.DOMINATED:
                beaten.append(work)
        return beaten

    def fill_shortlist(self) -> int:
        """If not all deployments are started: choose the next one, unless one that was chosen still
        waits. Once no more may be started, the others are dropped.

        Returns how many were dropped.
        """
        others = self.shortlist.others(self.waiting)
        is_chosen_waiting = any(
            self.shortlist.has(name) and not work.has_begun for name, work in self.waiting.items()
        )
        if not others or is_chosen_waiting:
            return 0
        if self.shortlist.left:
            choose_next(self.shortlist, self.waiting, set(self.waiting))
            return 0
        for name in others:
            self.waiting.pop(name).drop()
        return len(others)

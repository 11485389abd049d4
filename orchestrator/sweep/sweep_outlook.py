"""Answers what launches ask about the others: see ``Outlook``."""

from __future__ import annotations

from orchestrator.cluster.cached_for import CachedFor
from orchestrator.plan.model import Deployment
from orchestrator.sweep.admission import fit, held
from orchestrator.sweep.context import SweepContext
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.launch_queue import LaunchQueue
from orchestrator.sweep.roster import Roster

QUEUE_S = 10.0  # how often the whole queue is looked at: 1,000 deployments take milliseconds


class SweepOutlook:
    """The outlook of launches, computed from the queued and the launched ones. Thread-safe."""

    def __init__(self, context: SweepContext, roster: Roster, queue: LaunchQueue) -> None:
        self._context = context
        self._roster = roster
        self._queue = queue
        self._queued_rest_s = CachedFor(self._estimate_queued, QUEUE_S, context.clock.now_s)

    def left_s(self) -> float:
        """Estimated seconds until all is measured, with as many launches in parallel as now; at
        least the seconds of the longest deployment.
        """
        slowness = self._context.state.slowness
        launched_s = [work.rest_s(slowness) for work in self._roster.launched_now()]
        queued_s = self._queued_rest_s() if self._roster.queued else []
        in_parallel_s = sum(launched_s + queued_s) / max(1, len(launched_s))
        return max([in_parallel_s, *launched_s, *queued_s])

    def _estimate_queued(self) -> list[float]:
        """Estimated seconds for each queued deployment that will be started."""
        slowness = self._context.state.slowness
        return [work.rest_s(slowness, extra_starts=1) for work in self._queue.to_start()]

    def should_yield(self, work: DeploymentWork) -> bool:
        """Whether a launch should end so that its nodes go to deployments of its race that wait for
        them: those that were not probed yet, and those that may hold more load.
        """
        if not work.can_yield:
            return False
        go_first = [
            other
            for other in self._roster.queued_now()
            if not other.has_begun or other.standing > work.standing
        ]
        if not go_first:
            return False
        context = self._context
        machines = context.breakers.usable(context.cluster.machines())
        others = context.state.reservations(excluding=work.deployment.id)
        most_nodes = context.settings.most_nodes
        for resources in {self._queue.resources(other) for other in go_first}:
            if fit(resources, machines, others, most_nodes=most_nodes) is not None:
                return True
        return False

    def is_better_off_elsewhere(self, deployment: Deployment) -> bool:
        """Whether a launch that waits for a host should queue again, because other nodes are free
        for it, or because the nodes that it keeps idle meanwhile would do for queued deployments.
        """
        context = self._context
        others = context.state.reservations(excluding=deployment.id)
        reservation = context.state.reservation_of(deployment.id)
        usable = context.breakers.usable(context.cluster.machines())
        machines = context.state.that_may_be_tried(usable, context.clock.now_s())
        most_nodes = context.settings.most_nodes
        if fit(reservation.resources, machines, others, most_nodes=most_nodes) is not None:
            return True
        own = held([reservation])
        kept_idle = [machine for machine in machines if machine.node_id in own]
        if not kept_idle:
            return False
        for resources in {self._queue.resources(work) for work in self._roster.queued_now()}:
            if fit(resources, kept_idle, others) is not None:
                return True
        return False

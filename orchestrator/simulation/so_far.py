"""What a simulated sweep has come to: its clock, its queue, and what was told, spent and committed.
A launch notes its outcomes here, and asks here about the others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.base.errors import Failure
from orchestrator.plan.model import Deployment, Plan
from orchestrator.results.events import Event, Listener
from orchestrator.results.phases import Phase
from orchestrator.results.records import Committed
from orchestrator.results.store import Store
from orchestrator.simulation.models import EngineModels
from orchestrator.simulation.point import PointSimulator
from orchestrator.simulation.queue import QueueOrder, SimulatedQueue
from orchestrator.simulation.stored import LaunchesToRepeat
from orchestrator.simulation.virtual_clock import VirtualClock
from orchestrator.spec.experiment import Budget
from orchestrator.sweep.budget import SweepBudget
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.launch_lifecycle import close
from orchestrator.sweep.state import MeasurementCounts, SweepState


@dataclass(frozen=True, slots=True)
class SimulationInputs:
    """What a simulation has from its beginning to its end. ``plan`` has predictions. ``stop`` is
    set when the user ends the simulation.
    """

    plan: Plan
    store: Store
    listener: Listener
    stop: threading.Event
    points: PointSimulator
    models: EngineModels
    order: QueueOrder

    @classmethod
    def of(
        cls, plan: Plan, store: Store, listener: Listener, stop: threading.Event
    ) -> SimulationInputs:
        limits = [limit for slo in plan.slos for limit in slo.limits]
        wants_gaps = any(limit.of == "itl_p99" for limit in limits)
        return cls(
            plan=plan,
            store=store,
            listener=listener,
            stop=stop,
            points=PointSimulator(wants_gaps, plan.assumptions),
            models=EngineModels(plan),
            order=QueueOrder.of(plan),
        )


class SweepSoFar:
    """The state of a simulated sweep. At first every deployment that runs is queued, and no time
    has passed.

    ``committed``: measurement id -> its outcome; these measurements are not made. ``stored``: the
    launches of an earlier simulation that come first.
    """

    def __init__(self, inputs: SimulationInputs, committed: Mapping[str, Committed]) -> None:
        self.inputs = inputs
        self.clock = VirtualClock()
        self.state = SweepState()
        limits = _without_wall_time(inputs.plan.budget)
        self.budget = SweepBudget(limits, self.state, self._now_s)
        self.queue = SimulatedQueue(inputs.plan, inputs.order, committed)
        self.stored = LaunchesToRepeat()
        self.launches: Counter[str] = Counter()  # deployment id -> number of committed launches
        self._events: list[Event] = []  # since the last commit of a launch
        # estimated for all that waits, when the launch that runs began
        self._left_s = 0.0

    @property
    def plan(self) -> Plan:
        return self.inputs.plan

    def _now_s(self) -> float:
        return self.clock.now_s

    @property
    def is_stopped(self) -> bool:
        """Whether the user ends the simulation. Launches that are stored are repeated first."""
        return self.inputs.stop.is_set() and not self.stored.are_left

    def tell(self, item: Event | Phase) -> None:
        """Pass on what happened, at the time of the simulation."""
        if isinstance(item, Event):
            item = replace(item, unix_ns=self.clock.unix_ns)
            self._events.append(item)
        if not self.stored.are_left:  # what is repeated was told by the earlier simulation
            self.inputs.listener(item)

    def take_events(self) -> list[Event]:
        """The events since the last call, for the launch that stores them."""
        events = self._events
        self._events = []
        return events

    def close(
        self,
        work: DeploymentWork,
        committed: Committed,
        failure: Failure | None,
        given_up: bool = False,
    ) -> None:
        """Close the next measurement of a deployment with this attempt, and report it."""
        if self.stored.are_left:
            work.close(committed, given_up)
            is_ok = committed.status == "ok"
            self.state.count(MeasurementCounts(skipped=int(is_ok), refused=int(not is_ok)))
        else:
            close(self, self, work, committed, failure, given_up)

    def note_left(self) -> None:
        """Estimate anew how long it takes to simulate all that waits, before a launch begins."""
        self._left_s = self.queue.left_s

    def left_s(self) -> float:
        """Estimated virtual seconds until all is simulated, when the launch that runs began."""
        return self._left_s

    def should_yield(self, work: DeploymentWork) -> bool:
        return self.queue.should_yield(work)

    def is_better_off_elsewhere(self, deployment: Deployment) -> bool:
        """Whether a launch that waits for a host should queue again. No launch waits here, because
        nobody else holds a host.
        """
        return False


def _without_wall_time(limits: Budget | None) -> Budget | None:
    """The budget of a simulation: wall time depends on how many nodes there are."""
    return limits.model_copy(update={"wall": None}) if limits is not None else None

"""Simulates a plan in virtual time, launch by launch, in the order of a cluster that holds one
launch at a time.

The code of ``sweep/`` decides what is next, what races, retries and budgets demand, and what is
written. A launch takes as long to start as the plan estimates, a point takes as long as its
requests do, and nothing in between takes any time. If a simulation is killed, the next one first
repeats the committed launches from the store (``stored.py``), so it ends with the same rows.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.points import compute_ahead
from orchestrator.base.errors import Failure
from orchestrator.base.text import counted
from orchestrator.plan.model import Deployment, Plan
from orchestrator.plan.order import QueueClass, QueuePosition, queue_position, queue_priority
from orchestrator.results.events import Event, Listener
from orchestrator.results.manifest import Manifest
from orchestrator.results.phases import Phase
from orchestrator.results.records import Committed, LaunchRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store, first_ok
from orchestrator.simulation.launch import SimulatedLaunch
from orchestrator.simulation.models import EngineModels
from orchestrator.simulation.point import PointSimulator
from orchestrator.simulation.stored import (
    CommittedLaunch,
    LaunchesToRepeat,
    PlanChanged,
    committed_launches,
)
from orchestrator.simulation.virtual_clock import VirtualClock, ulid_at
from orchestrator.sweep.admission import Spending
from orchestrator.sweep.competition import choose_next, not_started, race_of, shortlist_of
from orchestrator.sweep.deployment_work import DeploymentWork, WorkStage
from orchestrator.sweep.launch_lifecycle import close, leave_out
from orchestrator.sweep.state import MeasurementCounts, SweepState, cost_of, used_up


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """How a simulation ended. ``virtual_s``: seconds that all of it would have taken, one launch
    after the other. ``left_by_stop``: measurements not simulated because the user stopped it.
    """

    counts: MeasurementCounts
    virtual_s: float
    left_by_stop: int = 0

    @property
    def interrupted(self) -> bool:
        return self.left_by_stop > 0


class SimulatedSweep:
    """Simulates what a store does not have yet. ``plan`` must have predictions. ``stop`` is set
    when the user ends the simulation.
    """

    def __init__(self, plan: Plan, store: Store, listener: Listener, stop: threading.Event) -> None:
        self.plan = plan
        self.store = store
        limits = [limit for slo in plan.slos for limit in slo.limits]
        wants_gaps = any(limit.of == "itl_p99" for limit in limits)
        self.points = PointSimulator(wants_gaps, plan.assumptions)
        self.models = EngineModels(plan)
        self.stored = LaunchesToRepeat()
        self._listener = listener
        self._stop = stop
        self._priority = queue_priority(plan)
        # by deployment id: seconds that all of it takes, however much is stored already
        self._whole_s: dict[str, float] = {}
        for deployment in plan.runnable():
            whole = DeploymentWork(plan, deployment, {})
            self._whole_s[deployment.id] = whole.rest_s(extra_starts=1)
        self._left_s = 0.0
        self._named_files = 0
        self._begin({})

    def _begin(self, committed: Mapping[str, Committed]) -> None:
        """Queue every deployment that runs, at the beginning of time. ``committed``: measurement id
        -> its outcome; these measurements are not made.
        """
        plan = self.plan
        self.state = SweepState()
        self.clock = VirtualClock()
        self.launches: Counter[str] = Counter()  # deployment id -> number of committed launches
        self._events: list[Event] = []  # since the last commit of a launch
        self._race = race_of(plan)
        self._shortlist = shortlist_of(plan, self._race, self._priority)
        self._spent = Spending()
        self._idle: dict[str, DeploymentWork] = {}  # with nothing left, unless the race moves
        self._queued: dict[str, DeploymentWork] = {}
        for deployment in plan.runnable():
            self._queued[deployment.id] = DeploymentWork(
                plan, deployment, committed, race=self._race
            )

    def run(self) -> SimulationReport:
        """Simulate everything that is left."""
        self._go_on()
        self.store.write_plan(self.plan.to_json())
        total = self._left()
        skipped = self.state.counts.skipped
        text = f"{counted(total, 'measurement')} to do, {skipped} already done"
        # told but not stored: what was there already is not part of the result
        self._listener(Event("sweep", text, data={"total": total, "skipped": skipped}))
        self.store.computed.name_files_by(self._name_of_file)
        self.store.pooled.name_files_by(self._name_of_file)
        # never by time, so that the same files are written each time
        with self.store.computed.buffered(math.inf, time.monotonic):
            while self._queued and not self._stop.is_set():
                self._next_launch()
        left = self._left()
        if not left:
            compute_ahead(self.store)
        return SimulationReport(self.state.counts, self.clock.now_s, left)

    @property
    def is_stopped(self) -> bool:
        """Whether the user ends the simulation. Launches that are stored are repeated first."""
        return self._stop.is_set() and not self.stored.are_left

    # --- what outcomes are noted in, and what a launch asks about the others

    def tell(self, item: Event | Phase) -> None:
        """Pass on what happened, at the time of the simulation."""
        if isinstance(item, Event):
            item = replace(item, unix_ns=self.clock.unix_ns)
            self._events.append(item)
        if not self.stored.are_left:  # what is repeated was told by the earlier simulation
            self._listener(item)

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

    def left_s(self) -> float:
        """Estimated virtual seconds until all is simulated, when the launch that runs began."""
        return self._left_s

    def should_yield(self, work: DeploymentWork) -> bool:
        """Whether a launch should end so that others of its race are probed first."""
        if not work.can_yield:
            return False
        for name, other in self._queued.items():
            goes_first = not other.has_begun or other.standing > work.standing
            if other is not work and self._shortlist.has(name) and goes_first:
                return True
        return False

    def is_better_off_elsewhere(self, deployment: Deployment) -> bool:
        """Whether a launch that waits for a host should queue again. No launch waits here, because
        nobody else holds a host.
        """
        return False

    def over_budget(self, work: DeploymentWork, next_s: float, held_s: float = 0.0) -> str | None:
        """Says which part of the budget is used up, or would be if a deployment that has held its
        devices for ``held_s`` seconds went on for ``next_s`` seconds; None if the budget suffices.
        Wall time does not count, because it depends on how many nodes there are.
        """
        budget = self.plan.budget
        if budget is None:
            return None
        spent = self._spent + cost_of(work.deployment, held_s)
        over = used_up(budget, spent, wall_s=0.0)
        if over is not None:
            return f"{over} is used up"
        ahead_s = next_s + self.state.overrun_s
        then_spent = spent + cost_of(work.deployment, ahead_s)
        over = used_up(budget, then_spent, wall_s=0.0)
        return f"{over} would be exceeded by the next point" if over is not None else None

    def spend(self, deployment: Deployment, held_s: float) -> None:
        """Note for how many seconds a launch held its devices."""
        self._spent += cost_of(deployment, held_s)

    # --- the queue

    def _go_on(self) -> None:
        """Come to where an earlier simulation of the plan was ended, if there is one."""
        launches = committed_launches(self.store, self.plan.needs_figures)
        self.stored = LaunchesToRepeat(launches)
        try:
            self._put_aside()
            while self.stored.are_left:
                self._next_launch()
        except PlanChanged:
            self.stored = LaunchesToRepeat()
            self._go_on_otherwise(launches)

    def _go_on_otherwise(self, launches: Sequence[CommittedLaunch]) -> None:
        """Go on with another plan than that of the earlier simulation: what it measured counts, in
        whatever order. The clock goes on where its launches ended.
        """
        attempts: list[Committed] = []
        for launch in launches:
            attempts += [attempt.committed for attempt in launch.attempts.values()]
        attempts.sort(key=lambda attempt: attempt.age)
        # the attempt that is ok, else the last one
        committed = {attempt.measurement_id: attempt for attempt in attempts}
        committed |= first_ok(attempts)
        self._begin(committed)
        for launch in launches:
            self.launches[launch.manifest.deployment_id] += 1
            self.clock.unix_ns = max(self.clock.unix_ns, launch.manifest.created_unix_ns)
        self._add_spent([launch.manifest for launch in launches])
        for work in self._queued.values():  # after all exist: each sees what others hold
            if self.launches[work.deployment.id] and work.races:
                work.yield_to_others()  # it has been launched before, and has yielded to others
            work.follow_race()
            self.state.count(MeasurementCounts(skipped=work.skipped, refused=work.refused))
        self._put_aside()
        self._shortlist.chosen |= self.launches.keys() & self._whole_s.keys()

    def _add_spent(self, launches: Sequence[Manifest]) -> None:
        """Add what committed launches used of the budget."""
        if self.plan.budget is None:
            return
        deployments = {deployment.id: deployment for deployment in self.plan.deployments}
        for row in rows_of(self.store.read_manifests("launches", launches), LaunchRow):
            if row.deployment_id in deployments:
                self.spend(deployments[row.deployment_id], row.held_s or 0.0)

    def _left(self) -> int:
        """How many measurements are left of the deployments that will be started."""
        return sum(work.left for work in self._shortlist.expected(dict(self._queued)))

    def _next_launch(self) -> None:
        """Simulate a launch of the deployment that is next."""
        self._fill_shortlist()
        self._left_s = sum(work.rest_s(extra_starts=1) for work in self._queued.values())
        waiting = [name for name in self._queued if self._shortlist.has(name)]
        if not waiting:
            if self.stored.are_left:
                raise PlanChanged
            return
        name = min(waiting, key=self._position)
        work = self._queued[name]
        over = self.over_budget(work, work.first_s())
        if over is not None:
            leave_out(self, work, over)
        else:
            SimulatedLaunch(self, work).run()
        self._put_aside()

    def _position(self, name: str) -> QueuePosition:
        """The place of a deployment in the queue: the smallest is next."""
        work = self._queued[name]
        queue_class = work.queue_class
        priority = self._priority.get(name, 0.0)
        if queue_class is QueueClass.CONTINUED:
            priority = work.standing
        parts = work.deployment.settings.engines.values()
        spans_nodes = any(part.nnodes > 1 for part in parts)
        return queue_position(queue_class, spans_nodes, priority, self._whole_s[name])

    def _put_aside(self) -> None:
        """Take deployments out of the queue that have nothing left, and put back those that have
        something left again because the race has moved.
        """
        for name, work in list(self._idle.items()):
            work.follow_race()
            if work.left:
                self._queued[name] = self._idle.pop(name)
        for name, work in list(self._queued.items()):
            work.follow_race()
            if work.left:
                continue
            self._idle[name] = self._queued.pop(name)
            if work.stage is WorkStage.DOMINATED:
                text = "it is not measured further: others hold more"
                self.tell(Event("outraced", text, work.deployment.label))

    def _fill_shortlist(self) -> None:
        """If not all deployments are started: choose the next one, unless one that was chosen still
        waits. Once no more may be started, the others are dropped.
        """
        shortlist = self._shortlist
        others = shortlist.others(self._queued)
        waits = any(
            shortlist.has(name) and not work.has_begun for name, work in self._queued.items()
        )
        if not others or waits:
            return
        if not shortlist.left:
            for name in others:
                self._queued.pop(name).drop()
            self.tell(not_started(len(others)))
            return
        choose_next(shortlist, self._queued, set(self._queued))

    def _name_of_file(self) -> str:
        """The name of the next file with computed figures. It follows from the simulation alone."""
        self._named_files += 1
        return ulid_at(self.clock.unix_ns + self._named_files * 1_000_000, self.plan.name)

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
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.analysis.points import compute_ahead
from orchestrator.base.text import counted
from orchestrator.plan.model import Plan
from orchestrator.results.events import Event, Listener
from orchestrator.results.manifest import Manifest
from orchestrator.results.phases import SWEEP, Phase, SweepStep
from orchestrator.results.records import Committed, LaunchRow
from orchestrator.results.schemas import rows_of
from orchestrator.results.store import Store, first_ok
from orchestrator.simulation.launch import SimulatedLaunch
from orchestrator.simulation.so_far import SimulationInputs, SweepSoFar
from orchestrator.simulation.stored import (
    CommittedLaunch,
    LaunchesToRepeat,
    PlanChanged,
    committed_launches,
)
from orchestrator.simulation.virtual_clock import ulid_at
from orchestrator.sweep.competition import not_started
from orchestrator.sweep.launch_lifecycle import leave_out
from orchestrator.sweep.state import MeasurementCounts


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
        self._inputs = SimulationInputs.of(plan, store, listener, stop)
        self._plan = plan
        self._store = store
        self._named_files = 0
        self._so_far = SweepSoFar(self._inputs, committed={})

    def run(self) -> SimulationReport:
        """Simulate everything that is left."""
        self._go_on()
        self._store.write_plan(self._plan.to_json())
        total = self._so_far.queue.left
        skipped = self._so_far.state.counts.skipped
        text = f"{counted(total, 'measurement')} to do, {skipped} already done"
        # told but not stored: what was there already is not part of the result
        self._inputs.listener(Event("sweep", text, data={"total": total, "skipped": skipped}))
        self._store.computed.name_files_by(self._name_of_file)
        self._store.pooled.name_files_by(self._name_of_file)
        # never by time, so that the same files are written each time
        with self._store.computed.buffered(math.inf, time.monotonic):
            while self._so_far.queue.waiting and not self._inputs.stop.is_set():
                self._next_launch()
            self._inputs.listener(Phase(SWEEP, SweepStep.STORE_FIGURES))
        left = self._so_far.queue.left
        if not left:
            compute_ahead(self._store)
        return SimulationReport(self._so_far.state.counts, self._so_far.clock.now_s, left)

    def _go_on(self) -> None:
        """Come to where an earlier simulation of the plan was ended, if there is one."""
        launches = committed_launches(self._store, self._plan.needs_figures)
        self._so_far.stored = LaunchesToRepeat(launches)
        try:
            self._put_aside()
            while self._so_far.stored.are_left:
                self._next_launch()
        except PlanChanged:
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
        so_far = SweepSoFar(self._inputs, committed=committed)
        self._so_far = so_far
        for launch in launches:
            so_far.launches[launch.manifest.deployment_id] += 1
            so_far.clock.unix_ns = max(so_far.clock.unix_ns, launch.manifest.created_unix_ns)
        self._add_spent([launch.manifest for launch in launches])
        # after all of them exist, so that each sees what the others hold
        for work in so_far.queue.waiting.values():
            if so_far.launches[work.deployment.id] and work.races:
                work.yield_to_others()  # it has been launched before, and has yielded to others
            work.follow_race()
            so_far.state.count(
                MeasurementCounts(skipped=work.earlier.skipped, refused=work.earlier.refused)
            )
        self._put_aside()
        runnable = {deployment.id for deployment in self._plan.runnable()}
        so_far.queue.shortlist.chosen |= so_far.launches.keys() & runnable

    def _add_spent(self, launches: Sequence[Manifest]) -> None:
        """Add what committed launches used of the budget."""
        if self._plan.budget is None:
            return
        deployments = {deployment.id: deployment for deployment in self._plan.deployments}
        for row in rows_of(self._store.read_manifests("launches", launches), LaunchRow):
            if row.deployment_id in deployments:
                self._so_far.state.spend(deployments[row.deployment_id], row.held_s or 0.0)

    def _next_launch(self) -> None:
        """Simulate a launch of the deployment that is next."""
        dropped = self._so_far.queue.fill_shortlist()
        if dropped:
            self._so_far.tell(not_started(dropped))
        self._so_far.note_left()
        work = self._so_far.queue.first
        if work is None:
            if self._so_far.stored.are_left:
                raise PlanChanged
            return
        over = self._so_far.budget.over(work.deployment, work.first_s())
        if over is not None:
            leave_out(self._so_far, work, over)
        else:
            SimulatedLaunch(self._so_far, work).run()
        self._put_aside()

    def _put_aside(self) -> None:
        """Put deployments aside that have nothing left, and tell which of them are beaten."""
        for work in self._so_far.queue.put_aside():
            text = "it is not measured further: others hold more"
            self._so_far.tell(Event("outraced", text, work.deployment.label))

    def _name_of_file(self) -> str:
        """The name of the next file with computed figures. It follows from the simulation alone."""
        self._named_files += 1
        return ulid_at(self._so_far.clock.unix_ns + self._named_files * 1_000_000, self._plan.name)

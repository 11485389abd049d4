"""One simulated launch of a deployment: it makes the measurements that belong to one start.

A launch that an earlier simulation committed is repeated from the store: it makes the same
decisions, but takes each attempt as it is stored.
"""

from __future__ import annotations

import json
from dataclasses import replace

from orchestrator.base.errors import Failure, FailureKind
from orchestrator.base.text import counted
from orchestrator.engines.dialects import dialect_of
from orchestrator.engines.registry import ENGINES
from orchestrator.load.point import LoadPoint, Target
from orchestrator.predict.predictor import NotPredictable
from orchestrator.results.events import Event
from orchestrator.results.phases import Phase, PhaseName
from orchestrator.results.records import Committed, LaunchRow
from orchestrator.simulation.models import engines_of, model_digest
from orchestrator.simulation.point import SimulatedEngines
from orchestrator.simulation.so_far import SweepSoFar
from orchestrator.simulation.virtual_clock import launch_id_at, ulid_at
from orchestrator.spec.assumptions import with_option
from orchestrator.sweep.attempt import Attempt
from orchestrator.sweep.commit import (
    AttemptRecord,
    commit_attempt,
    commit_launch,
    how_it_ended,
    launch_row,
)
from orchestrator.sweep.deployment_work import DeploymentWork, NextMeasurement, expected_s
from orchestrator.sweep.launch_lifecycle import leave_out
from orchestrator.sweep.launch_state import LaunchEvent
from orchestrator.sweep.words import level_words

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000


class SimulatedLaunch:
    """A launch of a deployment in virtual time, in the states that any launch has
    (``sweep/launch_state.py``). ``work``: what is left to simulate of it.

    Raises PlanChanged, also from ``run``, if an earlier simulation went on otherwise at this point.
    """

    def __init__(self, so_far: SweepSoFar, work: DeploymentWork) -> None:
        self._so_far = so_far
        self._clock = so_far.clock
        self._work = work
        self._deployment = work.deployment
        self._start_index = work.start
        # the launch's id has its start in whole milliseconds
        self._clock.unix_ns = -(-self._clock.unix_ns // MILLISECOND_NS) * MILLISECOND_NS
        self._row = self._new_row()
        self._stored = so_far.stored.launch(self._row.launch_id)

    def _new_row(self) -> LaunchRow:
        so_far = self._so_far
        began_unix_ns = self._clock.unix_ns
        number = so_far.launches[self._deployment.id]
        rules = so_far.inputs.models.rules_digest(self._deployment)
        row = launch_row(self._deployment, so_far.inputs.store.experiment, began_unix_ns)
        launch_id = launch_id_at(began_unix_ns, self._deployment.id, number, rules)
        return replace(row, launch_id=launch_id, simulated=True)

    def run(self) -> None:
        """Simulate measurement after measurement, and commit the launch."""
        so_far = self._so_far
        self._advance(LaunchEvent.ADMITTED)
        self._advance(LaunchEvent.HOSTS_TAKEN)  # nobody else holds a host
        so_far.state.placed(self._deployment, self._clock.now_s)
        text = f"launch {self._row.launch_id}, {counted(self._work.left, 'measurement')} to do"
        so_far.tell(Event("launch", text, self._deployment.label, self._row.launch_id))
        failure: Failure | None = None
        try:
            model = so_far.inputs.models.step_model(self._deployment)
        except NotPredictable as reason:
            text = with_option(str(reason), reason.fact)
            failure = Failure(FailureKind.NOT_SIMULATED, f"It cannot be simulated: {text}.")
            self._give_up(failure)
        else:
            start_s = self._work.start_estimate_s
            reported = json.dumps({"model": model_digest(model)})
            self._row = replace(
                self._row, placed_s=0.0, ready_s=start_s, engine_reported_json=reported
            )
            self._clock.go_on(start_s)
            self._advance(LaunchEvent.SERVING)
            if not self._measure_all(engines_of(self._deployment, model)):
                self._begin_anew()
                return
        self._end(failure)

    def _advance(self, event: LaunchEvent) -> None:
        self._so_far.state.advance(self._deployment, event)

    def _measure_all(self, engines: SimulatedEngines) -> bool:
        """Simulate until nothing is left for this start, or until the launch must end. Returns
        False if the user stops the simulation first: the next one then begins the launch anew.
        """
        while True:
            self._work.follow_race()
            following = self._work.next
            if following is None or following.measurement.start != self._start_index:
                return True
            if self._so_far.is_stopped:
                return False
            if self._end_early(following):
                return True
            self._advance(LaunchEvent.LOAD_BEGAN)
            self._measure(engines, following)
            self._advance(LaunchEvent.LOAD_ENDED)

    def _end_early(self, following: NextMeasurement) -> bool:
        """End the launch before this measurement so that others are probed first, or leave out the
        rest if the budget is spent. Returns whether either was done.
        """
        if self._so_far.should_yield(self._work):
            self._work.yield_to_others()
            text = "it ends so that others are probed first; it goes on unless they hold more"
            self._so_far.tell(Event("gives_way", text, self._deployment.label, self._row.launch_id))
            return True
        over = self._so_far.budget.over(self._deployment, expected_s(following.point))
        if over is None:
            return False
        leave_out(self._so_far, self._work, over)
        return True

    def _measure(self, engines: SimulatedEngines, following: NextMeasurement) -> None:
        """Make one attempt and commit it, or take it from the store."""
        clock = self._clock
        so_far = self._so_far
        began_unix_ns = clock.unix_ns
        point = self._load_point(engines, following)
        so_far.tell(Phase(self._deployment.label, PhaseName.MEASURE, level_words(point)))
        if self._stored is not None:
            stored = self._stored.attempt(point.attempt_id)
            clock.unix_ns = stored.committed.created_unix_ns
            so_far.state.took(
                expected_s(following.point), (clock.unix_ns - began_unix_ns) / SECOND_NS
            )
            self._settle(stored.committed, stored.failure)
            return
        simulated = so_far.inputs.points.attempt(engines, point, self._work.watch, began_unix_ns)
        clock.go_on(simulated.took_s)
        so_far.state.took(expected_s(following.point), simulated.took_s)
        attempt = simulated.attempt
        committed = self._commit_attempt(following, point.seed, point.attempt_id, attempt)
        self._settle(committed, attempt.failure)

    def _load_point(self, engines: SimulatedEngines, following: NextMeasurement) -> LoadPoint:
        """The measurement's point as clients would load it."""
        settings = self._deployment.settings
        point = following.point
        measurement_id = following.measurement.measurement_id
        tries = self._work.tries.of(measurement_id)
        targets = tuple(Target("", settings.model, replica) for replica in range(engines.replicas))
        return LoadPoint(
            targets=targets,
            dialect=dialect_of(ENGINES[settings.engine], settings, point.workload.api),
            **point.load_rules(),
            seed=following.measurement.tried(tries).seed,
            measurement_id=measurement_id,
            attempt_id=ulid_at(self._clock.unix_ns, measurement_id, tries),
        )

    def _commit_attempt(
        self,
        following: NextMeasurement,
        seed: int,
        attempt_id: str,
        attempt: Attempt,
    ) -> Committed:
        """Commit an attempt at a measurement, made with ``seed``."""
        measurement = replace(following.measurement, seed=seed)
        record = AttemptRecord(
            self._deployment,
            following.point,
            measurement,
            attempt,
            attempt_id,
            self._row,
            began_unix_ns=self._clock.unix_ns,
        )
        return commit_attempt(self._so_far.inputs.store, record, self._clock.unix_ns)

    def _settle(
        self, committed: Committed, failure: Failure | None, given_up: bool = False
    ) -> None:
        """Close the measurement of an attempt, or let it be tried again. ``failure``: of the
        attempt; None if it is ok.
        """
        key = committed.measurement_id
        is_tried_again = (
            failure is not None and not given_up and self._work.tries.count(key, failure)
        )
        if failure is None or not is_tried_again:
            self._so_far.close(self._work, committed, failure, given_up)
        else:
            text = f"{failure.kind}: {failure.sentence}"
            label = self._deployment.label
            self._so_far.tell(Event("retry", text, label, self._row.launch_id, key))

    def _give_up(self, failure: Failure) -> None:
        """Commit every open measurement as failed; of a search, only the one that it asks for."""
        label = self._deployment.label
        self._so_far.tell(Event("gave_up", failure.sentence, label, self._row.launch_id))
        for _ in range(self._work.left):
            following = self._work.next
            if following is None:
                break
            measurement = following.measurement
            attempt_id = ulid_at(self._clock.unix_ns, measurement.measurement_id, 0)
            if self._stored is not None:
                committed = self._stored.attempt(attempt_id).committed
            else:
                attempt = Attempt(failure=failure)
                committed = self._commit_attempt(following, measurement.seed, attempt_id, attempt)
            self._settle(committed, failure, given_up=True)
        self._work.drop()

    def _begin_anew(self) -> None:
        """Go back to the queue, without a row, because the user stops the simulation."""
        state = self._so_far.state
        self._advance(LaunchEvent.STOP_BEGAN)
        state.released(self._deployment, self._clock.now_s)
        self._advance(LaunchEvent.REQUEUED)
        state.free_nodes(self._deployment)

    def _end(self, failure: Failure | None) -> None:
        """End the launch, and commit it unless it is stored. ``failure``: why it could not be
        simulated; None if it was.
        """
        so_far = self._so_far
        self._advance(LaunchEvent.STOP_BEGAN)
        held_s = so_far.state.released(self._deployment, self._clock.now_s)
        row = replace(self._row, held_s=held_s, stopped_s=0.0, **how_it_ended(failure))
        self._advance(LaunchEvent.STOPPED)
        so_far.state.free_nodes(self._deployment)
        so_far.launches[self._deployment.id] += 1
        so_far.tell(Phase(self._deployment.label, PhaseName.ENDED))
        events = so_far.take_events()
        if self._stored is not None:
            so_far.stored.note_repeated(self._stored)
            return
        commit_launch(
            so_far.inputs.store, self._deployment, row, events, created_unix_ns=self._clock.unix_ns
        )

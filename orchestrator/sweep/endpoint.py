"""Measures points of one endpoint without a sweep and without Ray, and commits them like points of
a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from orchestrator.base.errors import FailureKind, InputError, OrchestratorError
from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.cluster.local import LocalCluster
from orchestrator.emulator.prefix import BLOCK_TOKENS
from orchestrator.load.point import LoadPoint, Target
from orchestrator.plan.model import Measurement, Plan, Point
from orchestrator.results.events import Listener
from orchestrator.results.ids import new_ulid
from orchestrator.results.records import Committed
from orchestrator.results.store import Store
from orchestrator.spec.load import Level
from orchestrator.sweep.announcer import Announcer
from orchestrator.sweep.attempt import Attempt
from orchestrator.sweep.detect_dialect import EndpointDialect
from orchestrator.sweep.endpoint_metrics import EndpointMetrics
from orchestrator.sweep.measure import Measurer, UserStop
from orchestrator.sweep.own_host import OwnHost
from orchestrator.sweep.replicas import Replicas

START_LEAD_S = 0.05  # seconds before the common start of clients on this machine
WARM_UP_IN_FLIGHT = 8  # requests in flight during the warm-up of a trace, whose times are ignored


def measure_here(
    point: LoadPoint,
    clients: int = 1,
    tell: Listener = lambda item: None,
    stopped: Callable[[], bool] = lambda: False,
    watched: bool = False,
    watch: ProbeWatch | None = None,
) -> Attempt:
    """Load an endpoint once with ``clients`` clients of this machine; ``tell`` hears the progress.

    The attempt ends early, with what was measured until then, once ``stopped`` returns true.
    ``watched``: progress is drawn, which takes time. ``watch``: see ``Measurer.measure``.

    Raises InputError when the point cannot be run, OrchestratorError when every client died.
    """
    cluster = LocalCluster(None, clients, watched or watch is not None)
    try:
        borrowed = cluster.clients(clients, {})
        measurer = Measurer(
            Replicas(
                (),
                point.targets,
                own_host=OwnHost(),
                endpoint_metrics=EndpointMetrics(point.targets[0]),
            ),
            borrowed,
            user_stop=UserStop(stopped, keeps_points=True),
            announcer=Announcer(tell),
            lead_s=START_LEAD_S,
        )
        attempt = measurer.measure(point, watch=watch)
    finally:
        cluster.close()
    failure = attempt.failure
    sentence = failure.sentence if failure is not None else ""
    if attempt.loaded is None:
        if failure is not None and failure.kind is FailureKind.BAD_POINT:
            raise InputError(sentence)
        raise OrchestratorError(sentence)
    if not attempt.loaded.stats and not attempt.interrupted:
        raise OrchestratorError(f"no client is left to report: {sentence}")
    return attempt


def runs_of(
    plan: Plan, target: Target, detected: EndpointDialect, store: Store | None = None
) -> list[EndpointRun]:
    """A run of every point of a plan for one endpoint, in order. Each run makes the first repeat
    that ``store`` does not have. Raises InputError if the endpoint can serve none of the points.
    """
    if not plan.points:
        raise InputError("; ".join(plan.deployments[0].reasons))
    stored: set[str] = set()
    if store is not None:
        stored = {commit.measurement_id for commit in store.commits()}
    return [
        EndpointRun(plan, point, target, detected, _next_repeat(plan, point, stored))
        for point in plan.points
    ]


def _next_repeat(plan: Plan, point: Point, stored: Container[str]) -> Measurement:
    """The first repeat of a point that is not among the ``stored`` measurement ids."""
    repeat = 0
    while True:
        measurement = plan.measurement(point, repeat)
        if measurement.measurement_id not in stored:
            return measurement
        repeat += 1


class EndpointRun:
    """One measurement of a point of an endpoint, by default the first repeat. ``detected``: how to
    talk to the endpoint.
    """

    def __init__(
        self,
        plan: Plan,
        point: Point,
        target: Target,
        detected: EndpointDialect,
        measurement: Measurement | None = None,
    ) -> None:
        (self.deployment,) = plan.deployments
        self.plan = plan
        self.point = point
        self.measurement = measurement or plan.measurement(point, 0)
        self.emulated = detected.emulated
        tokenizer = self.deployment.settings.tokenizer
        attempt_id = new_ulid()
        self.load = LoadPoint(
            targets=(target,),
            dialect=detected.dialect.salted(attempt_id),
            **self.point.load_rules(),
            seed=self.measurement.seed,
            tokenizer=tokenizer,
            count_text=not detected.counts and tokenizer is not None,
            id_range=detected.id_range,
            cache_block_tokens=BLOCK_TOKENS if detected.emulated else 1,
            measurement_id=self.measurement.measurement_id,
            attempt_id=attempt_id,
        )

    def warm_up(
        self, requests: int, clients: int, stopped: Callable[[], bool] = lambda: False
    ) -> int:
        """Send ``requests`` requests of the same kind without keeping rows. Returns how many were
        sent.

        Drawn prompts differ from those that will be measured; prompts of a file are its last ones.
        The times of a trace are ignored.
        """
        level = self.load.level
        if self.load.arrivals.process == "trace":
            level = Level(control="concurrency", value=min(requests, WARM_UP_IN_FLIGHT))
        warm_up = replace(
            self.load,
            workload=self.load.workload.others(requests),
            level=level,
            requests=requests,
            duration_s=None,
            warmup_s=0.0,
            seed=self.load.seed ^ 1,
        )
        loaded = measure_here(warm_up, clients, stopped=stopped).loaded
        return loaded.requests.num_rows if loaded else 0

    def commit(self, store: Store, attempt: Attempt) -> Committed:
        """Store the plan, a launch that stands for the server that was already up, and the
        attempt.
        """
        # imports the engines' code, which loading does not need
        from orchestrator.sweep.commit import (
            AttemptRecord,
            commit_attempt,
            commit_launch,
            launch_row,
        )

        assert attempt.loaded
        store.write_plan(self.plan.to_json())
        launch = launch_row(self.deployment, store.experiment, attempt.loaded.span.start_ns)
        launch = replace(launch, emulated=self.emulated)
        commit_launch(store, self.deployment, launch)
        record = AttemptRecord(
            self.deployment, self.point, self.measurement, attempt, self.load.attempt_id, launch
        )
        return commit_attempt(store, record)

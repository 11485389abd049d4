"""Searches for the highest load at which one endpoint holds an SLO, like a sweep, but with clients
of this machine.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.analysis.attempt_summary import attempt_data
from orchestrator.base.clock import Clock
from orchestrator.base.errors import Failure, FailureKind, InputError
from orchestrator.base.text import hours
from orchestrator.capacity.claim import Claim
from orchestrator.capacity.strategy import ProbeWatch
from orchestrator.cluster.local import LocalCluster
from orchestrator.load.point import Target
from orchestrator.plan.model import Plan, Point
from orchestrator.results.events import Event, Listener
from orchestrator.results.records import AttemptData, Committed
from orchestrator.results.store import Store, best_ok
from orchestrator.results.validity import MOST_AGAIN, Validity
from orchestrator.spec.load import Level, load_text
from orchestrator.sweep.announcer import Announcer
from orchestrator.sweep.attempt import Attempt
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.detect_dialect import EndpointDialect
from orchestrator.sweep.earlier_attempts import spoilt_of
from orchestrator.sweep.endpoint import START_LEAD_S, EndpointRun
from orchestrator.sweep.endpoint_metrics import EndpointMetrics
from orchestrator.sweep.measure import Measurer, UserStop
from orchestrator.sweep.own_host import OwnHost
from orchestrator.sweep.replicas import Replicas
from orchestrator.sweep.words import claim_words, level_words, measured_words

DRAIN_S = 60.0  # seconds to wait for requests that are in flight when the budget ends
# Seconds to wait for requests that are in flight when the user ends a probe. Without their answers,
# a probe can only show that its level fails.
GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class NextProbe:
    """The probe that a search would make next, and how many ``seconds`` it is expected to take."""

    level: Level
    seconds: float

    @property
    def words(self) -> str:
        """``11.3 req/s, about 6 min``."""
        return f"{load_text(self.level.control, self.level.value)}, about {hours(self.seconds)}"


@dataclass(frozen=True, slots=True)
class CapacityResult:
    """The result of a search. ``probes``: all that are committed, oldest first. ``next``: the probe
    that the search would make if it had as much time again. ``failure``: why the probe failed that
    ended the search. ``interrupted``: the user ended the search.
    """

    claim: Claim
    probes: list[AttemptData]
    next: NextProbe | None = None
    failure: Failure | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class _Probes:
    """The probes in the store, and how often each was tried in vain; both by measurement id."""

    done: dict[str, AttemptData]
    tries: Counter[str]


@dataclass(kw_only=True)
class CapacitySearch:
    """Makes probe after probe until the plan's strategy knows enough; probes that ``store`` has are
    not repeated.

    After a probe that ``clients`` clients slowed down, all probes are made with twice as many
    clients. ``tell`` hears the progress.

    When the plan's budget of wall time is used up, or ``stopped`` returns true, the running probe
    ends and counts as far as it came. If the answers to its requests then do not come in time
    (``DRAIN_S``, ``GRACE_S``), it can only show that its level fails; a probe that has shown
    nothing by then is left out.
    """

    plan: Plan  # has one endpoint, one workload and one SLO
    target: Target
    detected: EndpointDialect  # how to talk to the endpoint
    store: Store
    clients: int = 1
    tell: Listener = lambda item: None
    stopped: Callable[[], bool] = lambda: False
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._budget_s = math.inf  # seconds of wall time that the search may take
        if self.plan.budget is not None and self.plan.budget.wall:
            self._budget_s = self.plan.budget.wall
        self._ends_s = self.clock.now_s() + self._budget_s
        self._over_since_s = math.inf  # when it was seen that the search is over

    def run(self) -> CapacityResult:
        """Search to the end. Raises InputError if the endpoint cannot serve such requests."""
        (deployment,) = self.plan.deployments
        (load,) = self.plan.loads
        (slo,) = self.plan.slos
        if not deployment.runs:
            raise InputError("; ".join(deployment.reasons))
        probes = self._earlier_probes()
        # the work reads ``probes.done``, and so also sees the failed probes that are added there
        work = DeploymentWork(self.plan, deployment, probes.done)
        cluster = LocalCluster(self.store, 2 * self.clients)
        try:
            failure = self._make_probes(work, probes, cluster)
        finally:
            cluster.close()
        work.hurry(self._budget_s)
        claim = work.claims(load.workload.name)[slo.name]
        by_age = sorted(probes.done.values(), key=lambda probe: probe.created_unix_ns)
        following = _next_probe(work, self._budget_s)
        return CapacityResult(claim, by_age, following, failure, self.stopped())

    def _make_probes(
        self, work: DeploymentWork, probes: _Probes, cluster: LocalCluster
    ) -> Failure | None:
        """Make probe after probe until enough is known or the search is over. Returns why the last
        probe failed, if that ended the search.
        """
        measurer = self._measurer(cluster, self.clients)
        while not self._is_over():
            work.hurry(self._ends_s - self.clock.now_s())
            following = work.next
            if following is None:
                return None
            measurement_id = following.measurement.measurement_id
            measurement = following.measurement.tried(probes.tries[measurement_id])
            run = EndpointRun(self.plan, following.point, self.target, self.detected, measurement)
            attempt = self._measure(measurer, run, work.watch)
            failure = attempt.failure
            if failure is not None and self._is_over():
                # the probe might not have failed if it had gone on
                text = f"{level_words(following.point)}: left out: {failure.sentence}"
                self.tell(Event("stopping", text))
                return None
            if attempt.loaded is None:
                return failure
            outcome = run.commit(self.store, attempt)
            if failure is not None:
                probes.tries[measurement_id] += 1
                if failure.kind is FailureKind.CLIENT_BOUND:
                    self.tell(Event("retry", failure.sentence))
                    measurer.clients.release()
                    measurer = self._measurer(cluster, 2 * self.clients)
                    continue
            if isinstance(outcome, AttemptData):
                probes.done[outcome.measurement_id] = outcome
            if failure is not None:  # the load may be its cause, or the server may be gone
                return failure
            work.close(outcome)
            self._tell_measured(following.point, outcome, work)
        return None

    def _earlier_probes(self) -> _Probes:
        """The probes of this search that the store has."""
        commits: Sequence[Committed] = self.store.commits(checked=True)
        spoilt = spoilt_of(self.store, commits, MOST_AGAIN)
        committed = best_ok(commits, spoilt.verdicts)
        for measurement_id, attempt in spoilt.open.items():
            # an interrupted probe counts: the strategy knows that it only shows how its level did
            # until the interruption
            if spoilt.verdicts[attempt.ids] != Validity.INTERRUPTED:
                del committed[measurement_id]
        tries = Counter(commit.measurement_id for commit in commits if commit.status != "ok")
        tries.update(spoilt.spoilt_counts)
        with_figures = attempt_data(self.store, committed.values())
        return _Probes({probe.measurement_id: probe for probe in with_figures}, tries)

    def _measure(self, measurer: Measurer, run: EndpointRun, watch: ProbeWatch | None) -> Attempt:
        """Make one probe, which also ends once the search is over."""
        has_more_clients = len(measurer.clients.addresses) == self.clients
        if watch is not None:
            watch = replace(watch, over=self._is_over)
        return measurer.measure(run.load, has_more_clients, watch)

    def _tell_measured(self, point: Point, outcome: Committed, work: DeploymentWork) -> None:
        """Tell what a probe showed, what is known by now, and what comes next."""
        claim = claim_words(point.level.control, work.claims(point.workload.name))
        figures = measured_words(outcome, self.plan.slos)
        text = f"{level_words(point)}: {figures}; {claim}"
        left_s = self._ends_s - self.clock.now_s()
        next_probe = _next_probe(work, left_s)
        if next_probe is not None and left_s > 0:
            text = f"{text}; next {next_probe.words}"
        left = {"left": work.left, "left_s": left_s}
        self.tell(Event("measured", text, data=left))

    def _is_over(self) -> bool:
        """Whether the user has ended the search, or its time is up."""
        return self.stopped() or self.clock.now_s() >= self._ends_s

    def _has_waited_enough(self) -> bool:
        """Whether the search is over, and long enough ago for the requests that were in flight then
        to be answered.
        """
        now_s = self.clock.now_s()
        if self._is_over():
            self._over_since_s = min(self._over_since_s, now_s)
        patience_s = GRACE_S if self.stopped() else DRAIN_S
        return now_s >= self._over_since_s + patience_s

    def _measurer(self, cluster: LocalCluster, clients: int) -> Measurer:
        return Measurer(
            Replicas(
                (),
                (self.target,),
                own_host=OwnHost(),
                endpoint_metrics=EndpointMetrics(self.target),
            ),
            cluster.clients(clients, {}),
            user_stop=UserStop(self._has_waited_enough, keeps_points=True),
            announcer=Announcer(self.tell),
            lead_s=START_LEAD_S,
        )


def _next_probe(work: DeploymentWork, left_s: float) -> NextProbe | None:
    """What the search would probe next, for the ``left_s`` seconds of its budget at most; None if
    it knows enough.
    """
    following = work.next
    watch = work.watch
    if following is None or watch is None:
        return None
    level = following.point.level
    length_s = min(following.point.load.duration_s or math.inf, left_s)
    if level.control != "request_rate":
        # how fast a closed loop is answered is not known beforehand
        return NextProbe(level, length_s)
    return NextProbe(
        level, min(watch.size.expected / level.value, watch.size.most / level.value, length_s)
    )

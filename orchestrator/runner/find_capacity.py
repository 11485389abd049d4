"""Searches for the highest load at which one endpoint holds an SLO, like a sweep, but with clients of this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.analysis.attempts import attempt_data
from orchestrator.analysis.claim import Claim
from orchestrator.cluster.local import LocalCluster
from orchestrator.errors import Failure, FailureKind, InputError
from orchestrator.load.point import Target
from orchestrator.plan.model import Plan
from orchestrator.results.events import Event, Listener
from orchestrator.results.records import AttemptData, Committed
from orchestrator.results.store import Store, first_ok
from orchestrator.runner.endpoint import START_LEAD_S, EndpointRun
from orchestrator.runner.measure import Attempt, Measurer
from orchestrator.runner.probe import Probed
from orchestrator.runner.replicas import Replicas
from orchestrator.runner.todo import Todo
from orchestrator.runner.words import claim_words, level_words, measured_words


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search. ``probes``: all committed ones, oldest first. ``failure``: of the probe that ended it;
    ``interrupted``: the user ended it."""

    claim: Claim
    probes: list[AttemptData]
    failure: Failure | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySearch:
    """Makes probe after probe until the plan's strategy knows enough; probes that ``store`` has are not repeated.

    After a probe that ``clients`` clients slowed down, all are made with twice as many. ``tell`` hears the progress.
    """

    plan: Plan  # of one endpoint, one workload and one SLO
    target: Target
    probed: Probed  # how to talk to it
    store: Store
    clients: int = 1
    tell: Listener = lambda item: None
    stopped: Callable[[], bool] = lambda: False

    def run(self) -> Found:
        """Search to the end. Raises InputError if the endpoint cannot serve such requests."""
        (deployment,), (load,), (slo,) = self.plan.deployments, self.plan.loads, self.plan.slos
        if not deployment.runs:
            raise InputError("; ".join(deployment.reasons))
        commits: Sequence[Committed] = self.store.commits(checked=True)
        committed, tries = first_ok(commits), Counter(one.measurement_id for one in commits if one.status != "ok")
        done = {one.measurement_id: one for one in attempt_data(self.store, committed.values())}
        todo = Todo(self.plan, deployment, done)
        cluster = LocalCluster(self.store, 2 * self.clients)
        attempt: Attempt | None = None
        try:
            measurer = self._measurer(cluster, self.clients)
            while not self.stopped() and (found := todo.next()) is not None:
                asked = found[1].tried(tries[found[1].measurement_id])
                run = EndpointRun(self.plan, found[0], self.target, self.probed, asked)
                few = len(measurer.clients.addresses) == self.clients
                attempt = measurer.measure(run.load, few, todo.watch)
                if attempt.interrupted or attempt.loaded is None:
                    break
                outcome = run.commit(self.store, attempt)
                tries[asked.measurement_id] += attempt.failure is not None
                if attempt.failure is not None and attempt.failure.kind is FailureKind.CLIENT_BOUND:
                    self.tell(Event("retry", attempt.failure.sentence))
                    measurer.clients.release()
                    measurer = self._measurer(cluster, 2 * self.clients)
                    continue
                done |= {one.measurement_id: one for one in (outcome,) if isinstance(one, AttemptData)}
                if attempt.failure is not None:  # the load may have caused it, or the server may be gone
                    break
                todo.close(outcome)
                known = claim_words(found[0].level.control, todo.claims(load.workload.name))
                said = measured_words(outcome, self.plan.slos)
                self.tell(Event("measured", f"{level_words(found[0])}: {said}; {known}"))
        finally:
            cluster.close()
        probes = sorted(done.values(), key=lambda one: one.created_unix_ns)
        failure = attempt.failure if attempt is not None and not attempt.interrupted else None
        return Found(todo.claims(load.workload.name)[slo.name], probes, failure, self.stopped())

    def _measurer(self, cluster: LocalCluster, clients: int) -> Measurer:
        replicas, borrowed = Replicas((), (self.target,)), cluster.clients(clients, {})
        return Measurer(replicas, borrowed, stopped=self.stopped, tell=self.tell, lead_s=START_LEAD_S)

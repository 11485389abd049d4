"""What is known of the answer while a sweep runs: after each point, which deployment leads and how
many may still beat it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from orchestrator.analysis.deployments import StoredDeployment, stored_deployment
from orchestrator.analysis.points import Repeat, StoredPoint, load_points, point_of, repeat_of
from orchestrator.analysis.slo import first_target
from orchestrator.base.errors import InputError, OrchestratorError
from orchestrator.capacity.answers import level_of
from orchestrator.capacity.race import Entrant
from orchestrator.capacity.search import Capacity
from orchestrator.capacity.standing import (
    UNKNOWN,
    Contest,
    Lead,
    Standing,
    Standings,
    is_measured_again,
    standing_of_concurrency,
    standing_of_levels,
    standing_of_rates,
)
from orchestrator.plan.model import Deployment, DeploymentGroup, Plan, PlannedLoad
from orchestrator.results.events import Event
from orchestrator.results.records import AttemptData, Committed
from orchestrator.results.store import Store
from orchestrator.spec.load import Level, Objective, Slo
from orchestrator.sweep.competition import entrants_of
from orchestrator.sweep.deployment_work import DeploymentWork
from orchestrator.sweep.words import standing_words

_log = logging.getLogger(__name__)

RepeatsOfPoints = dict[str, dict[str, Repeat]]  # by point id, then by measurement id


def _document(lead: Lead, leader: Deployment | None, per: Objective) -> dict[str, object]:
    """How a contest stands, in JSON values."""
    standing = lead.standing
    group = lead.contest.group
    assert isinstance(group, DeploymentGroup)
    document: dict[str, object] = {
        "workload": lead.contest.workload,
        "slo": lead.contest.slo,
        "model": group.model,
        "hardware": group.hardware,
        "leader": leader.label if leader is not None else None,
        "rivals": lead.rivals,
        "deployments": lead.deployments,
    }
    if standing.level is not None:
        document |= {"control": standing.level.control, "level": standing.level.value}
    if standing.claim is not None:
        document["claim"] = standing.claim
    if standing.estimate is not None:
        document["estimate"] = asdict(standing.estimate)
    if standing.throughput is not None:
        tokens_per_s = standing.throughput
        document["per"] = per
        document["output_token_throughput"] = {
            "estimate": tokens_per_s.estimate,
            "lower": tokens_per_s.lower,
            "upper": tokens_per_s.upper,
        }
    return document


def _stands_by_points(load: PlannedLoad) -> bool:
    """Whether the standings under a load follow from the figures of points, so that those of earlier
    sweeps must be read. Searches of rates know enough by their own claims.
    """
    return not load.searches or load.control == "concurrency"


class FormingAnswer:
    """The standings of a sweep's deployments. Thread-safe.

    ``within``: only what may change by more than this share who is best is measured; None:
    everything that the plan asks for is measured.
    """

    def __init__(self, plan: Plan, within: float | None = None) -> None:
        self.within = within
        self._plan = plan
        # agreement is judged when all is measured
        self._slos = [slo for slo in plan.slos if slo.agreement is None]
        objective = next((load.objective for load in plan.loads if load.objective), None)
        self._entrants: Mapping[str, Entrant] = entrants_of(plan, objective) if self._slos else {}
        self._groups = {entrant.group for entrant in self._entrants.values()}
        self._loads: dict[str, list[PlannedLoad]] = {}  # by deployment id
        self._standings = Standings(within or 0.0)
        self._lock = threading.Lock()
        # by deployment id and name of SLO; dropped once the deployment has nothing left to measure
        self._repeats: dict[tuple[str, str], RepeatsOfPoints] = {}
        # names of SLOs under which nothing is known of what earlier sweeps measured
        self._unread: set[str] = set()
        self._described: dict[str, StoredDeployment] = {}  # by deployment id
        self._rates_only: dict[str, bool] = {}  # by workload

    def enter(self, works: Iterable[DeploymentWork], store: Store) -> None:
        """Take in the deployments that the sweep measures, and what is stored of them already."""
        entered = [work for work in works if work.deployment.id in self._entrants]
        for work in entered:
            self._loads[work.deployment.id] = self._plan.loads_of(work.deployment.id)
        has_stored = any(work.earlier.done for work in entered)
        if has_stored and self._slos and any(map(_stands_by_points, self._plan.loads)):
            self._recall(entered, store)
        for work in entered:
            self._update(work)

    def note(self, work: DeploymentWork, committed: Committed) -> list[Lead]:
        """Take in a measurement of a deployment. Returns how the contests stand that it belongs to;
        an empty list if its figures could not be computed.
        """
        deployment_id = work.deployment.id
        if deployment_id not in self._loads or not isinstance(committed, AttemptData):
            return []
        workload = committed.point.workload
        with self._lock:
            for slo in self._slos:
                self._add(committed, slo)
            self._update(work)
        if not work.left:
            for slo in self._slos:
                self._repeats.pop((deployment_id, slo.name), None)
        group = self._entrants[deployment_id].group
        return [self._standings.lead(Contest(workload, slo.name, group)) for slo in self._slos]

    def leads(self) -> list[Lead]:
        """How all contests stand."""
        return self._standings.leads()

    def event(self, lead: Lead) -> Event:
        """The event that says how a contest stands."""
        leader: Deployment | None = None
        per: Objective = "deployment"
        if lead.leader is not None:
            leader = self._plan.deployment(lead.leader)
            per = self._entrants[lead.leader].per
        throughput = lead.standing.throughput
        if per == "usd" and throughput is not None:
            tokens_per_usd = throughput.scaled(3600)  # it was divided by USD an hour
            lead = replace(lead, standing=replace(lead.standing, throughput=tokens_per_usd))
        text = self._title(lead.contest) + standing_words(lead, leader, per)
        return Event("standing", text, data=_document(lead, leader, per))

    def _title(self, contest: Contest) -> str:
        """The start of a sentence, which tells this contest apart from others of the sweep."""
        parts: list[str] = []
        if len(self._plan.loads) > 1:
            parts.append(contest.workload)
        if len(self._slos) > 1:
            parts.append(contest.slo)
        if len(self._groups) > 1:
            assert isinstance(contest.group, DeploymentGroup)
            model = contest.group.model
            hardware = contest.group.hardware
            parts.append(f"{model} on {hardware}" if hardware else model)
        return f"{', '.join(parts)}: " if parts else ""

    def needs(self, deployment_id: str) -> bool:
        """Whether a deployment is to be measured further."""
        if self.within is None or deployment_id not in self._loads:
            return True
        return self._standings.needs(deployment_id)

    @property
    def is_decided(self) -> bool:
        """Whether no measurement can change who is best by more than ``within``."""
        return self._standings.are_decided

    def leave_out(self, deployment_id: str) -> None:
        """Note that a deployment will not be started in this sweep."""
        self._standings.remove(deployment_id)

    def _recall(self, works: Sequence[DeploymentWork], store: Store) -> None:
        """Take in what earlier sweeps measured of these deployments."""
        work_by_id = {work.deployment.id: work for work in works}
        for slo in self._slos:
            try:
                points = load_points(store, slo)
            except (OrchestratorError, ValueError) as error:
                _log.warning("what was measured before is not ranked: %s", error)
                self._unread.add(slo.name)
                continue
            for point in points:
                work = work_by_id.get(point.head.deployment_id)
                if work is None:
                    continue
                self._described.setdefault(work.deployment.id, point.deployment)
                for repeat in point.repeats:
                    if repeat.head.measurement_id in work.earlier.done:
                        self._keep(work.deployment.id, slo, repeat)

    def _add(self, attempt: AttemptData, slo: Slo) -> None:
        deployment = attempt.deployment
        if deployment is not None and deployment.deployment_id not in self._described:
            self._described[deployment.deployment_id] = stored_deployment(deployment)
        try:
            self._keep(attempt.deployment_id, slo, repeat_of(attempt, slo))
        except InputError as error:  # a limit on gaps, which were not stored
            _log.warning("%s", error)

    def _keep(self, deployment_id: str, slo: Slo, repeat: Repeat) -> None:
        by_point = self._repeats.setdefault((deployment_id, slo.name), {})
        by_measurement = by_point.setdefault(repeat.head.point_id, {})
        by_measurement[repeat.head.measurement_id] = repeat

    def _update(self, work: DeploymentWork) -> None:
        """Note where a deployment stands now in all its contests."""
        deployment_id = work.deployment.id
        entrant = self._entrants[deployment_id]
        for load in self._loads[deployment_id]:
            for slo in self._slos:
                contest = Contest(load.workload.name, slo.name, entrant.group)
                standing = self._standing(work, load, slo, contest)
                self._standings.put(contest, deployment_id, standing)

    def _standing(
        self, work: DeploymentWork, load: PlannedLoad, slo: Slo, contest: Contest
    ) -> Standing:
        deployment_id = work.deployment.id
        workload = load.workload.name
        divisor = self._entrants[deployment_id].divisor
        if _stands_by_points(load) and slo.name in self._unread and work.earlier.done:
            return UNKNOWN
        if not load.searches:
            points = self._points(deployment_id, workload, slo)
            to_repeat = {level_of(point) for point in points if is_measured_again(point)}
            open_levels = work.open_levels(workload) | to_repeat
            return standing_of_levels(points, open_levels, divisor, self._compares_rates(workload))
        capacity = work.capacity_of(workload)
        if capacity is None:  # its search was given up
            return self._standings.at(contest, deployment_id).ended
        return self._standing_of_capacity(capacity, load, slo, deployment_id)

    def _standing_of_capacity(
        self, capacity: Capacity, load: PlannedLoad, slo: Slo, deployment_id: str
    ) -> Standing:
        claim = capacity.claims()[slo.name]
        is_over = slo.name in capacity.over()
        divisor = self._entrants[deployment_id].divisor
        if load.control == "concurrency":
            points = self._points(deployment_id, load.workload.name, slo)
            return standing_of_concurrency(claim, points, divisor, is_over)
        return standing_of_rates(claim, first_target(slo), divisor, is_over)

    def _points(self, deployment_id: str, workload: str, slo: Slo) -> list[StoredPoint]:
        """The measured levels of one workload."""
        deployment = self._described.get(deployment_id)
        if deployment is None:
            return []
        points: list[StoredPoint] = []
        for by_measurement in self._repeats.get((deployment_id, slo.name), {}).values():
            repeats = sorted(by_measurement.values(), key=lambda repeat: repeat.head.repeat)
            if repeats[0].head.workload == workload:
                points.append(point_of(deployment, repeats))
        return points

    def _compares_rates(self, workload: str) -> bool:
        """Whether every level of a workload is a request rate, and finite."""
        if workload not in self._rates_only:
            levels: list[Level] = []
            for deployment_id, loads in self._loads.items():
                for load in loads:
                    if load.workload.name == workload:
                        levels += self._plan.levels_of(load, deployment_id)
            self._rates_only[workload] = all(
                level.control == "request_rate" and math.isfinite(level.value) for level in levels
            )
        return self._rates_only[workload]

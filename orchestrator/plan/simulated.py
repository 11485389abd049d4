"""Makes what a simulation found the predictions of a plan: ``run --simulated URI``.

A simulation is stored like a sweep (``orchestrator simulate``). Its figures take the place of the
predictions in closed form: the sweep is ordered by them, its shortlist is chosen by them, and they
are shown beside what is measured.

The interval of a capacity: nine in ten predictions lie within a known factor. The load that holds if
every latency is longer by this factor gives the lower end, and the load that holds if every latency
is shorter gives the upper end. At each of these loads the throughput is as uncertain as ``best``
shows it (``StoredPoint.throughput_by_model``). A search does not probe those loads, so its claims
have the interval of the closed form, as shares of the value. If a search claims nothing, because
others hold more, the closed form is kept.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from orchestrator import __version__
from orchestrator.analysis.intervals import Interval
from orchestrator.analysis.metrics import BACKLOG
from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.prediction import (
    ErrorFactors,
    PredictedCapacity,
    PredictedLevel,
    Prediction,
    PredictionError,
    usd_per_million_tokens,
)
from orchestrator.base.errors import InputError
from orchestrator.base.grouping import values_by_key
from orchestrator.base.text import listed
from orchestrator.capacity.answers import Excluded
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.model import Deployment, Plan
from orchestrator.plan.predictions import limits_of, with_predictions
from orchestrator.plan.shortlist import size_with_room_for, without_shortlist
from orchestrator.results.root import open_results
from orchestrator.spec.load import Slo

_NOT_SIMULATED = "the simulation has no valid point of it"
_EXACT = ErrorFactors(1.0, 1.0)
_ERROR_UNKNOWN = "nobody knows how far off a simulation of it is"


class _Served(NamedTuple):
    """One workload on one deployment, by the names and ids of the plan."""

    deployment_id: str
    workload: str


class _SlowerLimits(NamedTuple):
    """An SLO, judged as if every latency were longer by these factors."""

    slo: str
    factors: ErrorFactors


@dataclass(frozen=True, slots=True)
class _SimulatedCapacity:
    """The highest load that holds limits in the simulation, and its point; 0 and None where the
    simulation shows that none holds.
    """

    control: str
    level: float
    point: StoredPoint | None

    @property
    def throughput(self) -> float:
        """Output tokens/s at that load; 0 where none holds."""
        return 0.0 if self.point is None else _throughput(self.point)


def with_simulation(plan: Plan, uri: str) -> Plan:
    """The plan with what the simulation at ``uri`` found of each deployment that runs, in place of
    what is predicted in closed form.

    Raises InputError where there is no simulation of this experiment.
    """
    return _with_simulation_of(plan, _experiment(uri, plan.name), uri)


def shortlist_size(experiment: StoredExperiment, labels: Collection[str]) -> int | None:
    """The size of the shortlist with which ``run --simulated`` measures all deployments of a
    simulation that may be the best: those with these labels, and those that may be the best under
    an SLO on the agreement of answers. A simulation has no answers, so it ranks none under it. 0 if
    no shortlist runs any of these.

    None: that run would be refused, because the plan cannot be read, nothing is predicted, or no
    deployment may hold any load.
    """
    if experiment.plan is None:
        return None
    plan = without_shortlist(experiment.plan)
    contenders = set(labels)
    try:
        plan = _with_points_of(_in_closed_form(plan), experiment, experiment.store.uri)
        for slo in plan.slos:
            if slo.agreement is not None:
                contenders |= _contenders(experiment, _scaled(slo, 1.0, 1.0))
    except InputError:
        return None
    return size_with_room_for(plan, contenders)


def _contenders(experiment: StoredExperiment, slo: Slo) -> set[str]:
    """The labels of the deployments that may be the best under an SLO by the model's error."""
    comparisons = experiment.comparisons(experiment.points(slo), slo)
    labels: set[str] = set()
    return labels.union(*(comparison.labels_within_model_error for comparison in comparisons))


def _with_simulation_of(plan: Plan, experiment: StoredExperiment, uri: str) -> Plan:
    """The plan with what a stored simulation found and assumed. ``uri``: where it is stored."""
    plan = _without_simulation(plan)
    stored = experiment.plan
    if stored is not None:
        plan = plan.assuming(stored.assumptions)
    return _with_points_of(with_predictions(plan), experiment, uri)


def _in_closed_form(plan: Plan) -> Plan:
    """A stored plan with what the closed form predicts, as it is stored if this version made it."""
    running = [deployment for deployment in plan.deployments if deployment.runs]
    has_all = all(deployment.predicted.in_closed_form for deployment in running)
    if has_all and plan.program_version == __version__:
        return plan
    return with_predictions(_without_simulation(plan))


def _with_points_of(plan: Plan, experiment: StoredExperiment, uri: str) -> Plan:
    """A plan that is predicted in closed form, with what the points of a stored simulation say.
    Raises InputError where they are not those of a simulation.
    """
    simulation = _Simulation(plan, experiment)
    return plan.with_deployments(
        deployment.model_copy(update={"predicted": simulation.predicted(deployment, uri)})
        if deployment.runs
        else deployment
        for deployment in plan.deployments
    )


def _without_simulation(plan: Plan) -> Plan:
    """The plan without what an earlier simulation said."""
    return plan.with_deployments(
        deployment.model_copy(update={"predicted": Prediction(deployment.predicted.starts)})
        if deployment.predicted.simulated
        else deployment
        for deployment in plan.deployments
    )


def _experiment(uri: str, name: str) -> StoredExperiment:
    """The experiment of this name in the results at ``uri``, or the only one there. Raises
    InputError if there are several and none has this name.
    """
    results = open_results(uri)
    if name in results.experiments:
        return StoredExperiment(results.store(name))
    if len(results.experiments) == 1:
        return StoredExperiment(results.store(results.experiments[0]))
    raise InputError(
        f"--simulated {uri}: no simulation of {name}, only {listed(results.experiments)}"
    )


class _Simulation:
    """A stored simulation, whose points are found by the deployments and workloads of a plan."""

    def __init__(self, plan: Plan, experiment: StoredExperiment) -> None:
        """Raises InputError where the points are not those of a simulation."""
        self._plan = plan
        self._experiment = experiment
        stored = experiment.plan
        stored_deployments = stored.deployments if stored is not None else ()
        self._ids = _matching_ids(plan.deployments, stored_deployments)
        self._stored = {deployment.id: deployment for deployment in stored_deployments}
        self._workloads = _matching_workloads(plan, stored)
        self._searches = {load.workload.name: load.searches for load in plan.loads}
        self._limits = self._limits_at_errors()
        self._judged = experiment.points(*self._limits.values())
        points = self._judged.current
        if not any(point.head.simulated for point in points):
            raise InputError(
                f"--simulated: {experiment.store.uri} has no simulated points of "
                f"{experiment.name}; orchestrator simulate stores them"
            )
        self._points = values_by_key(
            (served, point) for point in points if (served := self._served(point)) is not None
        )
        self._failures = {
            self._ids.get(point.head.deployment_id): point.head.reason
            for point in points
            if not point.used_repeats
        }
        self._capacities: dict[_SlowerLimits, dict[_Served, _SimulatedCapacity]] = {}

    def predicted(self, deployment: Deployment, uri: str) -> Prediction:
        """What the plan says of a deployment: starts as before, all else from the simulation."""
        prediction = Prediction(deployment.predicted.starts, simulated_at=uri)
        points = {
            served.workload: of_workload
            for served, of_workload in self._points.items()
            if served.deployment_id == deployment.id
        }
        if not points:
            return replace(prediction, not_predicted=self._reason_not_simulated(deployment))
        error = self._error_of(deployment)
        if error is None:
            return replace(prediction, not_predicted=_ERROR_UNKNOWN)
        factors = _factors(error.within)
        levels: list[PredictedLevel] = []
        for workload, of_workload in points.items():
            levels += [_predicted_level(workload, point) for point in of_workload]
        capacities = {
            slo.name: {
                workload: self._capacity(deployment, workload, slo, factors) for workload in points
            }
            for slo in limits_of(self._plan)
        }
        return replace(prediction, levels=tuple(levels), capacities=capacities, error=error)

    def _reason_not_simulated(self, deployment: Deployment) -> str:
        reason = self._failures.get(deployment.id)
        return _NOT_SIMULATED if reason is None else reason.rstrip(".")

    def _limits_at_errors(self) -> dict[_SlowerLimits, Slo]:
        """The limits that decide what deployments hold if the simulation is exact, and if every
        latency is longer or shorter by the factor within which its errors lie.
        """
        factors = {_EXACT}
        for deployment in self._plan.deployments:
            error = self._error_of(deployment) if deployment.runs else None
            if error is not None:
                slower = _factors(error.within)
                factors |= {slower, _inverse(slower)}
        limits: dict[_SlowerLimits, Slo] = {}
        for slo in limits_of(self._plan):
            for slower in factors:
                scaled = _scaled(slo, 1 / slower.ttft, 1 / slower.tpot)
                limits[_SlowerLimits(slo.name, slower)] = scaled
        return limits

    def _served(self, point: StoredPoint) -> _Served | None:
        """The deployment and workload of a point; None if the plan does not ask for the point, or
        if it is not a valid simulated one.
        """
        deployment_id = self._ids.get(point.head.deployment_id)
        workload = self._workloads.get(point.head.workload)
        if deployment_id is None or workload is None or not point.used_repeats:
            return None
        return _Served(deployment_id, workload) if point.head.simulated else None

    def _error_of(self, deployment: Deployment) -> PredictionError | None:
        """How far off the simulation is: what its plan says of the deployment, or else what the
        closed form of the same model says.
        """
        for stored_id, deployment_id in self._ids.items():
            if deployment_id != deployment.id or stored_id not in self._stored:
                continue
            error = self._stored[stored_id].predicted.error
            if error is not None:
                return error
        return deployment.predicted.error

    def _capacity(
        self, deployment: Deployment, workload: str, slo: Slo, factors: ErrorFactors
    ) -> PredictedCapacity:
        """The capacity under one SLO."""
        served = _Served(deployment.id, workload)
        exact = self._capacities_under(slo, _EXACT).get(served)
        closed_form = deployment.predicted.capacity(slo.name, workload)
        is_searched = self._searches[workload]
        if is_searched and exact is None and closed_form is not None:
            return closed_form
        devices = max(1, deployment.devices)
        throughput = 0.0 if exact is None else exact.throughput
        per_gpu = throughput / devices
        interval: tuple[float, float] | None = None
        if is_searched and closed_form is not None:
            interval = _interval_like(closed_form, per_gpu)
        if interval is None:
            slow = self._capacities_under(slo, factors).get(served)
            fast = self._capacities_under(slo, _inverse(factors)).get(served)
            lowest = 0.0
            if slow is not None and slow.point is not None:
                lowest = _by_model(slow.point, factors).lower
            highest = max(
                (_by_model(point, factors).upper for point in self._highest(served, exact, fast)),
                default=0.0,
            )
            interval = (lowest / devices, highest / devices)
        price = deployment.hardware.usd_per_gpu_hour
        usd_per_hour = None if price is None else price * devices
        control = exact.control if exact else self._points[served][0].head.control
        return PredictedCapacity(
            control=control,
            level=0.0 if exact is None else exact.level,
            output_throughput=throughput,
            output_throughput_per_gpu=per_gpu,
            interval_per_gpu=interval,
            usd_per_million_tokens=usd_per_million_tokens(usd_per_hour, throughput),
        )

    def _highest(
        self,
        served: _Served,
        exact: _SimulatedCapacity | None,
        fast: _SimulatedCapacity | None,
    ) -> Iterator[StoredPoint]:
        """The points at the highest loads that a deployment may hold. A search does not probe all
        loads between the highest that holds and the next one that it probed, so the next one counts.
        """
        for capacity in (exact, fast):
            if capacity is not None and capacity.point is not None:
                yield capacity.point
        if not self._searches[served.workload]:
            return
        level = 0.0 if fast is None else fast.level
        above = [point for point in self._points[served] if point.head.level > level]
        if above:
            yield min(above, key=lambda point: point.head.level)

    def _capacities_under(
        self, slo: Slo, slower: ErrorFactors
    ) -> Mapping[_Served, _SimulatedCapacity]:
        """The loads that hold if every latency is longer by these factors."""
        key = _SlowerLimits(slo.name, slower)
        if key not in self._capacities:
            self._capacities[key] = dict(self._find_capacities(key))
        return self._capacities[key]

    def _find_capacities(self, key: _SlowerLimits) -> Iterator[tuple[_Served, _SimulatedCapacity]]:
        points = self._judged.under(list(self._limits).index(key))
        limits = self._limits[key]
        for comparison in self._experiment.comparisons(points, limits, "deployment"):
            for excluded in comparison.excluded:
                served = self._shown_to_hold_nothing(excluded, comparison.workload)
                if served is not None:
                    yield served, _SimulatedCapacity(excluded.claims[0].control, 0.0, None)
            for ranked in comparison.ranking:
                served = self._served(ranked.point)
                if served is not None and not ranked.is_estimate:
                    level = ranked.level
                    yield served, _SimulatedCapacity(level.control, level.value, ranked.point)

    def _shown_to_hold_nothing(self, excluded: Excluded, workload: str) -> _Served | None:
        """The deployment and workload, if a search has shown that no load holds; None otherwise."""
        if [searched.claim.status for searched in excluded.claims] != ["nothing_holds"]:
            return None
        deployment_id = self._ids.get(excluded.deployment.deployment_id)
        name = self._workloads.get(workload)
        return _Served(deployment_id, name) if deployment_id and name else None


def _interval_like(closed_form: PredictedCapacity, per_gpu: float) -> tuple[float, float] | None:
    """The interval of the closed form, moved to another value; None if it cannot be moved."""
    value = closed_form.output_throughput_per_gpu
    lowest, highest = closed_form.interval_per_gpu
    if not per_gpu:
        return 0.0, highest
    if not value:
        return None
    return lowest / value * per_gpu, highest / value * per_gpu


def _factors(within: ErrorFactors) -> ErrorFactors:
    """The factors alone: where they come from makes no other limits."""
    return replace(within, source="")


def _inverse(factors: ErrorFactors) -> ErrorFactors:
    """Factors of latencies that are shorter by as much as these are longer."""
    return ErrorFactors(1 / factors.ttft, 1 / factors.tpot)


def _scaled(slo: Slo, ttft_factor: float, other_factor: float) -> Slo:
    """The SLO with its limits times these factors. Answers are not simulated, so their agreement is
    not limited.
    """
    return slo.scaled(ttft_factor, other_factor).model_copy(update={"agreement": None})


def _matching_ids(wanted: Sequence[Deployment], stored: Sequence[Deployment]) -> dict[str, str]:
    """Id of a stored deployment -> id of the plan's deployment that is the same: the one with the
    same id or, because ids depend on files and versions of the machine that made the plan, the one
    with the same settings and hardware. Of several that differ in their versions alone, the first
    matches the first.
    """
    ids = {deployment.id: deployment.id for deployment in wanted}
    stored_ids = {deployment.id for deployment in stored}
    unmatched = values_by_key(
        (_settings_key(deployment), deployment.id)
        for deployment in wanted
        if deployment.id not in stored_ids
    )
    for deployment in stored:
        alike = unmatched.get(_settings_key(deployment), [])
        if deployment.id not in ids and alike:
            ids[deployment.id] = alike.pop(0)
    return ids


def _settings_key(deployment: Deployment) -> str:
    ours = {"executable", "image", "engine_version"}
    settings = deployment.settings.model_dump(mode="json", exclude_defaults=True, exclude=ours)
    return json.dumps([settings, deployment.hardware.name], sort_keys=True)


def _matching_workloads(plan: Plan, stored: Plan | None) -> dict[str, str]:
    """Name of a stored workload -> name of the plan's workload with the same content."""
    names = {load.workload.name: load.workload.name for load in plan.loads}
    if stored is None:
        return names
    by_content = {_content(load.workload.identity()): load.workload.name for load in plan.loads}
    matching: dict[str, str] = {}
    for load in stored.loads:
        same = by_content.get(_content(load.workload.identity()))
        if same is not None:
            matching[load.workload.name] = same
    return matching


def _content(identity: object) -> str:
    return json.dumps(identity, sort_keys=True, default=str)


def _predicted_level(workload: str, point: StoredPoint) -> PredictedLevel:
    """Medians at a level; without latencies if the deployment falls behind there."""
    figures = point.figures
    keeps_up = point.validity != BACKLOG
    return PredictedLevel(
        workload=workload,
        control=point.head.control,
        level=point.head.level,
        ttft_ms=figures.ttft_ms.p50 if keeps_up and figures.ttft_ms else None,
        tpot_ms=figures.tpot_ms.p50 if keeps_up and figures.tpot_ms else None,
        output_throughput=figures.output_token_throughput,
    )


def _by_model(point: StoredPoint, factors: ErrorFactors) -> Interval:
    """Output tokens/s at a point, and between what nine in ten measurements of it lie."""
    return point.throughput_by_model(_throughput(point), factors.tpot)


def _throughput(point: StoredPoint) -> float:
    return float(point.figures.output_token_throughput or 0.0)

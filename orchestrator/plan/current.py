"""Reads what is stored of an experiment in the light of its plan: which points the plan asks for
now, and which limits and prices apply.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from orchestrator import __version__
from orchestrator.analysis.deployments import StoredDeployment
from orchestrator.analysis.knee import knees
from orchestrator.analysis.output_agreement import MADE_UP, UNKNOWN, Agreement, agreements
from orchestrator.analysis.points import StoredPoint, load_points
from orchestrator.analysis.prediction import NOTHING_PREDICTED
from orchestrator.base.errors import InputError
from orchestrator.base.grouping import values_by_key
from orchestrator.capacity.answers import Group, MissingLevel, SearchRules
from orchestrator.capacity.best import Comparison, ComparisonRules, Shortlisted, best
from orchestrator.engines.registry import ENGINES
from orchestrator.plan.model import Deployment, Plan, PlannedLoad
from orchestrator.plan.order import objective_of
from orchestrator.results.ids import model_key
from orchestrator.results.records import PointHead
from orchestrator.results.runs import Runs
from orchestrator.results.store import Store
from orchestrator.results.validity import MOST_AGAIN
from orchestrator.spec.load import PRECISION, Level, Objective, Per, Slo
from orchestrator.spec.uploads import shown_path

# names that `orchestrator load` gave before its plans said that it made them
_OLD_LOAD_RUN = re.compile(r"load-[0-9A-Z]{26}|capacity-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Points:
    """The points of an experiment. ``current``: those that the plan asks for now. ``superseded``:
    those that only earlier versions of the file asked for.
    """

    current: tuple[StoredPoint, ...]
    superseded: tuple[StoredPoint, ...]

    def under(self, slo_index: int) -> Points:
        """The points as if they were judged by one of their SLOs alone."""
        return Points(
            current=tuple(point.under(slo_index) for point in self.current),
            superseded=tuple(point.under(slo_index) for point in self.superseded),
        )


@dataclass(frozen=True, slots=True)
class Question:
    """What a point asked for, as its row has it. Old rows have no ``load_json``."""

    workload_json: str | None
    load_json: str | None
    client_version: str | None


UNKNOWN_QUESTION = Question(None, None, None)


class StoredExperiment:
    """One experiment of a results root.

    ``prices``: USD per GPU hour by hardware; they replace the file's.
    """

    def __init__(self, store: Store, prices: Mapping[str, float] | None = None) -> None:
        self.store = store
        self.name = store.experiment
        self._prices = prices or {}
        self._plan_text = store.plan()

    @cached_property
    def plan(self) -> Plan | None:
        """The stored plan; None if there is no plan.json, or none that this version can read.

        Without a plan, every point is current, and points that asked for different things are kept
        apart (``alike``). A plan of another program version is used if its deployment ids occur in
        the results.
        """
        try:
            plan = Plan.from_json(self._plan_text, to_run=False) if self._plan_text else None
        except InputError:
            return None
        if plan is None or plan.program_version == __version__:
            return plan
        ids = {deployment.id for deployment in plan.deployments}
        is_measured = any(attempt.deployment_id in ids for attempt in self.store.commits())
        return plan if is_measured else None

    @property
    def has_plan_file(self) -> bool:
        """Whether there is a plan.json, readable or not."""
        return self._plan_text is not None

    @cached_property
    def is_load_run(self) -> bool:
        """Whether ``orchestrator load`` made the experiment; its name is then that of one run."""
        has_old_name = _OLD_LOAD_RUN.fullmatch(self.name) is not None
        if self.plan is None:
            return has_old_name
        if self.plan.load_options is not None:
            return True
        engines = [deployment.settings.engine for deployment in self.plan.deployments]
        return has_old_name and engines == ["endpoint"]

    @property
    def damaged(self) -> bool:
        """Whether any of the files read so far is damaged."""
        return bool(self.store.damage or self.store.lost or self.store.torn)

    @cached_property
    def slos(self) -> tuple[Slo, ...]:
        """The limits that its file names, also from a plan.json that this version cannot read
        whole.
        """
        if self.plan is not None:
            return self.plan.slos
        try:
            written = json.loads(self._plan_text or "{}").get("slos", ())
            return tuple(Slo.model_validate(slo) for slo in written)
        except (AttributeError, RecursionError, TypeError, ValueError):
            return ()

    def points(self, *slos: Slo) -> Points:
        """All points, judged by these SLOs, with the labels and prices of the plan. Raises
        InputError where an SLO needs a table that was deleted.
        """
        current: list[StoredPoint] = []
        superseded: list[StoredPoint] = []
        deployments: dict[str, StoredDeployment] = {}  # as the plan has them now
        for point in load_points(self.store, *slos):
            deployment_id = point.head.deployment_id
            if deployment_id not in deployments:
                deployments[deployment_id] = self._described(point.deployment)
            described = replace(
                point,
                deployment=deployments[deployment_id],
                agreement=self._agreement(point),
            )
            name = self._planned_name(point.head)
            if name is not None:
                current.append(described.named(name))
            else:
                # what the plan predicts now is about the levels that it asks for now
                deployment = _without_predicted_levels(described.deployment)
                superseded.append(replace(described, deployment=deployment))
        return Points(tuple(current), tuple(superseded))

    def comparisons(self, points: Points, slo: Slo, per: Per | None = None) -> list[Comparison]:
        """The rankings under one SLO. ``points``: all points of the experiment, judged by it."""
        if self.plan is None:
            return [
                replace(comparison, content=content)
                for content, group in self.alike(points).items()
                for comparison in best(group, slo, ComparisonRules(per))
            ]
        rules = ComparisonRules(
            per or self.objective,
            self.searched,
            self.full_grid,
            self._startable_deployments(self.plan, points.current),
        )
        measured = {point.head.deployment_id for point in points.current}
        comparisons = best(points.current, slo, rules, self.missing(points))
        return [
            self._with_shortlist(self._with_command(comparison), measured)
            for comparison in comparisons
        ]

    def missing(self, points: Points) -> list[MissingLevel]:
        """The levels that the plan asks for and that were never measured. ``points``: all points of
        the experiment.
        """
        return [] if self.plan is None else list(self._missing(self.plan, points.current))

    def _startable_deployments(self, plan: Plan, current: Sequence[StoredPoint]) -> int | None:
        """How many deployments that were not measured yet may still be started; None: all."""
        if plan.most_started == len(plan.runnable()):
            return None
        started = {point.head.deployment_id for point in current}
        return max(0, plan.most_started - len(started))

    def _with_command(self, comparison: Comparison) -> Comparison:
        """The comparison with the command that measures again what is in doubt, if anything is."""
        if comparison.run_again is None:
            return comparison
        command = self.run_command(comparison.run_again, comparison.simulated)
        return replace(comparison, run_command=command)

    def _with_shortlist(self, comparison: Comparison, measured: Set[str]) -> Comparison:
        """The comparison and, if a shortlist left deployments out, how many of its deployments have
        been or will be measured. ``measured``: ids of the deployments that have been; these are
        compared even if the shortlist left them out.
        """
        if self.plan is None or self.plan.shortlist is None:
            return comparison
        compared = [
            deployment
            for deployment in self.plan.deployments
            if deployment.can_run and _is_compared_in(comparison, deployment)
        ]
        listed = [
            deployment
            for deployment in compared
            if deployment.left_out is None or deployment.id in measured
        ]
        if len(listed) == len(compared):
            return comparison
        return replace(comparison, shortlisted=Shortlisted(len(listed), len(compared)))

    def run_command(self, again: int, simulated: bool = False) -> str:
        """The command that goes on with the stored plan. ``again``: the value of ``--again``, which
        is left out if it is the usual one. ``simulated``: the plan was simulated, so no measurement
        can be spoilt.
        """
        if simulated:
            return f"orchestrator simulate {self.plan_argument} --results {self.uri_argument}"
        option = f" --again {again}" if again > MOST_AGAIN else ""
        return f"orchestrator run {self.plan_argument} {self.run_options}{option}"

    @property
    def plan_argument(self) -> str:
        """The stored plan as a shell reads it. A bucket's plan is no file, so EXPERIMENT stands for
        it.
        """
        if not self.store.is_local:
            return "EXPERIMENT"
        return shlex.quote(f"{self.store.uri}/{self.name}/plan.json")

    @property
    def uri_argument(self) -> str:
        """The URI of the results as a shell reads it."""
        return shlex.quote(self.store.uri)

    @cached_property
    def run_options(self) -> str:
        """The options with which another run measures into this store, where the latest one did:
        ``--results results/ --address local``.
        """
        records = Runs(self.store.uri, self.name).records()
        where = records[-1].options if records else []
        return shlex.join(["--results", self.store.uri, *where])

    @property
    def searched(self) -> dict[str, SearchRules]:
        """Workloads whose capacity the plan searches -> the rules of the search."""
        if self.plan is None:
            return {}
        starts = self.plan.starts
        return {
            load.workload.name: SearchRules(load.precision or PRECISION, starts, load.sendable)
            for load in self.plan.loads
            if load.searches
        }

    @property
    def objective(self) -> Objective | None:
        """What the file's ``objective`` divides throughput by; None if the file has none."""
        if self.plan is None or not self.plan.loads:
            return None
        return self.plan.loads[0].objective

    def is_of_plan(self, comparison: Comparison) -> bool:
        """Whether a comparison answers a question of the plan: it is under one of its SLOs, in its
        unit and at its prices. ``run --shortlist`` chooses deployments by these alone.
        """
        if self.plan is None or comparison.slo not in self.plan.slos:
            return False
        has_other_prices = comparison.per == "usd" and bool(self._prices)
        return comparison.per == objective_of(self.plan) and not has_other_prices

    @property
    def full_grid(self) -> bool:
        """Whether the file wants every deployment's search finished, without a race."""
        return self.plan is not None and any(load.full_grid for load in self.plan.loads)

    def alike(self, points: Points) -> Mapping[str, Sequence[StoredPoint]]:
        """Current points in groups that may share a table, by a text that tells the groups apart.

        A single group "" where there is a plan, or where all points asked for the same.
        """
        groups = {} if self.plan is not None else self.by_content(points.current)
        return groups if len(groups) > 1 else {"": points.current}

    def knees(self, points: Points) -> frozenset[str]:
        """Ids of the current points where a curve bends; points that asked for different things
        share no curve.
        """
        return frozenset().union(*(knees(group) for group in self.alike(points).values()))

    @property
    def hardware(self) -> set[str]:
        """Names of the hardware that the experiment uses."""
        if self.plan is not None:
            return {deployment.hardware.name for deployment in self.plan.deployments}
        return {point.deployment.hardware for point in self.points().current}

    def by_content(self, points: Sequence[StoredPoint]) -> dict[str, list[StoredPoint]]:
        """Points by workload, load and program version, as far as their rows tell."""
        rows = self.asked_of(points)

        def content(head: PointHead) -> str:
            row = rows.get(head.point_id, UNKNOWN_QUESTION)
            if head.source is not None:
                # of another tool: loads may differ, since each row of the table has its own
                return row.workload_json or ""
            load = row.load_json or _load_of(head)
            return f"{row.workload_json}, {load}, version {row.client_version}"

        return values_by_key((content(point.head), point) for point in points)

    def asked_of(self, points: Sequence[StoredPoint]) -> dict[str, Question]:
        """What each point asked for, by point id, as far as it is stored."""
        manifests = []
        for point in points:
            manifest = self.store.manifest(*point.repeats[0].head.ids)
            if manifest:
                manifests.append(manifest)
        columns = ["point_id", "workload_json", "load_json", "client_version"]
        table = self.store.read_manifests("points", manifests, columns, skip_damaged=True)
        questions = {}
        for row in table.to_pylist():
            point_id = row.pop("point_id")
            questions[point_id] = Question(**row)
        return questions

    def _agreement(self, point: StoredPoint) -> Agreement:
        if point.emulated:
            return MADE_UP
        return self._agreements.get(point.head.deployment_id, UNKNOWN)

    def _planned_name(self, head: PointHead) -> str | None:
        """The name that the plan gives the workload of this point; None where the plan does not ask
        for the point: its deployment, content, arrivals, window rules, version and level must all
        be the same.
        """
        if self.plan is None:
            return head.workload
        level = Level.model_validate({"control": head.control, "value": head.level})
        for load in self._loads.get(head.deployment_id, ()):
            if not self._asks_for_level(load, head.deployment_id, level):
                continue
            if self.plan.point(head.deployment_id, load, level).point_id == head.point_id:
                return load.workload.name
        return None

    def _asks_for_level(self, load: PlannedLoad, deployment_id: str, level: Level) -> bool:
        """Whether the plan asks for a level of a load. A search may ask for any level."""
        if self.plan is None or load.search != "levels":
            return True
        return level in self.plan.levels_of(load, deployment_id)

    def _missing(self, plan: Plan, current: Sequence[StoredPoint]) -> Iterator[MissingLevel]:
        """Points of the plan that were never measured. For a search that has not begun, these are
        its first levels.
        """
        stored = {point.head.point_id for point in current}
        begun = {(point.head.deployment_id, point.head.workload) for point in current}
        emulators = {point.head.deployment_id for point in current if point.emulated}
        is_simulated = bool(current) and all(point.simulated for point in current)
        for planned in plan.points:
            workload = planned.workload.name
            deployment = plan.deployment(planned.deployment_id)
            if planned.point_id in stored:
                continue
            if planned.load.search != "levels" and (deployment.id, workload) in begun:
                continue
            model = shown_path(deployment.settings.model)
            engine = ENGINES[deployment.settings.engine]
            group = Group(
                experiment=self.name,
                workload=workload,
                model=model_key(model, deployment.predicted.start.parameters),
                hardware=deployment.hardware.name,
                emulated=deployment.id in emulators or engine.emulated,
                simulated=is_simulated,
            )
            label = self.name if self.is_load_run else deployment.label
            yield MissingLevel(group, deployment.id, label, model, planned.level)

    def _described(self, stored: StoredDeployment) -> StoredDeployment:
        """The deployment as the plan has it now: label, price, model and prediction."""
        planned = self._planned.get(stored.deployment_id)
        planned_price = planned.hardware.usd_per_gpu_hour if planned else None
        price = self._prices.get(stored.hardware, planned_price)
        if price is not None:
            stored = replace(stored, usd_per_hour=price * stored.devices)
        if planned is not None:
            stored = replace(stored, label=planned.label, model=planned.settings.model)
            if planned.predicted != NOTHING_PREDICTED:
                stored = replace(stored, prediction=planned.predicted)
        if self.is_load_run:
            stored = replace(stored, label=self.name)
        return replace(stored, model=shown_path(stored.model))

    @cached_property
    def _agreements(self) -> dict[str, Agreement]:
        """The agreement of answers by deployment id. The answers that others are compared with may
        come from a deployment that the plan no longer asks for.
        """
        return agreements(self.store, self._described, self._planned)

    @cached_property
    def _loads(self) -> dict[str, list[PlannedLoad]]:
        """The loads that the plan asks for, by deployment id. Deployments that a shortlist left out
        are included, because what was measured of them before that counts.
        """
        if self.plan is None:
            return {}
        return {
            deployment.id: self.plan.loads_served_by(deployment)
            for deployment in self.plan.deployments
            if deployment.can_run
        }

    @cached_property
    def _planned(self) -> dict[str, Deployment]:
        """The deployments of the plan by id."""
        if self.plan is None:
            return {}
        return {deployment.id: deployment for deployment in self.plan.deployments}


def _is_compared_in(comparison: Comparison, deployment: Deployment) -> bool:
    """Whether a deployment of the plan belongs to a comparison."""
    parameters = deployment.predicted.start.parameters
    model = model_key(shown_path(deployment.settings.model), parameters)
    groups = {(group.model, group.hardware) for group in comparison.groups}
    is_served = comparison.workload not in deployment.unserved
    return is_served and (model, deployment.hardware.name) in groups


def _without_predicted_levels(deployment: StoredDeployment) -> StoredDeployment:
    return replace(deployment, prediction=replace(deployment.prediction, levels=()))


def _load_of(head: PointHead) -> str:
    """How a point was loaded, as far as an old row without ``load_json`` tells."""
    window = head.window
    load = f"{head.arrivals}, {window.start_ns / 1e9:g} s of warm-up"
    # a window of whole milliseconds was asked for; any other is the time that a number of requests
    # took
    if (window.end_ns - window.start_ns) % 10**6:
        return load
    return f"{load}, {window.length_s:g} s"


def differences(first: StoredExperiment, second: StoredExperiment) -> list[str]:
    """The names of what two runs of ``load`` asked for differently: ``input tokens``, ``levels``.
    Seeds do not count, because other prompts of the same lengths ask for the same.
    """
    question = _question(first)
    other_question = _question(second)
    names = dict.fromkeys([*question, *other_question])
    return [name for name in names if question.get(name) != other_question.get(name)]


def _question(experiment: StoredExperiment) -> dict[str, object]:
    """What a run of ``load`` asked for, by the names of its options.

    Nothing of it is known without a plan. Then ``plan`` has a value that no other run has.
    """
    plan = experiment.plan
    if plan is None:
        return {"plan": experiment.name}
    (load,) = plan.loads
    (deployment,) = plan.deployments
    levels = plan.levels_of(load, deployment.id)
    control = levels[0].control if levels else load.control
    # the rules of any level, because they depend only on its control
    rules = load.rules(levels[0] if levels else Level(control=control, value=1))
    question: dict[str, object] = {"model": deployment.model_key}
    for name, value in {**load.workload.identity(), **rules}.items():
        question[name.removesuffix("_s").replace("_", " ")] = value
    question["levels"] = (load.search, control, levels)
    return question

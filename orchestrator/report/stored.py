"""A stored experiment seen through its own plan: which points are current, which limits and prices
apply.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from orchestrator import __version__
from orchestrator.analysis.answers import MADE_UP, UNKNOWN, Agreement, agreements
from orchestrator.analysis.knee import knees
from orchestrator.analysis.measured import Point, load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.base.errors import InputError
from orchestrator.base.registry import unknown_name
from orchestrator.base.text import grouped, listed
from orchestrator.capacity.best import Comparison, ComparisonRules, best
from orchestrator.capacity.capacities import Group, MissingLevel, SearchRules
from orchestrator.capacity.choose_level import PRECISION
from orchestrator.engines import ENGINES
from orchestrator.plan.model import Deployment, Plan, PlannedLoad
from orchestrator.results.ids import one_model
from orchestrator.results.records import DeploymentRow, PointHead
from orchestrator.results.root import Results
from orchestrator.results.store import Store
from orchestrator.results.validity import MOST_AGAIN
from orchestrator.spec.load import Level, Per, Slo, counted
from orchestrator.spec.uploads import shown_path

# names that `orchestrator load` gave before its plans said that it made them
_OLD_LOAD_RUN = re.compile(r"load-[0-9A-Z]{26}|capacity-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Points:
    """``current``: points that the plan asks for now; ``superseded``: those of earlier versions of
    the file.
    """

    current: tuple[Point, ...]
    superseded: tuple[Point, ...]


class Experiment:
    """One experiment of a results root. ``prices``: USD per GPU hour by hardware; they replace the
    file's.
    """

    def __init__(self, store: Store, prices: Mapping[str, float] | None = None) -> None:
        self.store, self.name = store, store.experiment
        self.unanswered: list[str] = []  # limits that could not be checked, and why
        self.ranked_apart: list[str] = []  # why it is not ranked with other runs of `load`
        self._prices = prices or {}
        self._text = store.plan()
        self._superseded, self._unmeasured = 0, False

    @cached_property
    def plan(self) -> Plan | None:
        """None where there is no plan.json, or none that this version can read.

        Without a plan every point is current, and points that were asked differently are kept apart
        (``alike``). A plan of another program version is used where its deployment ids occur in the
        results.
        """
        try:
            plan = Plan.from_json(self._text, to_run=False) if self._text else None
        except InputError:
            return None
        if plan is None or plan.program_version == __version__:
            return plan
        ids = {one.id for one in plan.deployments}
        return plan if any(one.deployment_id in ids for one in self.store.commits()) else None

    @cached_property
    def is_load_run(self) -> bool:
        """Whether ``orchestrator load`` made it: then its name is that of one run."""
        if self.plan is None:
            return _OLD_LOAD_RUN.fullmatch(self.name) is not None
        engines = [one.settings.engine for one in self.plan.deployments]
        old = _OLD_LOAD_RUN.fullmatch(self.name) is not None and engines == ["endpoint"]
        return self.plan.load_options is not None or old

    @property
    def damaged(self) -> bool:
        """Whether any of the files read so far is damaged."""
        return bool(self.store.damage or self.store.lost or self.store.torn)

    @property
    def notes(self) -> list[str]:
        """What a reader should know. Complete once the points were read."""
        notes = [f"{self.name}: no answer under {text}" for text in self.unanswered]
        notes += self.ranked_apart
        if self.plan is None:
            why = (
                "it has no plan.json"
                if self._text is None
                else "this version cannot read its plan.json"
            )
            notes.append(
                f"{self.name}: {why}, so what is superseded is not known: run it again to have one written"
            )
        elif self.plan.program_version != __version__:
            notes.append(
                f"{self.name}: version {self.plan.program_version} wrote its plan.json, this is {__version__}"
            )
        if self._superseded:
            many = f"{counted(self._superseded, 'point')} of earlier versions of its file or of the program"
            notes.append(f"{self.name}: superseded: {many} (results --all shows them)")
        if lost := sorted(self.store.lost.values()):
            more = f" and {len(lost) - 1} more (verify names all)" if len(lost) > 1 else ""
            notes.append(f"{self.name}: shown as computed earlier, for its file is {lost[0]}{more}")
        if self._unmeasured:
            notes.append(f"{self.name}: nothing that its plan asks for is measured yet")
        return notes

    @cached_property
    def slos(self) -> tuple[Slo, ...]:
        """The limits that its file names, also from a plan.json that this version cannot read
        whole.
        """
        if self.plan is not None:
            return self.plan.slos
        try:
            return tuple(
                Slo.model_validate(one) for one in json.loads(self._text or "{}").get("slos", ())
            )
        except (AttributeError, RecursionError, TypeError, ValueError):
            return ()

    def points(self, *slos: Slo) -> Points:
        """All points, judged by these SLOs, with the labels and prices of the plan."""
        current: list[Point] = []
        superseded: list[Point] = []
        for point in load_points(self.store, *slos):
            agreement = (
                MADE_UP
                if point.emulated
                else self._agreements.get(point.head.deployment_id, UNKNOWN)
            )
            described = replace(
                point, deployment=self._described(point.deployment), agreement=agreement
            )
            name = self._asked_as(point.head)
            if name is None:  # what the plan predicts now is of what it asks now
                described = replace(described, deployment=_unpredicted(described.deployment))
            (superseded if name is None else current).append(described.named(name))
        self._superseded, self._unmeasured = len(superseded), self.plan is not None and not current
        return Points(tuple(current), tuple(superseded))

    def comparisons(self, slo: Slo, per: Per | None = None) -> list[Comparison]:
        """The rankings under one SLO. Raises InputError where it needs a table that was deleted."""
        points = self.points(slo)
        if self.plan is not None:
            missing = self.missing(points)
            rules = ComparisonRules(
                per or self.objective,
                self.searched,
                self.full_grid,
                self._startable_deployments(self.plan, points.current),
            )
            comparisons = best(points.current, slo, rules, missing)
            return [self._with_command(comparison) for comparison in comparisons]
        groups = self.alike(points)
        return [
            replace(one, content=content)
            for content, group in groups.items()
            for one in best(group, slo, ComparisonRules(per))
        ]

    def missing(self, points: Points) -> list[MissingLevel]:
        """What the plan asks for and nobody measured; ``points``: all of the experiment."""
        return [] if self.plan is None else list(self._missing(self.plan, points.current))

    def _startable_deployments(self, plan: Plan, current: Sequence[Point]) -> int | None:
        """How many deployments that were not measured yet may be started; None: all."""
        if plan.most_started == len(plan.runnable()):
            return None
        started = {point.head.deployment_id for point in current}
        return max(0, plan.most_started - len(started))

    def _with_command(self, comparison: Comparison) -> Comparison:
        """With the command that runs it again, if that measures something that is in doubt."""
        if comparison.run_again is None:
            return comparison
        return replace(comparison, run_command=self.run_command(comparison.run_again))

    def run_command(self, again: int) -> str:
        """The command that goes on with the stored plan. ``again``: of its option."""
        uri, option = self.store.uri, f" --again {again}" if again > MOST_AGAIN else ""
        plan = f"{uri}/{self.name}/plan.json" if self.store.is_local else "EXPERIMENT"
        return f"orchestrator run '{plan}' --results '{uri}'{option}"

    @property
    def searched(self) -> dict[str, SearchRules]:
        """Workloads whose capacity the plan searches, and how."""
        if (plan := self.plan) is None:
            return {}
        found = [one for one in plan.loads if one.searches]
        return {
            one.workload.name: SearchRules(one.precision or PRECISION, plan.starts) for one in found
        }

    @property
    def objective(self) -> Per | None:
        """What the file's ``objective`` divides throughput by."""
        return (
            next((one.objective for one in self.plan.loads), None)
            if self.plan is not None
            else None
        )

    @property
    def full_grid(self) -> bool:
        """Whether the file wants every deployment's search finished, without a race."""
        return self.plan is not None and any(one.full_grid for one in self.plan.loads)

    def alike(self, points: Points) -> Mapping[str, Sequence[Point]]:
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
        """Names of the hardware that it uses."""
        if self.plan is not None:
            return {one.hardware.name for one in self.plan.deployments}
        return {one.deployment.hardware for one in self.points().current}

    def by_content(self, points: Sequence[Point]) -> dict[str, list[Point]]:
        """Points by workload, load and program version, as far as their rows tell."""
        manifests = [self.store.manifest(*one.repeats[0].point.ids) for one in points]
        columns = ["point_id", "workload_json", "load_json", "client_version"]
        rows = self.store.read_manifests(
            "points", [one for one in manifests if one], columns, leave_out=True
        )
        said = {row.pop("point_id"): row for row in rows.to_pylist()}

        def content(head: PointHead) -> str:
            row = said.get(head.point_id, {})
            load = row.get("load_json") or _load_of(head)
            return f"{row.get('workload_json')}, {load}, version {row.get('client_version')}"

        return grouped((content(point.head), point) for point in points)

    def _asked_as(self, head: PointHead) -> str | None:
        """The name that the plan gives the workload of this point; None where the plan does not ask
        for the point: its deployment, content, arrivals, window rules, version and level must all
        be the same.
        """
        if self.plan is None:
            return head.workload
        level = Level.model_validate({"control": head.control, "value": head.level})
        for load in self._loads.get(head.deployment_id, ()):
            listed = load.search != "levels" or level in self.plan.levels_of(
                load, head.deployment_id
            )
            if (
                listed
                and self.plan.point(head.deployment_id, load, level).point_id == head.point_id
            ):
                return load.workload.name
        return None

    def _missing(self, plan: Plan, current: Sequence[Point]) -> Iterator[MissingLevel]:
        """Points of the plan that were never measured. Of a search that has not begun these are its
        first levels.
        """
        stored = {one.head.point_id for one in current}
        begun = {(one.head.deployment_id, one.head.workload) for one in current}
        emulators = {one.head.deployment_id for one in current if one.emulated}
        for point in plan.points:
            name, one = point.workload.name, plan.deployment(point.deployment_id)
            if point.point_id in stored or (
                point.load.search != "levels" and (one.id, name) in begun
            ):
                continue
            emulated = one.id in emulators or ENGINES[one.settings.engine].emulated
            shown = shown_path(one.settings.model)
            model = one_model(shown, one.predicted)
            group = Group(self.name, name, model, one.hardware.name, emulated)
            label = self.name if self.is_load_run else one.label
            yield MissingLevel(group, one.id, label, shown, point.level)

    def _described(self, row: DeploymentRow) -> DeploymentRow:
        planned = self._planned.get(row.deployment_id)
        price = self._prices.get(
            row.hardware, planned.hardware.usd_per_gpu_hour if planned else None
        )
        if price is not None:
            row = replace(row, usd_per_hour=price * row.devices)
        if self.is_load_run:
            row = replace(row, label=self.name)
        if planned is None:
            return replace(row, model=shown_path(row.model))
        predicted = json.dumps(planned.predicted) if planned.predicted else row.predicted_json
        label = self.name if self.is_load_run else planned.label
        model = shown_path(planned.settings.model)
        return replace(row, label=label, model=model, predicted_json=predicted)

    @cached_property
    def _agreements(self) -> dict[str, Agreement]:
        """By deployment id. The reference may be a deployment that the plan no longer asks for."""
        return agreements(self.store, self._described, self._planned)

    @cached_property
    def _loads(self) -> dict[str, list[PlannedLoad]]:
        """The loads that the plan asks for, by deployment id."""
        return (
            {one.id: self.plan.loads_of(one.id) for one in self.plan.deployments}
            if self.plan
            else {}
        )

    @cached_property
    def _planned(self) -> dict[str, Deployment]:
        """The deployments of the plan by id: labels, prices and model paths are shown as they are
        in it.
        """
        return {one.id: one for one in self.plan.deployments} if self.plan else {}


def _unpredicted(row: DeploymentRow) -> DeploymentRow:
    """Without what is predicted at load levels."""
    known = json.loads(row.predicted_json or "{}")
    return replace(
        row,
        predicted_json=json.dumps({name: one for name, one in known.items() if name != "levels"}),
    )


def _load_of(head: PointHead) -> str:
    """How a point was loaded, as far as an old row without ``load_json`` tells."""
    start_ns, end_ns = head.window_ns
    # a window of whole milliseconds was asked for; any other is the time that a number of requests
    # took
    stated = "" if (end_ns - start_ns) % 10**6 else f", {(end_ns - start_ns) / 1e9:g} s"
    return f"{head.arrivals}, {start_ns / 1e9:g} s of warm-up{stated}"


@dataclass(frozen=True, slots=True)
class JudgedExperiment:
    """An experiment's points, and the SLOs that they were judged by."""

    experiment: Experiment
    slos: Sequence[Slo]
    points: Points


def experiments(
    results: Results, name: str | None, prices: Mapping[str, float] | None = None
) -> list[Experiment]:
    """All experiments of a root, or the one with this name. Raises InputError for an unknown name."""
    return [
        Experiment(results.store(one), prices)
        for one in (results.experiments if name is None else (name,))
    ]


def limits(
    asked: str | None, found: Iterable[Experiment]
) -> list[tuple[Experiment, tuple[Slo, ...]]]:
    """Each experiment with the SLOs to judge it by: ``asked`` itself, the one of that name, or all
    that its file names.

    Raises InputError where no experiment has an SLO of that name, and ProblemsError for limits
    written wrongly.
    """
    every = list(found)
    if asked is None:
        return [(one, one.slos) for one in every]
    if any(sign in asked for sign in "<>="):
        return [(one, (parse_slo(asked),)) for one in every]
    named = [(one, tuple(slo for slo in one.slos if slo.name == asked)) for one in every]
    if not any(slos for _, slos in named):
        names = sorted({slo.name for one in every for slo in one.slos})
        raise InputError(
            f"--slo: {unknown_name('limit of the file', asked, names)}; or write it like ttft<=500ms"
        )
    return named


def answers(
    held: Iterable[tuple[Experiment, Sequence[Slo]]], per: Per | None = None
) -> list[Comparison]:
    """Each experiment's rankings under its SLOs. ``held``: from ``limits``; ``per``: see ``best``.

    An SLO that needs a deleted table is left out, with a note. Raises InputError where that leaves
    none.
    """
    found: list[Comparison] = []
    problem: InputError | None = None
    for runs, slos in ranked_together(held):
        for slo in slos:
            try:
                if len(runs) == 1:
                    found += runs[0].comparisons(slo, per)
                else:
                    found += compared_runs(runs, slo, per)
            except InputError as error:
                problem = error
                for one in runs:
                    one.unanswered.append(f"{slo.name}: {error}")
    if problem is not None and not found:
        raise problem
    return found


def ranked_together(
    held: Iterable[tuple[Experiment, Sequence[Slo]]],
) -> list[tuple[list[Experiment], Sequence[Slo]]]:
    """Experiments that share a ranking, with their SLOs: a file's stands alone, runs of ``load``
    that asked for the same at the same levels under the same limits stand together. Others get a
    note that says in what they differ.
    """
    found: list[tuple[list[Experiment], Sequence[Slo]]] = []
    groups: list[tuple[list[Experiment], Sequence[Slo]]] = []
    for experiment, slos in held:
        if not experiment.is_load_run or not slos:
            found.append(([experiment], slos))
            continue
        alike = [
            runs
            for runs, limits in groups
            if [*limits] == [*slos] and not differences(runs[0], experiment)
        ]
        if alike:
            alike[0].append(experiment)
        else:
            groups.append(([experiment], slos))
    first_runs, first_slos = groups[0] if groups else ([], ())
    for runs, slos in groups[1:]:
        named = differences(first_runs[0], runs[0])
        named += ["limits"] if [*first_slos] != [*slos] else []
        runs[0].ranked_apart.append(
            f"{listed([one.name for one in runs])}: not ranked with"
            f" {listed([one.name for one in first_runs])}, which asked otherwise ({', '.join(named)})"
        )
    return found + groups


def differences(first: Experiment, second: Experiment) -> list[str]:
    """In what two runs of ``load`` asked for different things: ``input tokens``, ``levels``. Seeds
    do not count: other prompts of the same lengths are no other question.
    """
    asked = [_asked(one) for one in (first, second)]
    names = dict.fromkeys([*asked[0], *asked[1]])
    return [name for name in names if asked[0].get(name) != asked[1].get(name)]


def _asked(experiment: Experiment) -> dict[str, object]:
    """What a run of ``load`` asked for, in words."""
    if experiment.plan is None:
        return {"plan": experiment.name}
    (load,) = experiment.plan.loads
    (deployment,) = experiment.plan.deployments
    levels = experiment.plan.levels_of(load, deployment.id)
    control = levels[0].control if levels else load.control
    rules = load.rules(levels[0] if levels else Level(control=control, value=1))
    said = {**load.workload.identity(), **rules}
    found: dict[str, object] = {
        name.removesuffix("_s").replace("_", " "): value for name, value in said.items()
    }
    return {
        "model": one_model(deployment.settings.model, deployment.predicted),
        **found,
        "levels": (load.search, control, levels),
    }


def compared_runs(runs: Sequence[Experiment], slo: Slo, per: Per | None) -> list[Comparison]:
    """The ranking of runs of ``load`` that asked for the same, as if they were deployments of one
    experiment. Raises InputError as ``Experiment.comparisons``.
    """
    names = listed([one.name for one in runs])
    every: list[Point] = []
    missing: list[MissingLevel] = []
    for experiment in runs:
        points = experiment.points(slo)
        every += [point.of_experiment(names) for point in points.current]
        missing += [
            replace(one, group=replace(one.group, experiment=names))
            for one in experiment.missing(points)
        ]
    # no run gave up because another one was ahead
    rules = ComparisonRules(per, runs[0].searched, full_grid=True)
    return best(every, slo, rules, missing)


def with_limits(asked: str | None, found: Iterable[Experiment]) -> Iterator[JudgedExperiment]:
    """Each experiment's points, judged by the SLO that was asked for, else by all that its file
    names.
    """
    for experiment, slos in limits(asked, found):
        try:
            points = experiment.points(*slos)
        except InputError as error:  # limits on single gaps need token_events, which was deleted
            if asked is not None:
                raise
            experiment.unanswered += [f"{slo.name}: {error}" for slo in slos if _on_gaps(slo)]
            slos = tuple(slo for slo in slos if not _on_gaps(slo))
            points = experiment.points(*slos)
        yield JudgedExperiment(experiment, slos, points)


def _on_gaps(slo: Slo) -> bool:
    return any(one.of == "itl_p99" for one in slo.limits)


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """Texts like ``h100=2.10`` as USD per GPU hour by hardware. Raises InputError."""
    prices = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            prices[name] = float(value)
        except ValueError:
            prices[name] = -1.0
        if not name or not 0 < prices[name] < float("inf"):
            raise InputError(f"--price {text!r}: write it like h100=2.10, in USD per GPU hour")
    return prices


def check_prices(prices: Mapping[str, float], found: Iterable[Experiment]) -> None:
    """Raises InputError for a price of hardware that no experiment uses."""
    known = {name for one in found for name in one.hardware} if prices else set()
    if unknown := sorted(set(prices) - known):
        raise InputError(f"--price: {unknown_name('hardware', unknown[0], known)}")

"""Chooses which experiments are shown, by which limits and prices, and which share a ranking."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.analysis.points import StoredPoint
from orchestrator.analysis.slo import ANSWERED, have_same_limits, parse_slo
from orchestrator.base.errors import InputError
from orchestrator.base.registry import unknown_name
from orchestrator.base.text import listed
from orchestrator.capacity.answers import Group, MissingLevel
from orchestrator.capacity.best import Comparison, ComparisonRules, best
from orchestrator.capacity.doubts import Doubt, DoubtKind
from orchestrator.plan.current import Points, StoredExperiment, differences
from orchestrator.plan.model import Plan
from orchestrator.plan.simulated import shortlist_size
from orchestrator.results.root import Results
from orchestrator.spec.load import Per, Slo


@dataclass(frozen=True, slots=True)
class UnansweredSlo:
    """An SLO that could not be checked, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class JudgedExperiment:
    """An experiment's points, and the SLOs by which they were judged.

    ``unanswered``: SLOs that could not be checked.
    """

    experiment: StoredExperiment
    slos: Sequence[Slo]
    points: Points
    unanswered: tuple[UnansweredSlo, ...] = ()


@dataclass(frozen=True, slots=True)
class RankedApart:
    """Runs of ``load`` that are not ranked with others, because they asked for something else.

    ``differences``: the names of the options in which they differ.
    """

    runs: tuple[str, ...]
    others: tuple[str, ...]
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnsweredExperiment:
    """An experiment whose deployments were ranked.

    ``points``: the points that were read for it; None: it has no limits, or none that could be
    checked.
    """

    experiment: StoredExperiment
    points: Points | None
    unanswered: tuple[UnansweredSlo, ...]
    ranked_apart: tuple[RankedApart, ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """The rankings of some experiments, and what is worth knowing of each experiment."""

    comparisons: tuple[Comparison, ...]
    experiments: tuple[AnsweredExperiment, ...]


@dataclass(frozen=True, slots=True)
class RankedExperiments:
    """Experiments whose points were read once, judged and ranked by the limits of their files."""

    judged: tuple[JudgedExperiment, ...]
    answers: Answers


@dataclass(frozen=True, slots=True)
class ExperimentLimits:
    """An experiment, and the SLOs by which to judge it."""

    experiment: StoredExperiment
    slos: Sequence[Slo]

    @property
    def are_of_file(self) -> bool:
        """Whether the SLOs are those of the experiment's file, or some of them."""
        return all(slo in self.experiment.slos for slo in self.slos)


@dataclass(slots=True)
class _SharedRanking:
    """Experiments that are ranked together under the same SLOs."""

    experiments: list[StoredExperiment]
    slos: Sequence[Slo]
    is_of_load_runs: bool = False

    @property
    def names(self) -> list[str]:
        return [experiment.name for experiment in self.experiments]


def experiments(
    results: Results, name: str | None, prices: Mapping[str, float] | None = None
) -> list[StoredExperiment]:
    """All experiments of a root, or the one of this name. Raises InputError if there is none."""
    names = results.experiments if name is None else (name,)
    return [StoredExperiment(results.store(experiment), prices) for experiment in names]


def limits(slo_option: str | None, stored: Iterable[StoredExperiment]) -> list[ExperimentLimits]:
    """Each experiment with the SLOs by which to judge it.

    ``slo_option``: limits, or the name of an SLO of the file; None: all SLOs of the file. Limits
    that repeat those of an SLO of the file are that SLO. Raises InputError where no experiment has
    an SLO of that name or a part that is limited, and ProblemsError for limits that are written
    wrongly.
    """
    every = list(stored)
    if slo_option is None:
        return [ExperimentLimits(experiment, experiment.slos) for experiment in every]
    if not _is_name_of_slo(slo_option):
        slo = parse_slo(slo_option)
        _check_parts(slo, every)
        return [
            ExperimentLimits(experiment, (_as_in_file(slo, experiment),)) for experiment in every
        ]
    with_slos = []
    for experiment in every:
        slos = tuple(slo for slo in experiment.slos if slo.name == slo_option)
        with_slos.append(ExperimentLimits(experiment, slos))
    if not any(each.slos for each in with_slos):
        names: set[str] = set()
        for experiment in every:
            names.update(slo.name for slo in experiment.slos)
        problem = unknown_name("limit of the file", slo_option, sorted(names))
        raise InputError(f"--slo: {problem}; or write it like ttft<=500ms")
    return with_slos


def _is_name_of_slo(slo_option: str) -> bool:
    """Whether ``--slo`` names an SLO of the file: limits that are written out compare something."""
    return not any(sign in slo_option for sign in "<>=")


def _as_in_file(slo: Slo, experiment: StoredExperiment) -> Slo:
    """The SLO of the experiment's file with the same limits; else the SLO as it is given."""
    for of_file in experiment.slos:
        if have_same_limits(of_file, slo):
            return of_file
    return slo


def _check_parts(slo: Slo, stored: Iterable[StoredExperiment]) -> None:
    """Raises InputError for limits on a part that no mix has, where all plans can be read."""
    parts: set[str] = set()
    for experiment in stored:
        if experiment.plan is None:
            return
        for load in experiment.plan.loads:
            parts.update(load.workload.part_names())
    for part in slo.parts or ():
        if part not in parts:
            raise InputError(f"--slo: {unknown_name('part of a mix', part, parts)}")


def ranking_limits(
    slo_option: str | None, stored: Iterable[StoredExperiment]
) -> list[ExperimentLimits]:
    """As ``limits``. Where an experiment has none, and all its requests were due at once, its
    deployments are ranked by throughput: that they are answered is the only limit.
    """
    with_slos = []
    for each in limits(slo_option, stored):
        if each.slos or not is_offline(each.experiment):
            with_slos.append(each)
        else:
            with_slos.append(ExperimentLimits(each.experiment, (ANSWERED,)))
    return with_slos


def is_offline(experiment: StoredExperiment) -> bool:
    """Whether all requests of every planned point are due at once."""
    plan = experiment.plan
    if plan is None or not plan.loads:
        return False
    levels = [level for load in plan.loads for level in load.levels]
    return bool(levels) and all(math.isinf(level.value) for level in levels)


def answers(
    with_slos: Iterable[ExperimentLimits],
    per: Per | None = None,
    read: Iterable[JudgedExperiment] = (),
) -> Answers:
    """The rankings of all experiments under their SLOs.

    ``with_slos``: from ``limits``. ``per``: see ``ComparisonRules``. ``read``: experiments whose
    points were read already. An SLO that needs a deleted table is left out, and noted as
    unanswered. Raises InputError where that leaves no ranking.
    """
    every = list(with_slos)
    read_by_name = {judged.experiment.name: judged for judged in read}
    rankings = _ranked_together(every)
    comparisons: list[Comparison] = []
    points_by_name: dict[str, Points] = {}
    unanswered_by_name: defaultdict[str, list[UnansweredSlo]] = defaultdict(list)
    last_error: InputError | None = None
    for ranking in rankings:
        for slo in ranking.slos:
            try:
                for experiment in ranking.experiments:
                    points = _points_under(slo, experiment, read_by_name)
                    points_by_name[experiment.name] = points
            except InputError as error:
                last_error = error
                for name in ranking.names:
                    unanswered_by_name[name].append(UnansweredSlo(slo.name, str(error)))
                continue
            points_of_each = [points_by_name[name] for name in ranking.names]
            comparisons += _comparisons(ranking.experiments, points_of_each, slo, per)
    if last_error is not None and not comparisons:
        raise last_error
    apart_by_name = _ranked_apart([ranking for ranking in rankings if ranking.is_of_load_runs])
    answered = []
    for each in every:
        name = each.experiment.name
        answered.append(
            AnsweredExperiment(
                each.experiment,
                points_by_name.get(name),
                tuple(unanswered_by_name[name]),
                apart_by_name.get(name, ()),
            )
        )
    sized = with_shortlist_sizes(comparisons, [each.experiment for each in every])
    return Answers(tuple(sized), tuple(answered))


def ranked_by_files(stored: Sequence[StoredExperiment]) -> RankedExperiments:
    """Experiments as the limits of their files judge and rank them. Raises InputError where the
    limits need a table that was deleted, and that leaves no ranking.
    """
    judged = tuple(with_limits(None, stored))
    return RankedExperiments(judged, answers(limits(None, stored), read=judged))


def with_shortlist_sizes(
    comparisons: Sequence[Comparison], stored: Iterable[StoredExperiment]
) -> list[Comparison]:
    """The comparisons, whose doubts about simulations say how long a shortlist has to be.

    A shortlist is of a whole experiment: it has room for each deployment that may be the best in
    any of these comparisons that answer a question of its plan. Those under other limits, in
    another unit or at other prices get no size. ``stored``: the experiments.
    """
    experiment_of = {experiment.name: experiment for experiment in stored}
    labels_by_experiment: dict[str, set[str]] = {}
    for comparison in comparisons:
        labels = comparison.labels_within_model_error
        experiment = experiment_of.get(comparison.experiment)
        if labels and experiment is not None and experiment.is_of_plan(comparison):
            labels_by_experiment.setdefault(experiment.name, set()).update(labels)
    sizes: dict[str, int] = {}
    for name, contenders in labels_by_experiment.items():
        size = shortlist_size(experiment_of[name], contenders)
        if size:  # 0 would run none of them
            sizes[name] = size
    sized: list[Comparison] = []
    for comparison in comparisons:
        experiment = experiment_of.get(comparison.experiment)
        if experiment is not None and experiment.is_of_plan(comparison):
            size = sizes.get(experiment.name)
            comparison = _with_shortlist_size(comparison, size, experiment.plan)
        sized.append(comparison)
    return sized


def _with_shortlist_size(comparison: Comparison, size: int | None, plan: Plan | None) -> Comparison:
    """The comparison, whose doubts about simulations name a shortlist of this size; a run without a
    shortlist where it would be one of all deployments.
    """
    deployments_of_run: int | None = None
    if size is not None and plan is not None and size >= len(plan.runnable()):
        deployments_of_run = len(plan.runnable())
        size = None
    doubts: list[Doubt] = []
    for doubt in comparison.doubts:
        if doubt.kind is DoubtKind.SIMULATED:
            doubt = replace(doubt, shortlist_size=size, deployments_of_run=deployments_of_run)
        doubts.append(doubt)
    return replace(comparison, doubts=tuple(doubts))


def _points_under(
    slo: Slo, experiment: StoredExperiment, read: Mapping[str, JudgedExperiment]
) -> Points:
    """The experiment's points, judged by this SLO alone.

    Raises InputError where the SLO needs a table that was deleted.
    """
    judged = read.get(experiment.name)
    if judged is None or slo not in judged.slos:
        return experiment.points(slo)
    return judged.points.under(judged.slos.index(slo))


def _ranked_together(with_slos: Iterable[ExperimentLimits]) -> list[_SharedRanking]:
    """Groups experiments by the ranking that they share.

    The experiment of a file stands alone. Runs of ``load`` that asked for the same, at the same
    levels and under the same limits, stand together, after all experiments of files.
    """
    alone: list[_SharedRanking] = []
    load_runs: list[_SharedRanking] = []
    for each in with_slos:
        if not each.experiment.is_load_run or not each.slos:
            alone.append(_SharedRanking([each.experiment], each.slos))
            continue
        for ranking in load_runs:
            is_alike = not differences(ranking.experiments[0], each.experiment)
            if is_alike and [*ranking.slos] == [*each.slos]:
                ranking.experiments.append(each.experiment)
                break
        else:
            load_runs.append(_SharedRanking([each.experiment], each.slos, is_of_load_runs=True))
    return alone + load_runs


def _ranked_apart(load_runs: Sequence[_SharedRanking]) -> dict[str, tuple[RankedApart, ...]]:
    """How each ranking of ``load`` runs differs from the first, by the name of its first run."""
    apart: dict[str, tuple[RankedApart, ...]] = {}
    for ranking in load_runs[1:]:
        first = load_runs[0]
        names = differences(first.experiments[0], ranking.experiments[0])
        if [*first.slos] != [*ranking.slos]:
            names.append("limits")
        ranked_apart = RankedApart(
            runs=tuple(ranking.names),
            others=tuple(first.names),
            differences=tuple(names),
        )
        apart[ranking.experiments[0].name] = (ranked_apart,)
    return apart


def _comparisons(
    ranked_together: Sequence[StoredExperiment],
    points_of_each: Sequence[Points],
    slo: Slo,
    per: Per | None,
) -> list[Comparison]:
    """Compares the deployments of one experiment, or several runs of ``load`` under one SLO.

    Runs are compared as if they were deployments of one experiment.
    """
    if len(ranked_together) == 1:
        return ranked_together[0].comparisons(points_of_each[0], slo, per)
    runs = [experiment.name for experiment in ranked_together]
    common_name = listed(runs)
    every: list[StoredPoint] = []
    missing: list[MissingLevel] = []
    for experiment, points in zip(ranked_together, points_of_each, strict=True):
        every += [point.of_experiment(common_name) for point in points.current]
        for level in experiment.missing(points):
            missing.append(replace(level, group=replace(level.group, experiment=common_name)))
    # the runs did not race: none gave up because another one was ahead
    rules = ComparisonRules(per, ranked_together[0].searched, full_grid=True)
    return [
        replace(comparison, groups=_groups_of_runs(comparison, runs))
        for comparison in best(every, slo, rules, missing)
    ]


def _groups_of_runs(comparison: Comparison, runs: Sequence[str]) -> tuple[Group, ...]:
    """The groups in which points of these runs are shown when each run stands by itself."""
    groups: list[Group] = []
    for group in comparison.groups:
        groups += [replace(group, experiment=run) for run in runs]
    return tuple(groups)


def with_limits(
    slo_option: str | None, stored: Iterable[StoredExperiment]
) -> Iterator[JudgedExperiment]:
    """Each experiment's points, judged by the SLO that was asked for, or by all of its file.

    Raises InputError as ``limits`` does, and where the SLO that was asked for needs a table that
    was deleted.
    """
    for with_slos in limits(slo_option, stored):
        experiment = with_slos.experiment
        slos = with_slos.slos
        unanswered: list[UnansweredSlo] = []
        try:
            points = experiment.points(*slos)
        except InputError as error:  # limits on single gaps need token_events, which was deleted
            if slo_option is not None:
                raise
            unanswered = [UnansweredSlo(slo.name, str(error)) for slo in slos if _limits_gaps(slo)]
            slos = tuple(slo for slo in slos if not _limits_gaps(slo))
            points = experiment.points(*slos)
        yield JudgedExperiment(experiment, slos, points, tuple(unanswered))


def _limits_gaps(slo: Slo) -> bool:
    return any(limit.of == "itl_p99" for limit in slo.limits)


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """Reads texts like ``h100=2.10`` as USD per GPU hour, by hardware. Raises InputError."""
    prices: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = 0.0
        if not name or not 0 < price < float("inf"):
            raise InputError(f"--price {text!r}: write it like h100=2.10, in USD per GPU hour")
        prices[name] = price
    return prices


def check_prices(prices: Mapping[str, float], stored: Iterable[StoredExperiment]) -> None:
    """Raises InputError for a price of hardware that no experiment uses."""
    if not prices:
        return
    hardware: set[str] = set()
    for experiment in stored:
        hardware.update(experiment.hardware)
    unknown = sorted(set(prices) - hardware)
    if unknown:
        raise InputError(f"--price: {unknown_name('hardware', unknown[0], hardware)}")

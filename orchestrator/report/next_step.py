"""Proposes what to measure next: the step that settles most doubts for its GPU time."""

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.base.text import counted, hours
from orchestrator.capacity.best import Comparison
from orchestrator.capacity.doubts import (
    GRID_STEP,
    Doubt,
    DoubtKind,
    Remedy,
    longest_probes,
    widest_precision,
)
from orchestrator.plan.cost import estimated_start_s
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.model import Deployment, DeploymentGroup, Plan
from orchestrator.plan.simulated import shortlist_size
from orchestrator.report.selection import Answers, answers, ranking_limits
from orchestrator.report.words import key_text, precision_text, probe_length
from orchestrator.results.validity import MOST_AGAIN
from orchestrator.spec.load import Scale

# the remedies for which the same plan is run once more
_BY_RUNNING = (Remedy.RUN_AGAIN, Remedy.SEARCH_LONGER)
_BY_MEASURING_LONGER = (Remedy.LONGER, Remedy.LONGER_PROBES)
_BY_REPEATING = (Remedy.MORE_REPEATS, Remedy.MORE_REPEATS_OR_LONGER)
_MEASURED_ANEW = "it measures every deployment anew, to settle a doubt"
SHORTLIST_SIZE = 8  # in the command that is proposed after a simulation without limits


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command, what to change in the experiment file before it, and what both cost at most.

    ``command``: what to type. ``change``: the keys to set in the file; None: it stays as it is.
    ``deployments``: about how many of them the step settles a doubt. ``most_gpu_s``: estimated GPU
    seconds of what it measures, engine starts included. ``most_s``: estimated seconds, if the
    deployments run one after the other. ``effect``: what the step does. ``takes_longer``: it takes
    longer than these estimates, because how much longer each load must be is not known.
    """

    command: str
    change: str | None
    deployments: int
    most_gpu_s: float
    most_s: float
    effect: str = "it measures what can still change who is best"
    takes_longer: bool = False

    @property
    def settled_per_s(self) -> float:
        """How many deployments the step settles a doubt about, per second of GPU time; per second
        where no GPU is used.
        """
        seconds = self.most_gpu_s or self.most_s
        return self.deployments / max(seconds, 1.0)


@dataclass(frozen=True, slots=True)
class _Measuring:
    """What a step measures of one deployment: its seconds, engine starts included."""

    deployment: Deployment
    seconds: float

    @property
    def device_seconds(self) -> float:
        return self.seconds * self.deployment.devices


@dataclass(frozen=True, slots=True)
class ShortlistRun:
    """The command that measures what a simulation found, and how many deployments it measures."""

    command: str
    deployments: int


def next_steps(
    ranked: Answers, search_options: Callable[[Plan], Sequence[str] | None]
) -> Iterator[NextStep]:
    """The best next step of each experiment whose answer is open. A simulation that is not at its
    end has none: it is simulated on before anything is measured.

    ``search_options``: the options of a stored ``load --find-capacity``; None: they are not known.
    """
    for answered in ranked.experiments:
        experiment = answered.experiment
        plan = experiment.plan
        if plan is None:
            continue
        if experiment.is_load_run:
            step = _search_on(experiment, plan, ranked, search_options)
        elif experiment.store.simulated() is True:
            step = _measure_shortlist(experiment, plan, ranked)
        else:
            step = _best_step(experiment, plan, ranked)
        if step is not None:
            yield step


def _open_comparisons(experiment: StoredExperiment, ranked: Answers) -> Iterator[Comparison]:
    """The rankings of an experiment whose answer is not certain."""
    for comparison in ranked.comparisons:
        if comparison.experiment == experiment.name and not comparison.certain:
            yield comparison


def _best_step(experiment: StoredExperiment, plan: Plan, ranked: Answers) -> NextStep | None:
    """Of all steps that settle doubts of a sweep, the one that settles most for its time."""
    doubts: list[Doubt] = []
    for comparison in _open_comparisons(experiment, ranked):
        doubts += comparison.doubts
    steps = [
        _run_again(experiment, plan, doubts),
        _start_again(experiment, plan, doubts),
        _measure_higher(experiment, plan, doubts),
        _measure_longer(experiment, plan, doubts),
        _repeat_more(experiment, plan, doubts),
        _search_closer(experiment, plan, doubts),
        _add_clients(experiment, plan, doubts),
        _stretch(experiment, plan, doubts),
    ]
    possible = [step for step in steps if step is not None]
    if possible:
        return max(possible, key=lambda step: step.settled_per_s)
    return _take_claims(experiment, doubts)


def next_step_text(step: NextStep) -> str:
    """``next: orchestrator run … --until decided``, with what it costs and measures below."""
    deployments = f", of {counted(step.deployments, 'deployment')}" if step.deployments > 1 else ""
    command = step.command
    if step.change is not None:
        command = f"{step.change} in the file, then\n      {step.command}"
    return f"next: {command}\n      ({_cost_text(step)}: {step.effect}{deployments})"


def _cost_text(step: NextStep) -> str:
    """``up to about 3.1 h of GPU time``."""
    if not step.most_s:
        return "no load"
    bound = "more than about" if step.takes_longer else "up to about"
    if not step.most_gpu_s:
        return f"{bound} {hours(step.most_s)}"
    gpu_hours = step.most_gpu_s / 3600
    digits = ".2g" if gpu_hours < 100 else ",.0f"
    return f"{bound} {gpu_hours:{digits}} h of GPU time"


def shortlist_run(
    experiment: StoredExperiment, comparisons: Iterable[Comparison]
) -> ShortlistRun | None:
    """The command that measures the deployments of a simulation that may be the best; None: none
    can run. ``comparisons``: the rankings under the limits of the experiment's file.

    A comment at the end of the command says how many questions its shortlist is for. Where ``run``
    would refuse any shortlist, the command measures all deployments.
    """
    if experiment.plan is None:
        return None
    deployments = len(experiment.plan.runnable())
    if deployments < 1:
        return None
    command = f"orchestrator run {experiment.plan_argument}"
    results = _results_beside(experiment.store.uri)
    size = _proposed_size(experiment, comparisons, deployments)
    if size is None or size >= deployments:
        return ShortlistRun(f"{command} --results {results}", deployments)
    options = f"--results {results} --shortlist {size} --simulated {experiment.uri_argument}"
    questions = _question_count(experiment.plan)
    comment = f"  # for all {questions} questions" if questions > 1 else ""
    return ShortlistRun(f"{command} {options}{comment}", size)


def _proposed_size(
    experiment: StoredExperiment, comparisons: Iterable[Comparison], deployments: int
) -> int | None:
    """The size of the shortlist that is proposed, for a plan with so many deployments to run.

    It has room for all deployments that may be the best by the error of the model. Where no limits
    say which these are, it is ``SHORTLIST_SIZE``, or less if that would be all. None: ``run`` would
    refuse any shortlist.
    """
    for comparison in comparisons:
        for doubt in comparison.doubts:
            if doubt.kind is not DoubtKind.SIMULATED:
                continue
            size = doubt.shortlist_size or doubt.deployments_of_run
            if size is not None:
                return size
    # no ranking names contenders: those under SLOs on agreement are left, if there are such SLOs
    size = shortlist_size(experiment, ())
    if size == 0:  # there are none
        return max(1, min(SHORTLIST_SIZE, deployments - 1))
    return size


def _question_count(plan: Plan) -> int:
    """How many rankings a plan has: one for each workload of each group, under each SLO."""
    workloads: set[tuple[DeploymentGroup, str]] = set()
    for deployment in plan.runnable():
        for load in plan.loads_of(deployment.id):
            workloads.add((deployment.group("gpu"), load.workload.name))
    return len(workloads) * max(len(plan.slos), 1)


def _results_beside(simulated_uri: str) -> str:
    """A folder for measurements; it must not be the one of the simulation."""
    name = simulated_uri.rstrip("/").rpartition("/")[2]
    return "measured/" if name == "results" else "results/"


def _measure_shortlist(
    experiment: StoredExperiment, plan: Plan, ranked: Answers
) -> NextStep | None:
    """After a simulation at its end: the command that measures the deployments that may be the best.

    ``run`` chooses these deployments, so the step costs at most as much as the same number of the
    dearest ones.
    """
    remedies: set[Remedy | None] = set()
    for comparison in _open_comparisons(experiment, ranked):
        if experiment.is_of_plan(comparison):  # `run` chooses a shortlist by these alone
            remedies.update(doubt.remedy for doubt in comparison.doubts)
    if Remedy.MEASURE not in remedies or not remedies.isdisjoint(_BY_RUNNING):
        return None
    run = shortlist_run(experiment, _ranked_by_file(experiment, plan, ranked))
    if run is None:
        return None
    measuring = [_all_of(plan, deployment) for deployment in plan.runnable()]
    measuring.sort(key=lambda part: part.device_seconds, reverse=True)
    return _step(run.command, None, measuring[: run.deployments])


def _ranked_by_file(
    experiment: StoredExperiment, plan: Plan, ranked: Answers
) -> Sequence[Comparison]:
    """The rankings of an experiment under all limits of its file.

    They take seconds to compute, so those of ``ranked`` are taken if none is missing.
    """
    comparisons = [
        comparison
        for comparison in ranked.comparisons
        if comparison.experiment == experiment.name and experiment.is_of_plan(comparison)
    ]
    ranked_limits = {comparison.slo.name for comparison in comparisons}
    if comparisons and ranked_limits == {slo.name for slo in plan.slos}:
        return comparisons
    return answers(ranking_limits(None, [experiment])).comparisons


def _search_on(
    experiment: StoredExperiment,
    plan: Plan,
    ranked: Answers,
    search_options: Callable[[Plan], Sequence[str] | None],
) -> NextStep | None:
    """The ``load --find-capacity`` that ended with its budget, with as much time again. Where its
    options are not known, ``…`` stands for them.
    """
    if plan.load_options is None or not _wants_longer_search(experiment, ranked):
        return None
    (deployment,) = plan.deployments
    url = shlex.quote(deployment.settings.url or "URL")
    budget_s = plan.budget.wall if plan.budget is not None else None
    most_s = budget_s or plan.load_s(deployment.id)
    stored_options = search_options(plan)
    effect = "the search goes on where it ended"
    if stored_options is None:
        options = "--find-capacity …"
        effect = f"with its other options for … {effect}"
    else:
        options = shlex.join([*stored_options, "--budget", f"{math.ceil(most_s)}s"])
    command = f"orchestrator load {url} {options} --results {experiment.uri_argument}"
    name_by_options = f"capacity-{plan.load_options[:12]}"
    if experiment.name != name_by_options:
        command += f" --name {experiment.name}"
    return NextStep(command, None, 1, most_gpu_s=0.0, most_s=most_s, effect=effect)


def _wants_longer_search(experiment: StoredExperiment, ranked: Answers) -> bool:
    """Whether a longer search settles a doubt about a run of ``load``, which is named as its
    deployment is.
    """
    for comparison in ranked.comparisons:
        if comparison.certain:
            continue
        for doubt in comparison.doubts:
            if doubt.remedy is Remedy.SEARCH_LONGER and experiment.name in doubt.deployments:
                return True
    return False


def _all_of(plan: Plan, deployment: Deployment) -> _Measuring:
    """All that the plan asks for of a deployment."""
    return _Measuring(deployment, estimated_start_s(deployment) + plan.load_s(deployment.id))


def _run_again(
    experiment: StoredExperiment, plan: Plan, doubts: Iterable[Doubt]
) -> NextStep | None:
    """The same plan once more: it measures what is missing, and searches on."""
    labels: set[str] = set()
    for doubt in doubts:
        if doubt.remedy in _BY_RUNNING:
            labels.update(doubt.deployments)
    measuring = [_all_of(plan, deployment) for deployment in _with_labels(plan, labels)]
    command = experiment.run_command(MOST_AGAIN)
    if plan.slos and all(slo.agreement is None for slo in plan.slos):
        command += " --until decided"
    return _step(command, None, measuring)


def _start_again(
    experiment: StoredExperiment, plan: Plan, doubts: Sequence[Doubt]
) -> NextStep | None:
    """More starts of the engines, where starts are too few to compare, with a repeat on each."""
    to_settle = [doubt for doubt in doubts if doubt.remedy is Remedy.MORE_STARTS]
    starts = max([plan.starts + 1, *(doubt.starts_needed or 0 for doubt in to_settle)])
    more_starts = starts - plan.starts
    measuring: list[_Measuring] = []
    for deployment in _with_labels(plan, _labels_to_settle(to_settle)):
        one_start_s = estimated_start_s(deployment) + _one_repeat_s(plan, deployment)
        measuring.append(_Measuring(deployment, more_starts * one_start_s))
    change = f"set starts: {starts} and repeats: {plan.repeats + more_starts}"
    return _step(_run_file(experiment), change, measuring)


def _measure_higher(
    experiment: StoredExperiment, plan: Plan, doubts: Iterable[Doubt]
) -> NextStep | None:
    """One level above the highest, where the highest still held. The new level is taken to last as
    long as the highest.
    """
    labels: set[str] = set()
    for doubt in doubts:
        if doubt.remedy is Remedy.HIGHER_LEVELS:
            labels.update(doubt.deployments)
    measuring: list[_Measuring] = []
    for deployment in _with_labels(plan, labels):
        known_levels = plan.known_levels(deployment.id)
        highest_s = max(
            (known.repeats * known.load.estimated_s(known.level) for known in known_levels),
            default=0.0,
        )
        measuring.append(_Measuring(deployment, estimated_start_s(deployment) + highest_s))
    return _step(_run_file(experiment), "add a higher level", measuring)


def _measure_longer(
    experiment: StoredExperiment, plan: Plan, doubts: Sequence[Doubt]
) -> NextStep | None:
    """Longer loads. Another length is another load, so every deployment is measured anew."""
    to_settle = [doubt for doubt in doubts if doubt.remedy in _BY_MEASURING_LONGER]
    settled = _labels_to_settle(to_settle)
    seconds = _needed_length_s(to_settle)
    has_request_counts = any(load.requests is not None for load in plan.loads)
    if has_request_counts or seconds is None:
        change = "set more requests" if has_request_counts else "set a longer duration"
        step = _anew(experiment, plan, change, settled)
        return None if step is None else replace(step, takes_longer=True)
    longer_loads = [load.model_copy(update={"duration_s": seconds}) for load in plan.loads]
    # a new object: a copy would keep the cached properties
    fields = {name: getattr(plan, name) for name in Plan.model_fields}
    longer = Plan(**fields | {"loads": tuple(longer_loads)})
    change = f"set {key_text('duration', probe_length(seconds))}"
    return _anew(experiment, longer, change, settled)


def _needed_length_s(doubts: Sequence[Doubt]) -> float | None:
    """The length of probes that settles all these doubts; None: it is not known of all of them."""
    probes = [longest_probes(doubt) for doubt in doubts]
    seconds = [longest.seconds for longest in probes if longest is not None]
    if len(seconds) < len(probes):
        return None
    return max(seconds, default=None)


def _stretch(experiment: StoredExperiment, plan: Plan, doubts: Sequence[Doubt]) -> NextStep | None:
    """The recorded times stretched, where a thinned trace sends no more. Every deployment is
    measured anew.
    """
    to_settle = [doubt for doubt in doubts if doubt.remedy is Remedy.STRETCH]
    if not any(load.arrivals.scale is Scale.THIN for load in plan.loads):
        return None
    return _anew(experiment, plan, "set scale: stretch", _labels_to_settle(to_settle))


def _repeat_more(
    experiment: StoredExperiment, plan: Plan, doubts: Sequence[Doubt]
) -> NextStep | None:
    """One more repeat on each start. A search chooses by itself how often it repeats a level."""
    to_settle = [doubt for doubt in doubts if doubt.remedy in _BY_REPEATING]
    if any(load.searches for load in plan.loads):
        return None
    repeats = plan.repeats + plan.starts
    # With several starts, the repeats are dealt out anew. A stored repeat counts only for the start
    # on which it was measured, so in the worst case all of them are measured again.
    most_measured = 1 if plan.starts == 1 else repeats
    measuring: list[_Measuring] = []
    for deployment in _with_labels(plan, _labels_to_settle(to_settle)):
        start_s = plan.starts * estimated_start_s(deployment)
        load_s = most_measured * _one_repeat_s(plan, deployment)
        measuring.append(_Measuring(deployment, start_s + load_s))
    return _step(_run_file(experiment), f"set repeats: {repeats}", measuring)


def _search_closer(
    experiment: StoredExperiment, plan: Plan, doubts: Sequence[Doubt]
) -> NextStep | None:
    """Searches that go on to a smaller precision, which may be no smaller than their grid."""
    to_settle = [doubt for doubt in doubts if doubt.remedy is Remedy.SMALLER_PRECISION]
    precision = min((rules.precision for rules in experiment.searched.values()), default=0.0)
    if precision <= GRID_STEP - 1:
        return None
    measuring = [
        _all_of(plan, deployment) for deployment in _with_labels(plan, _labels_to_settle(to_settle))
    ]
    return _step(_run_file(experiment), f"set a precision below {precision:g}", measuring)


def _add_clients(
    experiment: StoredExperiment, plan: Plan, doubts: Sequence[Doubt]
) -> NextStep | None:
    """More clients than a launch may have now: ``run`` adds them by itself up to that number."""
    to_settle = [doubt for doubt in doubts if doubt.remedy is Remedy.MORE_CLIENTS]
    measuring = [
        _all_of(plan, deployment) for deployment in _with_labels(plan, _labels_to_settle(to_settle))
    ]
    return _step(_run_file(experiment), "set a larger max_clients", measuring)


def _take_claims(experiment: StoredExperiment, doubts: Sequence[Doubt]) -> NextStep | None:
    """A precision with which the claims are the answer. It asks for less and measures nothing, so
    it is proposed only where no measurement is.
    """
    to_settle = [doubt for doubt in doubts if doubt.remedy is Remedy.WIDER_PRECISION]
    if not to_settle:
        return None
    widest = max(map(widest_precision, to_settle), key=lambda change: change.precision)
    return NextStep(
        _run_file(experiment),
        f"set {key_text('precision', precision_text(widest))}",
        len(_labels_to_settle(to_settle)),
        most_gpu_s=0.0,
        most_s=0.0,
        effect="it takes the claim as the answer",
    )


def _one_repeat_s(plan: Plan, deployment: Deployment) -> float:
    """Estimated seconds of load of one repeat of each level that the plan names."""
    return sum(known.load.estimated_s(known.level) for known in plan.known_levels(deployment.id))


def _labels_to_settle(doubts: Iterable[Doubt]) -> set[str]:
    """The labels of the deployments that need the remedies of these doubts."""
    labels: set[str] = set()
    for doubt in doubts:
        labels.update(doubt.to_remedy or doubt.deployments)
    return labels


def _anew(
    experiment: StoredExperiment, plan: Plan, change: str, settled: set[str]
) -> NextStep | None:
    """The step that measures all of a changed plan.

    ``settled``: the labels of the deployments about which it settles a doubt. None if there are
    none.
    """
    if not settled:
        return None
    measuring = [_all_of(plan, deployment) for deployment in plan.runnable()]
    step = _step(_run_file(experiment), change, measuring)
    if step is None:
        return None
    return replace(step, deployments=len(settled), effect=_MEASURED_ANEW)


def _with_labels(plan: Plan, labels: set[str]) -> list[Deployment]:
    return [deployment for deployment in plan.runnable() if deployment.label in labels]


def _run_file(experiment: StoredExperiment) -> str:
    """The command for a file that was changed: the stored plan does not know of the change."""
    return f"orchestrator run FILE {experiment.run_options}"


def _step(command: str, change: str | None, measuring: Sequence[_Measuring]) -> NextStep | None:
    """The step that measures these deployments; None where there is none to measure."""
    if not measuring:
        return None
    most_gpu_s = sum(part.device_seconds for part in measuring if not part.deployment.on_cpus)
    most_s = sum(part.seconds for part in measuring)
    return NextStep(command, change, len(measuring), most_gpu_s, most_s)

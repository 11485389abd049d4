"""Proposes the command that measures what could still change the answer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.capacity.doubts import Doubt, Remedy
from orchestrator.plan.cost import estimated_start_s
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.model import Plan
from orchestrator.report.selection import Answers
from orchestrator.results.validity import MOST_AGAIN
from orchestrator.spec.load import counted, hours

# remedies that another run of the same plan is
_BY_RUNNING = (Remedy.RUN_AGAIN, Remedy.SEARCH_LONGER)


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command, and what it costs at most.

    ``command``: what to type. ``deployments``: how many are in doubt because something of theirs is
    not measured. ``most_gpu_s``: estimated GPU seconds for all that the plan asks of them, engine
    starts included. ``most_s``: estimated seconds, if they run one after the other.
    """

    command: str
    deployments: int
    most_gpu_s: float
    most_s: float


def next_steps(found: Answers) -> Iterator[NextStep]:
    """The next step of each experiment whose answer another run of its plan could change. Nothing is
    measured beside what was simulated, so simulated answers have none.
    """
    for answered in found.experiments:
        experiment = answered.experiment
        if experiment.plan is None or experiment.is_load_run or not experiment.store.is_local:
            continue
        doubts: list[Doubt] = []
        for comparison in found.comparisons:
            is_open = not (comparison.certain or comparison.simulated)
            if comparison.experiment == experiment.name and is_open:
                doubts += comparison.doubts
        labels = _to_measure(doubts)
        if labels:
            yield _step(experiment, experiment.plan, labels)


def next_step_text(step: NextStep) -> str:
    """``next: orchestrator run … --until decided``, with what it costs and measures below."""
    cost = f"up to about {hours(step.most_s)}"
    if step.most_gpu_s:
        cost = f"up to about {step.most_gpu_s / 3600:.2g} h of GPU time"
    deployments = counted(step.deployments, "deployment")
    what = f"it measures what can still change who is best, of {deployments}"
    return f"next: {step.command}\n      ({cost}: {what})"


def _to_measure(doubts: Iterable[Doubt]) -> set[str]:
    """Labels of the deployments that another run measures further."""
    labels: set[str] = set()
    for doubt in doubts:
        if doubt.remedy in _BY_RUNNING:
            labels.update(doubt.deployments)
    return labels


def _step(experiment: StoredExperiment, plan: Plan, labels: set[str]) -> NextStep:
    command = experiment.run_command(MOST_AGAIN)
    if plan.slos and all(slo.agreement is None for slo in plan.slos):
        command += " --until decided"
    most_gpu_s = most_s = 0.0
    for deployment in plan.runnable():
        if deployment.label not in labels:
            continue
        seconds = estimated_start_s(deployment) + plan.load_s(deployment.id)
        most_s += seconds
        if not deployment.on_cpus:
            most_gpu_s += seconds * deployment.devices
    return NextStep(command, len(labels), most_gpu_s, most_s)

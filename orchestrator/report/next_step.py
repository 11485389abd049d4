"""Proposes what to measure next: the step that settles most doubts for its GPU time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.base.text import counted, hours
from orchestrator.capacity.doubts import Doubt, Remedy
from orchestrator.plan.cost import estimated_start_s
from orchestrator.plan.current import StoredExperiment
from orchestrator.plan.model import Deployment, Plan
from orchestrator.report.selection import Answers
from orchestrator.results.validity import MOST_AGAIN

# remedies that another run of the same plan is
_BY_RUNNING = (Remedy.RUN_AGAIN, Remedy.SEARCH_LONGER)


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command, what to change in the experiment file before it, and what both cost at most.

    ``command``: what to type. ``change``: the keys to set in the file; None: it stays as it is.
    ``deployments``: of how many the step settles a doubt. ``most_gpu_s``: estimated GPU seconds of
    what it measures, engine starts included. ``most_s``: estimated seconds, if the deployments run
    one after the other.
    """

    command: str
    change: str | None
    deployments: int
    most_gpu_s: float
    most_s: float

    @property
    def settled_per_s(self) -> float:
        """Deployments with a doubt less per second of GPU time; per second where no GPU is used."""
        seconds = self.most_gpu_s or self.most_s
        return self.deployments / max(seconds, 1.0)


@dataclass(frozen=True, slots=True)
class _Measuring:
    """Seconds that a step takes of one deployment, engine starts included."""

    deployment: Deployment
    seconds: float


def next_steps(answers: Answers) -> Iterator[NextStep]:
    """The best next step of each experiment whose answer is open. Nothing is measured beside what
    was simulated, so simulated answers have none.
    """
    for answered in answers.experiments:
        experiment = answered.experiment
        if experiment.plan is None or experiment.is_load_run or not experiment.store.is_local:
            continue
        doubts: list[Doubt] = []
        for comparison in answers.comparisons:
            is_open = not (comparison.certain or comparison.simulated)
            if comparison.experiment == experiment.name and is_open:
                doubts += comparison.doubts
        steps = [
            _run_again(experiment, experiment.plan, doubts),
            _start_again(experiment, experiment.plan, doubts),
            _measure_higher(experiment, experiment.plan, doubts),
        ]
        possible = [step for step in steps if step is not None]
        if possible:
            yield max(possible, key=lambda step: step.settled_per_s)


def next_step_text(step: NextStep) -> str:
    """``next: orchestrator run … --until decided``, with what it costs and measures below."""
    cost = f"up to about {hours(step.most_s)}"
    if step.most_gpu_s:
        cost = f"up to about {step.most_gpu_s / 3600:.2g} h of GPU time"
    deployments = counted(step.deployments, "deployment")
    command = step.command
    if step.change is not None:
        command = f"{step.change} in the file, then\n      {step.command}"
    what = f"it measures what can still change who is best, of {deployments}"
    return f"next: {command}\n      ({cost}: {what})"


def _run_again(
    experiment: StoredExperiment, plan: Plan, doubts: Iterable[Doubt]
) -> NextStep | None:
    """The same plan once more: it measures what is missing, and searches on."""
    labels: set[str] = set()
    for doubt in doubts:
        if doubt.remedy in _BY_RUNNING:
            labels.update(doubt.deployments)
    measuring = [
        _Measuring(deployment, estimated_start_s(deployment) + plan.load_s(deployment.id))
        for deployment in _with_labels(plan, labels)
    ]
    command = experiment.run_command(MOST_AGAIN)
    if plan.slos and all(slo.agreement is None for slo in plan.slos):
        command += " --until decided"
    return _step(command, None, measuring)


def _start_again(
    experiment: StoredExperiment, plan: Plan, doubts: Sequence[Doubt]
) -> NextStep | None:
    """One more repeat on one more start of the engines, where starts are too few to compare."""
    labels: set[str] = set()
    starts = plan.starts + 1
    for doubt in doubts:
        if doubt.remedy is not Remedy.MORE_STARTS:
            continue
        labels.update(doubt.to_remedy or doubt.deployments)
        starts = max(starts, doubt.starts_needed or 0)
    repeats = plan.repeats + starts - plan.starts
    measuring: list[_Measuring] = []
    for deployment in _with_labels(plan, labels):
        one_repeat_s = sum(
            known.load.estimated_s(known.level) for known in plan.known_levels(deployment.id)
        )
        one_start_s = estimated_start_s(deployment) + one_repeat_s
        measuring.append(_Measuring(deployment, (starts - plan.starts) * one_start_s))
    change = f"set starts: {starts} and repeats: {repeats}"
    return _step(_run_file(experiment), change, measuring)


def _measure_higher(
    experiment: StoredExperiment, plan: Plan, doubts: Iterable[Doubt]
) -> NextStep | None:
    """One level above the highest, where the highest still held. It is taken to last as long."""
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


def _with_labels(plan: Plan, labels: set[str]) -> list[Deployment]:
    return [deployment for deployment in plan.runnable() if deployment.label in labels]


def _run_file(experiment: StoredExperiment) -> str:
    """The command for a file that was changed: the stored plan does not know of the change."""
    return f"orchestrator run FILE {experiment.run_options}"


def _step(command: str, change: str | None, measuring: Sequence[_Measuring]) -> NextStep | None:
    """The step that measures these deployments; None where there is none to measure."""
    if not measuring:
        return None
    most_gpu_s = sum(
        part.seconds * part.deployment.devices for part in measuring if not part.deployment.on_cpus
    )
    most_s = sum(part.seconds for part in measuring)
    return NextStep(command, change, len(measuring), most_gpu_s, most_s)

"""What a plan needs: nodes, time, GPU hours and money.

Start times are known for engines that earlier runs started. Others are estimated: START_S for
processes, compilation and CUDA graphs, plus the time to read a node's weights at the rate of its
hardware, or at READ_BYTES_S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from orchestrator.analysis.prediction import UNKNOWN_START, PredictedStart
from orchestrator.base.text import counted, hours
from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import ENGINES, ROUTERS
from orchestrator.plan.model import Deployment, DeploymentStatus, Plan
from orchestrator.plan.order import QueueClass, QueuePosition, queue_position, queue_priority
from orchestrator.spec.experiment import Budget

START_S = 60.0
EMULATED_START_S = 5.0
# bytes per second of a network volume or an ordinary disk; NVMe and page cache are faster
READ_BYTES_S = 1e9
MADE_WEIGHTS = "dummy"  # the load_format of weights that engines make instead of reading them


def estimated_start_s(deployment: Deployment) -> float:
    """Seconds until its engine serves; 0 for an endpoint, which runs already."""
    engine = ENGINES[deployment.settings.engine]
    if not engine.launches:
        return 0.0
    if engine.emulated:
        return EMULATED_START_S
    return START_S + _bytes_to_read(deployment) / read_bytes_s(deployment)


def read_bytes_s(deployment: Deployment) -> float:
    """Bytes per second at which one of its nodes reads weights."""
    gb_s = deployment.hardware.weights_gb_s
    return READ_BYTES_S if gb_s is None else gb_s * 1e9


def _bytes_to_read(deployment: Deployment) -> float:
    """Bytes of weights that the node reads that reads most."""
    starts = deployment.predicted.starts
    bytes_of_nodes = [0.0]
    for role, part in deployment.settings.engines.items():
        if part.load_format != MADE_WEIGHTS:
            bytes_of_nodes.append(weight_bytes(starts, role) * part.devices_per_node)
    return max(bytes_of_nodes)


def weight_bytes(starts: Mapping[str, PredictedStart], role: str) -> float:
    """Predicted bytes of weights on one device of a role ("" without roles); 0 if not known."""
    return float(starts.get(role, UNKNOWN_START).weight_bytes or 0)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one or several deployments take: the seconds of all engine starts and of all load, and
    the GPU hours and US dollars of both.
    """

    start_s: float
    load_s: float
    gpu_hours: float
    usd: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.start_s + other.start_s,
            self.load_s + other.load_s,
            self.gpu_hours + other.gpu_hours,
            self.usd + other.usd,
        )

    @property
    def seconds(self) -> float:
        return self.start_s + self.load_s


@dataclass(frozen=True, slots=True)
class PlanEstimate:
    """Estimates what a plan takes. ``known_start_s``: how many seconds deployments that ran before
    took to start, by id.
    """

    plan: Plan
    nodes: int | None = None  # how many the cluster has; None: not known
    known_start_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def started(self) -> list[Deployment]:
        """The deployments that are run. If only some may be started, it is not known beforehand
        which ones; as many deployments, spread evenly over the plan, stand for them.
        """
        runnable = self.plan.runnable()
        number = self.plan.most_started
        started: list[Deployment] = []
        for index in range(number):
            started.append(runnable[index * len(runnable) // number])
        return started

    def cost(self, deployment: Deployment) -> Cost:
        """The cost of a deployment that is run."""
        one_start_s = self.known_start_s.get(deployment.id, estimated_start_s(deployment))
        start_s = self.plan.starts * one_start_s
        load_s = self.plan.load_s(deployment.id)
        gpu_hours = 0.0
        if not deployment.on_cpus and not deployment.settings.url:
            gpu_hours = (start_s + load_s) / 3600 * deployment.devices
        usd = gpu_hours * (deployment.hardware.usd_per_gpu_hour or 0.0)
        return Cost(start_s, load_s, gpu_hours, usd)

    def makespan_s(self) -> float | None:
        """Seconds from the first start to the last end on ``nodes`` nodes, each used by one
        deployment at a time.

        Deployments start in the order of the sweep, as far as predictions know it.
        """
        if self.nodes is None:
            return None
        priorities = queue_priority(self.plan)
        # counted, because many of 100,000 deployments are alike
        jobs = Counter(
            self._job(deployment, priorities.get(deployment.id, 0.0), self.nodes)
            for deployment in self.started
        )
        free_s = [0.0] * self.nodes  # when each node is free
        longest_s = max((job.seconds for job in jobs), default=0.0)  # endpoints take no node
        for job in sorted(jobs.elements()):
            if not job.nodes:
                continue
            free_s.sort()
            end_s = free_s[job.nodes - 1] + job.seconds
            free_s[: job.nodes] = [end_s] * job.nodes
        return max(*free_s, longest_s, 0.0)

    def _job(self, deployment: Deployment, priority: float, cluster_nodes: int) -> _Job:
        seconds = self.cost(deployment).seconds
        is_gang = any(part.nnodes > 1 for part in deployment.settings.engines.values())
        risky = deployment.status == "risky"
        queue_class = QueueClass.RISKY if risky else QueueClass.NORMAL
        least_nodes = deployment.settings.least_nodes(deployment.hardware.gpus_per_node)
        return _Job(
            queue_position(queue_class, is_gang, priority, seconds),
            min(cluster_nodes, least_nodes),
            seconds,
        )

    def totals(self) -> Totals:
        statuses = Counter(
            "left_out" if deployment.left_out else deployment.status
            for deployment in self.plan.deployments
        )
        repeats: list[int] = []  # how often each point is measured
        cost = Cost(0.0, 0.0, 0.0, 0.0)
        for deployment in self.started:
            repeats += [known.repeats for known in self.plan.known_levels(deployment.id)]
            cost += self.cost(deployment)
        return Totals(
            planned=statuses["planned"],
            risky=statuses["risky"],
            excluded=statuses["excluded"],
            impossible=statuses["impossible"],
            left_out=statuses["left_out"],
            points=len(repeats),
            measurements=sum(repeats),
            start_s=cost.start_s,
            load_s=cost.load_s,
            makespan_s=self.makespan_s(),
            gpu_hours=cost.gpu_hours,
            usd=cost.usd,
        )

    def over_budget(self) -> list[str]:
        """Which parts of the experiment's budget the estimate exceeds, one sentence each."""
        budget = self.plan.budget or Budget()
        totals = self.totals()
        sentences: list[str] = []
        if budget.gpu_hours is not None and round(totals.gpu_hours, 2) > budget.gpu_hours:
            sentences.append(
                f"it takes {totals.gpu_hours:.2f} GPU hours; the budget is {budget.gpu_hours:g}"
            )
        if budget.usd is not None and round(totals.usd, 2) > budget.usd:
            sentences.append(f"it costs {totals.usd:.2f} USD; the budget is {budget.usd:g}")
        if budget.wall is not None:
            sentences += self._over_wall(totals, budget.wall)
        return sentences

    def _over_wall(self, totals: Totals, allowed_s: float) -> list[str]:
        """A sentence if the sweep takes longer than the budget or, where the number of nodes is not
        known, if one deployment alone does.
        """
        takes_s = totals.makespan_s
        if not takes_s:
            alone_s = [self.cost(deployment).seconds for deployment in self.plan.runnable()]
            takes_s = max(alone_s, default=0.0)
        if round(takes_s - allowed_s) <= 0:
            return []
        place = f" on {counted(self.nodes, 'node')}" if self.nodes else " for one deployment alone"
        takes, allowed = hours(takes_s), hours(allowed_s)
        if takes == allowed:
            takes = f"{hours(takes_s - allowed_s)} more"
        return [f"it takes {takes}{place}; the budget is {allowed}"]

    def notes(self) -> list[str]:
        """What users should know before they run the plan."""
        notes = [*self.plan.notes, *self.over_budget()]
        notes += [
            f"{name} (api_key_env) is not set here; 'run' needs it"
            for name in self.plan.unset_keys()
        ]
        notes += [
            f"{title} asks for no key: whoever reaches its node can use it, "
            "and on one host all its users"
            for title in self._titles_without_key()
        ]
        if not any(self.plan.known_levels(deployment.id) for deployment in self.plan.deployments):
            notes.append("nothing is left to measure")
        notes += self._note_on_limited_starts()
        if self.plan.needs_figures:
            notes.append(
                "how many points are measured depends on what they show: "
                "points, time and cost are estimates"
            )
        return notes + self._note_on_late_answers() + self._note_on_start_times()

    def _note_on_limited_starts(self) -> list[str]:
        most = self.plan.most_started
        runnable = len(self.plan.runnable())
        if most >= runnable:
            return []
        chosen = "those predicted best"
        for load in self.plan.loads:
            if load.proposer:
                chosen = f"those that {load.proposer} proposes"
                break
        return [
            f"{most:,} of {runnable:,} deployments are started, {chosen}: all figures are for "
            "that many"
        ]

    def _note_on_late_answers(self) -> list[str]:
        """How much longer a level takes than is estimated if the engine falls behind. A search ends
        such a level early.
        """
        waits_s = {
            known.load.drain_timeout_s
            for deployment in self.plan.runnable()
            for known in self.plan.known_levels(deployment.id)
            if known.level.control == "request_rate" and not known.load.searches
        }
        if not waits_s or self.plan.needs_figures:
            return []
        return [
            "a rate that an engine does not keep up with takes longer than is estimated, "
            f"by up to {hours(max(waits_s))} (drain_timeout)"
        ]

    def _note_on_start_times(self) -> list[str]:
        estimated = [
            deployment
            for deployment in self.plan.runnable()
            if deployment.id not in self.known_start_s
        ]
        estimates = {estimated_start_s(deployment) for deployment in estimated}
        estimates.discard(0.0)
        if not estimates:
            return []
        least, most = hours(min(estimates)), hours(max(estimates))
        note = f"engine starts are estimates: {least}"
        if most != least:
            note += f" to {most}"
        if max(estimates) > START_S:
            rates = {
                read_bytes_s(deployment) / 1e9
                for deployment in estimated
                if estimated_start_s(deployment) > START_S
            }
            rate = " and ".join(f"{gb_s:g}" for gb_s in sorted(rates))
            note += f", reading weights at {rate} GB/s"
        return [note]

    def _titles_without_key(self) -> list[str]:
        """Titles of the engines and routers that would answer anybody."""
        programs: list[Engine] = []
        for deployment in self.plan.runnable():
            settings = deployment.settings
            programs += [ENGINES[part.engine] for part in settings.engines.values()]
            if settings.router:
                programs.append(ROUTERS[settings.router.engine])
        titles: set[str] = set()
        for program in programs:
            has_key = program.guarded and program.key_variable
            if program.launches and not has_key:
                titles.add(program.title)
        return sorted(titles)

    def summary(self) -> str:
        """Three lines about deployments, points and cost, then one line per note."""
        totals = self.totals()
        lines = [
            self._status_line(totals),
            self._points_line(totals),
            self._cost_line(totals),
            *(f"note: {note}" for note in self.notes()),
        ]
        return "\n".join(lines)

    def _status_line(self, totals: Totals) -> str:
        counts = {status: getattr(totals, status) for status in get_args(DeploymentStatus)}
        counts["left out by the shortlist"] = totals.left_out
        states = [f"{number:,} {status}" for status, number in counts.items() if number]
        deployments = counted(len(self.plan.deployments), "deployment")
        return f"{deployments}: {', '.join(states) or 'none'}"

    def _points_line(self, totals: Totals) -> str:
        repeats = ""
        if totals.measurements == totals.points * self.plan.repeats > totals.points:
            repeats = f" x {self.plan.repeats} repeats"
        measurements = counted(totals.measurements, "measurement")
        return f"{counted(totals.points, 'point')}{repeats} = {measurements}"

    def _cost_line(self, totals: Totals) -> str:
        costs = [
            f"{hours(totals.load_s)} of load and {hours(totals.start_s)} of engine starts, "
            "one after the other"
        ]
        if self.nodes and totals.makespan_s is not None:
            costs.append(f"{hours(totals.makespan_s)} on {counted(self.nodes, 'node')}")
        if totals.gpu_hours:
            costs.append(f"{totals.gpu_hours:.1f} GPU hours")
        if totals.usd:
            costs.append(f"{totals.usd:.2f} USD")
        return ", ".join(costs)


class _Job(NamedTuple):
    """A deployment on the cluster's nodes. Jobs sort in the order in which they start."""

    position: QueuePosition
    nodes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Totals:
    """What a plan comes to: deployments by status, points and measurements; the seconds of starts
    and of load one after the other; ``makespan_s``: seconds on the cluster's nodes, None if their
    number is not known; GPU hours and USD of starts and load together.
    """

    planned: int
    risky: int
    excluded: int
    impossible: int
    left_out: int  # how many deployments the shortlist leaves out
    points: int
    measurements: int
    start_s: float
    load_s: float
    makespan_s: float | None
    gpu_hours: float
    usd: float

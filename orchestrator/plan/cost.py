"""What a plan needs: nodes, time, GPU hours and money.

Start times are known for engines that earlier runs started. Others are estimated: START_S for
processes, compilation and CUDA
graphs, plus the time to read a node's weights at READ_BYTES_S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from orchestrator.engines.registry import ENGINES, ROUTERS
from orchestrator.plan.model import Deployment, Plan, DeploymentStatus
from orchestrator.plan.order import QueueClass, place, queue_priority
from orchestrator.spec.experiment import Budget
from orchestrator.spec.load import counted, hours

START_S, EMULATED_START_S = 60.0, 5.0
READ_BYTES_S = 1e9  # a network volume or an ordinary disk; NVMe and page cache are faster


def estimated_start_s(deployment: Deployment) -> float:
    """Seconds until its engine serves; 0 for an endpoint, which runs already."""
    engine = ENGINES[deployment.settings.engine]
    if not engine.launches:
        return 0.0
    if engine.emulated:
        return EMULATED_START_S
    predicted = deployment.predicted or {}
    bytes_of_nodes = [
        weight_bytes(predicted, role) * part.devices_per_node
        for role, part in deployment.settings.engines.items()
    ]
    return START_S + max(bytes_of_nodes) / READ_BYTES_S


def weight_bytes(predicted: Mapping[str, Any], role: str) -> float:
    """Predicted bytes of weights on one device of a role ("" without roles); 0 if not known."""
    name = f"{role}.weight_bytes" if role else "weight_bytes"
    return float(predicted.get(name) or 0)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one deployment or several: seconds of all engine starts and of all load, the GPU hours and
    USD of both.
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
class Estimate:
    """Estimates what a plan takes. ``known``: start times in seconds, by id, of deployments that
    ran before.
    """

    plan: Plan
    nodes: int | None = None  # of the cluster; None: not known
    known: Mapping[str, float] = field(default_factory=dict)

    @property
    def started(self) -> list[Deployment]:
        """The deployments that are run. Where not all of them may be started, nobody knows yet
        which: as many, spread evenly over the plan.
        """
        some, most = self.plan.runnable(), self.plan.most_started
        return [some[at * len(some) // most] for at in range(most)]

    def cost(self, one: Deployment) -> Cost:
        """The cost of a deployment that is run."""
        start_s = self.plan.starts * self.known.get(one.id, estimated_start_s(one))
        load_s = self.plan.load_s(one.id)
        gpu_hours = (
            0.0 if one.on_cpus or one.settings.url else (start_s + load_s) / 3600 * one.devices
        )
        return Cost(start_s, load_s, gpu_hours, gpu_hours * (one.hardware.usd_per_gpu_hour or 0.0))

    def makespan_s(self) -> float | None:
        """Seconds from the first start to the last end on ``nodes`` nodes, each used by one
        deployment at a time.

        Deployments start in the order of the sweep, as far as predictions know it.
        """
        if self.nodes is None:
            return None
        free_s, shares = [0.0] * self.nodes, queue_priority(self.plan)
        # counted: of 100,000 many are alike
        jobs = Counter[tuple[tuple[QueueClass, bool, float, float], int, float]]()
        for one in self.started:
            gang, seconds = (
                any(part.nnodes > 1 for part in one.settings.engines.values()),
                self.cost(one).seconds,
            )
            nodes = min(self.nodes, one.settings.least_nodes(one.hardware.gpus_per_node))
            queue_class = QueueClass.RISKY if one.status == "risky" else QueueClass.NORMAL
            jobs[place(queue_class, gang, shares.get(one.id, 0.0), seconds), nodes, seconds] += 1
        for _, nodes, seconds in sorted(jobs.elements()):
            free_s.sort()
            free_s[:nodes] = [free_s[nodes - 1] + seconds] * nodes if nodes else []
        return max(*free_s, *(seconds for _, _, seconds in jobs), 0.0)  # endpoints take no node

    def totals(self) -> Totals:
        statuses = [one.status for one in self.plan.deployments]
        times = [number for one in self.started for *_, number in self.plan.known_levels(one.id)]
        cost = sum(map(self.cost, self.started), Cost(0.0, 0.0, 0.0, 0.0))
        return Totals(
            **{status: statuses.count(status) for status in get_args(DeploymentStatus)},
            points=len(times),
            measurements=sum(times),
            start_s=cost.start_s,
            load_s=cost.load_s,
            makespan_s=self.makespan_s(),
            gpu_hours=cost.gpu_hours,
            usd=cost.usd,
        )

    def over_budget(self) -> list[str]:
        """Which parts of the experiment's budget the estimate exceeds, one sentence each."""
        budget, sums = self.plan.budget or Budget(), self.totals()
        took_s = sums.makespan_s or max(
            (self.cost(one).seconds for one in self.plan.runnable()), default=0.0
        )
        out = []
        if budget.gpu_hours is not None and round(sums.gpu_hours, 2) > budget.gpu_hours:
            out.append(
                f"it takes {sums.gpu_hours:.2f} GPU hours; the budget is {budget.gpu_hours:g}"
            )
        if budget.usd is not None and round(sums.usd, 2) > budget.usd:
            out.append(f"it costs {sums.usd:.2f} USD; the budget is {budget.usd:g}")
        if budget.wall is not None and round(took_s - budget.wall) > 0:
            where = (
                f" on {counted(self.nodes, 'node')}" if self.nodes else " for one deployment alone"
            )
            takes, allowed = hours(took_s), hours(budget.wall)
            takes = takes if takes != allowed else f"{hours(took_s - budget.wall)} more"
            out.append(f"it takes {takes}{where}; the budget is {allowed}")
        return out

    def notes(self) -> list[str]:
        """What users should know before they run the plan."""
        notes = [*self.plan.notes, *self.over_budget()]
        notes += [
            f"{name} (api_key_env) is not set here; 'run' needs it"
            for name in self.plan.unset_keys()
        ]
        reach = (
            "asks for no key: whoever reaches its node can use it, and on one host all its users"
        )
        notes += [f"{title} {reach}" for title in self._open_doors()]
        if not any(self.plan.known_levels(one.id) for one in self.plan.deployments):
            notes.append("nothing is left to measure")
        if (most := self.plan.most_started) < (known := len(self.plan.runnable())):
            by = next(
                (f"that {one.proposer} proposes" for one in self.plan.loads if one.proposer),
                "predicted best",
            )
            notes.append(
                f"{most:,} of {known:,} deployments are started, those {by}: all figures are for "
                "that many"
            )
        if self.plan.needs_figures:
            notes.append(
                "a search measures as many points as it needs: points, time and cost are estimates"
            )
        if starts := {
            estimated_start_s(one) for one in self.plan.runnable() if one.id not in self.known
        } - {0.0}:
            read = (
                f", reading weights at {READ_BYTES_S / 1e9:g} GB/s" if max(starts) > START_S else ""
            )
            spread = " to ".join(dict.fromkeys(map(hours, (min(starts), max(starts)))))
            notes.append(f"engine starts are estimates: {spread}{read}")
        return notes

    def _open_doors(self) -> list[str]:
        """Titles of the engines and routers that would answer anybody."""
        settings = [one.settings for one in self.plan.runnable()]
        started = [
            ENGINES[name]
            for name in {part.engine for one in settings for part in one.engines.values()}
        ]
        started += [ROUTERS[name] for name in {one.router.engine for one in settings if one.router}]
        return sorted(
            {
                one.title
                for one in started
                if one.launches and not (one.guarded and one.key_variable)
            }
        )

    def summary(self) -> str:
        """Three lines about deployments, points and cost, then one line per note."""
        sums, plan = self.totals(), self.plan
        counts = {status: getattr(sums, status) for status in get_args(DeploymentStatus)}
        states = (
            ", ".join(f"{number:,} {status}" for status, number in counts.items() if number)
            or "none"
        )
        repeats = (
            f" x {plan.repeats} repeats"
            if sums.measurements == sums.points * plan.repeats > sums.points
            else ""
        )
        cost = [
            (
                f"{hours(sums.load_s)} of load and {hours(sums.start_s)} of engine starts, one after "
                "the other"
            )
        ]
        if self.nodes and sums.makespan_s is not None:
            cost.append(f"{hours(sums.makespan_s)} on {counted(self.nodes, 'node')}")
        cost += [f"{sums.gpu_hours:.1f} GPU hours"] if sums.gpu_hours else []
        cost += [f"{sums.usd:.2f} USD"] if sums.usd else []
        lines = [
            f"{counted(len(plan.deployments), 'deployment')}: {states}",
            (
                f"{counted(sums.points, 'point')}{repeats} = "
                f"{counted(sums.measurements, 'measurement')}"
            ),
            ", ".join(cost),
            *(f"note: {note}" for note in self.notes()),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Totals:
    """Deployments by status, points, measurements; seconds of starts and of load in sequence;
    seconds on the cluster's nodes (None: their number is not known); GPU hours and USD of starts
    and load.
    """

    planned: int
    risky: int
    excluded: int
    impossible: int
    points: int
    measurements: int
    start_s: float
    load_s: float
    makespan_s: float | None
    gpu_hours: float
    usd: float

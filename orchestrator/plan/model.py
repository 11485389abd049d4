"""The plan: every deployment of an experiment and what is asked of it, resolved and frozen, and what that adds up to.

Points are made when a search strategy asks for their level; a list of levels is known before. Exact in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, get_args

import orjson
from pydantic import ValidationError

from orchestrator import __version__
from orchestrator.errors import InputError
from orchestrator.plan.identity import seed_of
from orchestrator.results.ids import digest
from orchestrator.search import STRATEGIES
from orchestrator.search.base import Question, Strategy
from orchestrator.spec.experiment import Budget, SweepRules
from orchestrator.spec.load import AnyWorkload, Level, LoadRules, Slo, Workload, format_duration
from orchestrator.spec.settings import EngineSettings, Hardware, Strict

Status = Literal["planned", "risky", "excluded", "impossible"]
FORMAT: Literal[1] = 1
LIMITS = {"warmup_s", "duration_s", "requests", "max_in_flight", "request_timeout_s", "drain_timeout_s"}  # of a load


class Deployment(Strict):
    """One engine configuration. ``planned`` and ``risky`` ones are run, the risky last."""

    id: str
    label: str  # short and unique in the plan: what tells it from its siblings
    settings: EngineSettings  # paths are absolute
    hardware: Hardware
    status: Status
    reasons: tuple[str, ...] = ()
    unserved: tuple[str, ...] = ()  # names of workloads that it cannot serve
    predicted: dict[str, Any] | None = None  # of plan/feasibility.py: weights, KV tokens, concurrency
    derived: dict[str, Any] = {}

    @property
    def runs(self) -> bool:
        return self.status in ("planned", "risky")

    @property
    def devices(self) -> int:
        """GPUs (cores on cpu) of all replicas; 0 for an endpoint, which we do not hold."""
        return 0 if self.settings.url else self.settings.world_size * self.settings.replicas


class PlannedLoad(LoadRules):
    """One workload as every deployment that can serve it is loaded. Its strategy says which levels are measured.

    Of duration_s and requests one is None. ``trace_digest``: content of the arrivals' trace.
    """

    workload: AnyWorkload
    trace_digest: str | None = None
    levels: tuple[Level, ...] = ()  # of the experiment file

    def identity(self, level: Level) -> str:
        """The hash of what a point asks of any deployment: content, not where files lie."""
        rules = self.model_dump(include=LIMITS, exclude_none=True)
        if level.control == "request_rate":
            drawn = self.arrivals.model_dump(mode="json", exclude_defaults=True)
            rules["arrivals"] = drawn | ({"trace": self.trace_digest} if self.arrivals.trace is not None else {})
        return digest({"workload": self.workload.identity(), "level": level, "client": __version__, **rules})

    def estimated_s(self, level: Level) -> float:
        """Seconds of load. A closed loop by requests counts as one minute: its length is not known beforehand."""
        seconds = self.duration_s
        if seconds is None and self.requests and level.control == "request_rate":
            seconds = self.requests / level.value
        return self.warmup_s + (60.0 if seconds is None else seconds)


@dataclass(frozen=True, slots=True)
class Point:
    """A planned load at one level on a deployment."""

    point_id: str
    deployment_id: str
    load: PlannedLoad
    level: Level

    @property
    def workload(self) -> Workload:
        return self.load.workload

    def load_rules(self) -> dict[str, Any]:
        """What clients are told of it, by the names of LoadPoint."""
        names = ("workload", "arrivals", *LIMITS)
        return {"level": self.level} | {name: getattr(self.load, name) for name in names}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One repeat of a point. ``seed`` is the same for every deployment, so that they see the same requests.

    ``start``: the launch of its deployment that it belongs to, from 0; one that was retried is the same start.
    """

    measurement_id: str
    point_id: str
    deployment_id: str
    repeat: int
    seed: int
    start: int = 0


class Plan(SweepRules):
    """What a sweep does. Equal experiments on equal engines give equal ids, so running again continues."""

    plan_format: Literal[1] = FORMAT
    program_version: str = __version__
    deployments: tuple[Deployment, ...]
    loads: tuple[PlannedLoad, ...]
    slos: tuple[Slo, ...] = ()
    notes: tuple[str, ...] = ()

    def runnable(self) -> list[Deployment]:
        """Deployments to run, the risky ones last."""
        return [one for status in ("planned", "risky") for one in self.deployments if one.status == status]

    def deployment(self, deployment_id: str) -> Deployment:
        """Raises KeyError when there is none."""
        return self._deployments[deployment_id]

    def loads_of(self, deployment_id: str) -> list[PlannedLoad]:
        """What is asked of a deployment; nothing of one that is not run."""
        deployment = self.deployment(deployment_id)
        return [one for one in self.loads if deployment.runs and one.workload.name not in deployment.unserved]

    def strategy(self, load: PlannedLoad) -> Strategy:
        """A new one, which was told nothing yet."""
        question = Question(load.levels, load.control, self.slos, self.repeats)
        return STRATEGIES[load.search](question)

    @property
    def needs_figures(self) -> bool:
        """Whether a search strategy must be told the figures of earlier sweeps."""
        return any(STRATEGIES[load.search].needs_figures for load in self.loads)

    def point(self, deployment_id: str, load: PlannedLoad, level: Level) -> Point:
        """The point of a deployment at a level that a strategy asked for."""
        return Point(digest([deployment_id, self._identity(load.workload.name, level)]), deployment_id, load, level)

    def measurement(self, point: Point, repeat: int) -> Measurement:
        """One repeat of it. Its seed is the same on every deployment."""
        seed = self._seed(point.workload.name, point.level, repeat)
        name = digest([point.point_id, repeat, seed])
        start = min(repeat * self.starts // self.repeats, self.starts - 1)  # a search may ask for more repeats
        return Measurement(name, point.point_id, point.deployment_id, repeat, seed, start)

    @property
    def points(self) -> list[Point]:
        """Those of all deployments that are known before anything is measured."""
        return [point for one in self.deployments for point in self.points_of(one.id)]

    def points_of(self, deployment_id: str) -> list[Point]:
        """Those of one deployment that are known before anything is measured."""
        return [self.point(deployment_id, load, level) for load, level in self._known_levels(deployment_id)]

    def point_count(self, deployment_id: str) -> int:
        """How many points of a deployment are known before anything is measured."""
        return len(self._known_levels(deployment_id))

    def _known_levels(self, deployment_id: str) -> list[tuple[PlannedLoad, Level]]:
        return [(load, level) for load in self.loads_of(deployment_id) for level in self._ahead[load.workload.name]]

    @cached_property
    def _ahead(self) -> dict[str, list[Level]]:
        return {load.workload.name: list(dict.fromkeys(self.strategy(load).ahead())) for load in self.loads}

    def measurements(self, deployment_id: str | None = None) -> list[Measurement]:
        """Of one deployment, or of all, as far as they are known: every point once, then every point again."""
        points = self.points if deployment_id is None else self.points_of(deployment_id)
        return [self.measurement(point, repeat) for repeat in range(self.repeats) for point in points]

    # Each once: hashing a workload takes longer than all the rest. Names of workloads are unique.
    @cached_property
    def _identity(self) -> Callable[[str, Level], str]:
        loads = {load.workload.name: load for load in self.loads}
        return cache(lambda workload, level: loads[workload].identity(level))

    @cached_property
    def _seed(self) -> Callable[[str, Level, int], int]:
        workloads = {load.workload.name: load.workload for load in self.loads}
        return cache(lambda workload, level, repeat: seed_of(self.seed, workloads[workload], level, repeat))

    @cached_property
    def _deployments(self) -> Mapping[str, Deployment]:
        return {one.id: one for one in self.deployments}

    def load_s(self, deployment_id: str) -> float:
        """Seconds of load on one deployment, all repeats; how long its engine takes to start is not known."""
        return self.repeats * sum(load.estimated_s(level) for load, level in self._known_levels(deployment_id))

    def refusing(self, reasons: Mapping[str, str], note: str) -> Plan:
        """A plan in which the deployments with these ids are impossible, and with one more note."""
        deployments = tuple(
            one.model_copy(update={"status": "impossible", "reasons": (reasons[one.id], *one.reasons)})
            if one.id in reasons
            else one
            for one in self.deployments
        )
        changed = {"deployments": deployments, "notes": (*self.notes, note)}
        # built anew: a copy would keep what this one has looked up by id
        return Plan(**{name: getattr(self, name) for name in Plan.model_fields} | changed)

    def to_json(self) -> str:
        """The frozen plan as text that ``from_json`` turns into an equal plan; values at their default are left out."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        about = {"plan_format": FORMAT, "program_version": self.program_version}
        return orjson.dumps(about | content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Raises InputError when the text is no plan, or one that this version of the program cannot run."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise InputError(f"not a plan: {error}") from None
        if not isinstance(content, dict) or "plan_format" not in content:
            raise InputError("not a plan: write one with 'orchestrator plan EXPERIMENT --output plan.json'")
        version = content.get("program_version")
        if content["plan_format"] != FORMAT or version != __version__:
            raise InputError(
                f"this plan was written by version {version}, this is {__version__}, and the version of the client is "
                "part of what identifies a point: plan the experiment again"
            )
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InputError(f"not a valid plan: {place}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class Totals:
    """Deployments by status, points, measurements; seconds of load one after the other, GPU hours and USD of that load.

    Starting engines comes on top: it is not known before it was done.
    """

    planned: int
    risky: int
    excluded: int
    impossible: int
    points: int
    measurements: int
    load_s: float
    gpu_hours: float
    usd: float


def totals(plan: Plan) -> Totals:
    statuses = [one.status for one in plan.deployments]
    points = sum(plan.point_count(one.id) for one in plan.deployments)
    load_s = gpu_hours = usd = 0.0
    for one in plan.runnable():
        seconds = plan.load_s(one.id)
        hours = 0.0 if one.hardware.is_cpu else seconds / 3600 * one.devices
        load_s, gpu_hours = load_s + seconds, gpu_hours + hours
        usd += hours * (one.hardware.usd_per_gpu_hour or 0.0)
    return Totals(
        **{status: statuses.count(status) for status in get_args(Status)},
        points=points,
        measurements=points * plan.repeats,
        load_s=load_s,
        gpu_hours=gpu_hours,
        usd=usd,
    )


def over_budget(plan: Plan) -> list[str]:
    """Why the load alone exceeds the experiment's budget; empty when it does not."""
    budget, sums = plan.budget or Budget(), totals(plan)
    longest_s = max((plan.load_s(one.id) for one in plan.runnable()), default=0.0)
    out = []
    if budget.gpu_hours is not None and sums.gpu_hours > budget.gpu_hours:
        out.append(f"the load alone takes {sums.gpu_hours:.1f} GPU hours, the budget is {budget.gpu_hours:g}")
    if budget.usd is not None and sums.usd > budget.usd:
        out.append(f"the load alone costs {sums.usd:.2f} USD, the budget is {budget.usd:g}")
    if budget.wall is not None and longest_s > budget.wall:
        took, most = format_duration(longest_s), format_duration(budget.wall)
        out.append(f"the load of one deployment alone takes {took}, the budget is {most}")
    return out


def notes(plan: Plan) -> list[str]:
    """What someone should know before running it."""
    nothing = [] if any(plan.point_count(one.id) for one in plan.deployments) else ["nothing is left to measure"]
    return [*plan.notes, *over_budget(plan), *nothing]


def summary(plan: Plan) -> str:
    """Three lines: deployments, points, cost; then a line for each note."""
    sums = totals(plan)
    counts = {status: getattr(sums, status) for status in get_args(Status)}
    states = ", ".join(f"{number:,} {status}" for status, number in counts.items() if number) or "none"
    repeats = f" x {plan.repeats} repeats" if plan.repeats > 1 else ""
    cost = [f"{_hours(sums.load_s)} of load one after the other, without the starts of engines"]
    cost += [f"{sums.gpu_hours:.1f} GPU hours"] if sums.gpu_hours else []
    cost += [f"{sums.usd:.2f} USD"] if sums.usd else []
    lines = [
        f"{len(plan.deployments):,} deployments: {states}",
        f"{sums.points:,} points{repeats} = {sums.measurements:,} measurements",
        ", ".join(cost),
        *(f"note: {note}" for note in notes(plan)),
    ]
    return "\n".join(lines)


def _hours(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

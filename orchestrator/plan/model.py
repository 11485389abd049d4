"""The plan: every deployment and point of an experiment, fully resolved and frozen. Pure data, exact in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from pydantic import ValidationError

from orchestrator import __version__
from orchestrator.errors import InputError
from orchestrator.plan.identity import measurement_id, seed_of
from orchestrator.spec.experiment import Budget, Isolation
from orchestrator.spec.load import Arrivals, Level, Slo, Workload
from orchestrator.spec.settings import EngineSettings, Hardware, Strict

Status = Literal["planned", "risky", "excluded", "impossible"]
FORMAT: Literal[1] = 1


class Deployment(Strict):
    """One engine configuration. ``planned`` and ``risky`` ones are run, the risky last."""

    id: str
    label: str  # short and unique in the plan: what tells it from its siblings
    settings: EngineSettings  # paths are absolute
    hardware: Hardware
    status: Status
    reasons: tuple[str, ...] = ()
    predicted: dict[str, Any] | None = None  # of plan/feasibility.py: weights, KV tokens, concurrency
    derived: dict[str, Any] = {}

    @property
    def runs(self) -> bool:
        return self.status in ("planned", "risky")

    @property
    def devices(self) -> int:
        """GPUs (cores on cpu) of all replicas; 0 for an endpoint, which we do not hold."""
        return 0 if self.settings.url else self.settings.world_size * self.settings.replicas


class Point(Strict):
    """One load level of one workload on a deployment. Of duration_s and requests one is None."""

    point_id: str
    deployment_id: str
    workload: Workload
    level: Level
    arrivals: Arrivals
    warmup_s: float
    duration_s: float | None = None
    requests: int | None = None
    max_in_flight: int | None = None
    request_timeout_s: float
    drain_timeout_s: float

    @property
    def estimated_s(self) -> float:
        """Seconds of load. A closed loop of so many requests is taken to last a minute: nobody knows before."""
        seconds = self.duration_s
        if seconds is None and self.requests and self.level.control == "request_rate":
            seconds = self.requests / self.level.value
        return self.warmup_s + (60.0 if seconds is None else seconds)


class Measurement(Strict):
    """One repeat of a point. ``seed`` is the same for every deployment, so that they see the same requests."""

    measurement_id: str
    point_id: str
    deployment_id: str
    repeat: int
    seed: int


class Plan(Strict):
    """What a sweep does. Equal experiments on equal engines give equal ids, so running again continues."""

    plan_format: Literal[1] = FORMAT
    program_version: str = __version__
    name: str
    experiment_digest: str  # of the file's text
    deployments: tuple[Deployment, ...]
    points: tuple[Point, ...]  # of the deployments that run
    slos: tuple[Slo, ...] = ()
    budget: Budget | None = None
    isolation: Isolation = "exclusive_node"
    repeats: int = 1
    seed: int = 0
    clients: int | None = None
    notes: tuple[str, ...] = ()

    def runnable(self) -> list[Deployment]:
        """Deployments to run, the risky ones last."""
        return [one for status in ("planned", "risky") for one in self.deployments if one.status == status]

    def deployment(self, deployment_id: str) -> Deployment:
        """Raises KeyError when there is none."""
        return self._deployments[deployment_id]

    def point(self, point_id: str) -> Point:
        """Raises KeyError when there is none."""
        return self._points[point_id]

    def points_of(self, deployment_id: str) -> Sequence[Point]:
        return self._points_of.get(deployment_id, [])

    def measurements(self, deployment_id: str | None = None) -> list[Measurement]:
        """Of one deployment, or of all: every point once, then every point again."""
        points = self.points if deployment_id is None else self.points_of(deployment_id)
        return [self._measurement(point, repeat) for repeat in range(self.repeats) for point in points]

    def _measurement(self, point: Point, repeat: int) -> Measurement:
        seed = seed_of(self.seed, point.workload, point.level, repeat)
        name = measurement_id(point.point_id, repeat, seed)
        return Measurement(
            measurement_id=name, point_id=point.point_id, deployment_id=point.deployment_id, repeat=repeat, seed=seed
        )

    @cached_property
    def _deployments(self) -> Mapping[str, Deployment]:
        return {one.id: one for one in self.deployments}

    @cached_property
    def _points(self) -> Mapping[str, Point]:
        return {point.point_id: point for point in self.points}

    @cached_property
    def _points_of(self) -> Mapping[str, list[Point]]:
        found: dict[str, list[Point]] = {}
        for point in self.points:
            found.setdefault(point.deployment_id, []).append(point)
        return found

    def load_s(self, deployment_id: str) -> float:
        """Seconds of load on one deployment, all repeats; how long its engine takes to start is not known."""
        return self.repeats * sum(point.estimated_s for point in self.points_of(deployment_id))

    def to_json(self) -> str:
        """The frozen plan as text that ``from_json`` turns into an equal plan; values at their default are left out."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps({"plan_format": FORMAT, "program_version": self.program_version, **content}, indent=1) + "\n"

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
